"""`python -m operate`: the commands `check`, before a deployment, and `smoke`, after it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from operate import smoke
from operate.account import Account
from operate.assembly import AssemblyMissing, read_assembly
from operate.checks import CHECKS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in ``arguments`` (default: those of the process) and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m operate", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="name what would make the deployment fail; changes nothing", allow_abbrev=False)
    check.add_argument("--env", required=True, help="the environment, e.g. prod")
    check.add_argument("--assembly", type=Path, default=Path("cdk.out"), help="what would be deployed (default: cdk.out)")
    check.set_defaults(run=_check)
    smoke_test = commands.add_parser("smoke", help=smoke.HELP, allow_abbrev=False)
    smoke.add_arguments(smoke_test)
    smoke_test.set_defaults(run=smoke.main)
    options = parser.parse_args(arguments)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    return code


def _check(options: argparse.Namespace) -> int:
    try:
        assembly = read_assembly(options.assembly, options.env)
        account = Account.of_region(assembly.region)
        print(f"Checking {assembly.environment} in {assembly.region}, account {account.number} ...")
        findings = [finding for find in CHECKS for finding in find(assembly, account)]
    except AssemblyMissing as error:
        findings = [str(error)]
    except (BotoCoreError, ClientError) as error:
        findings = [f"AWS did not answer, so not everything was checked: {error}"]
    for finding in findings:
        print(f"- {finding}")
    if not findings:
        print("Nothing was found that would make the deployment fail.")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
