"""Read and write the parts of an upload: one item for each part, with the position up to which it is ingested."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spass.core.errors import InternalError
from spass.core.tasks import map_concurrently
from spass.core.time import now_s
from spass.rag.ingest.lease import MessageLease
from spass.rag.ingest.plan import PartRange, Position, UploadError
from spass.rag.ingest.upload_record import KEEP_SECONDS, MAX_ERRORS, UploadRecord, decode_errors
from spass.store import keys
from spass.store.attributes import Item, Value
from spass.store.codec import decode, encode
from spass.store.keys import Key
from spass.store.table import TTL, ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, ITEM_EXISTS, Absent, Put, Update

_MAX_CONCURRENT_PUTS: Final = 16
_ITEMS_PER_QUERY: Final = 16


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
    """Return the part that the table stores as ``item``.

    Raises:
        InternalError: the part does not exist.
    """
    if item is None:
        raise InternalError("A part of this upload is missing.")
    key = Key(str(item["pk"]), str(item["sk"]))
    return decode(PartRecord, item, key=key, number=int(key.sk.rpartition("#")[2]), errors=decode_errors(item))


def part_key(store: TenantStore, record: UploadRecord, number: int) -> Key:
    """Return the key of the part ``number``, which counts from 0."""
    return keys.upload_part(store.tenant, record.index, record.id, number)
