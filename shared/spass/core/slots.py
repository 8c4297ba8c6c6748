"""Slots for work that tasks of all tenants, of any event loop and thread, share fairly."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final


class NoFreeSlot(RuntimeError):
    """No slot became free in time."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    turn: "asyncio.Future[None]"

    def wake(self) -> bool:
        """Tell the task that it has a slot. Return False if its loop has ended, with its tasks."""
        try:
            self.loop.call_soon_threadsafe(self.turn.set_result, None)
        except RuntimeError:
            return False
        return True


class Slots:
    """At most ``number`` holders at a time, and one more whose tenant holds no other slot.

    So a tenant alone can hold ``number`` slots for as long as it likes, and the first task of the next tenant still starts at
    once. A slot that becomes free goes to the waiting tenant that holds the fewest slots; of several, to the one that has waited
    longest since its last turn. A tenant's own tasks are served in the order in which they came.

    An ``asyncio.Semaphore`` belongs to one event loop; this belongs to none.
    """

    def __init__(self, number: int) -> None:
        self._number: Final = number
        self._lock: Final = threading.Lock()
        self._held: Final[Counter[str]] = Counter()
        self._waiting: Final[dict[str, deque[_Waiter]]] = {}
        """The tasks that wait, by tenant. The order is the order of their turns."""

    def has_free(self, tenant_id: str) -> bool:
        """Return True if a task of this tenant would not wait now."""
        with self._lock:
            return self._may_take(tenant_id)

    async def acquire(self, tenant_id: str, seconds: float | None = None) -> None:
        """Take a slot. Raise ``NoFreeSlot`` if none became free within ``seconds``, if they are given."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop, loop.create_future())
        with self._lock:
            if self._may_take(tenant_id):  # then no task that could take it waits
                self._held[tenant_id] += 1
                return
            self._waiting.setdefault(tenant_id, deque()).append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(waiter.turn)
        except BaseException as error:
            self._abandon(tenant_id, waiter)
            if isinstance(error, TimeoutError):
                raise NoFreeSlot from None
            raise

    def release(self, tenant_id: str) -> None:
        """Give back a slot that a task of this tenant holds. The next task that waits gets it."""
        with self._lock:
            self._free(tenant_id)
            while (following := self._next_tenant()) is not None:
                self._held[following] += 1
                if not self._remove_first(following).wake():
                    self._free(following)

    @asynccontextmanager
    async def hold(self, tenant_id: str) -> AsyncIterator[None]:
        await self.acquire(tenant_id)
        try:
            yield
        finally:
            self.release(tenant_id)

    def _may_take(self, tenant_id: str) -> bool:
        held = self._held.total()
        return held < self._number or (held == self._number and tenant_id not in self._held)

    def _next_tenant(self) -> str | None:
        """Return the tenant whose turn it is, if one of its tasks may take a slot now."""
        following = min(self._waiting, key=lambda tenant_id: self._held[tenant_id], default=None)
        return following if following is not None and self._may_take(following) else None

    def _remove_first(self, tenant_id: str) -> _Waiter:
        """Remove the tenant's first task from the queue. The tenant's next turn is after the turns of all others."""
        waiters = self._waiting.pop(tenant_id)
        first = waiters.popleft()
        if waiters:
            self._waiting[tenant_id] = waiters
        return first

    def _free(self, tenant_id: str) -> None:
        self._held[tenant_id] -= 1
        if not self._held[tenant_id]:
            del self._held[tenant_id]

    def _abandon(self, tenant_id: str, waiter: _Waiter) -> None:
        """Stop waiting. A slot that was given meanwhile goes to the next task."""
        with self._lock:
            waiters = self._waiting.get(tenant_id)
            if waiters is not None and waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._waiting[tenant_id]
                return
        self.release(tenant_id)
