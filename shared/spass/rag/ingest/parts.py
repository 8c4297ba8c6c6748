"""The parts of an upload: the items that say how far each has been ingested."""

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

_PUTS_AT_ONCE: Final = 16
_READ_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A part as the table stores it: ingested up to ``position`` in ``batch`` batches. ``owner`` leased it last, until the second
    ``lease_until``."""

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
    """Put the parts of a file. One that was leased already stays as it is."""

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

    await gather_limited((put(number, part) for number, part in enumerate(parts)), at_once=_PUTS_AT_ONCE)


async def lease_part(store: TenantStore, record: UploadRecord, number: int, receiver: Receiver) -> PartRecord | Refusal:
    """Lease the part ``number`` for ``receiver``, or return why it cannot be leased.

    Raises:
        InternalError: there is no such part.
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
    """Return the part as it is stored now.

    Raises:
        InternalError: there is no such part.
    """
    item = await store.table.get(key)
    if item is None:
        raise InternalError("A part of this upload is missing.")
    return part_of(item)


async def first_errors(store: TenantStore, record: UploadRecord) -> list[UploadError]:
    """Return the errors in lines of the file, in their order: the first ``MAX_ERRORS``."""
    found: list[UploadError] = []
    after: str | None = None
    while record.failed and len(found) < MAX_ERRORS:
        partition, prefix = keys.uploads_partition(store.tenant, record.index), keys.upload_part_prefix(record.id)
        items = await store.table.query(partition, prefix=prefix, after=after, limit=_READ_AT_ONCE)
        found += [error for item in items for error in errors_of(item)]
        if len(items) < _READ_AT_ONCE:
            break
        after = str(items[-1]["sk"])
    return found[:MAX_ERRORS]


def part_of(item: Item) -> PartRecord:
    """Return the part that the table stores as ``item``."""
    known: dict[str, Any] = {field.name: item[field.name] for field in fields(PartRecord) if field.name in item}
    known["key"] = Key(str(item["pk"]), str(item["sk"]))
    known["number"] = int(known["key"].sk.rpartition("#")[2])
    known["position"] = Position.from_json(cast("dict[str, Json]", item["position"]))
    known["errors"] = errors_of(item)
    return PartRecord(**known)


def part_key(store: TenantStore, record: UploadRecord, number: int) -> Key:
    """Return the key of the part ``number``, from 0."""
    return keys.upload_part(store.tenant, record.index, record.id, number)
