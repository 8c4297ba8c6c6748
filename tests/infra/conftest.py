"""The application, synthesized once for all tests. It is not bundled, so the tests need no network."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App

from infra.application import add_stacks
from infra.constructs.function import TAG
from infra.constructs.sandbox import NAME as SANDBOX
from infra.environments import ENVIRONMENTS, Environment
from infra.environments_file import load_environments
from infra.routes import ROUTES, Permission, Route, Surface
from infra.stacks.api import ApiStack
from infra.stacks.data import DataStack
from infra.workers import WORKERS, Trigger, Worker

Template = dict[str, Any]
Resource = dict[str, Any]

ROWS: list[Route | Worker] = [*ROUTES, *WORKERS]
CALLING = {row.function_name for row in ROWS if Permission.MODELS in row.permissions}
"""The functions that call models or tools."""
ENVIRONMENTS_GUIDE = Path(__file__).resolve().parents[2] / "docs" / "environments.md"


@dataclass(frozen=True, slots=True)
class Queues:
    """A work queue and its dead-letter queue: the logical id and the properties of each."""

    name: str
    work: Resource
    failed_name: str
    failed: Resource


@dataclass(frozen=True, slots=True)
class Deployment:
    """The templates of one environment."""

    environment: Environment
    folder: Path
    """The CDK's assembly."""
    data_protected: bool | None
    """The termination protection of the data stack."""
    warnings: list[str]
    """The warnings of the API stack."""
    data: Template
    api: Template
    surfaces: dict[Surface, Template]
    jobs: Template
    permissions: Template
    subscriptions: Template
    copies: Template | None = None
    """The stack in the region that gets the copies."""

    def templates(self) -> list[Template]:
        return [self.data, self.api, *self.nested(), self.permissions, self.subscriptions]

    def nested(self) -> list[Template]:
        """Return the stacks with functions."""
        return [*self.surfaces.values(), self.jobs]

    def resources(self, kind: str) -> Iterator[tuple[str, Resource]]:
        """Return all resources of this type by logical id."""
        for template in self.templates():
            for logical_id, resource in template["Resources"].items():
                if resource["Type"] == kind:
                    yield logical_id, resource

    def rest_api(self) -> Resource:
        """Return the properties of the API."""
        ((_, api),) = self.resources("AWS::ApiGateway::RestApi")
        properties: Resource = api["Properties"]
        return properties

    def methods(self) -> dict[tuple[str, str], Resource]:
        """Return every method in the body of the API by verb and path."""
        return {
            ("ANY" if verb == "x-amazon-apigateway-any-method" else verb.upper(), path): method
            for path, item in self.rest_api()["Body"]["paths"].items()
            for verb, method in item.items()
            if verb != "parameters"
        }

    def output(self, reference: dict[str, Any]) -> dict[str, Any]:
        """Return what a nested stack passes to its parent as the value of ``reference``."""
        name = reference["Fn::GetAtt"][1].removeprefix("Outputs.")
        (value,) = [one["Outputs"][name]["Value"] for one in self.nested() if name in one.get("Outputs", {})]
        return dict(value)

    def argument(self, parameter: str) -> dict[str, Any]:
        """Return the value that the parent passes to the nested stack for this parameter."""
        for _, nested in self.resources("AWS::CloudFormation::Stack"):
            if parameter in nested["Properties"]["Parameters"]:
                value: dict[str, Any] = nested["Properties"]["Parameters"][parameter]
                return value
        raise AssertionError(f"no nested stack is given {parameter}")

    def functions(self) -> dict[str, Resource]:
        """Return the properties of every Lambda by its name in ROUTES or WORKERS. The sandbox is in neither."""
        functions = [resource["Properties"] for _, resource in self.resources("AWS::Lambda::Function")]
        by_name = {function_name(properties): properties for properties in functions}
        assert len(by_name) == len(functions), "two functions have the same name"
        del by_name[SANDBOX]
        return by_name

    def sandbox(self) -> tuple[str, Resource]:
        """Return the logical id and the properties of the function that runs the code of models."""
        ((name, properties),) = [
            (name, one["Properties"])
            for name, one in self.resources("AWS::Lambda::Function")
            if function_name(one["Properties"]) == SANDBOX
        ]
        return name, properties

    def function_behind(self, target: dict[str, Any]) -> Resource:
        """Return the properties of the function behind a reference to it or to an alias of it."""
        functions = dict(self.resources("AWS::Lambda::Function"))
        if "Fn::GetAtt" in target:
            name, attribute = target["Fn::GetAtt"]
            assert attribute == "Arn"
        else:
            alias = dict(self.resources("AWS::Lambda::Alias"))[target["Ref"]]["Properties"]
            version = dict(self.resources("AWS::Lambda::Version"))[alias["FunctionVersion"]["Fn::GetAtt"][0]]["Properties"]
            assert alias["FunctionName"] == version["FunctionName"]
            name = alias["FunctionName"]["Ref"]
        properties: Resource = functions[name]["Properties"]
        return properties

    def layers(self, function: str) -> list[str]:
        """Return the layers of a function: the ids of our own within ``Layers``; account, name and version of others."""
        return [self._layer(layer) for layer in self.functions()[function]["Layers"]]

    def _layer(self, reference: dict[str, Any]) -> str:
        if "Fn::Join" in reference:
            start, partition, rest = reference["Fn::Join"][1]
            assert (start, partition) == ("arn:", {"Ref": "AWS::Partition"})
            return str(rest).removeprefix(f":lambda:{self.environment.region}:")
        logical_id = self.argument(reference["Ref"])["Ref"]
        assert self.api["Resources"][logical_id]["Type"] == "AWS::Lambda::LayerVersion"
        return str(logical_id).removeprefix("Layers")[: -len("01234567")]  # the CDK adds a hash of the path

    def statements(self, function: str) -> list[dict[str, Any]]:
        """Return the statements of the role of this function."""
        role = self.functions()[function]["Role"]["Fn::GetAtt"][0]
        (stack,) = [one for one in self.nested() if role in one["Resources"] and _runs(one, function)]
        return statements_of(stack, role)

    def twin_statements(self, function: str) -> list[dict[str, Any]]:
        """Return the statements of the role that this function assumes for tenants' data, or none."""
        variables = self.functions()[function]["Environment"]["Variables"]
        if "SPASS_TENANT_ROLE" not in variables:
            return []
        role = variables["SPASS_TENANT_ROLE"]["Fn::GetAtt"][0]
        (stack,) = [one for one in self.nested() if role in one["Resources"] and _runs(one, function)]
        (policy,) = stack["Resources"][role]["Properties"]["Policies"]
        statements: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
        return statements

    def queues(self) -> dict[str, Queues]:
        """Return every work queue by the name of the export with its ARN."""
        queues = {name: queue["Properties"] for name, queue in self.resources("AWS::SQS::Queue")}
        exported = {json.dumps(one["Value"]): one["Export"]["Name"] for one in self.data["Outputs"].values()}
        by_export: dict[str, Queues] = {}
        for name, queue in queues.items():
            if "RedrivePolicy" in queue:
                failed = queue["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]
                arn = json.dumps({"Fn::GetAtt": [name, "Arn"]})
                by_export[exported[arn].removeprefix(f"spass-{self.environment.name}-")] = Queues(
                    name, queue, failed, queues[failed]
                )
        assert queues.keys() == {name for one in by_export.values() for name in (one.name, one.failed_name)}
        return by_export

    def worker(self, trigger: Trigger) -> str:
        """Return the logical id of the function that this event source starts."""
        (wanted,) = [worker.function_name for worker in WORKERS if worker.trigger is trigger]
        return self.function_id(wanted)

    def function_id(self, wanted: str) -> str:
        """Return the logical id of the function of this name."""
        (name,) = [name for name, one in self.resources("AWS::Lambda::Function") if function_name(one["Properties"]) == wanted]
        return name

    def machine(self, definition: Path) -> tuple[str, Resource]:
        """Return the logical id and the properties of the state machine with this definition."""
        expected = json.loads(definition.read_text(encoding="utf-8"))
        ((name, machine),) = [
            (name, one["Properties"])
            for name, one in self.resources("AWS::StepFunctions::StateMachine")
            if json.loads(one["Properties"]["DefinitionString"]) == expected
        ]
        return name, machine

    def actions(self, function: str) -> set[str]:
        """Return every action that the role of this function allows."""
        return {action for statement in self.statements(function) for action in actions_of(statement)}

    def twin_actions(self, function: str) -> set[str]:
        """Return every action that the role allows which this function assumes for tenants' data."""
        return {action for statement in self.twin_statements(function) for action in actions_of(statement)}


def statements_of(template: Template, role: str) -> list[dict[str, Any]]:
    """Return the statements of a role of this template."""
    policies = [one["Properties"] for one in template["Resources"].values() if one["Type"] == "AWS::IAM::Policy"]
    return [
        statement
        for policy in policies
        if {"Ref": role} in policy["Roles"]
        for statement in policy["PolicyDocument"]["Statement"]
    ]


def actions_of(statement: dict[str, Any]) -> list[str]:
    action = statement["Action"]
    return [action] if isinstance(action, str) else list(action)


def tags(properties: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in properties["Tags"]}


def function_name(properties: dict[str, Any]) -> str:
    """Return the name, in ROUTES or WORKERS, of the function with these properties or with this log group."""
    return tags(properties)[TAG]


def _runs(template: Template, function: str) -> bool:
    resources = template["Resources"].values()
    return any(one["Type"] == "AWS::Lambda::Function" and function_name(one["Properties"]) == function for one in resources)


def synthesized(environments: Iterable[Environment], folder: Path) -> dict[str, Deployment]:
    """Synthesize with the security rules. A finding that is not acknowledged raises an exception."""
    app = App(analytics_reporting=False, context={"aws:cdk:bundling-stacks": []}, outdir=str(folder))
    chosen = list(environments)
    add_stacks(app, chosen)
    app.synth()
    deployments: dict[str, Deployment] = {}
    for environment in chosen:
        stack = app.node.find_child(f"Spass-{environment.name}-Api")
        data = app.node.find_child(f"Spass-{environment.name}-Data")
        assert isinstance(stack, ApiStack)
        assert isinstance(data, DataStack)
        deployments[environment.name] = Deployment(
            environment,
            folder,
            data_protected=data.termination_protection,
            warnings=[str(entry.data) for entry in stack.node.metadata if entry.type == "aws:cdk:warning"],
            data=_read(folder / f"Spass-{environment.name}-Data.template.json"),
            api=_read(folder / stack.template_file),
            surfaces={surface: _read(folder / nested.template_file) for surface, nested in stack.surfaces.items()},
            jobs=_read(folder / stack.jobs.template_file),
            permissions=_read(folder / stack.permissions.template_file),
            subscriptions=_read(folder / stack.subscriptions.template_file) if stack.subscriptions else {"Resources": {}},
            copies=_read(folder / f"Spass-{environment.name}-Copies.template.json") if environment.copy_to else None,
        )
    return deployments


def _read(path: Path) -> Template:
    template: Template = json.loads(path.read_text(encoding="utf-8"))
    return template


@pytest.fixture(scope="session")
def deployments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Deployment]:
    return synthesized(ENVIRONMENTS.values(), tmp_path_factory.mktemp("cdk"))


@pytest.fixture(scope="session")
def dev(deployments: dict[str, Deployment]) -> Deployment:
    return deployments["dev"]


@pytest.fixture
def copy(dev: Deployment) -> Deployment:
    """Return a copy of the templates of dev, which a test may change."""

    def copied(template: Template) -> Template:
        return json.loads(json.dumps(template))  # type: ignore[no-any-return]

    surfaces = {surface: copied(template) for surface, template in dev.surfaces.items()}
    return replace(dev, api=copied(dev.api), jobs=copied(dev.jobs), permissions=copied(dev.permissions), surfaces=surfaces)


@pytest.fixture(scope="session")
def prod(deployments: dict[str, Deployment]) -> Deployment:
    return deployments["prod"]


@pytest.fixture(scope="session")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return prod with every option, as the guide to environments has it."""
    folder = tmp_path_factory.mktemp("extended")
    file = folder / "environments.yaml"
    file.write_text(re.findall(r"```yaml\n(.*?)```", ENVIRONMENTS_GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0])
    # Tests read the account as the reference that it is in the other templates.
    return synthesized([replace(load_environments(file)["prod"], account=None)], folder / "cdk")["prod"]


@pytest.fixture
def synthesize(tmp_path: Path) -> Callable[[Environment], Deployment]:
    """Return a function that synthesizes one environment, for tests that change something first."""
    return lambda environment: synthesized([environment], tmp_path)[environment.name]
