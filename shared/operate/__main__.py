"""`python -m operate check --env prod`: name what would make the deployment of an environment fail."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from operate.account import Account
from operate.assembly import AssemblyMissing, read_assembly
from operate.checks import CHECKS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in ``arguments`` (default: those of the process) and return its exit code: 1 after a finding."""
    parser = argparse.ArgumentParser(prog="python -m operate", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="name what would make the deployment fail; changes nothing", allow_abbrev=False)
    check.add_argument("--env", required=True, help="the environment, e.g. prod")
    check.add_argument("--assembly", type=Path, default=Path("cdk.out"), help="what would be deployed (default: cdk.out)")
    options = parser.parse_args(arguments)
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
