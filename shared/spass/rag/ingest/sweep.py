"""Sweep uploads every hour: send lost messages again, and fail uploads that no worker will finish."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, cast

from spass.core.ids import IndexId
from spass.core.jobs import IngestUpload, WorkKind
from spass.core.time import Deadline
from spass.rag.ingest.parts import republish_parts
from spass.rag.ingest.places import is_merge, merge_of, names_of, upload_of
from spass.rag.ingest.transitions import end_failed
from spass.rag.ingest.upload_record import ABANDONED, UploadRecord, record_of, upload_key
from spass.store import keys
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Equals, Update

_ITEMS_PER_QUERY: Final = 200


@dataclass(frozen=True, slots=True)
class SweptUploads:
    """The numbers of uploads that a sweep failed as ``abandoned``, and whose messages it ``resent``."""

    abandoned: int = 0
    resent: int = 0


async def sweep_uploads(store: TenantStore, now_s: int, deadline: Deadline) -> SweptUploads:
    """Sweep the uploads of one tenant at the time ``now_s`` (seconds since the epoch). Stop at the deadline."""
    abandoned = resent = 0
    in_work: set[str] = set()
    for index in await store.uploads.folders():
        if not deadline.remaining():
            break
        partition = keys.uploads_partition(store.tenant, IndexId(index))
        pages = store.table.pages(partition, prefix=keys.UPLOAD_PREFIX, size=_ITEMS_PER_QUERY, consistent=False)
        async for items in pages:
            for record in map(record_of, items):
                in_work |= names_of(record) if record.in_work(now_s) else set()
                if record.abandoned(now_s):
                    await end_failed(store, record, ABANDONED, is_temporary=True, when=_unchanged(record))
                    abandoned += 1
                elif record.message_lost(now_s):
                    await _resend(store, record)
                    resent += 1
            if not deadline.remaining():
                break
    if deadline.remaining():
        await _repair_line(store, in_work, now_s)
    return SweptUploads(abandoned, resent)


async def _repair_line(store: TenantStore, in_work: Collection[str], now_s: int) -> None:
    """Give back the places of files and merges that no worker works on, and send what waits. The message of such a file takes a
    place again when it arrives."""

    async def is_over(name: str) -> bool:
        return not name.startswith(await _leased_merges(store, now_s)) if is_merge(name) else upload_of(name) not in in_work

    await store.line.repair(WorkKind.FILES, is_over)


async def _leased_merges(store: TenantStore, now_s: int) -> tuple[str, ...]:
    """Return what the names of the merges begin with that workers do now."""
    leases = await store.table.query(keys.rag_partition(store.tenant), prefix=keys.RAG_MERGE_PREFIX)
    live = [lease for lease in leases if cast(int, lease["expires_at"]) > now_s]
    return tuple(merge_of(IndexId(str(lease["sk"]).removeprefix(keys.RAG_MERGE_PREFIX))) for lease in live)


async def _resend(store: TenantStore, record: UploadRecord) -> None:
    increment = Update(upload_key(store, record), set={"resent": record.resent + 1}, when=_unchanged(record))
    try:
        await store.table.write(increment)
    except ConditionFailed:
        return
    if record.parts in (None, record.parts_done):  # not planned, or all parts are done but no worker has ended the upload
        await store.jobs.send(IngestUpload(store.tenant, record.index, record.id))
    else:
        await republish_parts(store, record)


def _unchanged(record: UploadRecord) -> Equals:
    return Equals("touched", record.touched)
