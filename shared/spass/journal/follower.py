"""Follow a stream on any worker: read its frames from the journal while they are written, or afterwards."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, TypeAlias

from spass.core.errors import StorageUnavailable, TurnLost
from spass.core.ids import SessionId
from spass.core.tasks import EventTask
from spass.core.time import Clock
from spass.journal.frames import Chunk, EventId, Frame
from spass.journal.head import StreamHead, StreamState, read_head, stream_not_found
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item

FIRST_POLLS: Final = 10
"""The number of polls with the short interval."""
FIRST_POLL_SECONDS: Final = 0.3
POLL_SECONDS: Final = 1.0
_CHUNKS_PER_PAGE: Final = 32  # a chunk has up to 300 KB
_FAILED_POLLS: Final = 5  # in a row, after which a follower gives up


FollowedStream: TypeAlias = EventTask[tuple[EventId, Frame]]
"""A stream that is read from the journal. It raises ``TurnLost`` if the worker of the turn dies."""

_LOST: Final = "The worker that ran this turn died, and nothing of the turn was recorded. Send the request again."


class StreamRestarted(Exception):
    """The attempt that is followed was undone or replaced before its first frame was delivered. Start over: claim the stream
    or follow its next attempt."""


async def follow(
    store: TenantStore, digest: str, after: EventId | None = None, clock: Clock = time.time, head: StreamHead | None = None
) -> "Follower":
    """Return a reader of the newest attempt of a stream, behind event ``after`` if that is of the same attempt.

    ``head`` is the head if the caller has just read it.

    Raises:
        StreamNotFound: there is no such stream, or its session was deleted.
    """
    if head is None:
        head = await read_head(store, digest)
    if head is None:
        raise stream_not_found()
    follower = Follower(store, head, after, clock)
    await follower.start()
    return follower


class Follower:
    """A reader of one attempt, created by ``follow``. ``head`` is the head as it was last read."""

    def __init__(self, store: TenantStore, head: StreamHead, after: EventId | None, clock: Clock) -> None:
        self.head = head
        self._store = store
        self._clock = clock
        self._session = head.session  # the partition that is read now
        self._after_key: str | None = None
        self._next = 1  # the number of the next frame to read
        self._skipped = after.n if after is not None and after.attempt == head.attempt else 0
        self._unread: deque[tuple[EventId, Frame]] = deque()
        self._has_chunks = False
        self._is_page_full = False
        self._has_last_chunk = False
        self._has_ended = False  # no further chunk will be written
        self._has_delivered = False

    @property
    def is_over(self) -> bool:
        """Return whether the stream has ended and its reader has all frames."""
        return self._has_last_chunk and not self._unread

    async def start(self) -> None:
        """Read the first frames, if there are any. Errors are those of ``follow``."""
        sessions = [session for session in (self.head.session, self.head.successor) if session is not None]
        found, heads = await asyncio.gather(self._read_page(), asyncio.gather(*map(self._read_session, sessions)))
        while found and not self._unread and not self._has_last_chunk:
            found = await self._read_page()
        is_removed = self.head.state is not StreamState.RUNNING and not (self._unread or self._has_last_chunk)
        # A session without a head is deleted if it has chunks. Otherwise it may not be created yet.
        is_deleted = any(self._has_chunks if head is None else "deleted_at" in head for head in heads)
        if is_removed or is_deleted:
            raise stream_not_found()

    async def frames(self, seconds: float) -> AsyncGenerator[tuple[EventId, Frame], None]:
        """Yield the frames with their ids, without gaps, until the last one or for ``seconds``.

        Raises:
            StreamRestarted: the attempt was undone, abandoned or replaced before this reader delivered a frame.
            TurnLost: the worker that runs the attempt died.
            StreamNotFound: the stream was deleted meanwhile.
            StorageUnavailable: the table did not answer several polls in a row.
        """
        loop = asyncio.get_running_loop()
        until, waits, failures = loop.time() + seconds, 0, 0
        poll_at_once = self._is_more_stored
        while True:
            while self._unread:
                self._has_delivered = True
                yield self._unread.popleft()
            if self._has_last_chunk or loop.time() >= until:
                return
            if not poll_at_once:
                interval = FIRST_POLL_SECONDS if waits < FIRST_POLLS else POLL_SECONDS
                waits += 1
                await asyncio.sleep(min(interval, until - loop.time()))
            try:
                poll_at_once, failures = await self._poll(), 0
            except StorageUnavailable:
                poll_at_once, failures = False, failures + 1
                if failures == _FAILED_POLLS:
                    raise

    async def _poll(self) -> bool:
        """Read the next frames. Return whether to poll again at once. Errors are those of ``frames``."""
        if await self._read_page():
            self._has_ended = False
            return self._is_more_stored
        if self._has_ended:
            raise self._ended_early()
        head = await read_head(self._store, self.head.digest)
        if head is None or not self.head.is_same_attempt(head):
            raise self._replaced(head)
        is_moved = head.successor != self.head.successor
        self.head = head
        # Chunks may have been written since the query, so the reader queries once more before it moves or gives up.
        self._has_ended = not head.is_live(self._clock())
        return is_moved or self._has_ended

    @property
    def _is_more_stored(self) -> bool:
        """Return whether the last page was full, or the stream continues in another partition."""
        return self._is_page_full or self._session != self.head.last_session

    def _ended_early(self) -> Exception:
        """Return the error of a stream that has ended without its last chunk."""
        match self.head.state:
            case StreamState.RUNNING:
                return TurnLost(_LOST)
            case StreamState.FAILED if self._next == 1:
                return StreamRestarted()  # the attempt was abandoned before it began
            case _:
                return stream_not_found()

    def _replaced(self, head: StreamHead | None) -> Exception:
        if not self._has_delivered:
            return StreamRestarted()
        return stream_not_found() if head is None else TurnLost(_LOST)

    async def _read_page(self) -> bool:
        """Read the next chunks. Return False if there are none yet.

        Nothing is written to the partition of the session after the head names its successor. So when an empty answer follows
        such a head, the reader continues in the successor's partition.
        """
        if await self._read_chunks():
            return True
        if self._session == self.head.last_session:
            return False
        self._session = self.head.last_session
        return await self._read_chunks()

    async def _read_chunks(self) -> bool:
        items = await self._store.table.query(
            keys.session_partition(self._store.tenant, self._session),
            prefix=keys.stream_chunk_prefix(self.head.digest, self.head.attempt),
            after=self._after_key,
            limit=_CHUNKS_PER_PAGE,
        )
        self._is_page_full = len(items) == _CHUNKS_PER_PAGE
        self._has_chunks |= bool(items)
        found = False
        for item in items:
            chunk = Chunk.of(item)
            if item["owner"] != self.head.owner and chunk.first < self._next:
                # It is from an earlier stream with this name, which was deleted with another session.
                self._after_key = str(item["sk"])
                continue
            if item["owner"] != self.head.owner or chunk.first != self._next:
                break  # the next chunk is not written yet; or it is missing, because its session is being deleted
            events = ((EventId(self.head.attempt, n), frame) for n, frame in enumerate(chunk.frames, chunk.first))
            self._unread += (event for event in events if event[0].n > self._skipped)
            self._next = chunk.end
            self._after_key = str(item["sk"])
            self._has_last_chunk = chunk.is_last
            found = True
        return found

    async def _read_session(self, session: SessionId) -> Item | None:
        return await self._store.table.get(keys.session_head(self._store.tenant, session))
