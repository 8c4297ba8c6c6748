"""`operate check` names what would make a deployment fail, and changes nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber

from operate import __main__ as operate
from operate.account import Account

STACK: Final = "Spass-prod-Api"
NESTED: Final = "arn:aws:cloudformation:eu-central-1:111122223333:stack/nested/1"
VERSION: Final = "/cdk-bootstrap/hnb659fds/version"
OLD: Final = {"Type": "AWS::ApiGateway::Method"}
RETAINED: Final = {**OLD, "DeletionPolicy": "Retain"}
BODY: Final = {"Type": "AWS::ApiGateway::RestApi", "Properties": {"Body": {"openapi": "3.0.1"}}}
FUNCTION: Final = {"Type": "AWS::Lambda::Function"}


class StubbedAws:
    """An account of which each test says what it answers. A call that no test expects fails."""

    def __init__(self) -> None:
        session = boto3.Session("id", "secret", region_name="eu-central-1")
        self.account = Account("111122223333", session.client("cloudformation"), session.client("ssm"))
        self.stacks, self.parameters = Stubber(self.account.stacks), Stubber(self.account.parameters)
        self.bootstrap = "21"

    def has(self, root: dict[str, Any], nested: dict[str, Any]) -> None:
        """Let the stack of the API and its nested stack have these resources."""
        self.stacks.add_response("get_template", {"TemplateBody": json.dumps({"Resources": root})}, {"StackName": STACK})
        summaries = [
            {
                "LogicalResourceId": "Nested",
                "ResourceType": "AWS::CloudFormation::Stack",
                "PhysicalResourceId": physical,
                "LastUpdatedTimestamp": "2026-11-24T00:00:00Z",
                "ResourceStatus": status,
            }
            for physical, status in ((f"{NESTED}0", "DELETE_COMPLETE"), (NESTED, "CREATE_COMPLETE"))
        ]
        self.stacks.add_response("list_stack_resources", {"StackResourceSummaries": summaries}, {"StackName": STACK})
        self.stacks.add_response("get_template", {"TemplateBody": json.dumps({"Resources": nested})}, {"StackName": NESTED})
        self.stacks.add_response("list_stack_resources", {"StackResourceSummaries": []}, {"StackName": NESTED})

    def has_nothing(self) -> None:
        self.stacks.add_client_error("get_template", "ValidationError", f"Stack with id {STACK} does not exist")


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubbedAws]:
    aws = StubbedAws()
    monkeypatch.setattr(Account, "of_region", lambda _: aws.account)
    with aws.stacks, aws.parameters:
        yield aws
        aws.stacks.assert_no_pending_responses()


def check(aws: StubbedAws, folder: Path, *, account: str = "unknown-account", api: dict[str, Any] | None = None) -> int:
    """Run the command on an assembly with this resource, and return its exit code."""
    stack = {
        "environment": f"aws://{account}/eu-central-1",
        "properties": {
            "templateFile": "api.json",
            "requiresBootstrapStackVersion": 6,
            "bootstrapStackVersionSsmParameter": VERSION,
        },
    }
    (folder / "manifest.json").write_text(json.dumps({"artifacts": {STACK: stack}}))
    (folder / "api.json").write_text(json.dumps({"Resources": {"Api": api or BODY}}))
    if aws.bootstrap:
        aws.parameters.add_response("get_parameter", {"Parameter": {"Value": aws.bootstrap}}, {"Name": VERSION})
    else:
        aws.parameters.add_client_error("get_parameter", "ParameterNotFound")
    return operate.main(["check", "--env", "prod", "--assembly", str(folder)])


def test_a_body_before_the_retain_step_is_refused(aws: StubbedAws, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aws.has({"Path": {"Type": "AWS::ApiGateway::Resource"}, "Kept": RETAINED}, {"Old": OLD, "Function": FUNCTION})
    assert check(aws, tmp_path) == 1
    output = capsys.readouterr().out
    assert output.startswith("Checking prod in eu-central-1, account 111122223333")
    assert f"CloudFormation would remove 2 methods, paths and refusals of {STACK}" in output
    assert "with -c api=retain:" in output


def test_an_object_that_only_a_nested_stack_does_not_retain_is_noticed(aws: StubbedAws, tmp_path: Path) -> None:
    aws.has({"Kept": RETAINED}, {"Old": OLD})
    assert check(aws, tmp_path) == 1


@pytest.mark.parametrize("resource", [RETAINED, BODY], ids=["retained", "a body"])
def test_a_body_may_follow_the_retain_step_or_a_body(
    aws: StubbedAws, tmp_path: Path, capsys: pytest.CaptureFixture[str], resource: dict[str, Any]
) -> None:
    aws.has({"One": resource}, {"Function": FUNCTION})
    assert check(aws, tmp_path) == 0
    assert "Nothing was found" in capsys.readouterr().out


def test_who_has_never_deployed_starts_with_the_body(aws: StubbedAws, tmp_path: Path) -> None:
    aws.has_nothing()
    assert check(aws, tmp_path) == 0


def test_the_retain_step_itself_needs_no_look_at_what_is_deployed(aws: StubbedAws, tmp_path: Path) -> None:
    assert check(aws, tmp_path, api={"Type": "AWS::ApiGateway::RestApi", "Properties": {"Name": "spass-prod"}}) == 0


@pytest.mark.parametrize(("version", "found"), [("", "no bootstrap stack"), ("5", "version 5 of the bootstrap stack")])
def test_an_account_that_is_not_prepared_for_the_cdk_is_named(
    aws: StubbedAws, tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str, found: str
) -> None:
    aws.bootstrap = version
    aws.has_nothing()
    assert check(aws, tmp_path) == 1
    assert f"eu-central-1 has {found} of the CDK, and the deployment needs version 6. Run: make cdk" in capsys.readouterr().out


def test_credentials_of_another_account_are_named(aws: StubbedAws, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aws.has_nothing()
    assert check(aws, tmp_path, account="999988887777") == 1
    assert "The credentials are of account 111122223333, but prod belongs to 999988887777." in capsys.readouterr().out


def test_a_missing_assembly_is_named_with_the_command_that_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert operate.main(["check", "--env", "prod", "--assembly", str(tmp_path)]) == 1
    assert f"{tmp_path} has no stack {STACK}. Synthesise the environment first: make synth" in capsys.readouterr().out


def test_an_account_that_does_not_answer_or_refuses_is_a_finding(
    aws: StubbedAws, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.stacks.add_client_error("get_template", "AccessDenied", "Not yours")
    assert check(aws, tmp_path) == 1
    assert "not everything was checked" in capsys.readouterr().out

    def unreachable(_: str) -> Account:
        raise EndpointConnectionError(endpoint_url="https://sts.eu-central-1.amazonaws.com")

    monkeypatch.setattr(Account, "of_region", unreachable)
    assert check(aws, tmp_path) == 1
    assert "Could not connect" in capsys.readouterr().out
