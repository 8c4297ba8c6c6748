"""Read and write the parts of an upload: one item for each part, with the position up to which it is ingested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, cast

from spass.aws import keys
from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.keys import Key
from spass.aws.table import TTL, ConditionFailed
from spass.aws.writes import ITEM_ABSENT, ITEM_EXISTS, Absent, Put, Update
from spass.core.errors import InternalError
from spass.core.messages import Json
from spass.core.time import now_s
from spass.rag.index.objects import gather_limited
from spass.rag.ingest.lease import Receiver, Refusal
from spass.rag.ingest.plan import PartRange, Position
from spass.rag.ingest.upload_record import KEEP_SECONDS, MAX_ERRORS, UploadError, UploadRecord, errors_of

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

    async def put(number: int, part: PartRange) -> None:
        attributes: dict[str, Value] = {
            "position": cast("Mapping[str, Value]", part.start.as_json()),
            "end": part.end,
            "batch": 0,
            TTL: now_s() + KEEP_SECONDS,
        }
        try:
            await store.table.write(Put(part_key(store, record, number), attributes, ITEM_ABSENT | Absent("owner")))
        except ConditionFailed:
            return

    await gather_limited((put(number, part) for number, part in enumerate(parts)), at_once=_MAX_CONCURRENT_PUTS)


async def lease_part(store: TenantStore, record: UploadRecord, number: int, receiver: Receiver) -> PartRecord | Refusal:
    """Lease the part ``number`` for ``receiver`` and return it, or return the reason why it cannot be leased.

    Raises:
        InternalError: the part does not exist.
    """
    when = ITEM_EXISTS & Absent("done") & receiver.may_lease()
    try:
        item = await store.table.write(Update(part_key(store, record, number), set=receiver.lease(), when=when))
    except ConditionFailed as failure:
        if failure.item is None:
            raise InternalError("A part of this upload is missing.") from None
        return Refusal.ENDED if failure.item.get("done") else receiver.refusal(failure.item)
    return part_of(item or {})


async def read_part(store: TenantStore, key: Key) -> PartRecord:
    """Return the current state of a part.

    Raises:
        InternalError: the part does not exist.
    """
    item = await store.table.get(key)
    if item is None:
        raise InternalError("A part of this upload is missing.")
    return part_of(item)


async def first_errors(store: TenantStore, record: UploadRecord) -> list[UploadError]:
    """Return the first ``MAX_ERRORS`` errors of the file, in the order of lines."""
    errors: list[UploadError] = []
    after: str | None = None
    while record.failed and len(errors) < MAX_ERRORS:
        partition, prefix = keys.uploads_partition(store.tenant, record.index), keys.upload_part_prefix(record.id)
        items = await store.table.query(partition, prefix=prefix, after=after, limit=_ITEMS_PER_QUERY)
        errors += [error for item in items for error in errors_of(item)]
        if len(items) < _ITEMS_PER_QUERY:
            break
        after = str(items[-1]["sk"])
    return errors[:MAX_ERRORS]


def part_of(item: Item) -> PartRecord:
    """Return the part that the table stores as ``item``."""
    values: dict[str, Any] = {field.name: item[field.name] for field in fields(PartRecord) if field.name in item}
    values["key"] = Key(str(item["pk"]), str(item["sk"]))
    values["number"] = int(values["key"].sk.rpartition("#")[2])
    values["position"] = Position.from_json(cast("dict[str, Json]", item["position"]))
    values["errors"] = errors_of(item)
    return PartRecord(**values)


def part_key(store: TenantStore, record: UploadRecord, number: int) -> Key:
    """Return the key of the part ``number``, which counts from 0."""
    return keys.upload_part(store.tenant, record.index, record.id, number)
