"""A clock that a repeated run reads as the first run did: only calls to the outside, ``sleep`` and readings move it."""

from __future__ import annotations

_SECOND = 10**9
_TICK = 1000
"""Nanoseconds that pass with each reading. So a loop that waits for a time ends, and no duration is zero."""
_MAX_SLEEP = 2**63 / _SECOND


class Clock:
    """The time of a turn in nanoseconds."""

    def __init__(self, started: float) -> None:
        """``started``: seconds since 1970."""
        self._started = self._now = int(started * _SECOND)
        self._readings = 0

    def advance_to(self, time: float) -> None:
        """Set the clock to ``time``, in seconds since 1970, unless it is later already."""
        self._now = max(self._now, int(time * _SECOND))

    def sleep(self, seconds: float, /) -> None:
        """Let the time pass without waiting."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        if seconds > _MAX_SLEEP:
            raise OverflowError("timestamp too large to convert to C PyTime_t")
        self._now += int(seconds * _SECOND)

    def now(self) -> int:
        """Return the nanoseconds since 1970."""
        self._now += _TICK
        self._readings += 1
        return self._now

    def elapsed(self) -> int:
        """Return the nanoseconds since the turn began."""
        return self.now() - self._started

    def busy(self) -> int:
        """Return the processor time that a program sees, in nanoseconds."""
        self.now()
        return self._readings * _TICK
