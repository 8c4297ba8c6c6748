"""One worker's run through one part of an upload: read, embed, append, batch after batch, until part or time end."""

from contextlib import aclosing
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from spass.aws.again import again
from spass.aws.clients import TenantStore
from spass.aws.leases import LeaseLost
from spass.aws.table import TransactionFailed
from spass.calls.scope import Scope
from spass.core.errors import InvalidInput, StorageUnavailable, TooManyDocuments
from spass.core.ids import random_suffix
from spass.core.time import Deadline
from spass.rag.ingest.batches import Batch, batches
from spass.rag.ingest.newest import check_newest
from spass.rag.ingest.plan import Kind, Source
from spass.rag.ingest.progress import Advance, Overtaken, PartRecord, read_part, take_part
from spass.rag.ingest.reading import entries
from spass.rag.ingest.record import Status, UploadRecord, read_record
from spass.rag.service import Rag

ROUTE: Final = "ingest"
"""What the audit calls the embedding of an upload."""
LAST_SECONDS: Final = 90.0
"""With less left of its time than this, or than its slowest batch took, a worker begins no further batch."""
_TRIES: Final = 3  # of one batch, while others change where it goes
_MAX_REFUSED: Final = 20  # documents that the embedding model refuses; then it is the model and not the documents


class PartEnd(Enum):
    DONE = auto()
    TIME_UP = auto()


class PartRun:
    """The run of an ``owner`` through parts, one after another. However short its time, it works on one batch."""

    def __init__(self, rag: Rag, store: TenantStore, record: UploadRecord, deadline: Deadline) -> None:
        self._rag = rag
        self._store = store
        self._record = record
        self._deadline = deadline
        self._scope = Scope.for_job(store, deadline, route=ROUTE, user=record.user, request_id=record.request_id)
        self._refused = 0
        self._slowest: float | None = None  # seconds that a batch took

    async def run(self, number: int, owner: str) -> PartEnd:
        """Raises:
        LeaseLost: the part or the upload went into other hands, or the upload has ended.
        IndexReplaced: the index is not the one that the upload began to go into.
        Superseded: a newer object was put under the file's key.
        ObjectMissing: the file is gone.
        SpassError: what embedding and appending raise.
        """
        if self._time_up:
            return PartEnd.TIME_UP
        part = await take_part(self._store, self._record, number, owner)
        if part.done:
            return PartEnd.DONE
        record = self._record
        source, start = Source(record.filename), part.position
        blocks = self._store.uploads.blocks(record.key, record.version, start.offset, part.end)
        async with aclosing(blocks):
            read = entries(Kind(record.kind), record.columns, source, blocks, start, part.end)
            async with aclosing(batches(read, start)) as gathered:
                async for batch in gathered:
                    before = self._deadline.remaining()
                    part = await self._store_batch(part, batch)
                    self._slowest = max(self._slowest or 0.0, before - self._deadline.remaining())
                    if not part.done and self._time_up:
                        return PartEnd.TIME_UP
        return PartEnd.DONE

    @property
    def _time_up(self) -> bool:
        """Whether what a further batch costs might be spent in vain."""
        return self._slowest is not None and self._deadline.remaining() < max(LAST_SECONDS, self._slowest)

    async def _store_batch(self, part: PartRecord, batch: Batch) -> PartRecord:
        """The part after ``batch``. What the embedding model refuses of it fails alone."""
        try:
            return await self._advance(part, batch)
        except TooManyDocuments:  # the index is full, whichever documents come
            raise
        except InvalidInput as error:
            if len(batch.documents) > 1:
                fore, rear = batch.halves()
                return await self._store_batch(await self._store_batch(part, fore), rear)
            self._refused += 1
            if not batch.documents or self._refused > _MAX_REFUSED:
                raise
            return await self._advance(part, batch.refused(error.code, error.message))

    async def _advance(self, part: PartRecord, batch: Batch) -> PartRecord:
        for _ in range(_TRIES):
            advance = Advance(self._store, self._record, part, batch)
            try:
                await self._take_effect(advance)
            except Overtaken:
                found = await read_part(self._store, self._record, part.number)
                if found.owner != part.owner:
                    raise LeaseLost("Another worker has this part of the upload.", retry_after=1) from None
                if found.batch > part.batch:
                    return found
                # Not the part, then: the file is not the newest, the upload has ended, or another part of it was first to create
                # the index.
                await check_newest(self._store, self._record)
                self._record = await read_record(self._store, self._record.index, self._record.id)
                if self._record.status is not Status.RUNNING:
                    raise LeaseLost("The upload is not in work any more.", retry_after=1) from None
            else:
                return advance.after
        raise StorageUnavailable("The index is changing; try again.", retry_after=1)

    async def _take_effect(self, advance: Advance) -> None:
        documents = [placed.document for placed in advance.batch.documents]
        if documents:
            answer = await self._rag.append(self._scope, self._record.index, documents, advance)
            self._record = replace(self._record, generation=answer.generation)
            return
        token = random_suffix()
        try:
            await again(lambda: self._store.table.transact(advance.alone(), token=token))
        except TransactionFailed:
            raise Overtaken("The batch was overtaken.") from None
