"""The session that a turn holds. A compaction during the turn replaces it by its successor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from spass.aws.clients import TenantStore
from spass.core.errors import StorageUnavailable
from spass.core.ids import SessionId
from spass.core.time import Clock
from spass.sessions.hold import release_hold, renew_hold
from spass.sessions.session import Session


class HeldSession:
    """The ``session`` that ``owner`` holds. A lock excludes renewal during a transfer, because the hold of an archived session
    cannot be renewed."""

    def __init__(self, store: TenantStore, owner: str, session: Session, clock: Clock) -> None:
        self.store = store
        self.owner = owner
        self.session = session
        self._clock = clock
        self._transfer_lock = asyncio.Lock()
        self._session_ids = [session.id]

    async def renew(self) -> None:
        """Extend the hold by a minute. Errors are those of ``renew_hold``."""
        async with self._transfer_lock:
            await renew_hold(self.store, self.session.id, self.owner, self._clock())

    @asynccontextmanager
    async def transfer_to(self, successor: SessionId) -> AsyncIterator[None]:
        """Block renewals during the body, which commits ``successor`` with our hold and then calls ``finish_transfer``."""
        async with self._transfer_lock:
            self._session_ids.append(successor)  # release it too: the outcome of the commit may stay unknown
            yield

    def finish_transfer(self, successor: Session) -> None:
        """Continue with ``successor``. Call this only when its commit has succeeded."""
        self.session = successor
        self._session_ids = [successor.id]

    def mark_committed(self) -> None:
        """Record that the commit released the hold."""
        self._session_ids = []

    async def release(self) -> None:
        """Release every hold that may still exist. Anything not released here expires with its lease."""
        for session in self._session_ids:
            with suppress(StorageUnavailable):
                await release_hold(self.store, session, self.owner)
