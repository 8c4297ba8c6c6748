"""Write the frames of a running attempt to the journal, behind the turn and never in its way.

Writes are sequential, and the chunks of an attempt are contiguous. A follower may have read a chunk whose write has an unknown
outcome. So it is written again with exactly the same frames under the same key, and later frames go into further chunks.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from spass.core.errors import SpassError, StorageUnavailable
from spass.core.ids import SessionId, random_suffix
from spass.core.tasks import EventList
from spass.core.time import Clock
from spass.journal.frames import Chunk, Frame, split
from spass.journal.head import StreamClaim, StreamHead, StreamState, read_head
from spass.store import keys
from spass.store.leases import LeaseLost
from spass.store.table import ConditionFailed, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Equals, Put, Write

FLUSH_SECONDS: Final = 1.0
"""Seconds for which tokens wait for a flush, and for which the writer waits after a failed one."""
FLUSH_CHARACTERS: Final = 8192
"""Characters of waiting tokens that are flushed at once."""
_LAST_RETRY_DELAYS: Final = (0.1, 0.4, 1.0)  # seconds before each retry of the last flush
_FAIL_ATTEMPTS: Final = 3


class JournalWriter:
    """Write ``frames`` under ``claim`` while they arrive. Frame number ``n`` of the stream is ``frames.events[n - 1]``."""

    def __init__(self, claim: StreamClaim, frames: EventList[Frame], clock: Clock = time.time) -> None:
        self._claim = claim
        self._frames = frames
        self._clock = clock
        self._lock = asyncio.Lock()
        self._is_closed = False
        self._written = 0
        self._successor: SessionId | None = None
        self._unsettled: tuple[Chunk, Put] | None = None

    async def run(self) -> None:
        """Flush the frames until the list has ended and is written, or ``final_writes`` or ``fail`` was called.

        A failed flush does not end it: its frames go with a later one. So it ends up to a second after the list.
        """
        while not self._is_closed and await self._wait_until_due():
            while not await self._try_to_flush():
                if self._frames.has_ended and self._clock() >= self._claim.head.expires_at:
                    return
                await asyncio.sleep(FLUSH_SECONDS)

    def continue_in(self, successor: SessionId) -> None:
        """Write further chunks to the partition of ``successor``, once the head names it."""
        self._successor = successor

    async def final_writes(self, last: Sequence[Frame]) -> list[Write]:
        """Return the writes that end the stream with ``last`` as done, for the transaction of the turn. They include the frames
        that wait, unless these are many or must be written before: then they are flushed first.

        They fail if the claim was lost. Append ``last`` to the list of frames after the transaction has succeeded.

        Raises:
            StorageUnavailable: the frames cannot be flushed, or the lease has expired; the turn must not be committed.
        """
        async with self._lock:
            self._is_closed = True
            return await self._end(last, StreamState.DONE)

    async def fail(self, last: Sequence[Frame]) -> StreamState | None:
        """End the stream with what waits and ``last`` as failed, and return the state in which it has ended. None means that the
        claim is lost or storage fails.

        The lease of a stream that could not be ended expires. Call this also after the transaction with ``final_writes`` failed,
        or if its outcome is unknown: if it took effect, the state is ``DONE``.
        """
        async with self._lock:
            self._is_closed = True
            try:
                writes = await self._end(last, StreamState.FAILED)
                return await self._commit_failure(writes)
            except SpassError:
                return None

    async def _try_to_flush(self) -> bool:
        """Flush, unless the stream has been closed. Return False if that failed."""
        async with self._lock:
            try:
                if not self._is_closed:
                    await self._flush()
            except SpassError:
                return False
        return True

    async def _wait_until_due(self) -> bool:
        """Wait until waiting frames should be flushed. Return False if the list has ended and none is waiting."""
        await self._frames.wait_for_event(self._written)
        events, index, characters = self._frames.events, self._written, 0

        def is_due() -> bool:
            nonlocal index, characters
            while index < len(events) and events[index].is_token:
                characters += len(events[index].text)
                index += 1
            return index < len(events) or characters >= FLUSH_CHARACTERS

        await self._frames.wait_until(is_due, FLUSH_SECONDS)
        return len(events) > self._written

    async def _flush(self) -> None:
        """Write the frames that wait now.

        Raises:
            SpassError: some of them still wait.
        """
        end = len(self._frames.events)
        while self._written < end:
            if self._unsettled is None:
                await self._move()
                frames = next(split(self._frames.events[self._written : end]))
                self._unsettled = self._put(Chunk(self._written + 1, frames))
            chunk, put = self._unsettled
            self._check_lease()
            await self._claim.store.table.write(put)
            self._written = chunk.end - 1
            self._unsettled = None

    async def _move(self) -> None:
        """Store that the stream continues in the successor, before the first chunk in its partition."""
        if self._successor is not None and self._claim.head.successor != self._successor:
            self._check_lease()
            await self._claim.move_to(self._successor)

    async def _end(self, last: Sequence[Frame], state: StreamState) -> list[Write]:
        """Return the writes that end the stream.

        Raises:
            SpassError: what must be written before them cannot be written.
        """
        for delay in _LAST_RETRY_DELAYS:
            try:
                await self._prepare_end()
                break
            except LeaseLost:
                raise
            except StorageUnavailable:
                await asyncio.sleep(delay)
        else:
            await self._prepare_end()
        self._check_lease()
        return [*self._last_chunks(last), self._claim.ending(state)]

    async def _prepare_end(self) -> None:
        """Write what the transaction does not carry.

        This depends on the waiting frames alone. So after a commit with an unknown outcome, ``fail`` flushes nothing: a flush has
        no condition and would overwrite the last chunk.
        """
        waiting = sum(len(frame.data) for frame in self._frames.events[self._written :])
        if self._unsettled is not None or waiting > FLUSH_CHARACTERS:
            await self._flush()
        await self._move()

    def _last_chunks(self, last: Sequence[Frame]) -> list[Put]:
        """Return the last chunks: the frames that wait, and ``last``."""
        parts = list(split([*self._frames.events[self._written :], *last])) or [()]
        puts, first = list[Put](), self._written + 1
        for part in parts:
            chunk, put = self._put(Chunk(first, part, is_last=part is parts[-1]))
            puts.append(put)
            first = chunk.end
        return puts

    async def _commit_failure(self, writes: Sequence[Write]) -> StreamState | None:
        table, token = self._claim.store.table, random_suffix()
        for _ in range(_FAIL_ATTEMPTS):
            try:
                await table.transact(writes, token=token)
            except TransactionFailed:
                break  # lost or done, or this is the failure of a retry whose first attempt took effect
            except StorageUnavailable:
                continue
            return StreamState.FAILED
        head = await read_head(self._claim.store, self._claim.head.digest)
        if head is None or not self._claim.head.is_same_attempt(head) or head.state is StreamState.RUNNING:
            return None
        return head.state

    def _put(self, chunk: Chunk) -> tuple[Chunk, Put]:
        head, store = self._claim.head, self._claim.store
        key = keys.stream_chunk(store.tenant, head.last_session, head.digest, head.attempt, chunk.first)
        return chunk, Put(key, {**chunk.attributes(head.ttl), "owner": head.owner})

    def _check_lease(self) -> None:
        self._claim.check_lease(self._clock())


async def remove_if_session_is_deleted(store: TenantStore, head: StreamHead) -> None:
    """Remove what the attempt ``head`` wrote for a session that is deleted. Call this after its last write.

    A failed turn no longer holds its session, so the deletion may have ended before that write. A deletion that begins later
    finds all chunks itself. If the table does not answer, they expire after a day.
    """
    with suppress(StorageUnavailable):
        for session in dict.fromkeys((head.session, head.last_session)):
            item = await store.table.get(keys.session_head(store.tenant, session))
            if item is None or "deleted_at" in item:
                partition = keys.session_partition(store.tenant, session)
                chunks = await store.table.query(partition, prefix=keys.stream_chunk_prefix(head.digest, head.attempt))
                await store.table.delete(chunks)
                with suppress(ConditionFailed):  # another attempt has begun
                    await store.table.write(Delete(keys.stream_head(store.tenant, head.digest), Equals("owner", head.owner)))
