"""Timestamps (RFC 3339, UTC, milliseconds) and the deadline of a request."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NewType, TypeAlias

Timestamp = NewType("Timestamp", str)
"""``2026-04-30T08:14:22.123Z``. Timestamps sort by time as text."""

Clock: TypeAlias = Callable[[], float]
"""Seconds since the epoch."""


def now_s() -> int:
    """Return whole seconds since the epoch, the unit of every expiry."""
    return int(time.time())


def now() -> Timestamp:
    return timestamp(time.time())


def timestamp(seconds: float) -> Timestamp:
    moment = datetime.fromtimestamp(seconds, UTC)
    return Timestamp(moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z")


def epoch_s(at: Timestamp) -> int:
    return int(datetime.fromisoformat(at).timestamp())


def epoch_ms(at: Timestamp) -> int:
    return round(datetime.fromisoformat(at).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, in seconds, by which a request and all its retries must end."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self.at - time.monotonic())
