"""The record of an upload: the state of one file. It exists from the creation of the form until 90 days after its last change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final, cast

from spass.core.errors import UploadNotFound
from spass.core.ids import IndexId, RequestId, UploadId, UserId
from spass.rag.ingest.plan import UploadError
from spass.store import keys
from spass.store.codec import decode
from spass.store.keys import Key
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, Value

MAX_ERRORS: Final = 100
"""The number of errors that an upload stores. It counts all errors."""
KEEP_SECONDS: Final = 90 * 24 * 3600

PARTS_PATIENCE_SECONDS: Final = 24 * 3600
"""Seconds without progress after which a file of several parts is abandoned. Its parts may wait behind the parts of other
files."""
_PATIENCE_SECONDS: Final = 2 * 3600
_QUEUED_PATIENCE_SECONDS: Final = 4 * 24 * 3600  # the retention period of the queue
_WORKER_SECONDS: Final = 15 * 60  # no worker lives longer
_MAX_RESENT: Final = 3


class Status(StrEnum):
    """``waiting`` for the file, ``queued`` for a worker, ``running``, or ended."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


ACTIVE: Final = (Status.QUEUED, Status.RUNNING)
STOP: Final = ("stopped", "failed_part")
"""The attributes of a stop, see ``UploadRecord``."""


ABANDONED: Final = UploadError(line=None, code="abandoned", message="No worker finished this file in time; upload it again.")


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """An upload as the table stores it.

    Attributes:
        key: the key of the object, relative to ``uploads/<tenant>/``.
        version, revision, sequencer: see ``UploadedFile``.
        lease_until: the second at which the lease of the worker that plans the upload expires.
        touched: the second at which a worker last leased the upload or stored a batch of it.
        parts: the number of parts of the file, or None until it is planned. ``published`` of them were sent to the queue so far,
            and ``parts_done`` are done. ``kind`` and ``columns`` determine how to read them.
        generation: the generation of the index to which the documents are appended, or empty if the index did not exist yet.
        stopped: the id of the stop if a temporary failure stopped the upload, otherwise empty. The upload continues when its
            message, or the message of ``failed_part``, arrives again; the parts that were published are then sent again.
        resent: the number of times that the sweep sent lost messages again since the last progress.
    """

    index: IndexId
    id: UploadId
    filename: str
    status: Status
    key: str
    version: str | None = None
    revision: str = ""
    sequencer: str = ""
    bytes_total: int = 0
    bytes_done: int = 0
    ingested: int = 0
    failed: int = 0
    errors: tuple[UploadError, ...] = ()
    lease_until: int = 0
    touched: int = 0
    parts: int | None = None
    published: int = 0
    parts_done: int = 0
    kind: str = ""
    columns: tuple[str, ...] = ()
    generation: str = ""
    stopped: str = ""
    failed_part: int | None = None
    resent: int = 0
    user: UserId | None = None
    request_id: RequestId | None = None
    token_id: str = ""

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def ended(self) -> bool:
        """Return whether the upload succeeded or failed permanently."""
        return self.status is Status.SUCCEEDED or (self.status is Status.FAILED and not self.stopped)

    def abandoned(self, now_s: int) -> bool:
        """Return whether the upload has been idle for so long that no worker will finish it."""
        return self.active and self._idle_seconds(now_s) > self._patience

    def message_lost(self, now_s: int) -> bool:
        """Return whether the upload has been idle for so long that its messages must be sent again: first after a quarter of the
        time after which it is abandoned, then after a half, then after three quarters. Sending a message does not extend that
        time."""
        if not self.active or self.resent >= _MAX_RESENT:
            return False
        return 4 * self._idle_seconds(now_s) > self._patience * (self.resent + 1)

    def in_work(self, now_s: int) -> bool:
        """Return whether a worker has worked on the upload in the lifetime of a worker."""
        return self.active and self._idle_seconds(now_s) <= _WORKER_SECONDS

    @property
    def _patience(self) -> int:
        if self.status is Status.QUEUED:
            return _QUEUED_PATIENCE_SECONDS
        return PARTS_PATIENCE_SECONDS if (self.parts or 0) > 1 else _PATIENCE_SECONDS

    def _idle_seconds(self, now_s: int) -> int:
        return now_s - max(self.touched, self.lease_until)


def record_of(item: Item) -> UploadRecord:
    """Return the upload that the table stores as ``item``."""
    return decode(UploadRecord, item, id=str(item["sk"]).removeprefix(keys.UPLOAD_PREFIX), errors=decode_errors(item))


def encode_errors(errors: Iterable[UploadError]) -> list[Value]:
    """Return the first ``MAX_ERRORS`` errors as an attribute of an item."""
    return [error.model_dump() for error in islice(errors, MAX_ERRORS)]


def decode_errors(item: Mapping[str, Value]) -> tuple[UploadError, ...]:
    """Return the errors in the item of an upload or of a part."""
    return tuple(UploadError(**error) for error in cast("Sequence[Mapping[str, Any]]", item.get("errors") or ()))


def upload_key(store: TenantStore, record: UploadRecord) -> Key:
    return keys.upload(store.tenant, record.index, record.id)


async def read_record(store: TenantStore, index: IndexId, upload: UploadId) -> UploadRecord:
    """Return the record of an upload. Raise ``UploadNotFound`` if the upload does not exist."""
    item = await store.table.get(keys.upload(store.tenant, index, upload))
    if item is None:
        raise UploadNotFound(f"This index has no upload {upload!r}.", param="upload_id")
    return record_of(item)
