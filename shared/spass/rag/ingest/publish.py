"""Send the parts of large files to the queue: at most eight parts of a tenant at a time, or one part per file if there are more
than eight files.

Without this limit, the hundreds of parts of one file would delay all other files. When a part is done, its worker sends the next
one. A worker sends a part before it counts it. If it dies in between, the next worker sends the same part again.
"""

from typing import Final

from spass.core.jobs import IngestPart
from spass.core.time import now_s
from spass.rag.ingest.parts import part_of
from spass.rag.ingest.upload_record import PARTS_PATIENCE_SECONDS, UploadRecord, record_of, upload_key
from spass.store import keys
from spass.store.table import TTL, ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Equals, Put, Update

MAX_QUEUED_PARTS: Final = 8


async def publish_parts(store: TenantStore, record: UploadRecord) -> None:
    """Send the next parts, until the upload has as many parts on the queue as its share of the tenant's limit.

    Raises:
        StorageUnavailable: some parts were not sent; a retry sends them.
    """
    parts = record.parts or 0
    share = await _share(store, record) if record.published < parts else 0
    while record.active and record.published < parts and record.published - record.parts_done < share:
        await _send(store, record, record.published)
        increment = Update(
            upload_key(store, record),
            set={"published": record.published + 1},
            when=Equals("published", record.published),
        )
        try:
            item = await store.table.write(increment)
        except ConditionFailed as failure:  # another worker sent the same part
            item = failure.item
        if item is None:
            return
        record = record_of(item)


async def republish_parts(store: TenantStore, record: UploadRecord, *, skip: int | None = None) -> None:
    """Send again all parts that were sent before and are neither done nor leased, except the part ``skip``. Then send the next
    parts. Raise the same errors as ``publish_parts``."""
    items = await store.table.query(keys.uploads_partition(store.tenant, record.index), prefix=keys.upload_part_prefix(record.id))
    for part in map(part_of, items):
        is_pending = not part.done and part.lease_until <= now_s() and part.number < record.published
        if is_pending and part.number != skip:
            await _send(store, record, part.number)
    await publish_parts(store, record)


async def release_share(store: TenantStore, record: UploadRecord) -> None:
    """Release the upload's share of the tenant's limit, so that the tenant's other files can use it."""
    if (record.parts or 0) > 1:
        await store.table.write(Delete(keys.large_upload(store.tenant, record.index, record.id)))


async def _share(store: TenantStore, record: UploadRecord) -> int:
    """Return the number of parts of the upload that may be on the queue: at least 1."""
    key = keys.large_upload(store.tenant, record.index, record.id)
    # A worker may write this item after the upload has ended. The item therefore expires after a day without progress.
    await store.table.write(Put(key, {TTL: now_s() + PARTS_PATIENCE_SECONDS}))
    shares = await store.table.query(key.pk, limit=MAX_QUEUED_PARTS)
    return max(1, MAX_QUEUED_PARTS // len(shares))


async def _send(store: TenantStore, record: UploadRecord, part: int) -> None:
    await store.jobs.send(IngestPart(store.tenant, record.index, record.id, part))
