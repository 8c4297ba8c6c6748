"""What a warm process keeps of the bucket, in memory only, under a byte budget.

Nothing cached ever changes, since a segment's objects are written once under a name that is never used again. So there is no
invalidation.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from spass.core.ids import TenantId

_DEFAULT_BUDGET: Final = 256 * 2**20
_STREAM_BYTES: Final = 64 * 2**20  # vectors that pass through when there is no room for them, and a scan's scores

_ENTRY_BYTES: Final = 512  # of a name, a body's header and the places in two dictionaries
_MAX_USES: Final = 7
_USES_PER_NAME: Final = 4  # between two halvings


class ObjectName(NamedTuple):
    """An object of one tenant, or a part of one; ``key`` is relative to the tenant's prefix and holds the index's generation."""

    tenant: TenantId
    key: str


def memory_budget() -> int:
    """Bytes the cache may hold: half of the function's memory less what streams past it, at least a quarter; the rest is the
    interpreter's and a write's. 256 MiB outside of Lambda."""
    memory = int(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "0")) * 2**20
    return max(memory // 4, memory // 2 - _STREAM_BYTES) if memory else _DEFAULT_BUDGET


class ObjectCache:
    """Bytes by name. What comes new takes the place of the least recently used, if that was used clearly less often of late.

    So an index larger than the budget, which every query reads from end to end, does not push itself out: what fits stays, and
    the rest is streamed. Uses are counted up to a small number and halved now and then, also those of what is not held, so that
    an index that is asked no more makes room after a few queries of another (TinyLFU, https://arxiv.org/abs/1512.00727, with
    exact counts).
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = memory_budget() if budget is None else budget
        self.held = 0
        self._bodies: OrderedDict[ObjectName, bytes] = OrderedDict()
        self._uses: dict[ObjectName, int] = {}
        self._until_halving = 0
        self._loading: dict[ObjectName, asyncio.Future[bytes]] = {}

    def __contains__(self, name: ObjectName) -> bool:
        return name in self._bodies

    def get(self, name: ObjectName) -> bytes | None:
        self._count(name)
        body = self._bodies.get(name)
        if body is not None:
            self._bodies.move_to_end(name)
        return body

    def put(self, name: ObjectName, body: bytes) -> None:
        """Keep ``body`` if there is room for it, or room can be made."""
        size = len(body) + _ENTRY_BYTES
        if name in self._bodies or size > self.budget:
            return
        victims = self._choose_evictions(name, self.held + size - self.budget)
        if victims is None:
            return
        for victim in victims:
            self.held -= len(self._bodies.pop(victim)) + _ENTRY_BYTES
        self._bodies[name] = body
        self.held += size

    def evict_until_free(self, size: int) -> None:
        """Drop the least recently used until ``size`` bytes of the budget are free, for whoever needs them otherwise."""
        while self._bodies and self.held + size > self.budget:
            _, dropped = self._bodies.popitem(last=False)
            self.held -= len(dropped) + _ENTRY_BYTES

    async def load(self, name: ObjectName, read: Callable[[], Awaitable[bytes]]) -> bytes:
        """What is held, else what ``read`` gives, kept if there is room. Of several who want it at once, one reads."""
        body = self.get(name)
        while body is None:
            loading = self._loading.get(name)
            if loading is None or loading.get_loop() is not asyncio.get_running_loop():
                return await self._read(name, read)
            await asyncio.wait([loading])
            body = None if loading.cancelled() else loading.result()
        return body

    async def _read(self, name: ObjectName, read: Callable[[], Awaitable[bytes]]) -> bytes:
        loading = self._loading[name] = asyncio.get_running_loop().create_future()
        try:
            body = await read()
            self.put(name, body)
            loading.set_result(body)
            return body
        finally:
            loading.cancel()  # of no effect once there is a result; otherwise whoever waits reads for itself
            if self._loading.get(name) is loading:
                del self._loading[name]

    def _choose_evictions(self, name: ObjectName, needed: int) -> list[ObjectName] | None:
        """What goes so that ``needed`` bytes become free, None if it is worth more than ``name``."""
        victims: list[ObjectName] = []
        worth = self._uses.get(name, 0)
        for victim, body in self._bodies.items():
            if needed <= 0:
                break
            uses = self._uses.get(victim, 0)
            # One use more or less is where in its round a scan just is, or where the last halving met it.
            if uses and uses + 1 >= worth:
                return None
            victims.append(victim)
            needed -= len(body) + _ENTRY_BYTES
        return victims

    def _count(self, name: ObjectName) -> None:
        self._uses[name] = min(self._uses.get(name, 0) + 1, _MAX_USES)
        self._until_halving -= 1
        if self._until_halving <= 0:
            self._uses = {used: uses // 2 for used, uses in self._uses.items() if uses > 1}
            self._until_halving = _USES_PER_NAME * max(len(self._uses), len(self._bodies), 16)
