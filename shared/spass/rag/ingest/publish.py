"""The parts of large files on the queue: at most eight of a tenant at a time, or one of each file if it has more files.

Without that bound the hundreds of parts of one file would delay all other files. Each part that is done sends the next one.
Sending comes before counting: if a worker dies between the two, the next one sends the same part once more.
"""

from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.table import TTL, ConditionFailed
from spass.aws.writes import Delete, Equals, Put, Update
from spass.core.jobs import IngestPart
from spass.core.time import now_s
from spass.rag.ingest.parts import part_of
from spass.rag.ingest.upload_record import PARTS_PATIENCE_SECONDS, UploadRecord, record_of

PARTS_AT_ONCE: Final = 8


async def publish_parts(store: TenantStore, record: UploadRecord) -> None:
    """Send the next parts, as far as the upload's share of the tenant's window goes.

    Raises:
        StorageUnavailable: not all were sent; a repetition sends the rest.
    """
    parts = record.parts or 0
    share = await _share(store, record) if record.published < parts else 0
    while record.active and record.published < parts and record.published - record.parts_done < share:
        await _send(store, record, record.published)
        counted = Update(
            keys.upload(store.tenant, record.index, record.id),
            set={"published": record.published + 1},
            when=Equals("published", record.published),
        )
        try:
            item = await store.table.write(counted)
        except ConditionFailed as failure:  # another worker sent the same part
            item = failure.item
        if item is None:
            return
        record = record_of(item)


async def republish_parts(store: TenantStore, record: UploadRecord, *, skip: int | None = None) -> None:
    """Send again, but for the part ``skip``, the parts that were sent and are neither done nor leased; raises as
    ``publish_parts``."""
    items = await store.table.query(keys.uploads_partition(store.tenant, record.index), prefix=keys.upload_part_prefix(record.id))
    for part in map(part_of, items):
        waits = not part.done and part.lease_until <= now_s() and part.number < record.published
        if waits and part.number != skip:
            await _send(store, record, part.number)
    await publish_parts(store, record)


async def leave_window(store: TenantStore, record: UploadRecord) -> None:
    """Leave the upload's share of the window to the tenant's other files."""
    if (record.parts or 0) > 1:
        await store.table.write(Delete(keys.large_upload(store.tenant, record.index, record.id)))


async def _share(store: TenantStore, record: UploadRecord) -> int:
    """Return how many parts of the upload may be on the queue, at least one."""
    key = keys.large_upload(store.tenant, record.index, record.id)
    # A worker that has not heard of the upload's end writes this item once more, so it expires when no part ends for a day.
    await store.table.write(Put(key, {TTL: now_s() + PARTS_PATIENCE_SECONDS}))
    large = await store.table.query(key.pk, limit=PARTS_AT_ONCE)
    return max(1, PARTS_AT_ONCE // len(large))


async def _send(store: TenantStore, record: UploadRecord, part: int) -> None:
    await store.jobs.send(IngestPart(store.tenant, record.index, record.id, part))
