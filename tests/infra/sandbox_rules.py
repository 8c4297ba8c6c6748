"""Rules for the synthesized sandbox. Each yields the violations in a deployment, in words."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from infra.routes import Permission

from .conftest import ROWS, Deployment, Resource, Template, actions_of, function_name

Rule = Callable[[Deployment], Iterator[str]]

MIB_OF_A_CHILD: Final = 512
SECONDS_OF_A_TURN: Final = 120
SECONDS_OF_A_CALLER: Final = 240  # spass/aws/functions.py
PROPERTIES: Final = {
    "Architectures",
    "Code",
    "Description",
    "Handler",
    "MemorySize",
    "Role",
    "Runtime",
    "Tags",
    "TenancyConfig",
    "Timeout",
    "VpcConfig",
}
"""All that the function has: no variables, layers, file systems, logs, snapshots, queues, keys or extensions."""

NETWORK: Final = {
    "AWS::EC2::VPC": 1,
    "AWS::EC2::Subnet": 2,
    "AWS::EC2::RouteTable": 2,
    "AWS::EC2::SubnetRouteTableAssociation": 2,
    "AWS::EC2::NetworkAcl": 1,
    "AWS::EC2::SubnetNetworkAclAssociation": 2,
    "AWS::EC2::SecurityGroup": 1,
}
"""All network resources of a deployment: every gateway, route, endpoint, peering and rule would be a resource of another type."""
NETWORK_SERVICES: Final = ("AWS::EC2::", "AWS::Route53", "AWS::VpcLattice", "AWS::NetworkManager", "AWS::DirectConnect")

# EC2 allows everything if a group has no rule. No packet fits this one, which the CDK adds instead.
NO_EGRESS: Final = {
    "CidrIp": "255.255.255.255/32",
    "Description": "Disallow all traffic",
    "FromPort": 252,
    "IpProtocol": "icmp",
    "ToPort": 86,
}
ATTACHMENT: Final = {
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:UnassignPrivateIpAddresses",
}
"""The actions that AWS documents for the attachment of a function to a VPC."""
DENIAL: Final = {
    "Action": "*",
    "Condition": {
        "ArnLike": {"lambda:SourceFunctionArn": {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, ":lambda:*:*:function:*"]]}}
    },
    "Effect": "Deny",
    "Resource": "*",
}
"""Denies every request that is signed with a function's credentials."""
MAY_MENTION: Final = {"AWS::CloudFormation::Stack", "AWS::CloudWatch::Alarm", "AWS::IAM::Policy", "AWS::Lambda::Function"}
"""The types of resources that may refer to the function. A trigger, URL, version, alias or permission has another type."""


def each_tenant_id_has_a_machine(deployment: Deployment) -> Iterator[str]:
    _, function = deployment.sandbox()
    if function.get("TenancyConfig") != {"TenantIsolationMode": "PER_TENANT"}:
        yield f"tenancy is {function.get('TenancyConfig')}"


def the_function_has_nothing_but_its_code(deployment: Deployment) -> Iterator[str]:
    _, function = deployment.sandbox()
    for name in sorted(function.keys() ^ PROPERTIES):
        yield f"the function has no {name}" if name in PROPERTIES else f"the function has {name}"
    runtime = (function["Handler"], function["Runtime"], function["Architectures"])
    if runtime != ("function.handler", "python3.13", ["arm64"]):
        yield f"it runs as {runtime}"


def it_has_room_and_time_for_a_turn(deployment: Deployment) -> Iterator[str]:
    _, function = deployment.sandbox()
    if function["MemorySize"] < 2 * MIB_OF_A_CHILD:
        yield f"{function['MemorySize']} MiB are too few for a child and its parent"
    if not 1.5 * SECONDS_OF_A_TURN <= function["Timeout"] < SECONDS_OF_A_CALLER:
        yield f"{function['Timeout']} s are too short for the cells of a turn, or longer than the gateway waits"


def only_the_gateway_starts_it(deployment: Deployment) -> Iterator[str]:
    name, _ = deployment.sandbox()
    passed = [one["Properties"]["Parameters"] for _, one in deployment.resources("AWS::CloudFormation::Stack")]
    parameters = [parameter for one in passed for parameter, value in one.items() if f'"{name}"' in json.dumps(value)]
    names = re.compile("|".join(f'"{one}"' for one in (name, *parameters)))
    for template in deployment.templates():
        for user, resource in template["Resources"].items():
            if resource["Type"] not in MAY_MENTION and names.search(json.dumps(resource)):
                yield f"{user} ({resource['Type']}) refers to the function"


def the_network_leads_nowhere(deployment: Deployment) -> Iterator[str]:
    kinds = Counter(one["Type"] for template in deployment.templates() for one in template["Resources"].values())
    # The record of the API's own name opens no network.
    found = {kind: n for kind, n in kinds.items() if kind.startswith(NETWORK_SERVICES) and kind != "AWS::Route53::RecordSet"}
    for kind in sorted(found.keys() | NETWORK.keys()):
        if found.get(kind, 0) != NETWORK.get(kind, 0):
            yield f"{found.get(kind, 0)} resources of type {kind} instead of {NETWORK.get(kind, 0)}"


def the_vpc_has_no_dns_and_no_public_addresses(deployment: Deployment) -> Iterator[str]:
    ((vpc, properties),) = _of_type(deployment, "AWS::EC2::VPC")
    for name in ("EnableDnsSupport", "EnableDnsHostnames"):
        if properties.get(name) is not False:
            yield f"{name} is {properties.get(name)}"
    for name, subnet in _of_type(deployment, "AWS::EC2::Subnet"):
        if subnet["MapPublicIpOnLaunch"] is not False or "Ipv6CidrBlock" in subnet or subnet["VpcId"] != {"Ref": vpc}:
            yield f"{name} is not a closed subnet of the VPC"


def the_function_is_in_the_closed_network(deployment: Deployment) -> Iterator[str]:
    _, function = deployment.sandbox()
    ((group, rules),) = _of_type(deployment, "AWS::EC2::SecurityGroup")
    ((acl, _),) = _of_type(deployment, "AWS::EC2::NetworkAcl")
    subnets = [{"Ref": name} for name, _ in _of_type(deployment, "AWS::EC2::Subnet")]
    expected = {"SecurityGroupIds": [{"Fn::GetAtt": [group, "GroupId"]}], "SubnetIds": subnets}
    if function.get("VpcConfig") != expected:
        yield f"it is attached to {function.get('VpcConfig')}"
    if rules["SecurityGroupEgress"] != [NO_EGRESS] or "SecurityGroupIngress" in rules:
        yield "its security group allows traffic"
    associations = [one for _, one in _of_type(deployment, "AWS::EC2::SubnetNetworkAclAssociation")]
    if associations != [{"NetworkAclId": {"Ref": acl}, "SubnetId": subnet} for subnet in subnets]:
        yield "a subnet does not have the network ACL that drops everything"


def its_role_gives_the_code_no_right(deployment: Deployment) -> Iterator[str]:
    name, function = deployment.sandbox()
    role = function["Role"]["Fn::GetAtt"][0]
    properties = deployment.api["Resources"][role]["Properties"]
    trust = properties["AssumeRolePolicyDocument"]["Statement"]
    if trust != [{"Action": "sts:AssumeRole", "Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}}]:
        yield "others than Lambda may assume its role"
    if "ManagedPolicyArns" in properties:
        yield "its role has a managed policy"
    statements = _inline_statements(properties)
    if DENIAL not in statements:
        yield "its role does not deny the requests of its code"
    for statement in statements:
        if statement["Effect"] == "Allow" and set(actions_of(statement)) != ATTACHMENT:
            yield f"its role allows {actions_of(statement)}"
    for user, resource in deployment.api["Resources"].items():
        if user != name and _contains(resource, lambda value: value in ({"Ref": role}, {"Fn::GetAtt": [role, "Arn"]})):
            yield f"{user} uses its role"


def exactly_the_functions_that_run_code_may_invoke_it(deployment: Deployment) -> Iterator[str]:
    """A role may invoke this function by its ARN alone, and no role may invoke functions by a wildcard."""
    invokers: set[str] = set()
    for template in deployment.templates():
        for role, statement in _statements(template):
            if statement["Effect"] != "Allow" or not _lets_invoke(statement):
                continue
            resources = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            if "*" in json.dumps(resources):
                yield f"{role} may invoke {resources}"
            if any(_is_sandbox(deployment, one, "Arn") for one in resources):
                functions = _functions_with(template, role)
                invokers |= functions
                if not functions:
                    yield f"{role}, which no function has, may invoke it"
    yield from _differences(invokers, Permission.SANDBOX, "may invoke it")


def exactly_the_functions_that_tell_of_it_know_its_name(deployment: Deployment) -> Iterator[str]:
    named: set[str] = set()
    for name, function in deployment.functions().items():
        variables = function["Environment"]["Variables"]
        if variables.get("SPASS_SANDBOX") != "lambda":
            yield f"{name} may run code elsewhere"
        if "SPASS_SANDBOX_FUNCTION" in variables:
            named.add(name)
            if not _is_sandbox(deployment, variables["SPASS_SANDBOX_FUNCTION"], "Ref"):
                yield f"{name} has the name of another function"
    yield from _differences(named, Permission.SANDBOX_NAME, "knows its name")


RULES: Final[tuple[Rule, ...]] = (
    each_tenant_id_has_a_machine,
    the_function_has_nothing_but_its_code,
    it_has_room_and_time_for_a_turn,
    only_the_gateway_starts_it,
    the_network_leads_nowhere,
    the_vpc_has_no_dns_and_no_public_addresses,
    the_function_is_in_the_closed_network,
    its_role_gives_the_code_no_right,
    exactly_the_functions_that_run_code_may_invoke_it,
    exactly_the_functions_that_tell_of_it_know_its_name,
)


def _differences(found: set[str], permission: Permission, verb: str) -> Iterator[str]:
    wanted = {row.function_name for row in ROWS if permission in row.permissions}
    for name in sorted(found - wanted):
        yield f"{name} {verb}, and should not"
    for name in sorted(wanted - found):
        yield f"{name} should, but it is not the case that it {verb}"


def _of_type(deployment: Deployment, kind: str) -> list[tuple[str, Resource]]:
    return [(name, one["Properties"]) for name, one in deployment.resources(kind)]


def _contains(value: object, matches: Callable[[object], bool]) -> bool:
    """Return whether ``value`` or a part of it matches."""
    if matches(value):
        return True
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_contains(part, matches) for part in parts)


def _is_sandbox(deployment: Deployment, value: object, attribute: str) -> bool:
    """Return whether ``value`` is the name (``Ref``) or the ARN (``Arn``) of the function, also as a nested stack's parameter."""
    name, _ = deployment.sandbox()
    own = {"Ref": name} if attribute == "Ref" else {"Fn::GetAtt": [name, attribute]}
    match value:
        case {"Ref": str(parameter)} if parameter.startswith("referenceto"):
            return deployment.argument(parameter) == own
        case _:
            return value == own


def _inline_statements(role: Resource) -> list[dict[str, Any]]:
    return [statement for policy in role.get("Policies", []) for statement in policy["PolicyDocument"]["Statement"]]


def _statements(template: Template) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each statement of each role of a template, with the role's logical id."""
    for name, resource in template["Resources"].items():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::IAM::Role":
            yield from ((name, statement) for statement in _inline_statements(properties))
        elif resource["Type"] in {"AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"}:
            for role in properties["Roles"]:
                yield from ((role["Ref"], statement) for statement in properties["PolicyDocument"]["Statement"])


def _lets_invoke(statement: dict[str, Any]) -> bool:
    return any(fnmatchcase("lambda:InvokeFunction", action) for action in actions_of(statement))


def _functions_with(template: Template, role: str) -> set[str]:
    """Return the names of the functions of a template that have this role."""
    functions = [one["Properties"] for one in template["Resources"].values() if one["Type"] == "AWS::Lambda::Function"]
    return {function_name(one) for one in functions if one["Role"] == {"Fn::GetAtt": [role, "Arn"]}}
