"""Which backend one request tries next, after what pause, and what it answers when nothing is left to try."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from spass.aws.log import write_line
from spass.core.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    RateLimited,
    SpassError,
    UpstreamError,
    UpstreamRejected,
    UpstreamTimeout,
)
from spass.core.time import now
from spass.llm.errors import (
    BackendContextLength,
    BackendFailed,
    BackendRateLimited,
    BackendRefused,
    BackendRejected,
    BackendTimedOut,
    BackendUnable,
)
from spass.llm.types import CallContext
from spass.tenancy.config import BackendConfig, LlmConfig

_TICK: Final = 0.01  # a timer may fire this much early, and no try fits into less


@dataclass(frozen=True, slots=True)
class Chance:
    """Time and dice, so that a test can hold them. ``random`` is uniform in [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random


class Tries:
    """The tries of one request over ``backends``, in their order, wrapping round.

    A backend not yet tried is tried at once. One tried before is given time: a random part of a bound that doubles with each such
    pause (full jitter: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), or as long as it asked for.
    """

    def __init__(self, config: LlmConfig, backends: Sequence[BackendConfig], context: CallContext, chance: Chance) -> None:
        self._config = config
        self._left = list(backends)
        self._retries = config.retries
        self._deadline = context.deadline
        self._request_id = context.request_id
        self._chance = chance
        self._failures: list[BackendFailed] = []
        self._ready_at: dict[str, float] = {}  # backends tried before, and when they may be tried again
        self._pauses = 0

    async def next(self) -> BackendConfig:
        """The backend to try now, after its pause.

        Raises:
            SpassError: nothing is left to try.
        """
        if not self._left or self._retries < 0:
            raise self._given_up() from self._last
        now = self._chance.clock()
        # ``min`` takes the first of equals: backends come in turn unless one asked for more time than another.
        backend = min(self._left, key=lambda candidate: max(now, self._ready_at.get(candidate.name, now)))
        pause = self._pause(backend, now)
        if now + pause + _TICK >= self._deadline.at:
            if self._only_limited:
                raise self._given_up() from self._last
            raise _too_late() from self._last
        if pause > 0:
            await self._chance.sleep(pause)
        # It now goes to the end of the row.
        self._left.remove(backend)
        self._left.append(backend)
        return backend

    def failed(self, backend: BackendConfig, failure: BackendFailed, *, begun: bool = False) -> None:
        """Notes a failed try.

        Raises:
            SpassError: there is no sense in another: the request itself is refused, or its answer has ``begun``.
        """
        self._log(backend, failure)
        if isinstance(failure, BackendRejected):
            kind = ContextLengthExceeded if isinstance(failure, BackendContextLength) else UpstreamRejected
            raise kind(failure.message) from failure
        self._failures.append(failure)
        now = self._chance.clock()
        if self._deadline.at <= now + _TICK:
            raise _too_late() from failure
        if begun:
            raise UpstreamError("The model's answer broke off.") from failure
        if isinstance(failure, BackendRefused | BackendUnable):
            # It is out of the game and costs no retry: as many such tries as backends, at most.
            self._left.remove(backend)
            return
        self._retries -= 1
        wait = min(failure.retry_after or 0.0, self._config.retry_max_delay)
        self._ready_at[backend.name] = now + wait

    def _log(self, backend: BackendConfig, failure: BackendFailed) -> None:
        """One line of the log. The provider's words are left out, for they may hold anything."""
        write_line(
            {
                "at": now(),
                "level": "warning",
                "request_id": self._request_id,
                "event": "backend_failed",
                "backend": backend.name,
                "failure": type(failure).__name__,
                "status": failure.status,
            }
        )

    def _pause(self, backend: BackendConfig, now: float) -> float:
        if backend.name not in self._ready_at:
            return 0.0
        bound = min(self._config.retry_max_delay, self._config.retry_base_delay * 2.0**self._pauses)
        self._pauses += 1
        return max(self._chance.random() * bound, self._ready_at[backend.name] - now)

    @property
    def _last(self) -> BackendFailed | None:
        """What the last backend said that could do what is asked, if any could."""
        able = [failure for failure in self._failures if not isinstance(failure, BackendUnable)]
        told = able or self._failures
        return told[-1] if told else None

    @property
    def _only_limited(self) -> bool:
        """Whether every backend that would have us said that we ask too much."""
        heard = [failure for failure in self._failures if not isinstance(failure, BackendRefused | BackendUnable)]
        return bool(heard) and all(isinstance(failure, BackendRateLimited) for failure in heard)

    def _given_up(self) -> SpassError:
        if self._only_limited:
            waits = [failure.retry_after for failure in self._failures if failure.retry_after is not None]
            return RateLimited(
                "The model's provider is receiving too many requests. Try again later.",
                retry_after=min(waits, default=max(1.0, self._config.retry_base_delay)),
            )
        if isinstance(self._last, BackendUnable):
            return InvalidRequest(self._last.message, param=self._last.param)
        if isinstance(self._last, BackendRefused):
            return UpstreamError("The model's provider refuses this gateway. Its operator must look at the key and the account.")
        if isinstance(self._last, BackendTimedOut):
            return UpstreamError("The model's provider did not answer in time.")
        return UpstreamError("The model's provider failed. Try again later.")


def _too_late() -> UpstreamTimeout:
    return UpstreamTimeout("The model did not answer within the time a request has.")
