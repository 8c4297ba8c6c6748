"""Choose the next backend for a request, the pause before the attempt, and the error when no backend is left."""

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
"""``details.limit`` of a RateLimited error if the backends have no room. The tenant's own limits have other names."""

_TICK: Final = 0.01  # seconds: a timer may fire this early, and an attempt takes longer
_FIRST_POLL: Final = 0.25  # seconds until the next check whether a full backend has room; doubled each time
_MAX_POLL: Final = 2.0
_MAX_HINTED_POLL: Final = 6.0  # if the limit says when it has room
_EXCLUDES_BACKEND: Final = (BackendAuthError, BackendRequestTooLarge, BackendUnsupported, BackendLimitUnknown)
"""Failures after which a request does not attempt the backend again."""
_REJECTIONS: Final[dict[type[BackendError], type[SpassError]]] = {
    BackendContextLength: ContextLengthExceeded,
    BackendTooDeep: RecursionDepthExceeded,
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Clocks and randomness, for tests to replace. ``wall`` is shared with other workers; ``random`` is uniform in [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class _Wait:
    """Do not attempt a backend before ``until``. If our own limit for it is used up, it probably has room at ``room_at``."""

    until: float
    room_at: float | None = None


class RetrySchedule:
    """Schedule the attempts of one request at ``backends`` in turn.

    The first attempt at a backend starts without a pause, unless its circuit is open and another backend is ready. A retry waits:
    exponential backoff with full jitter (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), or the time
    that the backend asked for. Waiting for room at a full backend does not count as a retry.
    """

    def __init__(
        self, config: LlmConfig, backends: Sequence[BackendConfig], context: CallContext, timing: Timing, circuits: CircuitBreaker
    ) -> None:
        self._config = config
        self._candidates = list(backends)
        self._retries = config.retries
        self._deadline = context.deadline
        self._request_id = context.request_id
        self._size = context.expected.total_tokens
        self._timing = timing
        self._circuits = circuits
        self._failures: list[BackendError] = []
        self._waits: dict[str, _Wait] = {}
        self._room_at: dict[str, float] = {}  # when each backend has room again, by its last answer or our limit for it
        self._pauses = 0
        self._polls = 0

    async def next(self) -> BackendConfig:
        """Wait, and return the backend to attempt now.

        Raises:
            SpassError: no backend or retry is left.
        """
        if not self._candidates or self._retries < 0:
            raise self._final_error() from self._last_failure
        now = self._timing.clock()
        hopeless = all(self._is_hopeless(candidate) for candidate in self._candidates)
        # ``min`` returns the first of equal moments, so backends take turns unless one must wait longer.
        moment, backend = min(((self._retry_time(one, now, hopeless), one) for one in self._candidates), key=lambda pair: pair[0])
        pause = max(moment - now, self._backoff(backend))
        if now + pause + _TICK >= self._deadline.at:
            if self._only_limited:
                raise self._final_error() from self._last_failure
            raise _deadline_error() from self._last_failure
        if pause > 0:
            await self._timing.sleep(pause)
        # Move the backend to the end of the list, so that it is the last to have its next turn.
        self._candidates.remove(backend)
        self._candidates.append(backend)
        return backend

    def record_failure(self, backend: BackendConfig, failure: BackendError, *, started: bool, sent: bool) -> None:
        """Record a failed attempt, or a backend without room.

        A backend that received the whole request (``sent``) and did not answer in time is not attempted again, because it would
        bill a second answer that takes as long.

        Raises:
            SpassError: another attempt cannot help: the backend refused the request itself, or the answer has ``started``.
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
            # This does not count as a retry, because the backend is not attempted again.
            self._candidates.remove(backend)
            return
        self._retries -= 1
        if sent and isinstance(failure, BackendTimeout):
            self._candidates.remove(backend)
            return
        self._waits[backend.name] = _Wait(now + min(failure.retry_after or 0.0, self._config.retry_max_delay))

    def _poll(self, failure: BackendLimitReached) -> _Wait:
        now, jitter = self._timing.clock(), self._timing.random()
        bound = min(_MAX_POLL if failure.guessed else _MAX_HINTED_POLL, _FIRST_POLL * 2.0**self._polls)
        self._polls += 1
        wait = bound * (1 + jitter) / 2
        if not failure.guessed:
            wait = min(wait, failure.room_after + _FIRST_POLL * jitter)
        return _Wait(now + wait, now + failure.room_after)

    def _is_hopeless(self, backend: BackendConfig) -> bool:
        """Return True if the backend's circuit is open, or the backend has no room before the deadline."""
        wait = self._waits.get(backend.name)
        if wait is not None and wait.room_at is not None:
            return wait.room_at + _TICK >= self._deadline.at
        return self._circuits.open_until(backend.name, self._size) is not None

    def _retry_time(self, backend: BackendConfig, now: float, hopeless: bool) -> float:
        """Return the moment to attempt ``backend``. If all backends are ``hopeless``, ignore open circuits."""
        wait = self._waits.get(backend.name)
        moment = max(now, wait.until) if wait is not None else now
        if wait is not None and wait.room_at is not None and self._is_hopeless(backend):
            return max(moment, wait.room_at)
        down_until = self._circuits.open_until(backend.name, self._size)
        return moment if hopeless or down_until is None else max(moment, down_until)

    def _log(self, backend: BackendConfig, failure: BackendError) -> None:
        """Log the failure without the provider's message, which may contain anything."""
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
        """Return the last failure of a backend that supports the request, or else the last failure."""
        relevant_failures = [failure for failure in self._failures if not isinstance(failure, BackendUnsupported)]
        failures = relevant_failures or self._failures
        return failures[-1] if failures else None

    @property
    def _only_limited(self) -> bool:
        """Return True if only rate limits (the backends' or ours) prevent an answer."""
        failures = [failure for failure in self._failures if not isinstance(failure, _EXCLUDES_BACKEND)]
        return bool(failures or self._room_at) and all(isinstance(failure, BackendRateLimited) for failure in failures)

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
