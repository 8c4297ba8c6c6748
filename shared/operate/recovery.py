"""Restore a table to a new one by DynamoDB's point-in-time recovery. The table that is restored is only read."""

import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from botocore.exceptions import ClientError

from spass.cli.terminal import write

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import PointInTimeRecoverySpecificationTypeDef, TableDescriptionTypeDef

TTL: Final = "ttl"
_POLL_SECONDS: Final = 10
_NOT_SEEN: Final = "gone"
"""The status of a table that DynamoDB does not describe, as at the very beginning of a restore."""


class RestoreRefused(Exception):
    """A table cannot be restored as asked. The message says why, and what to do."""


class Window(NamedTuple):
    """The times to which a table can be restored, both included."""

    earliest: datetime
    latest: datetime


class Origin(NamedTuple):
    """The table that another one was restored from, and the time."""

    table: str
    at: datetime


@dataclass(frozen=True, slots=True)
class TableRecovery:
    """Point-in-time recovery in one account and region."""

    client: "DynamoDBClient"

    def window(self, table: str) -> Window:
        """Return the times to which ``table`` can be restored.

        Raises:
            RestoreRefused: the table does not exist, or recovery is off.
        """
        try:
            backups = self.client.describe_continuous_backups(TableName=table)["ContinuousBackupsDescription"]
        except self.client.exceptions.TableNotFoundException:
            raise RestoreRefused(
                f"There is no table {table}. DynamoDB keeps a backup of a deleted table for 35 days: "
                "aws dynamodb list-backups --backup-type SYSTEM"
            ) from None
        found = backups.get("PointInTimeRecoveryDescription", {})
        if found.get("PointInTimeRecoveryStatus") != "ENABLED" or "EarliestRestorableDateTime" not in found:
            raise RestoreRefused(f"The table {table} has no point-in-time recovery, so it cannot be restored to a time.")
        return Window(found["EarliestRestorableDateTime"], found["LatestRestorableDateTime"])

    def exists(self, table: str) -> bool:
        return self._describe(table) is not None

    def origin(self, table: str) -> Origin | None:
        """Return what ``table`` was restored from, or None if it was not restored."""
        found = self._describe(table)
        summary = found.get("RestoreSummary") if found else None
        if summary is None or "SourceTableArn" not in summary:
            return None
        return Origin(summary["SourceTableArn"].rpartition("/")[2], summary["RestoreDateTime"])

    def start(self, source: str, target: str, at: datetime) -> None:
        """Begin to restore ``source`` as of ``at`` to the new table ``target``, which takes minutes to hours."""
        self.client.restore_table_to_point_in_time(SourceTableName=source, TargetTableName=target, RestoreDateTime=at)

    def wait(self, table: str) -> None:
        """Wait until a restored table can be read, and print every minute that it takes longer.

        Raises:
            RestoreRefused: somebody removes it, or DynamoDB has taken its key away.
        """
        begin = told = time.monotonic()
        expected = {"CREATING", "UPDATING", _NOT_SEEN}
        while (status := self._status(table)) != "ACTIVE":
            if status not in expected:
                raise RestoreRefused(f"The table {table} is {status}, so it cannot be read. It is not changed.")
            if status != _NOT_SEEN:
                expected.discard(_NOT_SEEN)
            if time.monotonic() - told >= 60:
                told = time.monotonic()
                write(f"... DynamoDB is restoring {table}: {(told - begin) / 60:.0f} minutes\n")
            time.sleep(_POLL_SECONDS)

    def _status(self, table: str) -> str:
        found = self._describe(table)
        return found.get("TableStatus", "unknown") if found else _NOT_SEEN

    def protect(self, source: str, target: str) -> list[str]:
        """Set what DynamoDB does not restore: expiry by ``ttl``, recovery for as many days as ``source`` has, and protection from
        deletion. Return what was not set yet."""
        changed = []
        expiry = self.client.describe_time_to_live(TableName=target)["TimeToLiveDescription"]
        if expiry.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            self.client.update_time_to_live(TableName=target, TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL})
            changed.append("expiry")
        if self._recovery_days(target) is None:
            wanted: PointInTimeRecoverySpecificationTypeDef = {"PointInTimeRecoveryEnabled": True}
            if days := self._recovery_days(source):
                wanted["RecoveryPeriodInDays"] = days
            self.client.update_continuous_backups(TableName=target, PointInTimeRecoverySpecification=wanted)
            changed.append("recovery")
        found = self._describe(target)
        if found is not None and not found.get("DeletionProtectionEnabled"):
            self.client.update_table(TableName=target, DeletionProtectionEnabled=True)
            changed.append("protection from deletion")
        return changed

    def _recovery_days(self, table: str) -> int | None:
        """Return for how many days ``table`` can be restored (0 if that is not said), or None if it cannot."""
        found = self.client.describe_continuous_backups(TableName=table)["ContinuousBackupsDescription"]
        recovery = found.get("PointInTimeRecoveryDescription", {})
        return recovery.get("RecoveryPeriodInDays", 0) if recovery.get("PointInTimeRecoveryStatus") == "ENABLED" else None

    def _describe(self, table: str) -> "TableDescriptionTypeDef | None":
        try:
            return self.client.describe_table(TableName=table)["Table"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "ResourceNotFoundException":
                return None
            raise
