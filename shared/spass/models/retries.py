"""Choose the next backend for a request, the pause before the attempt, and the error when no backend is left."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

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
    UpstreamUnreachable,
)
from spass.models.circuit_breaker import CircuitBreaker
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendContextLength,
    BackendLimitReached,
    BackendLimitUnknown,
    BackendRateLimited,
    BackendRequestTooLarge,
    BackendTimeout,
    BackendTooDeep,
    BackendUnreachable,
    BackendUnsupported,
)
from spass.models.types import CallContext
from spass.redaction.log import write_event
from spass.tenancy.config import BackendConfig, LlmConfig

BACKENDS_LIMIT: Final = "backends"
"""The ``details.limit`` of a RateLimited error when the backends have no room. The tenant's own limits have other names."""

# Do not begin an attempt if less time is left. A timeout that fires this much too early counts as the deadline.
_MIN_ATTEMPT_SECONDS: Final = 0.01
# A request polls a full backend until it has room. The bound of the pause doubles with each poll, up to a maximum.
_FIRST_POLL_SECONDS: Final = 0.25
_MAX_POLL_SECONDS: Final = 6.0
_MAX_ESTIMATED_POLL_SECONDS: Final = 2.0  # if the limit can only estimate when it has room
_NON_RETRYABLE_FAILURES: Final = (BackendAuthError, BackendRequestTooLarge, BackendUnsupported, BackendLimitUnknown)
"""After one of these failures, the request does not attempt the same backend again."""
_REJECTIONS: Final[dict[type[AttemptFailed], type[SpassError]]] = {
    BackendContextLength: ContextLengthExceeded,
    BackendTooDeep: RecursionDepthExceeded,
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Clocks and randomness, which tests replace. Clocks and ``sleep`` are in seconds.

    ``clock`` is monotonic; ``wall`` is the wall clock, which workers have in common. ``random`` is uniform in [0, 1).
    """

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class _Wait:
    """Do not attempt a backend before ``until``. Our own limit for it has room again at about ``room_at`` (None after a failure).
    Both are times of the monotonic clock."""

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
        self._expected_tokens = context.expected_usage.total_tokens
        self._timing = timing
        self._sleep = context.sleep or timing.sleep
        self._circuits = circuits
        self._began_down = all(circuits.open_until(backend.name, self._expected_tokens) is not None for backend in backends)
        self._failures: list[AttemptFailed] = []
        self._waits: dict[str, _Wait] = {}
        self._room_at: dict[str, float] = {}  # when a backend has room again: its retry-after, or our limit's estimate
        self._pauses = 0
        self._polls = 0

    async def next(self) -> BackendConfig:
        """Wait, and return the backend to attempt.

        Raises:
            SpassError: no backend or retry is left.
        """
        if not self._candidates or self._retries < 0:
            raise self._final_error() from self._last_failure
        current_time = self._timing.clock()
        none_available = all(self._is_unavailable(candidate) for candidate in self._candidates)
        times = [self._attempt_time(candidate, current_time, ignore_circuits=none_available) for candidate in self._candidates]
        # If several backends are ready at the same time, take the first in the list.
        attempt_at = min(times)
        backend = self._candidates[times.index(attempt_at)]
        pause = max(attempt_at - current_time, self._backoff(backend))
        if current_time + pause + _MIN_ATTEMPT_SECONDS >= self._deadline.at:
            if self._only_rate_limited:
                raise self._final_error() from self._last_failure
            raise _deadline_error() from self._last_failure
        if pause > 0:
            # A failed attempt was sent and may have to be paid, so its retry does not end with the client.
            await (self._timing.sleep if self._failures else self._sleep)(pause)
        # Move the backend to the end of the list, so that the others have their turns first.
        self._candidates.remove(backend)
        self._candidates.append(backend)
        return backend

    def record_failure(self, backend: BackendConfig, failure: AttemptFailed, *, started: bool, sent: bool) -> None:
        """Record a failed attempt, or a backend without room. A backend that received the whole request (``sent``) and did not
        answer in time is not attempted again, because it would bill a second answer that takes as long.

        Raises:
            SpassError: another attempt cannot help: the backend refused the request itself, or the answer has ``started``.
        """
        if isinstance(failure, BackendLimitReached):
            self._waits[backend.name] = self._wait_until_next_poll(failure)
            self._room_at[backend.name] = self._timing.clock() + failure.room_after
            return
        fields = {"backend": backend.name, "failure": type(failure).__name__, "status": failure.status}
        write_event("backend_failed", {"request_id": self._request_id, **fields})  # the provider's message may contain anything
        if isinstance(failure, BackendBadRequest):
            raise _REJECTIONS.get(type(failure), UpstreamRejected)(failure.message) from failure
        self._failures.append(failure)
        current_time = self._timing.clock()
        self._room_at.pop(backend.name, None)
        if failure.retry_after is not None and not isinstance(failure, _NON_RETRYABLE_FAILURES):
            self._room_at[backend.name] = current_time + failure.retry_after
        if self._deadline.at <= current_time + _MIN_ATTEMPT_SECONDS:
            raise _deadline_error() from failure
        if started:
            raise UpstreamError("The model's answer ended too early.") from failure
        if isinstance(failure, _NON_RETRYABLE_FAILURES):
            # This does not count as a retry, because the backend is not attempted again.
            self._candidates.remove(backend)
            return
        self._retries -= 1
        if sent and isinstance(failure, BackendTimeout):
            self._candidates.remove(backend)
            return
        self._waits[backend.name] = _Wait(current_time + min(failure.retry_after or 0.0, self._config.retry_max_delay))

    def _wait_until_next_poll(self, failure: BackendLimitReached) -> _Wait:
        current_time, jitter = self._timing.clock(), self._timing.random()
        max_seconds = _MAX_ESTIMATED_POLL_SECONDS if failure.is_estimate else _MAX_POLL_SECONDS
        bound = min(max_seconds, _FIRST_POLL_SECONDS * 2.0**self._polls)
        self._polls += 1
        wait = bound * (1 + jitter) / 2
        if not failure.is_estimate:
            wait = min(wait, failure.room_after + _FIRST_POLL_SECONDS * jitter)
        return _Wait(current_time + wait, current_time + failure.room_after)

    def _is_unavailable(self, backend: BackendConfig) -> bool:
        """Return True if the backend's circuit is open, or the backend has no room before the deadline."""
        wait = self._waits.get(backend.name)
        if wait is not None and wait.room_at is not None:
            return wait.room_at + _MIN_ATTEMPT_SECONDS >= self._deadline.at
        return self._circuits.open_until(backend.name, self._expected_tokens) is not None

    def _attempt_time(self, backend: BackendConfig, current_time: float, *, ignore_circuits: bool) -> float:
        wait = self._waits.get(backend.name)
        attempt_at = max(current_time, wait.until) if wait is not None else current_time
        if wait is not None and wait.room_at is not None and self._is_unavailable(backend):
            # The backend has no room before the deadline. Return this later time, so that the other backends are attempted first.
            return max(attempt_at, wait.room_at)
        down_until = self._circuits.open_until(backend.name, self._expected_tokens)
        return attempt_at if ignore_circuits or down_until is None else max(attempt_at, down_until)

    def _backoff(self, backend: BackendConfig) -> float:
        wait = self._waits.get(backend.name)
        if wait is None or wait.room_at is not None:
            return 0.0
        bound = min(self._config.retry_max_delay, self._config.retry_base_delay * 2.0**self._pauses)
        self._pauses += 1
        return self._timing.random() * bound

    @property
    def _last_failure(self) -> AttemptFailed | None:
        """Return the last failure of a backend that supports the request, or else the last failure."""
        relevant_failures = [failure for failure in self._failures if not isinstance(failure, BackendUnsupported)]
        failures = relevant_failures or self._failures
        return failures[-1] if failures else None

    @property
    def _only_rate_limited(self) -> bool:
        failures = [failure for failure in self._failures if not isinstance(failure, _NON_RETRYABLE_FAILURES)]
        return bool(failures or self._room_at) and all(isinstance(failure, BackendRateLimited) for failure in failures)

    def _final_error(self) -> SpassError:
        if self._only_rate_limited:
            waits = [max(0.0, room_at - self._timing.clock()) for room_at in self._room_at.values()]
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
            return UpstreamError(
                "The model's provider refuses this gateway. The gateway's operator must check the key and the account."
            )
        if isinstance(self._last_failure, BackendTimeout):
            return UpstreamError("The model's provider did not answer in time.")
        is_unreachable = all(isinstance(failure, BackendUnreachable) for failure in self._failures)
        kind = UpstreamUnreachable if self._failures and (is_unreachable or self._began_down) else UpstreamError
        return kind("The model's provider failed. Try again later.")


def _deadline_error() -> UpstreamTimeout:
    return UpstreamTimeout("The model did not answer before the deadline of the request.")
