"""Test the calls and the refusals of point-in-time recovery."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import boto3
import pytest
from botocore.stub import Stubber

from operate.recovery import Origin, RestoreRefused, TableRecovery, Window

AT: Final = datetime(2026, 11, 24, 10, tzinfo=UTC)
LATER: Final = datetime(2026, 11, 24, 12, tzinfo=UTC)
ARN: Final = "arn:aws:dynamodb:eu-central-1:111122223333:table/used"


class StubbedRecovery:
    """A recovery of which each test says what DynamoDB answers. A call that no test expects fails."""

    def __init__(self) -> None:
        client = boto3.Session("id", "secret", region_name="eu-central-1").client("dynamodb")
        self.recovery, self.dynamodb = TableRecovery(client), Stubber(client)

    def has_table(self, name: str, **table: Any) -> None:
        self.dynamodb.add_response("describe_table", {"Table": table}, {"TableName": name})

    def has_recovery(self, name: str, status: str = "ENABLED", **more: Any) -> None:
        description = {"PointInTimeRecoveryStatus": status, **more}
        backups = {"ContinuousBackupsStatus": "ENABLED", "PointInTimeRecoveryDescription": description}
        self.dynamodb.add_response("describe_continuous_backups", {"ContinuousBackupsDescription": backups}, {"TableName": name})

    def has_expiry(self, name: str, status: str) -> None:
        answer = {"TimeToLiveDescription": {"TimeToLiveStatus": status}}
        self.dynamodb.add_response("describe_time_to_live", answer, {"TableName": name})


@pytest.fixture
def aws() -> Iterator[StubbedRecovery]:
    aws = StubbedRecovery()
    with aws.dynamodb:
        yield aws
        aws.dynamodb.assert_no_pending_responses()


def test_the_window_is_what_dynamodb_says(aws: StubbedRecovery) -> None:
    aws.has_recovery("used", EarliestRestorableDateTime=AT, LatestRestorableDateTime=LATER)
    assert aws.recovery.window("used") == Window(AT, LATER)


def test_a_table_without_recovery_is_refused(aws: StubbedRecovery) -> None:
    aws.has_recovery("used", "DISABLED")
    with pytest.raises(RestoreRefused, match="The table used has no point-in-time recovery"):
        aws.recovery.window("used")


def test_of_a_deleted_table_the_backup_is_named(aws: StubbedRecovery) -> None:
    aws.dynamodb.add_client_error("describe_continuous_backups", "TableNotFoundException")
    with pytest.raises(RestoreRefused, match="aws dynamodb list-backups"):
        aws.recovery.window("used")


def test_a_restored_table_says_where_it_is_from(aws: StubbedRecovery) -> None:
    aws.has_table("new", RestoreSummary={"SourceTableArn": ARN, "RestoreDateTime": AT, "RestoreInProgress": False})
    assert aws.recovery.origin("new") == Origin("used", AT)
    aws.has_table("new", TableStatus="ACTIVE")
    assert aws.recovery.origin("new") is None
    aws.dynamodb.add_client_error("describe_table", "ResourceNotFoundException")
    assert not aws.recovery.exists("new")


def test_the_restore_goes_from_the_used_table_to_the_new_one(aws: StubbedRecovery) -> None:
    expected = {"SourceTableName": "used", "TargetTableName": "new", "RestoreDateTime": AT}
    aws.dynamodb.add_response("restore_table_to_point_in_time", {}, expected)
    aws.recovery.start("used", "new", AT)


def test_the_end_of_the_restore_is_awaited(
    aws: StubbedRecovery, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    aws.dynamodb.add_client_error("describe_table", "ResourceNotFoundException")  # it is not seen yet
    for status in (*["CREATING"] * 7, "ACTIVE"):
        aws.has_table("new", TableStatus=status)
    aws.recovery.wait("new")
    assert capsys.readouterr().out == "... DynamoDB is restoring new: 1 minutes\n"


@pytest.mark.parametrize("state", ["DELETING", "ARCHIVED", "INACCESSIBLE_ENCRYPTION_CREDENTIALS", None])
def test_a_table_that_will_not_become_readable_is_not_awaited(
    aws: StubbedRecovery, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    aws.has_table("new", TableStatus="CREATING")
    if state is None:
        aws.dynamodb.add_client_error("describe_table", "ResourceNotFoundException")
    else:
        aws.has_table("new", TableStatus=state)
    with pytest.raises(RestoreRefused, match=f"The table new is {state or 'gone'}, so it cannot be read"):
        aws.recovery.wait("new")


def test_the_new_table_gets_what_dynamodb_does_not_restore(aws: StubbedRecovery) -> None:
    aws.has_expiry("new", "DISABLED")
    aws.dynamodb.add_response(
        "update_time_to_live", {}, {"TableName": "new", "TimeToLiveSpecification": {"Enabled": True, "AttributeName": "ttl"}}
    )
    aws.has_recovery("new", "DISABLED")
    aws.has_recovery("used", RecoveryPeriodInDays=7)
    wanted = {"PointInTimeRecoveryEnabled": True, "RecoveryPeriodInDays": 7}
    aws.dynamodb.add_response("update_continuous_backups", {}, {"TableName": "new", "PointInTimeRecoverySpecification": wanted})
    aws.has_table("new", DeletionProtectionEnabled=False)
    aws.dynamodb.add_response("update_table", {}, {"TableName": "new", "DeletionProtectionEnabled": True})
    assert aws.recovery.protect("used", "new") == ["expiry", "recovery", "protection from deletion"]


@pytest.mark.parametrize("expiry", ["ENABLED", "ENABLING"])
def test_what_the_new_table_has_is_not_set_again(aws: StubbedRecovery, expiry: str) -> None:
    aws.has_expiry("new", expiry)
    aws.has_recovery("new", RecoveryPeriodInDays=7)
    aws.has_table("new", DeletionProtectionEnabled=True)
    assert aws.recovery.protect("used", "new") == []
