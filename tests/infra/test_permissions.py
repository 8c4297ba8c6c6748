"""Least privilege, function by function."""

import pytest

from infra.constructs.machine import COMPACTION
from infra.routes import ROUTES, Permission, Route
from infra.workers import WORKERS, Trigger, Worker

from .conftest import Deployment, actions_of

READS = {"dynamodb:GetItem", "dynamodb:Query", "s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket", "ssm:GetParameters"}
LOGS = {"logs:CreateLogStream", "logs:PutLogEvents"}
SHARED = {"dynamodb:GetItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"}
ASSUMES = {"sts:AssumeRole", "sts:TagSession"}
OF_TENANT = {
    Permission.TABLE_READ: {"dynamodb:GetItem", "dynamodb:Query"},
    Permission.TABLE_WRITE: {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:ConditionCheckItem"},
    Permission.BUCKET_READ: {"s3:GetObject", "s3:ListBucket"},
    Permission.BUCKET_WRITE: {"s3:PutObject", "s3:PutObjectTagging", "s3:DeleteObject"},
    Permission.UPLOADS_WRITE: {"s3:PutObject"},
    Permission.UPLOADS_READ: {"s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket"},
}
"""The actions of the role that reaches tenants' data."""
GRANTED = {
    Permission.MODELS: {"ssm:GetParameters"},
    Permission.EMBEDDING: set(),
    Permission.SWAGGER_UI: set(),
    Permission.PAGE: set(),
    Permission.EDITOR: set(),
    Permission.JOBS_SEND: {"sqs:SendMessage"},
    Permission.COMPACTIONS_SEND: {"sqs:SendMessage"},
    Permission.RUNS_SEND: {"sqs:SendMessage"},
    Permission.SCHEDULES_READ: {"scheduler:GetSchedule", "scheduler:ListSchedules"},
    Permission.SCHEDULES_WRITE: {"scheduler:CreateSchedule", "scheduler:UpdateSchedule", "iam:PassRole"},
    Permission.SCHEDULES_DELETE: {"scheduler:DeleteSchedule"},
    Permission.COMPACTION_START: {"states:StartExecution"},
    Permission.SANDBOX: {"lambda:InvokeFunction"},
    Permission.SANDBOX_NAME: set(),
    Permission.RELEASE: set(),
}
"""The actions of a function's own role."""
SHARING = {Permission.MODELS, Permission.JOBS_SEND, Permission.COMPACTIONS_SEND, Permission.RUNS_SEND}
# The event source takes messages in its function's name.
TAKES = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}
WITHOUT_RIGHTS = {permission for permission, actions in GRANTED.items() if not actions}
READ_ONLY = {Permission.TABLE_READ, Permission.BUCKET_READ, Permission.UPLOADS_READ, Permission.MODELS}
WRITES = set(Permission) - WITHOUT_RIGHTS - READ_ONLY
ROWS: list[Route | Worker] = [*ROUTES, *WORKERS]
FUNCTIONS = sorted({row.function_name for row in ROWS})


def _permissions(function: str) -> set[Permission]:
    return {permission for row in ROWS if row.function_name == function for permission in row.permissions}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_role_allows_exactly_the_permissions_of_its_rows(dev: Deployment, function: str) -> None:
    permissions = _permissions(function)
    expected = LOGS.union(*(GRANTED.get(permission, set()) for permission in permissions))
    takes = {worker.function_name for worker in WORKERS if worker.trigger in {Trigger.JOBS, Trigger.RUNS, Trigger.COMPACTIONS}}
    expected |= TAKES if function in takes else set()
    expected |= SHARED if permissions & SHARING else set()
    expected |= ASSUMES if permissions & OF_TENANT.keys() else set()
    assert dev.actions(function) == expected


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_role_of_tenants_data_allows_exactly_the_permissions_of_the_rows(dev: Deployment, function: str) -> None:
    expected = set[str]().union(*(OF_TENANT.get(permission, set()) for permission in _permissions(function)))
    assert dev.twin_actions(function) == expected


def test_the_function_of_the_page_may_only_write_its_log(dev: Deployment) -> None:
    assert dev.actions("page") == LOGS


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_only_reads_has_no_write_action(dev: Deployment, function: str) -> None:
    if not _permissions(function) & WRITES:
        shared = SHARED if Permission.MODELS in _permissions(function) else set()
        assert dev.actions(function) - LOGS - ASSUMES - shared <= READS
        assert dev.twin_actions(function) <= READS


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_role_reaches_only_what_its_deployment_stores_and_starts(dev: Deployment, function: str) -> None:
    partition = {"Ref": "AWS::Partition"}
    account = {"Ref": "AWS::AccountId"}
    bucket = ["arn:", partition, ":s3:::", {"Fn::ImportValue": "spass-dev-BucketName"}]
    tenant = "${aws:PrincipalTag/tenant}"
    allowed = {
        "dynamodb": [
            ["arn:", partition, ":dynamodb:eu-central-1:", account, ":table/", {"Fn::ImportValue": "spass-dev-TableName"}]
        ],
        "s3": [bucket, [*bucket, f"/T/{tenant}/*"], [*bucket, f"/uploads/{tenant}/*"]],
        "ssm": [["arn:", partition, ":ssm:eu-central-1:", account, ":parameter/spass/dev/*"]],
    }
    reached: list[object] = []
    for statement in [*dev.statements(function), *dev.twin_statements(function)]:
        actions = actions_of(statement)
        (service,) = {action.partition(":")[0] for action in actions}
        assert statement["Effect"] == "Allow"
        if service == "logs":
            assert set(statement["Resource"]) == {"Fn::GetAtt"}
            continue
        if service == "lambda":
            assert dev.argument(statement["Resource"]["Ref"]) == {"Fn::GetAtt": [dev.sandbox()[0], "Arn"]}
            continue
        if service == "sts":
            assert statement["Resource"] == dev.functions()[function]["Environment"]["Variables"]["SPASS_TENANT_ROLE"]
            continue
        if service in {"scheduler", "iam"}:
            continue  # test_schedules.py
        if service in {"sqs", "states"}:
            reached += statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            continue
        assert statement["Resource"]["Fn::Join"][1] in allowed[service]
    expected = _queues_and_machines(dev, function)
    assert [one for one in reached if one not in expected] == []
    assert [one for one in expected if one not in reached] == []


def _queues_and_machines(dev: Deployment, function: str) -> list[object]:
    """Return the queues and machines of this function's rows, and the queue of its messages."""
    wanted = _permissions(function)
    triggers = {worker.trigger for worker in WORKERS if worker.function_name == function}
    may_send = {
        "spass-dev-QueueArn": Permission.JOBS_SEND in wanted or Trigger.JOBS in triggers,
        "spass-dev-RunQueueArn": Permission.RUNS_SEND in wanted or Trigger.RUNS in triggers,
        "spass-dev-CompactionQueueArn": Permission.COMPACTIONS_SEND in wanted or Trigger.COMPACTIONS in triggers,
    }
    queues: list[object] = [{"Fn::ImportValue": name} for name, allowed in may_send.items() if allowed]
    return queues + ([{"Ref": dev.machine(COMPACTION)[0]}] if Permission.COMPACTION_START in wanted else [])


def test_no_role_may_scan_or_has_a_wildcard_action(dev: Deployment) -> None:
    for _, policy in dev.resources("AWS::IAM::Policy"):
        actions = {action for one in policy["Properties"]["PolicyDocument"]["Statement"] for action in actions_of(one)}
        assert not [action for action in actions if "*" in action or "Scan" in action]


def test_functions_with_the_same_permissions_share_a_role(dev: Deployment) -> None:
    roles: dict[str, set[frozenset[Permission]]] = {}
    for function in FUNCTIONS:
        role = dev.functions()[function]["Role"]["Fn::GetAtt"][0]
        roles.setdefault(role, set()).add(frozenset(_permissions(function) - WITHOUT_RIGHTS))
    assert all(len(sets) == 1 for sets in roles.values())


def test_a_write_permission_includes_the_reads_of_its_conditions() -> None:
    for row in ROWS:
        assert Permission.TABLE_WRITE not in row.permissions or Permission.TABLE_READ in row.permissions
        assert Permission.BUCKET_WRITE not in row.permissions or Permission.BUCKET_READ in row.permissions
