"""The code of a turn as a program: its cells, and a journal of the replies to its calls. Running it again yields the same
state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from spass.core.code_calls import CallReply
from spass.core.effects import Cell
from spass.core.messages import Json
from spass.sandbox.limits import Limits


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
    """The cells that a turn has run. ``started`` is in unix seconds; ``variables`` are those of the first cell."""

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
