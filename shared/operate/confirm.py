"""Ask the operator before a command changes something."""

from spass.cli.terminal import write


def is_confirmed() -> bool:
    """Return True if the operator answers yes. Return False without a terminal."""
    try:
        if input("Continue? [y/N] ").strip().lower() in ("y", "yes"):
            return True
    except EOFError:
        write("\n")
    write("Nothing was changed. Answer y, or use --yes.\n")
    return False
