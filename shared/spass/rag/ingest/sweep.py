"""The hourly sweep of uploads: messages that were lost are sent again, and what no worker will finish fails."""

from dataclasses import dataclass
from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.table import ConditionFailed
from spass.aws.writes import Equals, Update
from spass.core.ids import IndexId
from spass.core.jobs import IngestUpload
from spass.core.time import Deadline
from spass.rag.ingest.publish import republish_parts
from spass.rag.ingest.transitions import end_failed
from spass.rag.ingest.upload_record import ABANDONED, UploadRecord, record_of

_READ_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class SweptUploads:
    """Return value of a sweep: how many uploads were ``abandoned``, and how many had their messages ``resent``."""

    abandoned: int = 0
    resent: int = 0


async def sweep_uploads(store: TenantStore, now_s: int, deadline: Deadline) -> SweptUploads:
    """Sweep the uploads of one tenant as of second ``now_s``, as far as the deadline lets.

    Raises:
        StorageUnavailable: the table, the bucket or the queue does not answer.
    """
    abandoned = resent = 0
    for index in await store.uploads.folders():
        after: str | None = None
        while deadline.remaining():
            partition = keys.uploads_partition(store.tenant, IndexId(index))
            items = await store.table.query(
                partition, prefix=keys.UPLOAD_PREFIX, after=after, limit=_READ_AT_ONCE, consistent=False
            )
            for record in map(record_of, items):
                if record.abandoned(now_s):
                    await end_failed(store, record, ABANDONED, may_pass=True, when=_as_read(record))
                    abandoned += 1
                elif record.message_lost(now_s):
                    await _resend(store, record)
                    resent += 1
            if len(items) < _READ_AT_ONCE:
                break
            after = str(items[-1]["sk"])
    return SweptUploads(abandoned, resent)


async def _resend(store: TenantStore, record: UploadRecord) -> None:
    counted = Update(keys.upload(store.tenant, record.index, record.id), set={"resent": record.resent + 1}, when=_as_read(record))
    try:
        await store.table.write(counted)
    except ConditionFailed:
        return
    if record.parts in (None, record.parts_done):  # not planned, or done by workers that all died before they ended the upload
        await store.jobs.send(IngestUpload(store.tenant, record.index, record.id))
    else:
        await republish_parts(store, record)


def _as_read(record: UploadRecord) -> Equals:
    return Equals("touched", record.touched)
