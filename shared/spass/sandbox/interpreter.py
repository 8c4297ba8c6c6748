"""Run the cells of a turn in a child, perform their calls, and start the program again when the child has ended."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final, Self

from spass.core.code_calls import CallReply, Perform, Query, ToolRequest
from spass.core.effects import Cell, CellResult
from spass.core.messages import Json
from spass.core.slots import Slots
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.launcher import Launcher
from spass.sandbox.limits import LIMITS, MAX_ERROR_CHARS, Limits
from spass.sandbox.lines import CellEnd, Diverged, Effect
from spass.sandbox.running_child import OUT_OF_ORDER, TURN_CPU_USED, CellStopped, RunningChild


@dataclass(slots=True)
class ProgramCell:
    """A cell and the replies that it received. ``number`` counts the cells that the turn ran, from 1. ``began`` is in unix
    seconds."""

    number: int
    cell: Cell
    tools: Sequence[str]
    began: float
    journal: list[Json] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        """Return the cell as the child reads it."""
        return {
            "number": self.number,
            "code": self.cell.code,
            "queries": self.cell.queries is not None,
            "tools": list(self.tools),
            "max_output_chars": self.cell.max_output_chars,
            "time": self.began,
        }


@dataclass(slots=True)
class TurnProgram:
    """The cells that a turn has run. ``started`` is in unix seconds; ``variables`` come from the first cell."""

    started: float
    variables: Mapping[str, Json]
    cells: list[ProgramCell] = field(default_factory=list)

    def start_line(self, new: ProgramCell, token: str, limits: Limits) -> dict[str, Json]:
        """Return the first line for a child that runs the program and then ``new``."""
        cells = [*self.cells, new]
        return {
            "token": token,
            "started": self.started,
            "limits": {
                "cpu_cell": limits.cell_cpu,
                "cpu_turn": ceil(limits.turn_cpu) + 1,  # the parent measures exactly, and tells why it stops the child
                "wall_cell": limits.cell_wall,
                "memory": limits.memory,
                "waits": limits.waits,
            },
            "variables": dict(self.variables),
            "cells": [cell.to_json() for cell in cells],
            "journal": [list(cell.journal) for cell in cells],
        }


def journal_entry(effect_hash: str, time: float, replies: Sequence[CallReply]) -> dict[str, Json]:
    """Return the entry of one wait. ``time`` is when the replies arrived, in unix seconds."""
    return {"hash": effect_hash, "time": time, "replies": [_reply_to_json(reply) for reply in replies]}


def _reply_to_json(reply: CallReply) -> dict[str, Json]:
    if reply.error is not None:
        return {"error": {"code": reply.error.code, "message": reply.error.message}}
    return {"value": reply.value}


_TOKEN_BYTES: Final = 16
_MAX_NAME_CHARS: Final = 40
_NO_TIME_LEFT: Final = "The code of this turn has used up its processor time. Answer without running more code."


class TurnInterpreter:
    """Runs the cells of one turn, one at a time. See ``Interpreter``.

    The turn's code is a program. A cell that exceeds a limit, or ends its child, leaves no trace in it: the next cell gets a new
    child, which runs the other cells again. The journal answers their calls, so nothing is performed twice.
    """

    def __init__(
        self,
        launcher: Launcher,
        tenant_id: str,
        owner_id: str,
        limits: Limits = LIMITS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """See ``Sandbox.open``. ``clock`` returns unix seconds."""
        self._launcher: Final = launcher
        self._tenant_id: Final = tenant_id
        self._owner_id: Final = owner_id
        self._clock: Final = clock
        self._program: TurnProgram | None = None
        self._running: RunningChild | None = None
        self._cells_begun = 0
        self._left = limits
        """The limits of the next child. The next child counts the waits of the program's cells again."""

    async def run(self, cell: Cell, tools: Sequence[str], perform: Perform) -> CellResult:
        """Run ``cell``. See ``Interpreter.run``."""
        if self._left.turn_cpu <= 0:
            return CellResult("", _NO_TIME_LEFT)
        program = self._program = self._program or TurnProgram(self._clock(), cell.variables)
        self._cells_begun += 1
        new = ProgramCell(self._cells_begun, cell, tuple(tools), self._clock())
        is_kept = False
        try:
            async with _Slot(self._launcher.slots, self._tenant_id) as slot:
                end = await self._converse(program, new, perform, slot)
            is_kept = end.exceeded is None and end.final is None
            return _to_result(end, cell.max_output_chars)
        except CellStopped as stop:
            return CellResult("", self._describe_stop(program, stop))
        finally:
            if is_kept:
                program.cells.append(new)
            else:
                self._drop(new)
            if not (is_kept and self._running is not None and self._running.child.is_live):
                await self._end_child()

    async def close(self) -> None:
        await self._end_child()

    async def _converse(self, program: TurnProgram, new: ProgramCell, perform: Perform, slot: "_Slot") -> CellEnd:
        """Run ``new``, after the other cells if no child has run them yet. Return its end."""
        last = len(program.cells)
        if self._running is None:
            running = await self._start(program, new)
        else:
            running = self._running
            running.begin_cell(new.to_json())
        while True:
            line = await running.read()
            match line:
                case CellEnd(final=str()) if running.position == last and new.cell.queries is None:
                    raise CellStopped(running.position, OUT_OF_ORDER)  # forged: the cell has no FINAL
                case CellEnd() if running.position == last:
                    running.child.pause()  # whoever wrote the line: a child without a slot computes nothing
                    return line
                case CellEnd(exceeded=None, final=None):
                    running.end_replayed_cell()
                case CellEnd():
                    raise CellStopped(running.position, "exceeded a limit")
                case Effect() if running.position == last:
                    running.child.pause()
                    slot.release()
                    if not running.child.is_live:
                        await self._end_child()
                    entry = await self._perform(line, program, new, perform)
                    await slot.acquire()
                    if self._running is None:
                        running = await self._start(program, new)
                    else:
                        running.send({"entry": entry})
                case Diverged():
                    raise CellStopped(running.position, "acted differently")
                case _:
                    raise CellStopped(running.position, OUT_OF_ORDER)

    async def _start(self, program: TurnProgram, new: ProgramCell) -> RunningChild:
        """Start a child that runs the program and ``new`` over their journals."""
        if self._left.turn_cpu <= 0:  # as a limit of the kernel, -1 would be no limit
            raise CellStopped(len(program.cells), TURN_CPU_USED)
        token = secrets.token_hex(_TOKEN_BYTES)
        try:
            child = await self._launcher.start(self._owner_id, program.start_line(new, token, self._left))
        except ChildFailed as failure:
            raise CellStopped(len(program.cells), str(failure)) from None
        self._running = RunningChild(child, token, self._left)
        return self._running

    async def _perform(self, effect: Effect, program: TurnProgram, cell: ProgramCell, perform: Perform) -> dict[str, Json]:
        """Perform what the code asks for, and return the entry that the journal now has."""
        requests = effect.to_requests()
        is_allowed = all(
            request.name in cell.tools if isinstance(request, ToolRequest) else cell.cell.queries is not None
            for request in requests
        )
        is_one_wait = len(requests) == 1 or all(isinstance(request, Query) for request in requests)
        waits = sum(len(one.journal) for one in (*program.cells, cell))
        if not (is_allowed and is_one_wait) or waits >= self._left.waits:
            raise CellStopped(len(program.cells), "called the outside in a way that it may not")
        replies = await perform(requests)
        if len(replies) != len(requests):
            raise ValueError(f"{len(replies)} replies to {len(requests)} requests")
        entry = journal_entry(effect.hash, self._clock(), replies)
        cell.journal.append(entry)
        return entry

    def _describe_stop(self, program: TurnProgram, stop: CellStopped) -> str:
        """Return what the model reads. Remove the cell from the program if it is an earlier one."""
        if stop.position == len(program.cells):
            return (
                f"The code {stop.fault} and was stopped. What it did is lost, and what earlier cells did is kept. "
                "Change the code before you run it again."
            )
        earlier = program.cells.pop(stop.position)
        self._drop(earlier)
        return (
            f"This cell was not run. The code had to start again, and cell {earlier.number} {stop.fault} when it was run again: "
            "what it did is lost. Define again what you need from it."
        )

    def _drop(self, cell: ProgramCell) -> None:
        """Count the waits of a cell that does not stay in the program: the next child does not know of them."""
        self._left = replace(self._left, waits=self._left.waits - len(cell.journal))

    async def _end_child(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._left = replace(self._left, turn_cpu=self._left.turn_cpu - running.child.cpu_seconds())
            await running.child.close()


class _Slot:
    """One of the children that may compute at the same time."""

    def __init__(self, slots: Slots, tenant_id: str) -> None:
        self._slots: Final = slots
        self._tenant_id: Final = tenant_id
        self._is_held = False

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    async def acquire(self) -> None:
        await self._slots.acquire(self._tenant_id)
        self._is_held = True

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._slots.release(self._tenant_id)


def _to_result(end: CellEnd, max_output_chars: int) -> CellResult:
    """Return the result of a cell. Cut again what the child should have cut."""
    output = end.output[:max_output_chars]
    truncated = end.truncated + len(end.output) - len(output)
    error = end.error[:MAX_ERROR_CHARS] if end.error is not None else None
    if end.exceeded is not None:
        limit = end.exceeded[:_MAX_NAME_CHARS]
        lost = f"The cell exceeded its {limit} limit. What it did is lost, and what earlier cells did is kept."
        error = lost if error is None else f"{error}\n{lost}"
    return CellResult(output, error, truncated, end.final)
