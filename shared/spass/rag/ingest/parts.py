"""Store the parts of an upload, and send them to the queue: at most eight parts of a tenant at a time, or one part per file if
there are more than eight files.

Each part has an item with the position up to which it is ingested. Without the limit, the hundreds of parts of one file would
delay all other files. When a part is done, its worker sends the next one. A worker sends a part before it counts it. If it dies
in between, the next worker sends the same part again.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spass.core.errors import InternalError
from spass.core.jobs import IngestPart
from spass.core.tasks import map_concurrently
from spass.core.time import now_s
from spass.rag.ingest.lease import MessageLease
from spass.rag.ingest.plan import PartRange, Position, UploadError
from spass.rag.ingest.upload_record import (
    KEEP_SECONDS,
    MAX_ERRORS,
    PARTS_PATIENCE_SECONDS,
    UploadRecord,
    decode_errors,
    record_of,
    upload_key,
)
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.keys import Key
from spass.store.table import TTL, ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, ITEM_EXISTS, Absent, Delete, Equals, Item, Put, Update, Value

_MAX_CONCURRENT_PUTS: Final = 16
_ITEMS_PER_QUERY: Final = 16

MAX_QUEUED_PARTS: Final = 8


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A part as the table stores it. ``batch`` batches have been ingested, up to ``position``. ``owner`` leased it last;
    that lease ends at the second ``lease_until``."""

    key: Key
    number: int
    position: Position
    end: int
    batch: int
    done: bool = False
    owner: str = ""
    lease_until: int = 0
    failed: int = 0
    errors: tuple[UploadError, ...] = ()


async def put_parts(store: TenantStore, record: UploadRecord, parts: Sequence[PartRange]) -> None:
    """Put the parts of a file. Do not change a part that was leased already."""

    async def put(numbered: tuple[int, PartRange]) -> None:
        number, part = numbered
        attributes: dict[str, Value] = {"position": encode(part.start), "end": part.end, "batch": 0}
        attributes[TTL] = now_s() + KEEP_SECONDS
        with suppress(ConditionFailed):
            await store.table.write(Put(part_key(store, record, number), attributes, ITEM_ABSENT | Absent("owner")))

    await map_concurrently(put, enumerate(parts), limit=_MAX_CONCURRENT_PUTS)


async def lease_part(store: TenantStore, record: UploadRecord, number: int, lease: MessageLease) -> PartRecord:
    """Lease the part ``number`` and return it. If the part is done, return it without a lease.

    Raises:
        InternalError: the part does not exist.
        MessageDone, MessageRedelivered: another worker has leased it.
    """
    when = ITEM_EXISTS & Absent("done") & lease.may_lease()
    try:
        item = await store.table.write(Update(part_key(store, record, number), set=lease.attributes(), when=when))
    except ConditionFailed as failure:
        item = failure.item
        if item and not item.get("done"):
            raise lease.refusal(item) from None
    return part_of(item)


async def first_errors(store: TenantStore, record: UploadRecord) -> list[UploadError]:
    """Return the first ``MAX_ERRORS`` errors of the file, in the order of lines."""
    errors: list[UploadError] = []
    if record.failed:
        partition, prefix = keys.uploads_partition(store.tenant, record.index), keys.upload_part_prefix(record.id)
        async for items in store.table.pages(partition, prefix=prefix, size=_ITEMS_PER_QUERY):
            errors += [error for item in items for error in decode_errors(item)]
            if len(errors) >= MAX_ERRORS:
                break
    return errors[:MAX_ERRORS]


def part_of(item: Item | None) -> PartRecord:
    """Return the part that the table stores as ``item``. Raise ``InternalError`` if the part does not exist."""
    if item is None:
        raise InternalError("A part of this upload is missing.")
    key = Key(str(item["pk"]), str(item["sk"]))
    return decode(PartRecord, item, key=key, number=int(key.sk.rpartition("#")[2]), errors=decode_errors(item))


def part_key(store: TenantStore, record: UploadRecord, number: int) -> Key:
    """Return the key of the part ``number``, which counts from 0."""
    return keys.upload_part(store.tenant, record.index, record.id, number)


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
