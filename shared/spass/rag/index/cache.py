"""A cache of objects from the bucket, in memory, with a budget in bytes.

There is no invalidation: a segment's objects are written once, under a name of their own.
"""

import asyncio
import mmap
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from spass.core.ids import TenantId

_DEFAULT_BUDGET: Final = 256 * 2**20
_STREAM_BYTES: Final = 64 * 2**20  # memory for vectors that are read but not cached, and for the scores of a scan

_ENTRY_BYTES: Final = 512  # memory of a name, of the header of a bytes object, and of the entries in two dictionaries
_MAX_USES: Final = 7
_HALVING_INTERVAL: Final = 4  # uses per known name, on average, between two halvings of the counts
_MAX_NAMES: Final = 2**14  # that lengthen that interval without being cached: the budget does not contain their memory

Body = bytes | mmap.mmap
"""The bytes of an object, or of a part of one. Blocks of codes are in memory of large pages, the others are bytes."""


class ObjectName(NamedTuple):
    """An object of one tenant, or a part of one. ``key`` is relative to the tenant's prefix and contains the generation."""

    tenant: TenantId
    key: str


def memory_budget() -> int:
    """Return the size of the cache in bytes: half of the function's memory minus 64 MiB, at least a quarter of it. The
    interpreter and writes need the rest. Outside of Lambda it is 256 MiB."""
    memory = int(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "0")) * 2**20
    return max(memory // 4, memory // 2 - _STREAM_BYTES) if memory else _DEFAULT_BUDGET


class ObjectCache:
    """An LRU cache with admission by frequency (TinyLFU, https://arxiv.org/abs/1512.00727, with exact counts).

    A new object evicts the least recently used ones only if they were used less often. A plain LRU is not enough, because every
    query reads an index from start to end: with an index larger than the budget, each object would be evicted before its next
    use, and every query would read the whole index from the bucket. Here the objects that fit stay, and only the others are read.

    Uses are counted up to 7, also for objects that are not cached, and all counts are halved regularly. So an index that is no
    longer queried is evicted after a few queries of another one.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.budget = memory_budget() if budget is None else budget
        self.used_bytes = 0
        self._bodies: OrderedDict[ObjectName, Body] = OrderedDict()
        self._uses: dict[ObjectName, int] = {}
        self._until_halving = 0
        self._loading: dict[ObjectName, asyncio.Future[Body]] = {}

    def __contains__(self, name: ObjectName) -> bool:
        return name in self._bodies

    def get(self, name: ObjectName) -> Body | None:
        self._count_use(name)
        body = self._bodies.get(name)
        if body is not None:
            self._bodies.move_to_end(name)
        return body

    def put(self, name: ObjectName, body: Body) -> None:
        """Cache ``body`` if it fits, after evictions if they are allowed."""
        size = len(body) + _ENTRY_BYTES
        if name in self._bodies or size > self.budget:
            return
        evicted = self._choose_evictions(self._uses.get(name, 0), self.used_bytes + size - self.budget)
        if evicted is None:
            return
        for candidate in evicted:
            self.used_bytes -= len(self._bodies.pop(candidate)) + _ENTRY_BYTES
        self._bodies[name] = body
        self.used_bytes += size

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` bytes more fit beside all objects that were used lately."""
        size += _ENTRY_BYTES
        return size <= self.budget and self._choose_evictions(0, self.used_bytes + size - self.budget) is not None

    def evict_until_free(self, size: int) -> None:
        """Evict the least recently used objects until ``size`` bytes of the budget are free for a merge."""
        while self._bodies and self.used_bytes + size > self.budget:
            _, body = self._bodies.popitem(last=False)
            self.used_bytes -= len(body) + _ENTRY_BYTES

    async def load(self, name: ObjectName, read: Callable[[], Awaitable[Body]]) -> Body:
        """Return the cached body. If there is none, ``read`` it and cache it if possible. Concurrent callers share one read."""
        body = self.get(name)
        while body is None:
            loading = self._loading.get(name)
            if loading is None or loading.get_loop() is not asyncio.get_running_loop():
                return await self._read(name, read)
            await asyncio.wait([loading])
            body = None if loading.cancelled() else loading.result()
        return body

    async def _read(self, name: ObjectName, read: Callable[[], Awaitable[Body]]) -> Body:
        loading = self._loading[name] = asyncio.get_running_loop().create_future()
        try:
            body = await read()
            self.put(name, body)
            loading.set_result(body)
            return body
        finally:
            loading.cancel()  # no effect if there is a result; after a failed read, each waiting caller tries to read
            if self._loading.get(name) is loading:
                del self._loading[name]

    def _choose_evictions(self, uses_of_name: int, needed: int) -> list[ObjectName] | None:
        """Return the objects to evict so that ``needed`` bytes become free. Return None if one of them is used as often as an
        object with ``uses_of_name`` uses."""
        evicted: list[ObjectName] = []
        for candidate, body in self._bodies.items():
            if needed <= 0:
                break
            uses = self._uses.get(candidate, 0)
            # Ignore a difference of one use: the current scan may have read one of the two objects, but not yet the other.
            if uses and uses + 1 >= uses_of_name:
                return None
            evicted.append(candidate)
            needed -= len(body) + _ENTRY_BYTES
        return evicted

    def _count_use(self, name: ObjectName) -> None:
        self._uses[name] = min(self._uses.get(name, 0) + 1, _MAX_USES)
        self._until_halving -= 1
        if self._until_halving <= 0:
            self._uses = {name: uses // 2 for name, uses in self._uses.items() if uses > 1}
            self._until_halving = _HALVING_INTERVAL * max(min(len(self._uses), _MAX_NAMES), len(self._bodies), 16)


def in_large_pages(body: bytes) -> Body:
    """Return a copy of ``body``, which is not empty, in memory for which Linux is asked to use pages of 2 MiB
    (https://docs.kernel.org/admin-guide/mm/transhuge.html). On other systems, return ``body`` itself."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return body
    copy = mmap.mmap(-1, len(body), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a kernel without large pages
        copy.madvise(mmap.MADV_HUGEPAGE)
    copy[:] = body
    return copy
