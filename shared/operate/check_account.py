"""Compare what the account has, and may have, with what the deployment needs."""

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from botocore.exceptions import ClientError

from operate.account import Account
from operate.assembly import Assembly, has_body, resources
from operate.checks import Finding

_API_OBJECTS: Final = ("AWS::ApiGateway::GatewayResponse", "AWS::ApiGateway::Method", "AWS::ApiGateway::Resource")
_FUNCTION: Final = "AWS::Lambda::Function"
_UNRESERVED: Final = 100
"""The concurrency that Lambda keeps for functions without a reservation."""
_NEW_ACCOUNT_MIB: Final = 3008
_VPCS: Final = {"ServiceCode": "vpc", "QuotaCode": "L-F678F1CE"}
_UNREADABLE_LAYER: Final = frozenset({"AccessDeniedException", "ResourceNotFoundException"})
_QUOTAS: Final = "In Service Quotas, ask for"

Findings: TypeAlias = Iterator[Finding]


def find_other_account(assembly: Assembly, account: Account) -> Findings:
    """Compare the number of the account, if the environment has one."""
    if assembly.account not in (None, account.number):
        yield Finding(
            f"The credentials are of account {account.number}, but {assembly.environment} belongs to {assembly.account}.",
            "The CDK deploys an environment into its own account only.",
            "Use credentials of that account, or change account in environments.yaml.",
        )


def find_missing_bootstrap(assembly: Assembly, account: Account) -> Findings:
    """Read the version of the CDK's bootstrap stack in each region that gets a stack."""
    for region, stack in {stack.region: stack for stack in assembly.stacks}.items():
        version = account.parameter(stack.bootstrap_parameter, region)
        if version is None or int(version) < stack.bootstrap:
            found = "no bootstrap stack" if version is None else f"version {version} of the bootstrap stack"
            yield Finding(
                f"{region} has {found} of the CDK.",
                f"The stack {stack.name} needs version {stack.bootstrap}, which has the bucket and the roles of a deployment.",
                f"Run: make cdk ARGS='bootstrap aws://{account.number}/{region}'",
            )


def find_objects_of_the_old_api(assembly: Assembly, account: Account) -> Findings:
    """Refuse a body while CloudFormation would delete the API's old objects by their ids, which may be parts of the new API."""
    if not has_body(assembly.api.templates):
        return
    lost = sum(
        resource["Type"] in _API_OBJECTS and resource.get("DeletionPolicy") != "Retain"
        for template in account.deployed(assembly.api.name)
        for resource in template["Resources"].values()
    )
    if lost:
        yield Finding(
            f"CloudFormation would remove {lost} methods, paths and refusals of {assembly.api.name} from the new API.",
            "It deletes them by their ids, which may be those of parts of the new API.",
            "First deploy the last commit of the old form with -c api=retain: see 'Upgrade' in docs/deploying.md",
        )


def find_too_few_functions_to_reserve(assembly: Assembly, account: Account) -> Findings:
    """Compare the concurrency that functions reserve with what the account has left, apart from what this stack has reserved."""
    needed = _reserved(assembly.api.templates)
    if not needed:
        return
    own = _reserved(account.deployed(assembly.api.name))
    left = account.call("lambda", "get_account_settings")["AccountLimit"]["UnreservedConcurrentExecutions"] + own - needed
    if left < _UNRESERVED:
        yield Finding(
            f"{assembly.environment} reserves {needed} concurrent functions, which leaves {max(left, 0)} of the account's.",
            f"Lambda requires that {_UNRESERVED} remain, and refuses the reservation. A new account has 10 functions at once.",
            f"{_QUOTAS} {_UNRESERVED - left} more 'Concurrent executions' of Lambda, or lower followers and compaction_steps.",
        )


def find_too_few_functions(assembly: Assembly, account: Account) -> Findings:
    """Compare the concurrency of the account with that of the queues' workers and of the reservations."""
    limit = account.call("lambda", "get_account_settings")["AccountLimit"]["ConcurrentExecutions"]
    sources = resources(assembly.api.templates, "AWS::Lambda::EventSourceMapping")
    workers = sum(source.get("ScalingConfig", {}).get("MaximumConcurrency", 0) for source in sources)
    if limit <= (needed := workers + _reserved(assembly.api.templates)):
        yield Finding(
            f"The account runs {limit} functions at once, and files, runs and compactions alone may take {needed}.",
            "Each request, stream and follower takes one as well. Beyond the limit API Gateway answers 429 or 500.",
            f"{_QUOTAS} 1,000 'Concurrent executions' of Lambda, which AWS grants without a charge.",
        )


def find_large_functions(assembly: Assembly, _: Account) -> Findings:
    """Compare the memory of the functions with that of a new account. No call tells the limit of this one."""
    largest = max((function.get("MemorySize", 0) for function in assembly.resources(_FUNCTION)), default=0)
    if largest > _NEW_ACCOUNT_MIB:
        yield Finding(
            f"A function has {largest} MB of memory. A new account allows {_NEW_ACCOUNT_MIB:,} MB, and no call tells the limit.",
            "Lambda refuses to create a larger function.",
            "Ask AWS's support for more memory if the deployment is refused.",
        )


def find_too_few_networks(assembly: Assembly, account: Account) -> Findings:
    """Count the VPCs of the region if the deployment adds one, for the sandbox."""
    added = len([*assembly.resources("AWS::EC2::VPC")])
    if not added or [*resources(account.deployed(assembly.api.name), "AWS::EC2::VPC")]:
        return
    found = len([*account.items("ec2", "describe_vpcs", "Vpcs")])
    limit = int(account.call("service-quotas", "get_service_quota", _VPCS)["Quota"]["Value"])
    if found + added > limit:
        yield Finding(
            f"{assembly.region} has {found} VPCs of {limit}, and the sandbox needs one of its own.",
            "EC2 refuses to create another one.",
            f"{_QUOTAS} more 'VPCs per Region', or remove one that nothing uses.",
        )


def find_replaced_logging_role(assembly: Assembly, account: Account) -> Findings:
    """Read the role with which API Gateway writes logs. It is one for all APIs of the account and region."""
    if not [*assembly.resources("AWS::ApiGateway::Account")]:
        return
    role = account.call("apigateway", "get_account").get("cloudwatchRoleArn")
    if role and "role/Spass-" not in role:
        yield Finding(
            f"API Gateway writes logs with the role {role}, which the deployment replaces.",
            "The role is a setting of the account and region, so other APIs log with the new one, also after a removal.",
            "Nothing, if the other APIs may log with a role of AWS's policy AmazonAPIGatewayPushToCloudWatchLogs.",
        )


def find_unreadable_layers(assembly: Assembly, account: Account) -> Findings:
    """Read the layers of other accounts: the web adapter, with which functions stream."""
    for layer in _foreign_layers(assembly, account):
        if code := _refusal(account, layer):
            yield Finding(
                f"The layer {layer} cannot be read ({code}).",
                "A function with it cannot be created. AWS answers so where the region has no such layer, too.",
                "Allow lambda:GetLayerVersion to these credentials, or choose a region that has the layer.",
            )


def find_old_layers(assembly: Assembly, account: Account) -> Findings:
    """Look for the next version of a layer: AWS does not list the versions of another account's."""
    for layer in _foreign_layers(assembly, account):
        name, _, version = layer.rpartition(":")
        if _refusal(account, newer := f"{name}:{int(version) + 1}") is None:
            yield Finding(
                f"The layer {layer} is old: there is {newer}.",
                "An old web adapter may lack fixes by AWS.",
                "Take a release with the newer one. A version is tried before it is pinned.",
            )


def _reserved(templates: tuple[dict[str, Any], ...]) -> int:
    return sum(function.get("ReservedConcurrentExecutions", 0) for function in resources(templates, _FUNCTION))


def _foreign_layers(assembly: Assembly, account: Account) -> list[str]:
    partition = account.session.get_partition_for_region(assembly.region)
    named = [layer for function in assembly.resources(_FUNCTION) for layer in function.get("Layers", [])]
    joined = [
        "".join(part if isinstance(part, str) else partition for part in one["Fn::Join"][1]) for one in named if "Fn::Join" in one
    ]
    return sorted({*joined})


def _refusal(account: Account, layer: str) -> str | None:
    """Return the code with which Lambda refuses to describe a layer, or None if it does."""
    try:
        account.call("lambda", "get_layer_version_by_arn", {"Arn": layer})
    except ClientError as error:
        code: str = error.response["Error"]["Code"]
        if code in _UNREADABLE_LAYER:
            return code
        raise
    return None
