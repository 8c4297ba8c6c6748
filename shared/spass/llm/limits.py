"""What backends may take of this gateway, all its workers together, and how busy they are."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import anyio

from spass.aws.keys import backend_limit
from spass.aws.limits import Caps, Full, Hold, LimitTable, SharedLimit, keeping, new_call_id
from spass.core.errors import StorageUnavailable
from spass.llm.attempt import Attempt
from spass.llm.errors import BackendFull, BackendUncounted
from spass.llm.serving import USUAL_CONNECTIONS
from spass.tenancy.config import BackendConfig


class BackendLimits:
    """One for the process. A backend without limits costs no table call."""

    def __init__(self, table: Callable[[], LimitTable] | None, *, clock: Callable[[], float] = time.time) -> None:
        self._table = table
        self._clock = clock
        self._limits: dict[str, SharedLimit] = {}
        self._active: Counter[str] = Counter()

    @asynccontextmanager
    async def occupied(self, backend: BackendConfig, attempt: Attempt, seconds: float) -> AsyncIterator[None]:
        """Keep a place at ``backend`` while the body runs, and settle what ``attempt`` took, however it ends.

        Raises:
            BackendFull, BackendUncounted: there is no place for it; nobody knows, within ``seconds``, whether there is.
        """
        hold = await self._reserve(backend, attempt.expected.total_tokens, seconds)
        with self._counted(backend.name):
            if hold is None:
                yield
                return
            try:
                async with keeping(hold):
                    yield
            finally:
                with anyio.CancelScope(shield=True):
                    await hold.settle(tokens=attempt.usage.total_tokens)

    async def load(self, backend: BackendConfig) -> float:
        """Which part of what it can do at once ``backend`` is doing: as all workers know of it, else as this one does."""
        active = self._active[backend.name]
        if backend.max_concurrent is None:
            return active / USUAL_CONNECTIONS
        if limit := self._limit(backend):
            with suppress(StorageUnavailable):  # what this worker knows must do
                active = max(active, await limit.occupancy())
        return active / backend.max_concurrent

    async def _reserve(self, backend: BackendConfig, tokens: int, seconds: float) -> Hold | None:
        limit = self._limit(backend)
        if limit is None:
            return None
        try:
            answer = await limit.reserve(new_call_id(), tokens=tokens, seconds=seconds)
        except StorageUnavailable as error:
            raise BackendUncounted(error.message) from error
        if isinstance(answer, Full):
            raise BackendFull("There is no room.", room_after=answer.retry_after, guessed=answer.by == "concurrent")
        return answer

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        self._active[name] += 1
        try:
            yield
        finally:
            self._active[name] -= 1

    def _limit(self, backend: BackendConfig) -> SharedLimit | None:
        caps = Caps(tokens_per_minute=backend.rate_limit_tpm, concurrent=backend.max_concurrent)
        if self._table is None or caps == Caps():
            return None
        if backend.name not in self._limits:
            partition = partial(backend_limit, backend.name)
            self._limits[backend.name] = SharedLimit(self._table(), partition, caps, clock=self._clock)
        return self._limits[backend.name]
