"""Ingest one part of an upload: read, embed and append one batch after another.

A transaction stores a batch: its documents, the position after them and the counters of the upload. So each document is stored
exactly once, even if a worker dies.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from spass.calls.scope import Scope
from spass.core.bus import EventBus
from spass.core.errors import Conflict, InvalidInput, SpassError, StorageUnavailable, TooManyDocuments
from spass.core.ids import random_suffix
from spass.core.time import Deadline, now_s
from spass.rag.index.documents import NewDocument
from spass.rag.index.responses import WriteAnswer
from spass.rag.ingest.lease import IngestSettings
from spass.rag.ingest.parts import PartRecord, part_of
from spass.rag.ingest.plan import Entry, FileKind, Position, UploadError
from spass.rag.ingest.reading import entries
from spass.rag.ingest.transitions import check_not_superseded, not_superseded
from spass.rag.ingest.upload_record import ACTIVE, MAX_ERRORS, UploadRecord, encode_errors, read_record, upload_key
from spass.rag.write.writer import Writer
from spass.store.codec import encode
from spass.store.leases import LeaseLost
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Absent, Condition, Equals, OneOf, Update, Value, Write

_ROUTE: Final = "ingest"
"""The name of the route in the audit records of an upload's embedding calls."""
LAST_SECONDS: Final = 90.0
"""A worker does not begin another batch if it has less time left than this, or than its slowest batch took."""
_SLICE_SECONDS: Final = 180.0
"""After this time a worker sends a part to the end of the queue, so that waiting files get their turn."""
_ATTEMPTS: Final = 3  # per batch, because other writers may change the upload or the index in the meantime

_MAX_TEXT_BYTES: Final = 2**20  # of one batch; the slowest backend needs some minutes to embed them
_MAX_READ_BYTES: Final = 4 * 2**20  # of the file for one batch, so that a file with few valid documents shows progress too
_MAX_ERRORS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Batch:
    """Consecutive ``entries`` from ``start`` on. All document ids differ. ``last`` is True for the last batch of a part."""

    start: Position
    entries: list[Entry] = field(default_factory=list)
    last: bool = False

    @property
    def documents(self) -> list[NewDocument]:
        return [entry.document for entry in self.entries if entry.document]

    @property
    def errors(self) -> list[UploadError]:
        return [entry.error for entry in self.entries if entry.error]

    @property
    def next_position(self) -> Position:
        """Return the position at which the next batch begins."""
        return self.entries[-1].next_position if self.entries else self.start

    def split(self) -> "tuple[_Batch, _Batch]":
        """Split a batch of at least two documents after half of its documents."""
        with_document = [number for number, entry in enumerate(self.entries) if entry.document]
        middle = with_document[len(with_document) // 2]
        first = _Batch(self.start, self.entries[:middle])
        return first, _Batch(first.next_position, self.entries[middle:], self.last)

    def reject_documents(self, code: str, message: str) -> "_Batch":
        """Return this batch with an error instead of each document."""
        entries = [
            replace(entry, document=None, error=UploadError.shortened(entry.line, code, message)) if entry.document else entry
            for entry in self.entries
        ]
        return replace(self, entries=entries)


async def _group_into_batches(entries: AsyncIterator[Entry], start: Position, max_documents: int) -> AsyncGenerator[_Batch, None]:
    """Group ``entries``, which begin at ``start``, into batches. Always yield a last batch, even an empty one.

    A document with an id that the batch already contains begins a new batch: a later append must replace the earlier document.
    """
    batch, ids, text_bytes = _Batch(start), set[str](), 0
    async for entry in entries:
        document = entry.document
        size = len(document.text.encode()) if document else 0
        full = len(ids) >= max_documents or len(batch.entries) - len(ids) >= _MAX_ERRORS
        full = full or batch.next_position.offset - batch.start.offset >= _MAX_READ_BYTES
        if full or (document and ids and (document.id in ids or text_bytes + size > _MAX_TEXT_BYTES)):
            yield batch
            batch, ids, text_bytes = _Batch(batch.next_position), set(), 0
        batch.entries.append(entry)
        if document:
            ids.add(document.id)
            text_bytes += size
    yield replace(batch, last=True)


class BatchConflict(Conflict):
    """Raised if a batch did not take effect, because its part or its upload changed after the worker had read it."""

    code = "overtaken"


class IndexReplaced(Conflict):
    """Raised if the index was deleted or replaced after the upload had begun."""

    code = "index_replaced"


@dataclass
class PartRun:
    """Ingest a part until it is done or the time is up. Store at least one batch, however short the time is."""

    writer: Writer
    store: TenantStore
    record: UploadRecord
    deadline: Deadline
    settings: IngestSettings
    bus: EventBus
    _refused: int = field(default=0, init=False)
    _slowest: float = field(default=0.0, init=False)  # seconds that the slowest batch took

    def __post_init__(self) -> None:
        record = self.record
        self._seconds_at_start = self.deadline.remaining()
        self._scope = Scope.for_job(
            self.store,
            self.deadline,
            route=_ROUTE,
            user=record.user,
            request_id=record.request_id,
            token_id=record.token_id,
            bus=self.bus,
        )

    async def run(self, part: PartRecord) -> bool:
        """Ingest ``part``, which this worker has leased. Return True if the part is done, False if the time is up.

        Raises:
            LeaseLost: another worker has the part, or the upload has ended.
            IndexReplaced: the index was deleted or replaced after the first batch of the upload.
            Superseded: a newer object was put under the file's key.
            ObjectMissing: the file was deleted.
            SpassError: embedding or appending failed.
        """
        record = self.record
        start = part.position
        blocks = self.store.uploads.blocks(record.key, record.version, start.offset, part.end)
        async with aclosing(blocks):
            read = entries(FileKind(record.kind), record.columns, record.filename, blocks, start, part.end)
            async with aclosing(_group_into_batches(read, start, self.settings.batch_documents)) as batches:
                async for batch in batches:
                    before = self.deadline.remaining()
                    part = await self._store_batch(part, batch)
                    self._slowest = max(self._slowest, before - self.deadline.remaining())
                    if not part.done and self._time_is_up():
                        return False
        return True

    def _time_is_up(self) -> bool:
        remaining_s = self.deadline.remaining()
        return remaining_s < max(LAST_SECONDS, self._slowest) or self._seconds_at_start - remaining_s >= _SLICE_SECONDS

    async def _store_batch(self, part: PartRecord, batch: _Batch) -> PartRecord:
        """Store ``batch`` and return the part after it. If the embedding model refuses a document, only that document fails."""
        try:
            return await self._advance(part, batch)
        except TooManyDocuments:  # the index is full, so no other document can be stored
            raise
        except InvalidInput as error:
            if len(batch.documents) > 1:
                first, second = batch.split()
                return await self._store_batch(await self._store_batch(part, first), second)
            self._refused += 1
            if not batch.documents or self._refused > self.settings.max_refused:
                raise
            return await self._advance(part, batch.reject_documents(error.code, error.message))

    async def _advance(self, part: PartRecord, batch: _Batch) -> PartRecord:
        after = replace(
            part,
            position=batch.next_position,
            batch=part.batch + 1,
            done=batch.last,
            failed=part.failed + len(batch.errors),
            errors=(*part.errors, *batch.errors)[:MAX_ERRORS],
        )
        for _ in range(_ATTEMPTS):
            try:
                await self._write(part, after, batch)
            except BatchConflict:
                current = part_of(await self.store.table.get(part.key))
                if (current.owner, current.batch, current.position) == (after.owner, after.batch, after.position):
                    return current  # the reply of the transaction was lost
                if (current.owner, current.batch) != (part.owner, part.batch):
                    raise LeaseLost("Another worker has this part of the upload.", retry_after=1) from None
                # The part has not changed, so the file was superseded, the upload ended, or another part created the index.
                await check_not_superseded(self.store, self.record)
                self.record = await read_record(self.store, self.record.index, self.record.id)
                if not self.record.active:
                    raise LeaseLost("The upload is not active any more.", retry_after=1) from None
            else:
                return after
        raise StorageUnavailable("The index is changing; try again.", retry_after=1)

    async def _write(self, part: PartRecord, after: PartRecord, batch: _Batch) -> None:
        advance = _Advance(self.store, self.record, part, after, batch)
        if batch.documents:
            answer = await self.writer.append(self._scope, self.record.index, batch.documents, advance)
            self.record = replace(self.record, generation=answer.generation)
            return
        try:
            await self.store.table.transact(advance.updates(), token=random_suffix())
        except TransactionFailed:
            raise BatchConflict("The batch was overtaken.") from None


@dataclass(frozen=True, slots=True)
class _Advance:
    """The participant that advances a part by one batch, in the transaction that appends the batch's documents. ``record`` and
    ``before`` are the stored values that the worker read last."""

    store: TenantStore
    record: UploadRecord
    before: PartRecord
    after: PartRecord
    batch: _Batch

    async def writes(self, answer: WriteAnswer, /) -> Sequence[Write]:
        """Return the writes to commit together with the append whose result is ``answer``. Raise ``IndexReplaced`` if the
        generation of the index is not the one that the earlier batches were appended to."""
        if self.record.generation and self.record.generation != answer.generation:
            raise IndexReplaced(
                "The index was deleted or replaced while this file was being ingested, with all documents of the file so far; "
                "upload the file again."
            )
        return self.updates(answer.generation)

    def refusal(self) -> SpassError:
        return BatchConflict("The batch was overtaken.")

    def updates(self, generation: str = "") -> Sequence[Write]:
        """Return the writes that advance the part and the upload. A batch without documents does not set the ``generation``."""
        return [self._part(), self._upload(generation), *not_superseded(self.store, self.record)]

    def _part(self) -> Update:
        after = self.after
        changes: dict[str, Value] = {"position": encode(after.position), "batch": after.batch, "failed": after.failed}
        if after.done:
            changes["done"] = True
        if after.errors != self.before.errors:
            changes["errors"] = encode_errors(after.errors)
        unchanged = Equals("owner", self.before.owner) & Equals("batch", self.before.batch)
        return Update(after.key, set=changes, when=unchanged)

    def _upload(self, generation: str) -> Update:
        increments = {
            "bytes_done": self.after.position.offset - self.before.position.offset,
            "ingested": len(self.batch.documents),
            "failed": len(self.batch.errors),
            "parts_done": int(self.batch.last),
        }
        changes: dict[str, Value] = {"touched": now_s()}
        when: Condition = OneOf("status", list(ACTIVE))
        if generation:
            changes["generation"] = generation
            when &= Absent("generation") | Equals("generation", generation)
        return Update(
            upload_key(self.store, self.record),
            set=changes,
            add={name: amount for name, amount in increments.items() if amount},
            remove=("resent",),
            when=when,
        )
