"""Enforce the limits of backends across all workers, measure how busy backends are, and order them for a request."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

from spass.core.errors import StorageUnavailable
from spass.limits.shard import LimitTable, Reservation
from spass.limits.shard_state import Caps, NoCapacity, new_call_id
from spass.limits.shared_limit import SharedLimit
from spass.models.attempt import Attempt
from spass.models.backends import DEFAULT_MAX_CONNECTIONS
from spass.models.errors import BackendLimitReached, BackendLimitUnknown
from spass.store.keys import backend_limit
from spass.tenancy.config import BackendConfig

LoadOf: TypeAlias = Callable[[BackendConfig], Awaitable[float]]
"""Return the calls in flight at a backend divided by its concurrency limit (0.0 to 1.0)."""


class BackendLimits:
    """Reserve calls at backends, one instance per process. A backend without limits needs no call to the table."""

    def __init__(self, table: Callable[[], LimitTable] | None, *, clock: Callable[[], float] = time.time) -> None:
        self._table = table
        self._clock = clock
        self._limits: dict[str, SharedLimit] = {}
        self._active: Counter[str] = Counter()

    @asynccontextmanager
    async def reservation(self, backend: BackendConfig, attempt: Attempt, seconds: float) -> AsyncIterator[None]:
        """Reserve one call at ``backend`` while the body runs, and settle the tokens of ``attempt`` when it ends.

        Raises:
            BackendLimitReached: the limit has no room.
            BackendLimitUnknown: the limit could not be read within ``seconds``.
        """
        hold = await self._reserve(backend, attempt.expected_usage.total_tokens, seconds)
        self._active[backend.name] += 1
        try:
            yield
        finally:
            self._active[backend.name] -= 1
            if hold is not None:
                await hold.settle(tokens=attempt.usage.total_tokens)

    async def load(self, backend: BackendConfig) -> float:
        """Return the calls in flight at ``backend`` divided by its concurrency limit. Count the calls of all workers, or only
        those of this worker if the table cannot be read."""
        active = self._active[backend.name]
        if backend.max_concurrent is None:
            return active / DEFAULT_MAX_CONNECTIONS
        if limit := self._limit(backend):
            with suppress(StorageUnavailable):  # use this worker's own count
                active = max(active, await limit.count_in_flight())
        return active / backend.max_concurrent

    async def _reserve(self, backend: BackendConfig, tokens: int, seconds: float) -> Reservation | None:
        limit = self._limit(backend)
        if limit is None:
            return None
        try:
            answer = await limit.reserve(new_call_id(), tokens=tokens, seconds=seconds)
        except StorageUnavailable as error:
            raise BackendLimitUnknown(error.message) from error
        if isinstance(answer, NoCapacity):
            raise BackendLimitReached(
                "The backend has no capacity left.", room_after=answer.retry_after, is_estimate=answer.by == "concurrent"
            )
        answer.renew_until_settled()
        return answer

    def _limit(self, backend: BackendConfig) -> SharedLimit | None:
        caps = Caps(tokens_per_minute=backend.rate_limit_tpm, concurrent=backend.max_concurrent)
        if self._table is None or caps == Caps():
            return None
        if backend.name not in self._limits:
            partition = partial(backend_limit, backend.name)
            self._limits[backend.name] = SharedLimit(self._table(), partition, caps, clock=self._clock)
        return self._limits[backend.name]


class Failover:
    """Order by priority, then by position in the file."""

    async def order(self, backends: Sequence[BackendConfig], _load_of: LoadOf, /) -> list[BackendConfig]:
        return sorted(backends, key=lambda backend: backend.priority)


class RoundRobin:
    """Put each backend of a set first in turn. Start at a random backend, because many processes make only one call."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, ...], int] = {}

    async def order(self, backends: Sequence[BackendConfig], _load_of: LoadOf, /) -> list[BackendConfig]:
        if not backends:
            return []
        names = tuple(backend.name for backend in backends)
        turn = self._turns.get(names, random.randrange(len(backends)))  # noqa: S311 (spreads load)
        self._turns[names] = (turn + 1) % len(backends)
        return [*backends[turn:], *backends[:turn]]


class LeastLoaded(RoundRobin):
    """Put the backend with the lowest load first. Backends with the same load take turns."""

    async def order(self, backends: Sequence[BackendConfig], load_of: LoadOf, /) -> list[BackendConfig]:
        if len(backends) < 2:
            return list(backends)
        loads = await asyncio.gather(*map(load_of, backends))
        load_by_name = {backend.name: load for backend, load in zip(backends, loads, strict=True)}
        return sorted(await super().order(backends, load_of), key=lambda backend: load_by_name[backend.name])


STRATEGIES: Final[dict[str, type[Failover | RoundRobin]]] = {
    "failover": Failover,
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
}
