"""A session in the hands of a turn, which may go on as another one under way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

from spass.aws.clients import TenantStore
from spass.core.errors import StorageUnavailable
from spass.core.ids import SessionId
from spass.sessions.hold import release_hold, renew_hold
from spass.sessions.session import Session

Clock: TypeAlias = Callable[[], float]
"""Seconds since the epoch."""


class HeldSession:
    """The ``session`` that ``owner`` holds. Renewing the hold and going on as the successor exclude each other, so that no
    renewal meets a session that has just been archived."""

    def __init__(self, store: TenantStore, owner: str, session: Session, clock: Clock) -> None:
        self.store = store
        self.owner = owner
        self.session = session
        self._clock = clock
        self._transfer_lock = asyncio.Lock()
        self._session_ids = [session.id]

    async def renew(self) -> None:
        """Hold on for another minute; errors as ``hold.renew``."""
        async with self._transfer_lock:
            await renew_hold(self.store, self.session.id, self.owner, self._clock())

    @asynccontextmanager
    async def transfer_to(self, successor: SessionId) -> AsyncIterator[None]:
        """The body commits what makes ``successor`` begin under our hold, and then says so by ``moved``."""
        async with self._transfer_lock:
            self._session_ids.append(successor)  # whether it took place may stay unknown
            yield

    def finish_transfer(self, successor: Session) -> None:
        self.session = successor
        self._session_ids = [successor.id]

    def mark_committed(self) -> None:
        """The hold went with the commit."""
        self._session_ids = []

    async def release(self) -> None:
        """Release whatever may still be held. What that does not reach falls free by itself."""
        for session in self._session_ids:
            with suppress(StorageUnavailable):
                await release_hold(self.store, session, self.owner)
