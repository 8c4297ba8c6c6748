"""`python -m operate`: the commands with which an operator checks, deploys, tries and restores a gateway."""

import argparse
import sys
from collections.abc import Sequence

from operate import check, release, restore, smoke


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in ``arguments`` (default: those of the process) and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m operate", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser("check", help=check.HELP, allow_abbrev=False)
    check.add_arguments(checks)
    checks.set_defaults(run=check.main)
    smoke_test = commands.add_parser("smoke", help=smoke.HELP, allow_abbrev=False)
    smoke.add_arguments(smoke_test)
    smoke_test.set_defaults(run=smoke.main)
    release_command = commands.add_parser("release", help=release.HELP, allow_abbrev=False)
    release.add_arguments(release_command)
    release_command.set_defaults(run=release.main)
    restoring = commands.add_parser("restore", help=restore.HELP, allow_abbrev=False)
    restore.add_arguments(restoring)
    restoring.set_defaults(run=restore.main)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
