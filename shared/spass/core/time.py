"""Time as the wire writes it (RFC 3339, UTC, milliseconds), and the one deadline of a request."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NewType

Timestamp = NewType("Timestamp", str)
"""``2026-04-30T08:14:22.123Z``. Sorts as text in time order."""


def now_s() -> int:
    """Whole seconds since the epoch: the unit of every expiry."""
    return int(time.time())


def now() -> Timestamp:
    return timestamp(time.time())


def timestamp(seconds: float) -> Timestamp:
    """The wire form of Unix ``seconds``."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return Timestamp(moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z")


def epoch_s(at: Timestamp) -> int:
    """The Unix second of ``at``."""
    return int(datetime.fromisoformat(at).timestamp())


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock by which a request must have ended, all retries included."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.at - time.monotonic())
