"""The session that a turn holds, and the stream that shows the turn. A compaction during the turn replaces the session by its
successor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from spass.calls.scope import Scope
from spass.core.errors import StorageUnavailable
from spass.core.ids import SessionId
from spass.core.time import Clock
from spass.sessions.hold import release_hold, renew_hold
from spass.sessions.session import Session
from spass.store.leases import LeaseLost
from spass.store.table import ConditionFailed

if TYPE_CHECKING:
    from spass.journal.head import StreamClaim


class HeldSession:
    """The ``session`` that ``owner`` holds. ``scope`` is that of its agent, ``stream`` the stream of the turn, if it has one.

    A lock excludes renewal during a transfer, because the hold of an archived session cannot be renewed. Always renew the stream
    before the hold: so the next attempt of the stream finds a hold that is its own, or one that has expired.
    """

    def __init__(self, scope: Scope, owner: str, session: Session, clock: Clock, stream: "StreamClaim | None" = None) -> None:
        self.store = scope.store
        self.owner = owner
        self.session = session
        self._scope = scope
        self._stream = stream
        self._clock = clock
        self._transfer_lock = asyncio.Lock()
        self._session_ids = [session.id]

    def check_lease(self) -> None:
        """Raise ``LeaseLost`` if this process paused for so long that another attempt may run the stream, or may have ended it.
        Check this before each effect of the turn."""
        if self._stream is not None:
            self._stream.check_lease(self._clock())

    async def renew(self) -> None:
        """Extend the lease of the stream and the hold by a minute.

        Raises:
            LeaseLost, ConditionFailed: the stream or the hold was lost.
            StorageUnavailable: the outcome is unknown.
        """
        async with self._transfer_lock:
            await self._renew_stream()
            await renew_hold(self.store, self.session.id, self.owner, self._clock())

    @asynccontextmanager
    async def transfer_to(self, successor: SessionId) -> AsyncIterator[None]:
        """Block renewals during the body, which commits ``successor`` with our hold and then calls ``finish_transfer``."""
        async with self._transfer_lock:
            await self._renew_stream()
            self._session_ids.append(successor)  # release it too: the outcome of the commit may stay unknown
            yield

    def finish_transfer(self, successor: Session) -> None:
        """Continue with ``successor``. Call this only when its commit has succeeded."""
        self.session = successor
        self._session_ids = [successor.id]
        self._scope.continue_in(successor.id)

    def mark_committed(self) -> None:
        """Record that the commit released the hold."""
        self._session_ids = []

    async def release(self) -> None:
        """Release every hold that may still exist. Anything not released here expires with its lease."""
        for session in self._session_ids:
            with suppress(StorageUnavailable):
                await release_hold(self.store, session, self.owner)

    async def _renew_stream(self) -> None:
        if self._stream is not None:
            try:
                await self._stream.renew(self._clock())
            except ConditionFailed:
                raise LeaseLost("Another attempt of this request has taken over; try again.", retry_after=1) from None
