"""The record of an upload: what is known of one file on its way into an index, from its form until long after it is ingested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, cast

from pydantic import WithJsonSchema

from spass.aws import keys
from spass.aws.again import again
from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.table import Update
from spass.core.errors import UploadNotFound
from spass.core.ids import IndexId, RequestId, UploadId, UserId
from spass.rag.ingest.plan import EntryError
from spass.tenancy.response_model import ResponseModel

MAX_ERRORS: Final = 100
"""So many errors of one upload are kept; all are counted."""
ABANDONED_SECONDS: Final = 2 * 3600
"""An upload in work that nobody has worked on for so long will not be gone on with by itself."""
MACHINE_SECONDS: Final = 24 * 3600
"""So long a part may wait for a function, where as many as there may be work on other files."""
QUEUED_SECONDS: Final = 4 * 24 * 3600
"""So long the queue keeps the message of an upload that waits for a worker, behind however many others."""
KEEP_SECONDS: Final = 90 * 24 * 3600
_MESSAGE_CHARACTERS: Final = 200


class Status(StrEnum):
    """``waiting`` for the file, ``queued`` for a worker, in work, or at its end."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class UploadError(ResponseModel):
    """An error in one line of a file. `line` is null if it is about the whole file."""

    line: Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1})] | None
    code: str
    message: str

    @classmethod
    def of(cls, error: EntryError) -> "UploadError":
        return cls(line=error.line, code=error.code, message=error.message[:_MESSAGE_CHARACTERS])

    def attributes(self) -> dict[str, Value]:
        return {"line": self.line, "code": self.code, "message": self.message}


ABANDONED: Final = UploadError(
    line=None, code="abandoned", message="The work on this file stopped without an end; upload it again."
)


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """An upload as it is stored.

    ``key`` (relative to ``uploads/<tenant>/``) and ``version`` name the object, ``revision`` tells it from others under the key.
    ``owner`` is the worker that holds it until ``lease_until``, for the queue's ``message``. ``parts`` is None until the file has
    been surveyed, ``kind`` and ``columns`` say how to read it then. ``generation`` is the life of the index that it goes into,
    once that has begun. ``by_machine``: the state machine works on it; ``machine_failures`` of its executions have failed;
    executions below the number ``execution`` have nothing more to do with it; ``trouble`` is what last stopped it. A
    ``resumable`` failure is gone on from by whoever is told to. ``touched`` is the second at which somebody last worked on it.
    ``sequencer`` says when the object was put (see ``ObjectPut``), empty if that is not known.
    """

    index: IndexId
    id: UploadId
    filename: str
    status: Status
    key: str
    version: str | None
    revision: str
    bytes_total: int
    bytes_done: int
    ingested: int
    failed: int
    errors: tuple[UploadError, ...]
    owner: str
    message: str
    lease_until: int
    touched: int
    parts: int | None
    parts_done: int
    kind: str
    columns: tuple[str, ...]
    generation: str
    by_machine: bool
    machine_failures: int
    execution: int
    resumable: bool
    trouble: UploadError | None
    user: UserId | None
    request_id: RequestId | None
    sequencer: str

    @property
    def ended(self) -> bool:
        """Whether it is at an end from which nobody goes on."""
        return self.status is Status.SUCCEEDED or (self.status is Status.FAILED and not self.resumable)

    @property
    def active(self) -> bool:
        return self.status in (Status.QUEUED, Status.RUNNING)

    def abandoned(self, now_s: int) -> bool:
        """Whether nobody has worked on it for so long that nobody will."""
        patience = MACHINE_SECONDS if self.by_machine else ABANDONED_SECONDS
        if self.status is Status.QUEUED:
            patience = QUEUED_SECONDS
        return self.active and max(self.touched, self.lease_until) + patience < now_s


def record_of(item: Item) -> UploadRecord:
    """The upload in its item."""
    columns = cast("Sequence[str]", item.get("columns") or ())
    return UploadRecord(
        index=IndexId(str(item["index"])),
        id=UploadId(str(item["sk"]).removeprefix(keys.UPLOAD_PREFIX)),
        filename=str(item["filename"]),
        status=Status(str(item["status"])),
        key=str(item["key"]),
        version=_text(item, "version") or None,
        revision=_text(item, "revision"),
        bytes_total=_number(item, "bytes_total"),
        bytes_done=_number(item, "bytes_done"),
        ingested=_number(item, "ingested"),
        failed=_number(item, "failed"),
        errors=errors_of(item),
        owner=_text(item, "owner"),
        message=_text(item, "message"),
        lease_until=_number(item, "lease_until"),
        touched=_number(item, "touched"),
        parts=_number(item, "parts") if "parts" in item else None,
        parts_done=_number(item, "parts_done"),
        kind=_text(item, "kind"),
        columns=tuple(columns),
        generation=_text(item, "generation"),
        by_machine=bool(item.get("by_machine")),
        machine_failures=_number(item, "machine_failures"),
        execution=_number(item, "execution"),
        resumable=bool(item.get("resumable")),
        trouble=_error_of(cast("Mapping[str, Any]", item["trouble"])) if "trouble" in item else None,
        user=UserId(_text(item, "user")) if "user" in item else None,
        request_id=RequestId(_text(item, "request_id")) if "request_id" in item else None,
        sequencer=_text(item, "sequencer"),
    )


def errors_of(item: Mapping[str, Value]) -> tuple[UploadError, ...]:
    """The errors that an upload or a part of one keeps."""
    entries = cast("Sequence[Mapping[str, Any]]", item.get("errors") or ())
    return tuple(map(_error_of, entries))


def _error_of(entry: Mapping[str, Any]) -> UploadError:
    return UploadError(line=entry["line"], code=entry["code"], message=entry["message"])


async def read_record(store: TenantStore, index: IndexId, upload: UploadId) -> UploadRecord:
    """Raises:
    UploadNotFound: there is no such upload.
    StorageUnavailable: throttled or unreachable through all retries.
    """
    item = await store.table.get(keys.upload(store.tenant, index, upload))
    if item is None:
        raise UploadNotFound(f"There is no upload {upload!r} into this index.", param="upload_id")
    return record_of(item)


async def updated(store: TenantStore, update: Update) -> Item:
    """The item after an update that does the same when made twice.

    Raises:
        ConditionFailed, StorageUnavailable: as ``TenantTable.write``.
    """

    async def write() -> Item:
        return await store.table.write(update) or {}

    return await again(write)


def _text(item: Item, name: str) -> str:
    return str(item.get(name) or "")


def _number(item: Item, name: str) -> int:
    return cast(int, item.get(name) or 0)
