"""Stop a child whose cell takes too much time."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spass.sandbox.launcher import Child
from spass.sandbox.limits import Limits

TURN_CPU_USED: Final = "used up the processor time of its turn"
_TICK_SECONDS: Final = 0.1


class CellWatch:
    """Measures the time of one cell after the other, and kills the child when a cell exceeds a limit.

    Wall time counts within ``running``. Between two bodies the child is paused: code that has forged the line of a call, or of a
    cell's end, computes nothing meanwhile.
    """

    def __init__(self, child: Child, limits: Limits) -> None:
        """``limits.turn_cpu`` is what this child may use for all its cells."""
        self._child: Final = child
        self._limits: Final = limits
        self._cell_began_cpu = 0.0
        self._wall = 0.0
        self._resumed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_turn_over(self) -> bool:
        """Return True if the child has used all processor time of its turn."""
        return self._child.cpu_seconds() > self._limits.turn_cpu

    def begin_cell(self) -> None:
        """Measure the next cell."""
        self._cell_began_cpu = self._child.cpu_seconds()
        self._wall = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the body, in which the child computes, and kill the child at a limit."""
        self._resumed_at = time.monotonic()
        self._schedule()
        try:
            yield
        finally:
            self._wall += time.monotonic() - self._resumed_at
            if self._timer is not None:
                self._timer.cancel()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        if fault := self._fault():
            self._child.stop(fault)
        else:
            self._schedule()

    def _fault(self) -> str | None:
        if self.is_turn_over:
            return TURN_CPU_USED
        if self._child.cpu_seconds() - self._cell_began_cpu > self._limits.cell_cpu:
            return f"used more than {self._limits.cell_cpu:g} s of processor time"
        if self._wall + time.monotonic() - self._resumed_at > self._limits.cell_wall:
            return f"took longer than {self._limits.cell_wall:g} s"
        return None
