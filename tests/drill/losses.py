"""The losses of the drill. Each belongs to one subject of the history and has the result that a restore must reach."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spass.core.time import Deadline, now_s
from spass.rag.write.sweep import sweep
from tests.drill.history import History

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client

_MORE_THAN_A_DAY: Final = 100_000  # seconds


class Expected(Enum):
    """The result of a restore for a loss: the subject is back, or the loss is named."""

    BACK = "back"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class Storage:
    """The table and the bucket in which losses are planted, and the gateway over them."""

    table: "DynamoDBClient"
    bucket: "S3Client"
    name: str
    history: History

    def delete_items(self, part: str, sk_begin: str) -> None:
        """Delete the items with ``part`` in the partition key whose sort keys begin so. There must be some."""
        items = self.table.scan(TableName=self.name, ProjectionExpression="pk, sk")["Items"]
        found = [item for item in items if part in item["pk"]["S"] and item["sk"]["S"].startswith(sk_begin)]
        assert found, (part, sk_begin)
        for item in found:
            self.table.delete_item(TableName=self.name, Key=item)

    def objects(self, part: str) -> Sequence[str]:
        """Return the keys of the objects that contain ``part``. There must be some."""
        listed = self.bucket.list_objects_v2(Bucket=self.name).get("Contents", ())
        found = [one["Key"] for one in listed if part in one["Key"]]
        assert found, part
        return found

    def hide(self, keys: Sequence[str]) -> None:
        """Delete objects as a client does: a delete marker hides their versions."""
        for key in keys:
            self.bucket.delete_object(Bucket=self.name, Key=key)

    def expire(self, keys: Sequence[str]) -> None:
        """Delete all versions of objects for good, as the bucket's lifecycle does."""
        for key in keys:
            listed = self.bucket.list_object_versions(Bucket=self.name, Prefix=key)
            entries: list[Any] = [*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())]
            for one in entries:
                self.bucket.delete_object(Bucket=self.name, Key=key, VersionId=one["VersionId"])

    def overwrite(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.bucket.put_object(Bucket=self.name, Key=key, Body=b"something else")


Write: TypeAlias = Callable[[History], Awaitable[str]]
Find: TypeAlias = Callable[[Storage, str], Sequence[str]]
Plant: TypeAlias = Callable[[Storage, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of the subject that ``write`` makes. ``plant`` gets the subject's id. ``is_early``: before the restored time."""

    what: str
    write: Write
    plant: Plant
    expected: Expected
    is_early: bool = False


def _items(kind: str, sk_begin: str) -> Plant:
    async def plant(storage: Storage, subject: str) -> None:
        storage.delete_items(f"#{kind}#{subject}", sk_begin)

    return plant


def _hidden(find: Find) -> Plant:
    async def plant(storage: Storage, subject: str) -> None:
        storage.hide(find(storage, subject))

    return plant


def _expired(find: Find) -> Plant:
    async def plant(storage: Storage, subject: str) -> None:
        storage.expire(find(storage, subject))

    return plant


async def _overwrite_tree(storage: Storage, subject: str) -> None:
    storage.overwrite(_tree(storage, subject))


async def _delete_session(storage: Storage, subject: str) -> None:
    await storage.history.call("DELETE", f"/a1/agents/plain/sessions/{subject}")


async def _delete_index(storage: Storage, subject: str) -> None:
    await storage.history.call("DELETE", f"/a1/rag/indices/{subject}")
    swept = await sweep(storage.history.store, now_s() + _MORE_THAN_A_DAY, Deadline.after(30))
    assert swept.garbage, "the objects of the deleted index are gone"


def _all(storage: Storage, subject: str) -> Sequence[str]:
    return storage.objects(f"/{subject}/")


def _first(storage: Storage, subject: str) -> Sequence[str]:
    return _all(storage, subject)[:1]


def _half(storage: Storage, subject: str) -> Sequence[str]:
    return _all(storage, subject)[::2]


def _packs(storage: Storage, subject: str) -> Sequence[str]:
    return [key for key in _all(storage, subject) if key.endswith(".pack")]


def _tree(storage: Storage, subject: str) -> Sequence[str]:
    """Return the tree of the newest version."""
    return [key for key in _all(storage, subject) if key.endswith(".tree")][-1:]


def _session(history: History) -> Awaitable[str]:
    return history.session()


def _long_session(history: History) -> Awaitable[str]:
    return history.session(long=True)


def _index(name: str) -> Write:
    return lambda history: history.index(name)


def _workspace(name: str) -> Write:
    return lambda history: history.workspace(name)


def _agent(history: History) -> Awaitable[str]:
    return history.agent()


_BACK: Final = Expected.BACK
_NAMED: Final = Expected.NAMED
_MIDDLE: Final = "TURN#0000000003"
_SECOND: Final = "V#0000000002"

LOSSES: Final[Sequence[Loss]] = (
    Loss("session: the item of its middle turn", _session, _items("SES", _MIDDLE), _BACK),
    Loss("session: its head", _session, _items("SES", "HEAD"), _BACK),
    Loss("session: deleted by its user", _long_session, _delete_session, _BACK),
    Loss("session: a delete marker over its middle turn", _long_session, _hidden(_all), _BACK),
    Loss("session: the versions of its middle turn", _long_session, _expired(_all), _NAMED),
    Loss("session: the item of its middle turn, before the time", _session, _items("SES", _MIDDLE), _NAMED, is_early=True),
    Loss("index: delete markers over half of it", _index("hidden"), _hidden(_half), _BACK),
    Loss("index: the versions of half of it", _index("halved"), _expired(_half), _NAMED),
    Loss("index: deleted, and its objects swept", _index("deleted"), _delete_index, _BACK),
    Loss("workspace: delete markers over its packs", _workspace("covered"), _hidden(_packs), _BACK),
    Loss("workspace: its tree was overwritten", _workspace("changed"), _overwrite_tree, _BACK),
    Loss("workspace: the versions of its tree", _workspace("expired"), _expired(_tree), _NAMED),
    Loss("workspace: the item of a version, before the time", _workspace("gap"), _items("WS", _SECOND), _NAMED, is_early=True),
    Loss("managed agent: a delete marker over a message", _agent, _hidden(_first), _BACK),
    Loss("managed agent: the versions of a message", _agent, _expired(_first), _NAMED),
)
