"""Ingest one part of an upload: read, embed and append one batch after another."""

from contextlib import aclosing
from dataclasses import replace
from typing import Final

from spass.aws.clients import TenantStore
from spass.aws.leases import LeaseLost
from spass.aws.table import TransactionFailed
from spass.calls.scope import Scope
from spass.core.errors import InvalidInput, StorageUnavailable, TooManyDocuments
from spass.core.ids import random_suffix
from spass.core.time import Deadline
from spass.rag.ingest.advance import Advance, Overtaken
from spass.rag.ingest.batches import Batch, group_into_batches
from spass.rag.ingest.parts import PartRecord, read_part
from spass.rag.ingest.plan import FileKind, FileName
from spass.rag.ingest.reading import entries
from spass.rag.ingest.supersession import check_not_superseded
from spass.rag.ingest.upload_record import UploadRecord, read_record
from spass.rag.write.writer import Writer

ROUTE: Final = "ingest"
"""The name of the route in the audit records of an upload's embedding calls."""
LAST_SECONDS: Final = 90.0
"""A worker does not begin another batch if it has less time left than this, or than its slowest batch took."""
SLICE_SECONDS: Final = 180.0
"""After this time a worker sends a part to the end of the queue, so that waiting files get their turn."""
_ATTEMPTS: Final = 3  # per batch, because other writers may change the upload or the index in the meantime
_MAX_REFUSED: Final = 20  # documents; if the embedding model refuses more, assume that the model is broken and not the documents


class PartRun:
    """Ingest a part until it is done or the time is up. Store at least one batch, however short the time is."""

    def __init__(self, writer: Writer, store: TenantStore, record: UploadRecord, deadline: Deadline) -> None:
        self._writer = writer
        self._store = store
        self._record = record
        self._deadline = deadline
        self._seconds_at_start = deadline.remaining()
        self._scope = Scope.for_job(store, deadline, route=ROUTE, user=record.user, request_id=record.request_id)
        self._refused = 0
        self._slowest = 0.0  # seconds that the slowest batch took

    async def run(self, part: PartRecord) -> bool:
        """Ingest ``part``, which this worker has leased. Return True if the part is done, False if the time is up.

        Raises:
            LeaseLost: another worker has the part, or the upload has ended.
            IndexReplaced: the index was deleted or replaced after the first batch of the upload.
            Superseded: a newer object was put under the file's key.
            ObjectMissing: the file was deleted.
            SpassError: embedding or appending failed.
        """
        record = self._record
        start = part.position
        blocks = self._store.uploads.blocks(record.key, record.version, start.offset, part.end)
        async with aclosing(blocks):
            read = entries(FileKind(record.kind), record.columns, FileName(record.filename), blocks, start, part.end)
            async with aclosing(group_into_batches(read, start)) as batches:
                async for batch in batches:
                    before = self._deadline.remaining()
                    part = await self._store_batch(part, batch)
                    self._slowest = max(self._slowest, before - self._deadline.remaining())
                    if not part.done and self._time_is_up():
                        return False
        return True

    def _time_is_up(self) -> bool:
        remaining_s = self._deadline.remaining()
        return remaining_s < max(LAST_SECONDS, self._slowest) or self._seconds_at_start - remaining_s >= SLICE_SECONDS

    async def _store_batch(self, part: PartRecord, batch: Batch) -> PartRecord:
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
            if not batch.documents or self._refused > _MAX_REFUSED:
                raise
            return await self._advance(part, batch.reject_document(error.code, error.message))

    async def _advance(self, part: PartRecord, batch: Batch) -> PartRecord:
        for _ in range(_ATTEMPTS):
            advance = Advance(self._store, self._record, part, batch)
            try:
                await self._write(advance)
            except Overtaken:
                current = await read_part(self._store, part.key)
                if current.owner != part.owner:
                    raise LeaseLost("Another worker has this part of the upload.", retry_after=1) from None
                if current.batch > part.batch:
                    return current
                # The part has not changed, so the file was superseded, the upload ended, or another part created the index.
                await check_not_superseded(self._store, self._record)
                self._record = await read_record(self._store, self._record.index, self._record.id)
                if not self._record.active:
                    raise LeaseLost("The upload is not active any more.", retry_after=1) from None
            else:
                return advance.after
        raise StorageUnavailable("The index is changing; try again.", retry_after=1)

    async def _write(self, advance: Advance) -> None:
        documents = [entry.document for entry in advance.batch.documents]
        if documents:
            answer = await self._writer.append(self._scope, self._record.index, documents, advance)
            self._record = replace(self._record, generation=answer.generation)
            return
        token = random_suffix()
        try:
            await self._store.table.transact(advance.alone(), token=token)
        except TransactionFailed:
            raise Overtaken("The batch was overtaken.") from None
