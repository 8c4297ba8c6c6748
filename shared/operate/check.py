"""`python -m operate check --env ENV`: name what would make a deployment fail, or surprise its operator."""

import argparse
from pathlib import Path
from typing import Final

from operate import check_account, check_settings
from operate.account import Account, AccountUnreadable
from operate.assembly import AssemblyMissing, read_assembly
from operate.checks import Check, Finding, run_checks
from spass.cli.terminal import prepare, write

HELP: Final = "name what would make the deployment fail or surprise you; changes nothing"

CHECKS: Final = (
    Check(check_account.find_other_account, "the account", fails=True),
    Check(check_account.find_missing_bootstrap, "the CDK's bootstrap stacks", fails=True),
    Check(check_account.find_objects_of_the_old_api, "the deployed API", fails=True),
    Check(check_account.find_too_few_functions_to_reserve, "the concurrency that is left to reserve", fails=True),
    Check(check_account.find_too_few_functions, "the account's concurrency", fails=False),
    Check(check_account.find_large_functions, "the memory of functions", fails=False),
    Check(check_account.find_too_few_networks, "the number of VPCs and its quota", fails=True),
    Check(check_account.find_replaced_logging_role, "API Gateway's logging role", fails=False),
    Check(check_account.find_unreadable_layers, "layers of other accounts", fails=True),
    Check(check_account.find_old_layers, "newer layers of other accounts", fails=False),
    Check(check_settings.find_other_release, "the checkout", fails=False),
    Check(check_settings.find_no_tenant, "the bundled gateway.yaml", fails=False),
    Check(check_settings.find_missing_keys, "the names of the provider keys in SSM", fails=False),
    Check(check_settings.find_unusable_certificate, "the certificate of the domain", fails=True),
    Check(check_settings.find_refused_spans, "X-Ray's Transaction Search", fails=False),
    Check(check_settings.find_inactive_tag, "the tags that billing counts by", fails=False),
    Check(check_settings.find_missing_headers, "the name of the parameter of traces", fails=False),
    Check(check_settings.find_disabled_copies, "the settings of AWS Backup", fails=False),
    Check(check_settings.find_left_vaults, "the vaults of AWS Backup", fails=True),
)


_DESCRIPTION: Final = """Compare an assembly with the account of the credentials, which needs only rights to read. Each finding
says what is wrong, why it matters and what to do. What the credentials may not read is a finding too. No value of a secret is
read. The exit status is 1 if the deployment would fail."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("--env", required=True, help="the environment, e.g. prod")
    parser.add_argument("--assembly", type=Path, default=Path("cdk.out"), help="what would be deployed (default: cdk.out)")


def main(options: argparse.Namespace) -> int:
    """Print the findings and return the exit status: 1 if the deployment would fail."""
    prepare()
    try:
        assembly = read_assembly(options.assembly, options.env)
        account = Account.of_region(assembly.region)
    except (AssemblyMissing, AccountUnreadable) as error:
        write(f"{error}\n")
        return 1
    write(f"Checking {assembly.environment} in {assembly.region}, account {account.number} ...\n")
    return 1 if report([*run_checks(CHECKS, assembly, account)]) else 0


def report(findings: list[Finding]) -> bool:
    """Print these findings, errors first, and return True if one of them is an error."""
    for finding in sorted(findings, key=lambda one: not one.fails):
        write(f"{finding}\n")
    errors = sum(finding.fails for finding in findings)
    if errors:
        write(f"The deployment would fail: {errors} errors, {len(findings) - errors} warnings.\n")
    else:
        write(f"Nothing was found that would make the deployment fail; {len(findings)} warnings.\n")
    return errors > 0
