"""The drill: write a history, plant losses, restore, and see that each loss is back or named. Then restore again.

DynamoDB's point-in-time recovery is simulated: emulators restore a table as it is now, so the drill makes the new table
from a copy that it took of the items at the restored time. All else is the real command on an emulated table and bucket.
"""

import contextlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import boto3

from operate.object_versions import ObjectVersions
from operate.recovery import Origin, TableRecovery, Window
from operate.restore import Restore
from operate.storage import Storage as StorageNames
from spass.aws.clients import Aws
from spass.store.restored import LOST
from tests.drill.history import SECRET, TENANT, USER, History, Reading, read
from tests.drill.losses import LOSSES, Expected, Loss, Storage

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client

ENVIRONMENT: Final = "drill"

Run: TypeAlias = Callable[[Restore], int]
Items: TypeAlias = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CopiedTable(TableRecovery):
    """Point-in-time recovery that knows one table at one time: its ``items``."""

    source: str
    at: datetime
    items: Items

    def window(self, table: str) -> Window:
        return Window(self.at, self.at)

    def origin(self, table: str) -> Origin | None:
        return Origin(self.source, self.at)

    def start(self, source: str, target: str, at: datetime) -> None:
        assert (source, at) == (self.source, self.at)
        create_table(self.client, target)
        for item in self.items:
            self.client.put_item(TableName=target, Item=item)


def create_table(client: "DynamoDBClient", name: str) -> None:
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}, {"AttributeName": "sk", "AttributeType": "S"}],
    )


@dataclass(slots=True)
class Drill:
    """A drill in the AWS of the environment variables, with a table and a bucket of its own. ``run`` runs a restore."""

    folder: Path
    name: str
    table: "DynamoDBClient"
    bucket: "S3Client"
    losses: Sequence[Loss]
    run: Run

    @classmethod
    def begin(cls, folder: Path, name: str = "spass-drill", losses: Sequence[Loss] = LOSSES, run: Run = Restore.run) -> "Drill":
        """Make the table and the bucket."""
        session = boto3.Session()
        drill = cls(folder, name, session.client("dynamodb"), session.client("s3"), losses, run)
        create_table(drill.table, name)
        drill.bucket.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        drill.bucket.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return drill

    async def take(self) -> Sequence[str]:
        """Print the result for each loss, and return the problems: losses neither back nor named, and all other faults."""
        with _without_log():
            async with self._history(self.name) as history:
                paths, before, recovery = await self._lose(history)
        running, versions = self._items(self.name), self._versions()
        restore = self._restore(recovery)
        told = self._told(restore)
        with _without_log():
            async with self._history(restore.target) as history:
                after = await read(history, paths)
        marked = {item["pk"]["S"] + item["sk"]["S"] for item in self._items(restore.target) if LOST in item}
        found = (_judge(loss, paths[loss.what], before, after, told, marked) for loss in self.losses)
        problems = [problem for problem in found if problem]
        if SECRET in told or USER in told:
            problems.append("The restore has printed a text or a user.")
        if self._items(self.name) != running:
            problems.append("The restore has changed the table that the gateway uses.")
        if not versions.items() <= self._versions().items():
            problems.append("The restore has removed versions from the bucket.")
        return [*problems, *self._repeat(recovery)]

    async def _lose(self, history: History) -> tuple[Mapping[str, str], Mapping[str, Reading], CopiedTable]:
        """Write the history and lose parts of it. Return the paths of its subjects, what a user read of them, and the recovery
        to a time before most losses."""
        storage = Storage(self.table, self.bucket, self.name, history)
        paths = {loss.what: await loss.write(history) for loss in self.losses}
        before = await read(history, paths)
        await self._plant(storage, paths, is_early=True)
        recovery = CopiedTable(self.table, self.name, self._next_second(), self._items(self.name))
        await self._plant(storage, paths, is_early=False)
        return paths, before, recovery

    async def _plant(self, storage: Storage, paths: Mapping[str, str], *, is_early: bool) -> None:
        for loss in self.losses:
            if loss.is_early == is_early:
                await loss.plant(storage, _id(paths[loss.what]))

    def _repeat(self, recovery: CopiedTable) -> Sequence[str]:
        """Restore once more. Return a problem if that changes anything."""
        restore = self._restore(recovery)
        items, versions = self._items(restore.target), self._versions()
        self._told(restore)
        is_same = (items, versions) == (self._items(restore.target), self._versions())
        print(f"{'ok' if is_same else 'FAILED':<7}the second restore changed {'nothing' if is_same else 'something'}")
        return [] if is_same else ["The second restore changed the new table or the bucket."]

    def _history(self, table: str) -> AbstractAsyncContextManager[History]:
        (folder := self.folder / table).mkdir()
        return History.over(Aws(table=table, bucket=self.name), folder)

    def _restore(self, recovery: CopiedTable) -> Restore:
        objects = ObjectVersions(self.bucket, self.name, recovery.at)
        return Restore(ENVIRONMENT, StorageNames(self.name, self.name, self.name), recovery, objects)

    def _told(self, restore: Restore) -> str:
        """Run a restore, and return what it printed."""
        print(restore.describe("000000000000", "eu-central-1"))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.run(restore)
        print(output.getvalue())
        return output.getvalue()

    def _next_second(self) -> datetime:
        """Return a whole second after all that was written, when it is over."""
        at = datetime.fromtimestamp(int(time.time()) + 1, UTC)
        time.sleep(at.timestamp() + 1 - time.time())
        return at

    def _items(self, table: str) -> Items:
        return [item for page in self.table.get_paginator("scan").paginate(TableName=table) for item in page["Items"]]

    def _versions(self) -> Mapping[tuple[str, str], str]:
        """Return the tag of each version in the bucket, and of each delete marker."""
        pages = list(self.bucket.get_paginator("list_object_versions").paginate(Bucket=self.name))
        markers = {(one["Key"], one["VersionId"]): "" for page in pages for one in page.get("DeleteMarkers", ())}
        return {(one["Key"], one["VersionId"]): one["ETag"] for page in pages for one in page.get("Versions", ())} | markers


def _without_log() -> contextlib.redirect_stdout[io.StringIO]:
    """Keep the lines of the gateway's log out of what the drill prints."""
    return contextlib.redirect_stdout(io.StringIO())


def _judge(
    loss: Loss, path: str, before: Mapping[str, Reading], after: Mapping[str, Reading], told: str, marked: set[str]
) -> str | None:
    """Print the result for a loss. Return the problem if it is neither back nor named."""
    subject = _id(path)
    is_named = f"{TENANT}/{subject}: lost: " in told and any(key.startswith(f"T#{TENANT}#") and subject in key for key in marked)
    is_back = after[loss.what] == before[loss.what]
    found = Expected.NAMED if is_named else Expected.BACK if is_back else None
    is_right = found is loss.expected
    was = found.value if found else "neither back nor named"
    print(f"{'ok' if is_right else 'FAILED':<7}{was:<7}{loss.what}")
    return None if is_right else f"{loss.what}: it should be {loss.expected.value}, and is {was}."


def _id(path: str) -> str:
    return path.rpartition("/")[2]
