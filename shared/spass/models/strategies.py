"""Order the backends of a model for one request. A router creates one strategy."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from spass.tenancy.config import BackendConfig

LoadOf: TypeAlias = Callable[[BackendConfig], Awaitable[float]]
"""Return the calls in flight at a backend divided by its concurrency limit (0.0 to 1.0)."""


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
