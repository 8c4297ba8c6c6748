"""Ways to break the synthesized sandbox, each with the rule that must notice it."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from . import sandbox_rules as rules
from .conftest import Deployment, Resource

Break = Callable[[Deployment], object]


_ARN: Final = {"Fn::GetAtt": ["FUNCTION", "Arn"]}
_TRUST_ANYBODY: Final = {"Statement": [{"Action": "sts:AssumeRole", "Effect": "Allow", "Principal": {"AWS": "*"}}]}
_EVERYTHING: Final = [{"CidrIp": "0.0.0.0/0", "IpProtocol": "-1"}]


def _function(deployment: Deployment) -> Resource:
    return deployment.sandbox()[1]


def _set(**properties: Any) -> Break:
    """Return a change of the function's properties. None removes one."""

    def change(deployment: Deployment) -> None:
        for name, value in properties.items():
            _function(deployment).pop(name, None)
            if value is not None:
                _function(deployment)[name] = value

    return change


def _add(kind: str, **properties: Any) -> Break:
    """Return the addition of a resource to the stack of the sandbox."""

    def change(deployment: Deployment) -> None:
        name, _ = deployment.sandbox()
        text = json.dumps({"Type": kind, "Properties": properties}).replace("FUNCTION", name)
        deployment.api["Resources"]["Added"] = json.loads(text)

    return change


def _add_to_surface(kind: str, **properties: Any) -> Break:
    def change(deployment: Deployment) -> None:
        template = next(one for one in deployment.nested() if "sandbox" in json.dumps(one["Resources"]).lower())
        (parameter,) = [name for name in template["Parameters"] if "Sandbox" in name and name.endswith("Arn")]
        text = json.dumps({"Type": kind, "Properties": properties}).replace("PARAMETER", parameter)
        template["Resources"]["Added"] = json.loads(text)

    return change


def _set_in(kind: str, **properties: Any) -> Break:
    """Return a change of the first resource of this type."""

    def change(deployment: Deployment) -> None:
        resource = next(one for _, one in deployment.resources(kind))
        resource["Properties"] |= properties

    return change


def _role(deployment: Deployment) -> Resource:
    properties: Resource = deployment.api["Resources"][_function(deployment)["Role"]["Fn::GetAtt"][0]]["Properties"]
    return properties


def _statements(deployment: Deployment) -> list[dict[str, Any]]:
    (policy,) = _role(deployment)["Policies"]
    statements: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return statements


def _allow(*actions: str) -> Break:
    statement = {"Action": list(actions), "Effect": "Allow", "Resource": "*"}
    return lambda deployment: _statements(deployment).append(statement)


def _change_denial(**parts: Any) -> Break:
    return lambda deployment: _statements(deployment)[1].update(parts)


def _attach_policy(kind: str) -> Break:
    def change(deployment: Deployment) -> None:
        role = _function(deployment)["Role"]["Fn::GetAtt"][0]
        statement = {"Action": "s3:GetObject", "Effect": "Allow", "Resource": "*"}
        properties = {"PolicyDocument": {"Statement": [statement]}, "Roles": [{"Ref": role}]}
        deployment.api["Resources"]["Added"] = {"Type": kind, "Properties": properties}

    return change


def _share_role(deployment: Deployment) -> None:
    role = _function(deployment)["Role"]
    deployment.api["Resources"]["Added"] = {"Type": "AWS::Lambda::Function", "Properties": {"Role": role, "Tags": [_tag("x")]}}


def _tag(name: str) -> dict[str, str]:
    return {"Key": "spass:function", "Value": name}


def _grants(deployment: Deployment, function: str) -> list[dict[str, Any]]:
    return [one for one in deployment.statements(function) if "lambda:InvokeFunction" in one["Action"]]


def _let_invoke(function: str, resource: Any) -> Break:
    """Return a change that lets the role of ``function`` invoke ``resource``, or what another function may invoke."""

    def change(deployment: Deployment) -> None:
        statement = {"Action": "lambda:InvokeFunction", "Effect": "Allow", "Resource": resource}
        if resource == "SANDBOX":
            statement["Resource"] = {"Fn::GetAtt": [deployment.sandbox()[0], "Arn"]}
        role = deployment.functions()[function]["Role"]["Fn::GetAtt"][0]
        template = next(one for one in deployment.nested() if role in one["Resources"])
        template["Resources"]["Added"] = {
            "Type": "AWS::IAM::Policy",
            "Properties": {"PolicyDocument": {"Statement": [statement]}, "Roles": [{"Ref": role}]},
        }

    return change


def _forbid(function: str) -> Break:
    def change(deployment: Deployment) -> None:
        for statement in _grants(deployment, function):
            statement["Action"] = "lambda:GetFunction"

    return change


def _set_variable(function: str, name: str, value: Any) -> Break:
    def change(deployment: Deployment) -> None:
        variables = deployment.functions()[function]["Environment"]["Variables"]
        variables.pop(name, None)
        if value is not None:
            variables[name] = value

    return change


# Every other way out of a network is a resource of its own.
_WAYS_OUT: Final = (
    "EC2::DHCPOptions",
    "EC2::EgressOnlyInternetGateway",
    "EC2::InternetGateway",
    "EC2::NatGateway",
    "EC2::NetworkAclEntry",
    "EC2::Route",
    "EC2::SecurityGroup",
    "EC2::SecurityGroupEgress",
    "EC2::SecurityGroupIngress",
    "EC2::Subnet",
    "EC2::TransitGatewayAttachment",
    "EC2::VPCCidrBlock",
    "EC2::VPCEndpoint",
    "EC2::VPCGatewayAttachment",
    "EC2::VPCPeeringConnection",
    "EC2::VPNGateway",
    "Route53Resolver::ResolverRule",
    "VpcLattice::ServiceNetworkVpcAssociation",
)

BREAKS: Final[Mapping[rules.Rule, Mapping[str, Break]]] = {
    rules.each_tenant_id_has_a_machine: {
        "no tenant mode": _set(TenancyConfig=None),
        "another mode": _set(TenancyConfig={"TenantIsolationMode": "SHARED"}),
    },
    rules.the_function_has_nothing_but_its_code: {
        "no tenant mode": _set(TenancyConfig=None),
        "no vpc": _set(VpcConfig=None),
        "variables": _set(Environment={"Variables": {"SPASS_TABLE": "t"}}),
        "layers": _set(Layers=["arn"]),
        "snapshots": _set(SnapStart={"ApplyOn": "PublishedVersions"}),
        "files": _set(FileSystemConfigs=[{"Arn": "a", "LocalMountPath": "/mnt/x"}]),
        "a log group": _set(LoggingConfig={"LogGroup": "g"}),
        "traces": _set(TracingConfig={"Mode": "Active"}),
        "a dead-letter queue": _set(DeadLetterConfig={"TargetArn": "a"}),
        "reserved concurrency": _set(ReservedConcurrentExecutions=5),
        "another handler": _set(Handler="functions.ask.create.handler"),
        "another Python": _set(Runtime="python3.9"),
        "another processor": _set(Architectures=["x86_64"]),
    },
    rules.it_has_room_and_time_for_a_turn: {
        "memory of the child alone": _set(MemorySize=512),
        "a short timeout": _set(Timeout=60),
        "a timeout longer than the gateway waits": _set(Timeout=900),
    },
    rules.only_the_gateway_starts_it: {
        "a URL": _add("AWS::Lambda::Url", TargetFunctionArn=_ARN, AuthType="NONE"),
        "a queue": _add("AWS::Lambda::EventSourceMapping", FunctionName={"Ref": "FUNCTION"}),
        "anybody": _add("AWS::Lambda::Permission", FunctionName=_ARN, Principal="*"),
        "a version": _add("AWS::Lambda::Version", FunctionName={"Ref": "FUNCTION"}),
        "a clock": _add("AWS::Scheduler::Schedule", Target={"Arn": _ARN}),
        "a route": _add_to_surface("AWS::Lambda::Permission", FunctionName={"Ref": "PARAMETER"}, Principal="*"),
    },
    rules.the_network_leads_nowhere: {kind: _add(f"AWS::{kind}") for kind in _WAYS_OUT},
    rules.the_vpc_has_no_dns_and_no_public_addresses: {
        "DNS": _set_in("AWS::EC2::VPC", EnableDnsSupport=True),
        "host names": _set_in("AWS::EC2::VPC", EnableDnsHostnames=True),
        "public addresses": _set_in("AWS::EC2::Subnet", MapPublicIpOnLaunch=True),
        "IPv6": _set_in("AWS::EC2::Subnet", Ipv6CidrBlock="2001:db8::/64"),
        "another VPC": _set_in("AWS::EC2::Subnet", VpcId="vpc-1"),
    },
    rules.the_function_is_in_the_closed_network: {
        "no vpc": _set(VpcConfig=None),
        "another network": _set(VpcConfig={"SecurityGroupIds": ["sg-1"], "SubnetIds": ["subnet-1"]}),
        "a second group": lambda deployment: _function(deployment)["VpcConfig"]["SecurityGroupIds"].append("sg-1"),
        "IPv6": lambda deployment: _function(deployment)["VpcConfig"].update(Ipv6AllowedForDualStack=True),
        "egress": _set_in("AWS::EC2::SecurityGroup", SecurityGroupEgress=_EVERYTHING),
        "no rule, which EC2 reads as all": _set_in("AWS::EC2::SecurityGroup", SecurityGroupEgress=[]),
        "ingress": _set_in("AWS::EC2::SecurityGroup", SecurityGroupIngress=_EVERYTHING),
        "the default ACL": _set_in("AWS::EC2::SubnetNetworkAclAssociation", NetworkAclId="acl-1"),
    },
    rules.its_role_gives_the_code_no_right: {
        "a right": _allow("s3:GetObject"),
        "all of EC2": _allow("ec2:*"),
        "logs": _allow("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"),
        "no denial": lambda deployment: _statements(deployment).pop(),
        "a denial of one action": _change_denial(Action="ec2:CreateNetworkInterface"),
        "a denial of one resource": _change_denial(Resource="arn:aws:s3:::b"),
        "an allowance": _change_denial(Effect="Allow"),
        "a denial for another function": _change_denial(
            Condition={"ArnLike": {"lambda:SourceFunctionArn": "arn:aws:lambda:eu-central-1:1:function:other"}}
        ),
        "a managed policy": lambda deployment: _role(deployment).update(ManagedPolicyArns=["arn:aws:iam::aws:policy/ReadOnly"]),
        "a role for anybody": lambda deployment: _role(deployment).update(AssumeRolePolicyDocument=_TRUST_ANYBODY),
        "another policy": _attach_policy("AWS::IAM::Policy"),
        "another managed policy": _attach_policy("AWS::IAM::ManagedPolicy"),
        "a second function": _share_role,
    },
    rules.exactly_the_functions_that_run_code_may_invoke_it: {
        "kinds": _let_invoke("kinds-list", "SANDBOX"),
        "uploads": _let_invoke("rag-uploads-create", "SANDBOX"),
        "every function": _let_invoke("ask-create", "*"),
        "every function of the account": _let_invoke("sessions-get", "arn:aws:lambda:*:*:function:*"),
        "not ask": _forbid("ask-create"),
        "not the sweep": _forbid("worker-sweep"),
    },
    rules.exactly_the_functions_that_tell_of_it_know_its_name: {
        "code in the gateway's own functions": _set_variable("ask-create", "SPASS_SANDBOX", "process"),
        "any launcher": _set_variable("rag-query", "SPASS_SANDBOX", None),
        "no name": _set_variable("tools-execute", "SPASS_SANDBOX_FUNCTION", None),
        "another name": _set_variable("kinds-list", "SPASS_SANDBOX_FUNCTION", "other"),
        "a name too many": _set_variable("usage-get", "SPASS_SANDBOX_FUNCTION", "other"),
    },
}
"""The changes that each rule must notice."""
