"""An AWS account of which a test says what it answers, and an assembly to deploy into it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, cast

import boto3
from botocore.client import BaseClient
from botocore.model import OperationModel
from botocore.validate import validate_parameters

from operate.account import Account
from operate.checkout import read_commit

REGION: Final = "eu-central-1"
NUMBER: Final = "111122223333"
STACK: Final = "Spass-prod-Api"
DATA: Final = "Spass-prod-Data"
COPIES: Final = "Spass-prod-Copies"
VERSION: Final = "/cdk-bootstrap/hnb659fds/version"
BODY: Final = {"Type": "AWS::ApiGateway::RestApi", "Properties": {"Body": {"openapi": "3.0.1"}}}

MODELS: Final = "models: [{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}]\n"

Resources: TypeAlias = dict[str, Any]
Parameters: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that AWS answers."""

    code: str
    message: str = "Not yours"


Answer: TypeAlias = dict[str, Any] | Refusal
NO_STACK: Final = Refusal("ValidationError", "Stack with id x does not exist")


class AnsweringAws:
    """An account that answers each operation as ``answers`` says. An operation without an answer is an error of the test.

    It begins as one in which nothing is deployed and nothing is wrong. ``calls`` are the operations with their region.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.answers: dict[str, Answer | Callable[[Parameters], Answer]] = {
            "GetParameter": {"Parameter": {"Value": "21"}},
            "GetTemplate": NO_STACK,
            "GetAccountSettings": {"AccountLimit": {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": 1000}},
            "DescribeVpcs": {"Vpcs": []},
            "GetServiceQuota": {"Quota": {"Value": 5.0}},
            "GetAccount": {},
            "GetLayerVersionByArn": lambda asked: {} if asked["Arn"].endswith(":30") else Refusal("AccessDeniedException"),
            "DescribeParameters": {"Parameters": []},
        }
        _SESSION.answering = self
        self.account = Account(NUMBER, REGION, _SESSION)

    def has(self, resources: Resources, nested: Resources | None = None, *, stack: str = STACK) -> None:
        """Let this stack be deployed with these resources, and with those of a nested stack. It had another one, which is
        deleted."""
        templates = {stack: resources, f"{stack}-nested": nested or {}}
        states = {"deleted": "DELETE_COMPLETE", f"{stack}-nested": "CREATE_COMPLETE"}
        summaries = [
            {
                "LogicalResourceId": "Nested",
                "ResourceType": "AWS::CloudFormation::Stack",
                "PhysicalResourceId": physical,
                "LastUpdatedTimestamp": 0,
                "ResourceStatus": state,
            }
            for physical, state in states.items()
        ]

        def template(asked: Parameters) -> Answer:
            found = templates.get(asked["StackName"])
            return NO_STACK if found is None else {"TemplateBody": json.dumps({"Resources": found})}

        self.answers["GetTemplate"] = template
        self.answers["ListStackResources"] = lambda asked: {
            "StackResourceSummaries": summaries if asked["StackName"] == stack else []
        }

    def answer(self, model: OperationModel, context: dict[str, Any]) -> tuple[SimpleNamespace, dict[str, Any]]:
        self.calls.append((model.name, context["client_region"]))
        answer = self.answers[model.name]
        if callable(answer):
            answer = answer(context["asked"])
        if isinstance(answer, Refusal):
            error = {"Error": {"Code": answer.code, "Message": answer.message}}
            return SimpleNamespace(status_code=HTTPStatus.BAD_REQUEST), error
        assert model.output_shape is not None
        validate_parameters(answer, model.output_shape)
        return SimpleNamespace(status_code=HTTPStatus.OK), answer


class _Session(boto3.Session):
    """A session whose clients never send. They are made once for all tests, because making one takes longer than a test."""

    answering: AnsweringAws

    def __init__(self) -> None:
        super().__init__("id", "secret", region_name=REGION)
        self.events.register("before-parameter-build", self._remember)
        self.events.register("before-call", cast(Callable[..., None], self._answer))
        self._clients: dict[tuple[str, str | None], BaseClient] = {}

    def client(self, service_name: str, region_name: str | None = None) -> BaseClient:  # type: ignore[override]
        wanted = (service_name, region_name)
        if wanted not in self._clients:
            make = cast(Callable[..., BaseClient], super().client)
            self._clients[wanted] = make(service_name, region_name=region_name)
        return self._clients[wanted]

    def _answer(self, model: OperationModel, context: dict[str, Any], **_: object) -> tuple[SimpleNamespace, dict[str, Any]]:
        return self.answering.answer(model, context)

    def _remember(self, params: Parameters, context: dict[str, Any], **_: object) -> None:
        context["asked"] = params


_SESSION: Final = _Session()


@dataclass(slots=True, kw_only=True)
class Built:
    """An assembly that a test writes: the resources of its stacks and the bundled ``gateway.yaml``."""

    api: Resources = field(default_factory=lambda: {"Api": BODY})
    nested: Resources = field(default_factory=dict)
    data: Resources = field(default_factory=dict)
    copies: Resources | None = None
    gateway: str | None = MODELS + "tenants: [{id: acme, tokens: [{id: one, sha256: " + "a" * 64 + "}]}]\n"
    variables: Mapping[str, Any] = field(default_factory=dict)
    account: str = "unknown-account"

    def write(self, folder: Path) -> Path:
        """Write the assembly into ``folder``, as the CDK does, with a leftover of an earlier synthesis."""
        folder.mkdir(parents=True, exist_ok=True)
        nested = self.nested | {"Function": function(**self.variables)}
        files = {"asset.code": "zip", "nested.nested.template.json": "file", "api.json": "file"}
        artifacts = {
            **_artifacts(STACK, self.account, REGION, "api.json"),
            **_artifacts(DATA, self.account, REGION, "data.json"),
            **(_artifacts(COPIES, self.account, "eu-west-1", "copies.json") if self.copies is not None else {}),
        }
        assets = {str(number): {"source": {"path": path, "packaging": kind}} for number, (path, kind) in enumerate(files.items())}
        _write(folder / "manifest.json", {"artifacts": artifacts})
        _write(folder / "api.json", {"Resources": self.api})
        _write(folder / "data.json", {"Resources": self.data})
        _write(folder / "copies.json", {"Resources": self.copies or {}})
        _write(folder / "nested.nested.template.json", {"Resources": nested})
        for stack in (STACK, DATA, COPIES):
            _write(folder / f"{stack}.assets.json", {"files": assets if stack == STACK else {}})
        (folder / "asset.code").mkdir(exist_ok=True)
        (folder / "asset.left").mkdir(exist_ok=True)
        (folder / "asset.left" / "large").write_text("of an earlier synthesis")
        if self.gateway is not None:
            (folder / "asset.code" / "gateway.yaml").write_text(self.gateway)
        return folder


def function(*, release: str | None = None, reserved: int | None = None, **variables: object) -> dict[str, Any]:
    """Return a function of the assembly: it names the bundled file, the provider keys and the release."""
    named = {
        "SPASS_CONFIG": "/var/task/gateway.yaml",
        "SPASS_KEYS_PATH": "/spass/prod/",
        "SPASS_TABLE": {"Fn::ImportValue": "spass-prod-TableName"},
        "SPASS_RELEASE": release or read_commit(),
        **variables,
    }
    properties: dict[str, Any] = {"Environment": {"Variables": named}}
    return {
        "Type": "AWS::Lambda::Function",
        "Properties": properties | ({"ReservedConcurrentExecutions": reserved} if reserved else {}),
    }


def _artifacts(stack: str, account: str, region: str, template: str) -> dict[str, Any]:
    return {
        stack: {
            "type": "aws:cloudformation:stack",
            "environment": f"aws://{account}/{region}",
            "properties": {
                "templateFile": template,
                "requiresBootstrapStackVersion": 6,
                "bootstrapStackVersionSsmParameter": VERSION,
            },
        },
        f"{stack}.assets": {"type": "cdk:asset-manifest", "properties": {"file": f"{stack}.assets.json"}},
    }


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content))
