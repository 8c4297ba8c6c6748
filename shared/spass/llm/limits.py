"""What backends may take of this gateway, all its workers together, and how busy they are."""

import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Final

import anyio

from spass.aws.keys import backend_limit
from spass.aws.limits import Caps, Full, Hold, LimitTable, SharedLimit, keeping
from spass.core.errors import StorageUnavailable
from spass.core.messages import TokenUsage
from spass.llm.errors import BackendFailed, BackendFull, BackendTimedOut, BackendUncounted
from spass.llm.serving import USUAL_CONNECTIONS
from spass.llm.types import ChatDelta
from spass.tenancy.config import BackendConfig

_CHARACTERS_PER_TOKEN: Final = 4


class Taken:
    """What a try has taken of its backend so far, in tokens: as the provider counted, else by what was heard."""

    def __init__(self, expected: TokenUsage) -> None:
        self._expected = expected
        self._characters = 0
        self._usage: TokenUsage | None = None
        self._nothing = False
        self.begun = False

    def hear(self, delta: ChatDelta) -> None:
        self.begun = True
        self._usage = delta.usage or self._usage
        self._characters += len(delta.content) + len(delta.refusal)
        self._characters += sum(len(call.name or "") + len(call.arguments) for call in delta.tool_calls)

    def count(self, usage: TokenUsage) -> None:
        """A whole answer that took ``usage``, if its provider counted."""
        self.begun = True
        self._usage = usage if usage.total_tokens else None

    def failed(self, failure: BackendFailed) -> None:
        """A model that was not reached, or refused, took nothing. One that did not answer in time has read the prompt."""
        self._nothing = not self.begun and not isinstance(failure, BackendTimedOut)

    @property
    def tokens(self) -> int:
        if self._nothing:
            return 0
        if self._usage is not None:
            return self._usage.total_tokens
        return self._expected.prompt_tokens - -self._characters // _CHARACTERS_PER_TOKEN


class BackendLimits:
    """One for the process. A backend without limits costs no table call."""

    def __init__(self, table: Callable[[], LimitTable] | None, *, clock: Callable[[], float] = time.time) -> None:
        self._table = table
        self._clock = clock
        self._limits: dict[str, SharedLimit] = {}
        self._active: Counter[str] = Counter()

    @asynccontextmanager
    async def occupied(self, backend: BackendConfig, expected: TokenUsage, seconds: float) -> AsyncIterator[Taken]:
        """The time of one try: keeps its place, and settles what it took when it ends, however it ends.

        Raises:
            BackendFull, BackendUncounted: there is no place for it; nobody knows, within ``seconds``, whether there is.
        """
        hold = await self._reserve(backend, expected, seconds)
        taken = Taken(expected)
        with self._counted(backend.name):
            if hold is None:
                yield taken
                return
            try:
                async with keeping(hold):
                    yield taken
            except BackendFailed as failure:
                taken.failed(failure)
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    await hold.settle(tokens=taken.tokens)

    async def load(self, backend: BackendConfig) -> float:
        """Which part of what it can do at once ``backend`` is doing: as all workers know of it, else as this one does."""
        active = self._active[backend.name]
        if backend.max_concurrent is None:
            return active / USUAL_CONNECTIONS
        if limit := self._limit(backend):
            with suppress(StorageUnavailable):  # what this worker knows must do
                active = max(active, await limit.occupancy())
        return active / backend.max_concurrent

    async def _reserve(self, backend: BackendConfig, expected: TokenUsage, seconds: float) -> Hold | None:
        limit = self._limit(backend)
        if limit is None:
            return None
        try:
            answer = await limit.reserve(secrets.token_urlsafe(9), tokens=expected.total_tokens, seconds=seconds)
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
