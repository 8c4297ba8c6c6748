"""A child that runs the program of a turn, as the interpreter sees it: its lines are validated, in order, and timed."""

from collections.abc import Mapping
from typing import Final

from spass.core.errors import SandboxUnavailable
from spass.core.messages import Json
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.launcher import Child
from spass.sandbox.limits import Limits
from spass.sandbox.lines import CellEnd, Diverged, Effect, Line, read_line
from spass.sandbox.watch import TURN_CPU_USED, CellWatch

OUT_OF_ORDER: Final = "wrote a line out of order"


class CellStopped(Exception):
    """The cell at the index ``position`` of the child's program was stopped. ``fault`` is a clause that says why."""

    def __init__(self, position: int, fault: str) -> None:
        super().__init__(fault)
        self.position = position
        self.fault = fault


class RunningChild:
    """A child and the index of the cell that it runs, in its program."""

    def __init__(self, child: Child, token: str, limits: Limits) -> None:
        self.child: Final = child
        self._token: Final = token
        self._watch: Final = CellWatch(child, limits)
        self._is_ready = False
        self.position = 0

    def begin_cell(self, cell: Mapping[str, Json]) -> None:
        """Send the next cell to a live child.

        Raises:
            CellStopped: the child has ended.
        """
        self.position += 1
        self._watch.begin_cell()
        self.send({"cell": dict(cell)})

    def end_replayed_cell(self) -> None:
        """Expect the end of the next cell, which the child has had since its start."""
        self.position += 1
        self._watch.begin_cell()

    def send(self, line: Mapping[str, Json]) -> None:
        """Send a line to a live child.

        Raises:
            CellStopped: the child has ended.
        """
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
        try:
            with self._watch.running():
                while (line := read_line(await self.child.receive(), self._token)) is None:
                    pass
            return line
        except ChildFailed as failure:  # the kernel ends a child that has no processor time left, and says nothing
            raise self._failure(TURN_CPU_USED if self._watch.is_turn_over else str(failure)) from failure

    def _failure(self, fault: str) -> CellStopped | SandboxUnavailable:
        if self._is_ready:
            return CellStopped(self.position, fault)
        return SandboxUnavailable("The sandbox did not start. Try again later, or answer without running code.", retry_after=5)
