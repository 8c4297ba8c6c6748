"""Compare a kept assembly with what is deployed, before an operator goes back to it."""

from collections.abc import Iterator
from typing import Final

from operate.account import Account
from operate.assembly import Assembly, has_body, variables
from operate.check_account import find_missing_bootstrap, find_other_account
from operate.checks import Check, Finding

_STORED: Final = ("SPASS_TABLE", "SPASS_BUCKET")


def find_api_of_the_old_form(assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Refuse an API of single objects in place of a body."""
    if has_body(account.deployed(assembly.api.name)) and not has_body(assembly.api.templates):
        yield Finding(
            "This release is older than the API as one body, and the deployed API is one body.",
            "CloudFormation would create the old methods and paths a second time, and API Gateway refuses them (decision 030).",
            "Go back to a later release, or mend the route that is wrong with a new one.",
        )


def find_other_stored_data(assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Refuse a release that names another table or bucket than the deployed one: a restore has changed the names since."""
    deployed = account.deployed(assembly.api.name)
    for variable in _STORED:
        then, now = variables(assembly.api.templates, variable), variables(deployed, variable)
        if then != now:
            yield Finding(
                f"This release has the {variable} {_names(then)}, and the deployed one {_names(now)}.",
                "What was written since the restore would not be found, and new writes would go to the old place.",
                "Release its commit again with today's environments.yaml: git checkout, then make release",
            )


CHECKS: Final = (
    Check(find_other_account, "the account", fails=True),
    Check(find_missing_bootstrap, "the CDK's bootstrap stacks", fails=True),
    Check(find_api_of_the_old_form, "the deployed API", fails=True),
    Check(find_other_stored_data, "the deployed functions", fails=True),
)
"""The checks before going back. The others passed when the release was deployed, and must not delay an operator now."""


def _names(values: set[str]) -> str:
    return ", ".join(sorted(values)) or "none"
