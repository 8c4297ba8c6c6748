"""A child that runs the program of a turn, as the interpreter sees it: its lines are validated, in order, and timed."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from spass.core.errors import SandboxUnavailable
from spass.core.messages import Json
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.launcher import Child
from spass.sandbox.limits import Limits
from spass.sandbox.lines import CellEnd, Diverged, Effect, Line, read_line

TURN_CPU_USED: Final = "used up the processor time of its turn"
OUT_OF_ORDER: Final = "wrote a line out of order"
_TICK_SECONDS: Final = 0.1


class CellStopped(Exception):
    """The cell at the index ``position`` of the child's program was stopped. ``fault`` is a clause that says why."""

    def __init__(self, position: int, fault: str) -> None:
        super().__init__(fault)
        self.position = position
        self.fault = fault


class RunningChild:
    """A child and the index of the cell that it runs, in its program. A cell that exceeds a limit is stopped with its child.

    Wall time counts while a line is awaited. Otherwise the child is paused: code that has forged the line of a call, or of a
    cell's end, computes nothing meanwhile.
    """

    def __init__(self, child: Child, token: str, limits: Limits) -> None:
        """``limits.turn_cpu`` is what this child may use for all its cells."""
        self.child: Final = child
        self._token: Final = token
        self._limits: Final = limits
        self._is_ready = False
        self.position = 0
        self._cell_began_cpu = 0.0
        self._wall = 0.0
        self._resumed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin_cell(self, cell: Mapping[str, Json]) -> None:
        """Send the next cell to a live child. Raise CellStopped if the child has ended."""
        self.end_replayed_cell()
        self.send({"cell": dict(cell)})

    def end_replayed_cell(self) -> None:
        """Expect the end of the next cell, which the child has had since its start."""
        self.position += 1
        self._cell_began_cpu = self.child.cpu_seconds()
        self._wall = 0.0

    def send(self, line: Mapping[str, Json]) -> None:
        """Send a line to a live child. Raise CellStopped if the child has ended."""
        try:
            self.child.send(line)
        except ChildFailed as failure:
            raise CellStopped(self.position, str(failure)) from None

    async def read(self) -> CellEnd | Effect | Diverged:
        """Return the next line, which is about the cell that runs.

        Raises:
            SandboxUnavailable: the child ended before it was ready to run code.
            CellStopped: the child ended, exceeded a limit, or wrote something else.
        """
        if not self._is_ready and await self._receive() != "ready":
            raise self._failure(OUT_OF_ORDER)
        self._is_ready = True
        line = await self._receive()
        if isinstance(line, str) or self.position != (line.number if isinstance(line, CellEnd) else line.cell):
            raise self._failure(OUT_OF_ORDER)
        return line

    async def _receive(self) -> Line:
        self._resumed_at = time.monotonic()
        self._schedule()
        try:
            while (line := read_line(await self.child.receive(), self._token)) is None:
                pass
            return line
        except ChildFailed as failure:  # the kernel ends a child that has no processor time left, and says nothing
            raise self._failure(TURN_CPU_USED if self._is_turn_over else str(failure)) from failure
        finally:
            self._wall += time.monotonic() - self._resumed_at
            if self._timer is not None:
                self._timer.cancel()

    def _failure(self, fault: str) -> CellStopped | SandboxUnavailable:
        if self._is_ready:
            return CellStopped(self.position, fault)
        return SandboxUnavailable("The sandbox did not start. Try again later, or answer without running code.", retry_after=5)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        if fault := self._exceeded_limit():
            self.child.stop(fault)
        else:
            self._schedule()

    @property
    def _is_turn_over(self) -> bool:
        return self.child.cpu_seconds() > self._limits.turn_cpu

    def _exceeded_limit(self) -> str | None:
        if self._is_turn_over:
            return TURN_CPU_USED
        if self.child.cpu_seconds() - self._cell_began_cpu > self._limits.cell_cpu:
            return f"used more than {self._limits.cell_cpu:g} s of processor time"
        if self._wall + time.monotonic() - self._resumed_at > self._limits.cell_wall:
            return f"took longer than {self._limits.cell_wall:g} s"
        return None
