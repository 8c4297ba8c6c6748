"""Least privilege, function by function."""

import json

import pytest

from infra.routes import ROUTES, Permission

from .conftest import Deployment

READS = {"dynamodb:GetItem", "dynamodb:Query", "s3:GetObject", "s3:ListBucket", "ssm:GetParameter"}
LOGS = {"logs:CreateLogStream", "logs:PutLogEvents"}
GRANTED = {
    Permission.TABLE_READ: {"dynamodb:GetItem", "dynamodb:Query"},
    Permission.TABLE_WRITE: {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:ConditionCheckItem"},
    Permission.BUCKET_READ: {"s3:GetObject", "s3:ListBucket"},
    Permission.BUCKET_WRITE: {"s3:PutObject", "s3:PutObjectTagging", "s3:DeleteObject"},
    Permission.MODELS: {"ssm:GetParameter"},
    Permission.EMBEDDING: set(),
}
FUNCTIONS = sorted({route.function_name for route in ROUTES})


def _permissions(function: str) -> set[Permission]:
    return {permission for route in ROUTES if route.function_name == function for permission in route.permissions}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_role_allows_what_its_rows_ask_for_and_nothing_else(dev: Deployment, function: str) -> None:
    expected = LOGS.union(*(GRANTED[permission] for permission in _permissions(function)))
    assert dev.actions(function) == expected


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_only_reads_holds_no_write_action(dev: Deployment, function: str) -> None:
    if not _permissions(function) & {Permission.TABLE_WRITE, Permission.BUCKET_WRITE}:
        assert dev.actions(function) - LOGS <= READS


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_role_reaches_one_table_one_prefix_of_one_bucket_and_one_path_of_parameters(dev: Deployment, function: str) -> None:
    partition = {"Ref": "AWS::Partition"}
    account = {"Ref": "AWS::AccountId"}
    bucket = ["arn:", partition, ":s3:::", {"Fn::ImportValue": "spass-dev-BucketName"}]
    allowed = {
        "dynamodb": [
            ["arn:", partition, ":dynamodb:eu-central-1:", account, ":table/", {"Fn::ImportValue": "spass-dev-TableName"}]
        ],
        "s3": [bucket, [*bucket, "/T/*"]],
        "ssm": [["arn:", partition, ":ssm:eu-central-1:", account, ":parameter/spass/dev/*"]],
    }
    for statement in dev.statements(function):
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        (service,) = {action.partition(":")[0] for action in actions}
        assert statement["Effect"] == "Allow"
        if service == "logs":
            assert set(statement["Resource"]) == {"Fn::GetAtt"}
            continue
        assert statement["Resource"]["Fn::Join"][1] in allowed[service]
        if statement["Resource"]["Fn::Join"][1] == bucket:
            assert actions == ["s3:ListBucket"]


def test_no_role_of_ours_may_scan_or_do_everything(dev: Deployment) -> None:
    for _, policy in dev.resources("AWS::IAM::Policy"):
        text = json.dumps(policy)
        assert "Scan" not in text
        assert ':*"' not in text


def test_functions_with_the_same_permissions_share_a_role(dev: Deployment) -> None:
    roles: dict[str, set[frozenset[Permission]]] = {}
    for function in FUNCTIONS:
        role = dev.functions()[function]["Role"]["Fn::GetAtt"][0]
        roles.setdefault(role, set()).add(frozenset(_permissions(function) - {Permission.EMBEDDING}))
    assert all(len(sets) == 1 for sets in roles.values())


def test_a_write_permission_comes_with_the_reading_that_a_condition_needs() -> None:
    for route in ROUTES:
        assert Permission.TABLE_WRITE not in route.permissions or Permission.TABLE_READ in route.permissions
        assert Permission.BUCKET_WRITE not in route.permissions or Permission.BUCKET_READ in route.permissions
