"""What would make a deployment fail. Each check yields its findings in words, with what to do."""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from operate.account import Account
from operate.assembly import Assembly

Check: TypeAlias = Callable[[Assembly, Account], Iterator[str]]

_API_OBJECTS: Final = frozenset({"AWS::ApiGateway::GatewayResponse", "AWS::ApiGateway::Method", "AWS::ApiGateway::Resource"})


def the_account_is_the_one_of_the_environment(assembly: Assembly, account: Account) -> Iterator[str]:
    """Check the number of the account, if the environment has one."""
    if assembly.account not in (None, account.number):
        yield f"The credentials are of account {account.number}, but {assembly.environment} belongs to {assembly.account}."


def the_account_is_prepared_for_the_cdk(assembly: Assembly, account: Account) -> Iterator[str]:
    """Check the version of the CDK's bootstrap stack."""
    version = account.parameter(assembly.bootstrap_parameter)
    if version is None or int(version) < assembly.bootstrap:
        found = "no bootstrap stack" if version is None else f"version {version} of the bootstrap stack"
        yield (
            f"{assembly.region} has {found} of the CDK, and the deployment needs version {assembly.bootstrap}. "
            "Run: make cdk ARGS=bootstrap"
        )


def the_objects_of_the_api_are_retained_before_its_body(assembly: Assembly, account: Account) -> Iterator[str]:
    """Refuse a body while CloudFormation would delete the API's old objects by their ids, which may be parts of the new API."""
    apis = [one for one in assembly.api["Resources"].values() if one["Type"] == "AWS::ApiGateway::RestApi"]
    if not any("Body" in api["Properties"] for api in apis):
        return
    lost = sum(
        resource["Type"] in _API_OBJECTS and resource.get("DeletionPolicy") != "Retain"
        for template in account.templates(assembly.api_stack)
        for resource in template["Resources"].values()
    )
    if lost:
        yield (
            f"CloudFormation would remove {lost} methods, paths and refusals of {assembly.api_stack} from the new API. First "
            "deploy the last commit of the old form with -c api=retain: see 'Upgrade' in docs/deploying.md"
        )


CHECKS: Final[tuple[Check, ...]] = (
    the_account_is_the_one_of_the_environment,
    the_account_is_prepared_for_the_cdk,
    the_objects_of_the_api_are_retained_before_its_body,
)
