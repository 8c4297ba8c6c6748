"""In which order the backends of a model are tried."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias

from spass.tenancy.config import BackendConfig

LoadOf: TypeAlias = Callable[[BackendConfig], Awaitable[float]]
"""Which part of what it can do at once a backend is doing."""


class Strategy(Protocol):
    """Made once per router; asked once per request."""

    async def order(self, backends: Sequence[BackendConfig], load_of: LoadOf, /) -> list[BackendConfig]:
        """``backends``, all of which serve the model, the one to try first in front."""
        ...


class Failover:
    """By priority, and by their order in the file where it is the same."""

    async def order(self, backends: Sequence[BackendConfig], _load_of: LoadOf, /) -> list[BackendConfig]:
        return sorted(backends, key=lambda backend: backend.priority)


class RoundRobin:
    """Each in turn, for every set of backends on its own. A process begins anywhere, for many of them make one call each."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, ...], int] = {}

    async def order(self, backends: Sequence[BackendConfig], _load_of: LoadOf, /) -> list[BackendConfig]:
        if not backends:
            return []
        among = tuple(backend.name for backend in backends)
        turn = self._turns.get(among, random.randrange(len(backends)))  # noqa: S311 (spreads load)
        self._turns[among] = (turn + 1) % len(backends)
        return [*backends[turn:], *backends[:turn]]


class LeastLoaded:
    """The one with the most room first; each in turn where that is the same."""

    def __init__(self) -> None:
        self._in_turn = RoundRobin()

    async def order(self, backends: Sequence[BackendConfig], load_of: LoadOf, /) -> list[BackendConfig]:
        if len(backends) < 2:
            return list(backends)
        loads = await asyncio.gather(*map(load_of, backends))
        load_by_name = {backend.name: load for backend, load in zip(backends, loads, strict=True)}
        return sorted(await self._in_turn.order(backends, load_of), key=lambda backend: load_by_name[backend.name])


STRATEGIES: Final[dict[str, type[Strategy]]] = {
    "failover": Failover,
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
}
