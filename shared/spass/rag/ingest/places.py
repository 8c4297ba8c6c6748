"""The places of a tenant's files and merges among the workers, so that one tenant's files do not stop another tenant's.

The worker that receives the message of a file, of a part or of a merge takes a place for it. Without one, the message waits in
the tenant's line (``WorkLine``). A file keeps its place until it ends, also while its message waits to be delivered again. Each
message of a merge has a place of its own: of two for one index, the second finds nothing to do and must not give back the first
one's place.
"""

import base64
import hashlib
import math
import random
from dataclasses import replace
from typing import Final, TypeAlias

from spass.core.errors import LimitExceeded
from spass.core.ids import IndexId
from spass.core.jobs import Delivery, IngestPart, IngestUpload, MergeSegments, WorkKind, body_of
from spass.core.traceparent import current_traceparent
from spass.rag.ingest.upload_record import UploadRecord
from spass.rag.ingest.uploaded_file import UploadedFile, own_upload
from spass.store.tenant_store import TenantStore

FileTask: TypeAlias = UploadedFile | IngestUpload | IngestPart
_PlacedTask: TypeAlias = FileTask | MergeSegments

_MERGE: Final = "merge."

_HASH_BYTES: Final = 5
"""The item of a tenant's places has one name for each worker, and each write costs what the item has."""
_LONGEST_DELAY: Final = 75.0
"""A minute of tokens is free after at most so many seconds. A budget that is spent is not."""
_JITTER_SECONDS: Final = 5
"""Files that wait for the same minute must not all come back at that moment."""


async def enter(store: TenantStore, task: _PlacedTask, delivery: Delivery) -> bool:
    """Take a place for ``task``, or put it into the tenant's line and return False: its message is done then."""
    name = _name(task, delivery)
    if await store.line.take(WorkKind.FILES, name):
        return True
    order = f"{int(delivery.sent * 1000):013}#{delivery.message}"
    # The message that is sent then has another id, so the one of a merge must name its place.
    body = body_of(replace(task, place=name), current_traceparent()) if isinstance(task, MergeSegments) else delivery.body
    await store.line.wait(WorkKind.FILES, name, order, body, is_repeated=delivery.receives > 1)
    return False


async def leave(store: TenantStore, task: _PlacedTask, delivery: Delivery) -> None:
    """Give the place of ``task`` back, and send what waits."""
    await store.line.give_back(WorkKind.FILES, _name(task, delivery), is_repeated=delivery.receives > 1)


def delay_after(error: Exception) -> int | None:
    """Return the seconds after which the work that ``error`` stopped may go on, or None if ``error`` is not a rate limit that
    ends soon."""
    if not isinstance(error, LimitExceeded) or error.retry_after is None or error.retry_after > _LONGEST_DELAY:
        return None
    return math.ceil(error.retry_after + random.uniform(0, _JITTER_SECONDS))  # noqa: S311 (jitter)


def names_of(record: UploadRecord) -> set[str]:
    """Return the names of an upload's places, without the numbers of parts."""
    return {_hash(record.id), _hash(own_upload(record.key, record.revision))}


def merge_of(index: IndexId) -> str:
    """Return what the names of the places of an index's merges begin with."""
    return f"{_MERGE}{_hash(index)}"


def is_merge(name: str) -> bool:
    """Return whether a place is that of a merge."""
    return name.startswith(_MERGE)


def upload_of(name: str) -> str:
    """Return the name of a place without the number of its part."""
    return name.partition(".")[0]


def _hash(name: str) -> str:
    return base64.b32hexencode(hashlib.sha256(name.encode()).digest()[:_HASH_BYTES]).decode().lower()


def _name(task: _PlacedTask, delivery: Delivery) -> str:
    match task:
        case UploadedFile():
            return _hash(task.own_upload)
        case IngestUpload():
            return _hash(task.upload)
        case IngestPart():
            return f"{_hash(task.upload)}.{task.part}"
        case MergeSegments():
            return task.place or f"{merge_of(task.index)}.{_hash(delivery.message)}"
