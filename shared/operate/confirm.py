"""Ask before something is changed."""

from spass.cli.terminal import write


def is_confirmed() -> bool:
    """Return True if the operator answers yes. Without a terminal nobody answers."""
    try:
        if input("Continue? [y/N] ").strip().lower() in ("y", "yes"):
            return True
    except EOFError:
        write("\n")
    write("Nothing was changed. Answer y, or use --yes.\n")
    return False
