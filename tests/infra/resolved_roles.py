"""Every role of a deployment, with its policies as AWS gets them: without references to other resources and stacks."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.constructs.function import TAG

from .conftest import Deployment, Resource, Template, function_name, tags
from .iam import NotSupported, Statement

ACCOUNT: Final = "111122223333"
_PSEUDO: Final = {"AWS::Partition": "aws", "AWS::AccountId": ACCOUNT, "AWS::URLSuffix": "amazonaws.com"}
# The part of an ARN between the account and the name. What has no entry has no ARN in our policies.
_KINDS: Final = {
    "AWS::IAM::Role": ("iam", "role/"),
    "AWS::KMS::Key": ("kms", "key/"),
    "AWS::KinesisFirehose::DeliveryStream": ("firehose", "deliverystream/"),
    "AWS::Lambda::Function": ("lambda", "function:"),
    "AWS::Logs::LogGroup": ("logs", "log-group:"),
    "AWS::SQS::Queue": ("sqs", ""),
    "AWS::Scheduler::ScheduleGroup": ("scheduler", "schedule-group/"),
    "AWS::StepFunctions::StateMachine": ("states", "stateMachine:"),
}
_GLOBAL: Final = {"iam"}
_ROLE: Final = {"AssumeRolePolicyDocument", "Description", "ManagedPolicyArns", "Policies", "Tags"}
_POLICY: Final = {"PolicyDocument", "PolicyName", "Roles"}


@dataclass(frozen=True, slots=True)
class Role:
    """A role. ``functions`` are the names of the functions that have it, and ``twin`` is the ARN of the role that they assume.
    ``twin_of`` are the names of the functions that assume this one. ``name`` is that of its stack and its logical id.
    ``managed`` are the names of AWS's own policies that it has, whose statements we do not know."""

    name: str
    arn: str
    trust: tuple[Statement, ...]
    statements: tuple[Statement, ...]
    functions: frozenset[str]
    twin: str | None
    twin_of: frozenset[str]
    managed: frozenset[str]


class Resolver:
    """The values of a deployment. Resources are named for their stack and logical id."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        nested = {"jobs": deployment.jobs, "permissions": deployment.permissions, "subscriptions": deployment.subscriptions}
        surfaces = {str(surface): template for surface, template in deployment.surfaces.items()}
        self._stacks: dict[str, Template] = {"data": deployment.data, "api": deployment.api, **nested, **surfaces}

    @property
    def region(self) -> str:
        return self._deployment.environment.region

    def roles(self) -> list[Role]:
        """Return the roles of all stacks. Raise ``NotSupported`` if they could have rights that are not read here."""
        for template in self._stacks.values():
            _check(template)
        return [
            self._role(stack, logical_id, one["Properties"])
            for stack, template in self._stacks.items()
            for logical_id, one in template["Resources"].items()
            if one["Type"] == "AWS::IAM::Role"
        ]

    def allowing_resources(self) -> Iterator[tuple[str, Any]]:
        """Yield the type of each resource whose own policy allows something, and whom."""
        for stack, template in self._stacks.items():
            for one in template["Resources"].values():
                if not one["Type"].startswith("AWS::IAM::"):
                    for statement in _allowances(one.get("Properties", {})):
                        yield one["Type"], self.value(stack, statement["Principal"])

    def exported(self, name: str) -> str:
        """Return the value that the data stack exports under this name, without that of the environment."""
        return self._imported(f"spass-{self._deployment.environment.name}-{name}")

    def variable(self, name: str) -> str:
        """Return the value of an environment variable that all functions have."""
        (value,) = {
            self.value(stack, one["Properties"]["Environment"]["Variables"][name])
            for stack, template in self._stacks.items()
            for one in template["Resources"].values()
            if one["Type"] == "AWS::Lambda::Function" and "Environment" in one["Properties"]
        }
        return str(value)

    def arn(self, function: str) -> str:
        """Return the ARN of a function by its name in ROUTES or WORKERS, or of the sandbox."""
        return self._tagged("AWS::Lambda::Function", function)

    def log_group(self, function: str) -> str:
        """Return the ARN of the log group of a function."""
        return self._tagged("AWS::Logs::LogGroup", function)

    def resources(self, kind: str) -> Iterator[str]:
        """Yield the ARN of each resource of this type."""
        for stack, template in self._stacks.items():
            for logical_id, one in template["Resources"].items():
                if one["Type"] == kind:
                    yield self._arn(stack, logical_id, one)

    def value(self, stack: str, value: Any) -> Any:
        """Return a value of a stack's template with every reference resolved."""
        match value:
            case str() | bool() | int():
                return value
            case list():
                return [self.value(stack, one) for one in value]
            case {"Ref": str(name)}:
                return self._referenced(stack, name)
            case {"Fn::GetAtt": [str(name), "Arn"]}:
                return self._arn(stack, name, self._stacks[stack]["Resources"][name])
            case {"Fn::GetAtt": [str(), str()]}:
                return self._output(value)
            case {"Fn::Join": [str(separator), list(parts)]}:
                return separator.join(self.value(stack, part) for part in parts)
            case {"Fn::ImportValue": str(name)}:
                return self._imported(name)
            case dict() if not any(name == "Ref" or name.startswith("Fn::") for name in value):
                return {name: self.value(stack, one) for name, one in value.items()}
        raise TypeError(f"not resolved: {value}")

    def _role(self, stack: str, logical_id: str, properties: Resource) -> Role:
        resources = self._stacks[stack]["Resources"].values()
        documents = [one["PolicyDocument"] for one in properties.get("Policies", [])]
        documents += [
            one["Properties"]["PolicyDocument"]
            for one in resources
            if one["Type"] == "AWS::IAM::Policy" and {"Ref": logical_id} in one["Properties"]["Roles"]
        ]
        arn = {"Fn::GetAtt": [logical_id, "Arn"]}
        functions = [one["Properties"] for one in resources if one["Type"] == "AWS::Lambda::Function"]
        mine = [one for one in functions if one["Role"] == arn]
        assumed = {json.dumps(_assumed(one)) for one in mine} - {"null"}
        return Role(
            f"{stack}/{logical_id}",
            self.value(stack, arn),
            self._statements(stack, properties["AssumeRolePolicyDocument"]),
            tuple(statement for document in documents for statement in self._statements(stack, document)),
            frozenset(map(function_name, mine)),
            self.value(stack, json.loads(assumed.pop())) if assumed else None,
            frozenset(function_name(one) for one in functions if _assumed(one) == arn),
            frozenset(self.value(stack, one).rpartition("/")[2] for one in properties.get("ManagedPolicyArns", [])),
        )

    def _statements(self, stack: str, document: Mapping[str, Any]) -> tuple[Statement, ...]:
        return tuple(self.value(stack, document["Statement"]))

    def _tagged(self, kind: str, function: str) -> str:
        (found,) = [
            self._arn(stack, logical_id, one)
            for stack, template in self._stacks.items()
            for logical_id, one in template["Resources"].items()
            if one["Type"] == kind and tags(one["Properties"]).get(TAG) == function
        ]
        return found

    def _referenced(self, stack: str, name: str) -> str:
        if name == "AWS::Region":
            return self.region
        if name in _PSEUDO:
            return _PSEUDO[name]
        if name in self._stacks[stack].get("Parameters", {}):
            return str(self.value("api", self._deployment.argument(name)))
        resource = self._stacks[stack]["Resources"][name]
        if resource["Type"] == "AWS::StepFunctions::StateMachine":
            return self._arn(stack, name, resource)
        return f"{stack}-{name}"

    def _output(self, reference: Mapping[str, Any]) -> str:
        output = reference["Fn::GetAtt"][1].removeprefix("Outputs.")
        ((stack, value),) = [
            (name, template["Outputs"][output]["Value"])
            for name, template in self._stacks.items()
            if output in template.get("Outputs", {})
        ]
        return str(self.value(stack, value))

    def _imported(self, name: str) -> str:
        (found,) = [
            one["Value"] for one in self._deployment.data["Outputs"].values() if one.get("Export", {}).get("Name") == name
        ]
        return str(self.value("data", found))

    def _arn(self, stack: str, logical_id: str, resource: Resource) -> str:
        service, kind = _KINDS[resource["Type"]]
        region = "" if service in _GLOBAL else self.region
        suffix = ":*" if service == "logs" else ""
        return f"arn:aws:{service}:{region}:{ACCOUNT}:{kind}{stack}-{logical_id}{suffix}"


def _allowances(value: Any) -> Iterator[Statement]:
    """Yield the statements with a principal, wherever they are in a resource, that allow something."""
    if isinstance(value, dict) and value.get("Effect") == "Allow" and "Principal" in value:
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _allowances(one)


def _check(template: Template) -> None:
    for name, one in template["Resources"].items():
        kind, properties = one["Type"], one.get("Properties", {})
        if not kind.startswith("AWS::IAM::"):
            continue
        known = {"AWS::IAM::Role": _ROLE, "AWS::IAM::Policy": _POLICY}.get(kind)
        if known is None or properties.keys() - known:
            raise NotSupported(f"{name}, a {kind}")
        if any(role.get("Ref") not in template["Resources"] for role in properties.get("Roles", ())):
            raise NotSupported(f"{name}, a policy of a role in another stack")


def _assumed(function: Resource) -> Any:
    """Return the role that a function assumes for tenants' data, or None."""
    return function.get("Environment", {}).get("Variables", {}).get("SPASS_TENANT_ROLE")
