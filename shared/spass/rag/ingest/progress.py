"""How far each part of an upload has come. The documents of a batch, the position behind them and the upload's counters take
effect together, so each document is appended once, whoever dies when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from spass.aws import keys
from spass.aws.again import again
from spass.aws.attributes import Item, Value
from spass.aws.clients import TenantStore
from spass.aws.table import ABSENT, TTL, Condition, ConditionFailed, Put, Update, Write
from spass.core.errors import Conflict, InternalError, SpassError
from spass.core.messages import Json
from spass.core.time import now_s
from spass.rag.index.answers import WriteAnswer
from spass.rag.index.objects import gather_limited
from spass.rag.ingest.batches import Batch
from spass.rag.ingest.newest import while_newest
from spass.rag.ingest.plan import Part, Position
from spass.rag.ingest.record import KEEP_SECONDS, MAX_ERRORS, Status, UploadError, UploadRecord, errors_of, updated

_PUTS_AT_ONCE: Final = 16
_READ_AT_ONCE: Final = 16


class Overtaken(Conflict):
    """A batch did not take effect: its part or its upload is no longer where the worker left it."""

    code = "overtaken"


class IndexReplaced(Conflict):
    """The index that the upload began to go into is no more."""

    code = "index_replaced"


def index_replaced() -> IndexReplaced:
    return IndexReplaced(
        "The index was deleted or replaced while this file was being ingested, and what had been ingested went with it; "
        "upload the file again."
    )


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A part as it is stored: read up to ``position`` in ``batch`` batches, by whoever took it last as ``owner``."""

    number: int
    position: Position
    end: int
    batch: int
    done: bool
    owner: str
    failed: int
    errors: tuple[UploadError, ...]


async def put_parts(store: TenantStore, record: UploadRecord, parts: Sequence[Part]) -> None:
    """Put the parts of a surveyed file. One that somebody works on already stays as it is."""

    async def put(number: int, part: Part) -> None:
        attributes: dict[str, Value] = {
            "position": cast("Mapping[str, Value]", part.start.as_json()),
            "end": part.end,
            "batch": 0,
            TTL: now_s() + KEEP_SECONDS,
        }
        untaken = Condition(f"{ABSENT.expression} OR attribute_not_exists(#owner)", {"#owner": "owner"})
        try:
            key = keys.upload_part(store.tenant, record.index, record.id, number)
            await again(lambda: store.table.write(Put(key, attributes, untaken)))
        except ConditionFailed:
            return

    await gather_limited((put(number, part) for number, part in enumerate(parts)), at_once=_PUTS_AT_ONCE)


async def take_part(store: TenantStore, record: UploadRecord, number: int, owner: str) -> PartRecord:
    """Take a part out of whosever hands it was in: they can change nothing more.

    Raises:
        InternalError: there is no such part.
    """
    key = keys.upload_part(store.tenant, record.index, record.id, number)
    there = Condition("attribute_exists(pk)")
    try:
        write = Update(key, "SET #owner = :owner", {"#owner": "owner"}, {":owner": owner}, there)
        return _part_of(number, await updated(store, write))
    except ConditionFailed:
        raise InternalError("A part of this upload is missing.") from None


async def read_part(store: TenantStore, record: UploadRecord, number: int) -> PartRecord:
    """Raises:
    InternalError: there is no such part.
    """
    item = await store.table.get(keys.upload_part(store.tenant, record.index, record.id, number))
    if item is None:
        raise InternalError("A part of this upload is missing.")
    return _part_of(number, item)


async def first_errors(store: TenantStore, record: UploadRecord) -> list[UploadError]:
    """What is known to be wrong with lines of the file, in their order, as far as it is kept."""
    found: list[UploadError] = []
    if not record.failed:
        return found
    after: str | None = None
    while len(found) < MAX_ERRORS:
        partition = keys.uploads_partition(store.tenant, record.index)
        prefix = keys.upload_part_prefix(record.id)
        items = await store.table.query(partition, prefix=prefix, after=after, limit=_READ_AT_ONCE)
        found += [error for item in items for error in errors_of(item)]
        if len(items) < _READ_AT_ONCE:
            break
        after = str(items[-1]["sk"])
    return found[:MAX_ERRORS]


@dataclass(frozen=True, slots=True)
class Advance:
    """A part moved behind a batch, beside the append of the batch's documents. ``record`` and ``part`` are as last seen."""

    store: TenantStore
    record: UploadRecord
    part: PartRecord
    batch: Batch

    async def writes(self, answer: WriteAnswer, /) -> Sequence[Write]:
        """Raises:
        IndexReplaced: the append would go into another life of the index than the batches before.
        """
        if self.record.generation and self.record.generation != answer.generation:
            raise index_replaced()
        return [self._part(), self._upload(answer.generation), *while_newest(self.store, self.record)]

    def refusal(self) -> SpassError:
        return Overtaken("The batch was overtaken.")

    def alone(self) -> Sequence[Write]:
        """The writes of a batch that has no documents."""
        return [self._part(), self._upload(""), *while_newest(self.store, self.record)]

    @property
    def after(self) -> PartRecord:
        """The part once this has taken place."""
        errors = (*self.part.errors, *map(UploadError.of, self.batch.errors))[:MAX_ERRORS]
        return replace(
            self.part,
            position=self.batch.after,
            batch=self.part.batch + 1,
            done=self.batch.last,
            failed=self.part.failed + len(self.batch.errors),
            errors=errors,
        )

    def _part(self) -> Update:
        after = self.after
        changes: dict[str, Value] = {
            "position": cast("Mapping[str, Value]", after.position.as_json()),
            "batch": after.batch,
            "failed": after.failed,
        }
        if after.done:
            changes["done"] = True
        if after.errors != self.part.errors:
            changes["errors"] = [error.attributes() for error in after.errors]
        return Update(
            keys.upload_part(self.store.tenant, self.record.index, self.record.id, self.part.number),
            "SET " + ", ".join(f"#{name} = :{name}" for name in changes),
            {f"#{name}": name for name in changes},
            {f":{name}": value for name, value in changes.items()},
            Condition(
                "#owner = :owner AND #batch = :before",
                {"#owner": "owner"},
                {":owner": self.part.owner, ":before": self.part.batch},
            ),
        )

    def _upload(self, generation: str) -> Update:
        counted = {
            "bytes_done": self.batch.after.offset - self.part.position.offset,
            "ingested": len(self.batch.documents),
            "failed": len(self.batch.errors),
            "parts_done": int(self.batch.last),
        }
        expression = "SET #touched = :touched"
        names = {"#touched": "touched", "#status": "status"}
        values: dict[str, Value] = {":touched": now_s()}
        still, bound = "#status = :running", dict[str, Value]({":running": Status.RUNNING.value})
        if generation:
            expression += ", #generation = :generation"
            names["#generation"] = "generation"
            values[":generation"] = generation
            still += " AND (attribute_not_exists(#generation) OR #generation = :generation)"
        if any(counted.values()):
            expression += " ADD " + ", ".join(f"#{name} :{name}" for name, more in counted.items() if more)
            names |= {f"#{name}": name for name, more in counted.items() if more}
            values |= {f":{name}": more for name, more in counted.items() if more}
        key = keys.upload(self.store.tenant, self.record.index, self.record.id)
        return Update(key, expression, names, values, Condition(still, {}, bound))


def _part_of(number: int, item: Item) -> PartRecord:
    return PartRecord(
        number,
        Position.from_json(cast("dict[str, Json]", item["position"])),
        cast(int, item["end"]),
        cast(int, item["batch"]),
        bool(item.get("done")),
        str(item.get("owner") or ""),
        cast(int, item.get("failed") or 0),
        errors_of(item),
    )
