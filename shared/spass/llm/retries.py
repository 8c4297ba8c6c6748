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
    RecursionDepthExceeded,
    SpassError,
    StorageUnavailable,
    UpstreamError,
    UpstreamRejected,
    UpstreamTimeout,
)
from spass.core.time import now
from spass.llm.circuit_breaker import CircuitBreaker
from spass.llm.errors import (
    BackendAuthError,
    BackendBadRequest,
    BackendContextLength,
    BackendError,
    BackendLimitReached,
    BackendLimitUnknown,
    BackendRateLimited,
    BackendRequestTooLarge,
    BackendTimeout,
    BackendTooDeep,
    BackendUnsupported,
)
from spass.llm.types import CallContext
from spass.tenancy.config import BackendConfig, LlmConfig

BACKENDS_LIMIT: Final = "backends"
"""What ``details.limit`` of a RateLimited says when it is the model's side that has no room, and not the tenant."""

_TICK: Final = 0.01  # a timer may fire this much early, and no try fits into less
_FIRST_POLL: Final = 0.25  # how long after it was full a backend is asked again whether it has room: others may take less than
_MAX_POLL: Final = 2.0  # they reserved. Doubled each time, up to this,
_MAX_HINTED_POLL: Final = 6.0  # or this where the moment is known by which there is room.
_EXCLUDES_BACKEND: Final = (BackendAuthError, BackendRequestTooLarge, BackendUnsupported, BackendLimitUnknown)
"""Failures after which a request does without the backend."""
_REJECTIONS: Final[dict[type[BackendError], type[SpassError]]] = {
    BackendContextLength: ContextLengthExceeded,
    BackendTooDeep: RecursionDepthExceeded,
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Time and dice, so that a test can hold them. ``wall`` is what other workers see too; ``random`` is uniform in [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class _Wait:
    """Why a backend is not tried before ``until``: it failed, or our limit of it is used up, probably until ``room_at``."""

    until: float
    room_at: float | None = None


class RetrySchedule:
    """The tries of one request over ``backends``, in their order, wrapping round.

    A backend not yet tried is tried at once, unless it is known to be down while another may do. One tried before is given time:
    a random part of a bound that doubles with each such pause (full jitter:
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), or as long as it asked for. Waiting for room at a
    backend that is full is no retry.
    """

    def __init__(
        self, config: LlmConfig, backends: Sequence[BackendConfig], context: CallContext, timing: Timing, circuits: CircuitBreaker
    ) -> None:
        self._config = config
        self._left = list(backends)
        self._retries = config.retries
        self._deadline = context.deadline
        self._request_id = context.request_id
        self._size = context.expected.total_tokens
        self._timing = timing
        self._circuits = circuits
        self._failures: list[BackendError] = []
        self._waits: dict[str, _Wait] = {}
        self._room_at: dict[str, float] = {}  # when each has room again, by what it, or our limit of it, said last
        self._pauses = 0
        self._polls = 0

    async def next(self) -> BackendConfig:
        """The backend to try now, after its pause.

        Raises:
            SpassError: nothing is left to try.
        """
        if not self._left or self._retries < 0:
            raise self._final_error() from self._last_failure
        now = self._timing.clock()
        hopeless = all(self._is_hopeless(candidate) for candidate in self._left)
        # ``min`` takes the first of equals: backends come in turn unless one has to wait longer than another.
        moment, backend = min(((self._retry_time(one, now, hopeless), one) for one in self._left), key=lambda pair: pair[0])
        pause = max(moment - now, self._backoff(backend))
        if now + pause + _TICK >= self._deadline.at:
            if self._only_limited:
                raise self._final_error() from self._last_failure
            raise _deadline_error() from self._last_failure
        if pause > 0:
            await self._timing.sleep(pause)
        # It now goes to the end of the row.
        self._left.remove(backend)
        self._left.append(backend)
        return backend

    def record_failure(self, backend: BackendConfig, failure: BackendError, *, started: bool, sent: bool) -> None:
        """Note a failed try, or that there was no room for one. A backend that got the whole request (``sent``) and did not
        answer in time is not tried again: it would bill a second answer that takes as long.

        Raises:
            SpassError: there is no sense in another: the request itself is refused, or its answer has ``started``.
        """
        if isinstance(failure, BackendLimitReached):
            self._waits[backend.name] = self._poll(failure)
            self._room_at[backend.name] = self._timing.clock() + failure.room_after
            return
        self._log(backend, failure)
        if isinstance(failure, BackendBadRequest):
            raise _REJECTIONS.get(type(failure), UpstreamRejected)(failure.message) from failure
        self._failures.append(failure)
        now = self._timing.clock()
        self._room_at.pop(backend.name, None)
        if failure.retry_after is not None and not isinstance(failure, _EXCLUDES_BACKEND):
            self._room_at[backend.name] = now + failure.retry_after
        if self._deadline.at <= now + _TICK:
            raise _deadline_error() from failure
        if started:
            raise UpstreamError("The model's answer broke off.") from failure
        if isinstance(failure, _EXCLUDES_BACKEND):
            # It is out of the game and costs no retry: as many such tries as backends, at most.
            self._left.remove(backend)
            return
        self._retries -= 1
        if sent and isinstance(failure, BackendTimeout):
            self._left.remove(backend)
            return
        self._waits[backend.name] = _Wait(now + min(failure.retry_after or 0.0, self._config.retry_max_delay))

    def _poll(self, failure: BackendLimitReached) -> _Wait:
        now, dice = self._timing.clock(), self._timing.random()
        bound = min(_MAX_POLL if failure.guessed else _MAX_HINTED_POLL, _FIRST_POLL * 2.0**self._polls)
        self._polls += 1
        wait = bound * (1 + dice) / 2
        if not failure.guessed:
            wait = min(wait, failure.room_after + _FIRST_POLL * dice)
        return _Wait(now + wait, now + failure.room_after)

    def _is_hopeless(self, backend: BackendConfig) -> bool:
        """Whether it is known to be down, or has no room in time."""
        wait = self._waits.get(backend.name)
        if wait is not None and wait.room_at is not None:
            return wait.room_at + _TICK >= self._deadline.at
        return self._circuits.open_until(backend.name, self._size) is not None

    def _retry_time(self, backend: BackendConfig, now: float, hopeless: bool) -> float:
        """When it may be tried. ``hopeless``: all are down or full, so that those that are down are tried all the same."""
        wait = self._waits.get(backend.name)
        moment = max(now, wait.until) if wait is not None else now
        if wait is not None and wait.room_at is not None and self._is_hopeless(backend):
            return max(moment, wait.room_at)
        down_until = self._circuits.open_until(backend.name, self._size)
        return moment if hopeless or down_until is None else max(moment, down_until)

    def _log(self, backend: BackendConfig, failure: BackendError) -> None:
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

    def _backoff(self, backend: BackendConfig) -> float:
        wait = self._waits.get(backend.name)
        if wait is None or wait.room_at is not None:
            return 0.0
        bound = min(self._config.retry_max_delay, self._config.retry_base_delay * 2.0**self._pauses)
        self._pauses += 1
        return self._timing.random() * bound

    @property
    def _last_failure(self) -> BackendError | None:
        """What the last backend said that could do what is asked, if any could."""
        able = [failure for failure in self._failures if not isinstance(failure, BackendUnsupported)]
        told = able or self._failures
        return told[-1] if told else None

    @property
    def _only_limited(self) -> bool:
        """Whether every backend that would have us said that we ask too much, or we know it ourselves."""
        heard = [failure for failure in self._failures if not isinstance(failure, _EXCLUDES_BACKEND)]
        return bool(heard or self._room_at) and all(isinstance(failure, BackendRateLimited) for failure in heard)

    def _final_error(self) -> SpassError:
        if self._only_limited:
            waits = [max(0.0, moment - self._timing.clock()) for moment in self._room_at.values()]
            return RateLimited(
                "The model is receiving too many requests. Try again later.",
                details={"limit": BACKENDS_LIMIT},
                retry_after=min(waits, default=max(1.0, self._config.retry_base_delay)),
            )
        if isinstance(self._last_failure, BackendLimitUnknown):
            return StorageUnavailable(self._last_failure.message, retry_after=1)
        if isinstance(self._last_failure, BackendUnsupported):
            return InvalidRequest(self._last_failure.message, param=self._last_failure.param)
        if isinstance(self._last_failure, BackendRequestTooLarge):
            return UpstreamRejected(self._last_failure.message)
        if isinstance(self._last_failure, BackendAuthError):
            return UpstreamError("The model's provider refuses this gateway. Its operator must look at the key and the account.")
        if isinstance(self._last_failure, BackendTimeout):
            return UpstreamError("The model's provider did not answer in time.")
        return UpstreamError("The model's provider failed. Try again later.")


def _deadline_error() -> UpstreamTimeout:
    return UpstreamTimeout("The model did not answer within the time a request has.")
