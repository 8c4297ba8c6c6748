"""Drive the sandbox's child: live over pipes that stay open, or replayed as in Lambda, where each wait ends the process."""

import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self, cast

import spass.sandbox
from spass.core.messages import Json

CHILD: Final = Path(spass.sandbox.__file__).parent / "child" / "__main__.py"
LIMITS: Final[Mapping[str, int]] = {"cpu_cell": 30, "cpu_turn": 120, "wall_cell": 60, "memory": 512 * 2**20, "waits": 64}
ENVIRONMENT: Final[Mapping[str, str]] = {"PYTHONHASHSEED": "0"}
STARTED: Final = 1_700_000_000.25
WATCHDOG_SECONDS: Final = 60.0
LIVE_ODDS: Final = 0.7
KILL_ODDS: Final = 0.25

Line = Mapping[str, Any]
Request = Mapping[str, Any]
Reply = Mapping[str, Any]
Entry = Mapping[str, Any]
Answer = Callable[[Sequence[Request]], Sequence[Reply]]
"""Perform the requests of one wait."""


class Report(NamedTuple):
    """The report of the child about a cell."""

    output: str
    error: str | None = None
    truncated: int = 0
    final: str | None = None
    exceeded: str | None = None


@dataclass(frozen=True, slots=True)
class CellOf:
    """A cell to run."""

    code: str
    queries: bool = True
    tools: Sequence[str] = ()
    max_output_chars: int = 10_000

    def line(self, number: int) -> dict[str, Json]:
        return {
            "code": self.code,
            "queries": self.queries,
            "tools": list(self.tools),
            "max_output_chars": self.max_output_chars,
            "time": STARTED + 10.0 * number,
        }


class Child:
    """One process of the child."""

    def __init__(
        self,
        start: Mapping[str, Json],
        folder: Path,
        interpreter: str = sys.executable,
        environment: Mapping[str, str] = ENVIRONMENT,
        *,
        program: Sequence[str] = (str(CHILD),),
        leaked: Sequence[int] = (),
    ) -> None:
        """``leaked``: descriptors that the child inherits by mistake."""
        self.token: Final = secrets.token_hex(16)
        self._process: Final = subprocess.Popen(
            [interpreter, "-s", "-P", "-S", "-X", "utf8", *program],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=leaked,
        )
        self._buffer = b""
        self.unsigned = 0
        """Bytes of lines without the token."""
        self.ready: Line | None = None
        self.send({"token": self.token, **start})

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:
            pass

    def send(self, line: Mapping[str, Json]) -> None:
        assert self._process.stdin is not None
        rest = memoryview(json.dumps(line).encode() + b"\n")
        try:
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]
        except BrokenPipeError:
            self.close_input()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def receive(self) -> Line | None:
        """Return the next line that carries the token, or None at the end of the pipe. Keep ``ready`` apart."""
        while (line := self._read_line()) is not None:
            token, _, text = line.partition(b" ")
            if token != self.token.encode():
                self.unsigned += len(line)
                continue
            received: Line = json.loads(text)
            if "ready" not in received:
                return received
            self.ready = received["ready"]
        return None

    def wait(self) -> int:
        """Return the exit status."""
        return self._process.wait(WATCHDOG_SECONDS)

    def stderr(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read().decode()

    def _read_line(self) -> bytes | None:
        assert self._process.stdout is not None
        deadline = time.monotonic() + WATCHDOG_SECONDS
        while b"\n" not in self._buffer:
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, "the child is silent"
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


@dataclass(slots=True)
class Turn:
    """The cells of a turn, what they ask for and what they got."""

    cells: Sequence[CellOf]
    answer: Answer = lambda requests: [{"value": f"answer {number}"} for number, _ in enumerate(requests)]
    variables: Mapping[str, Json] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=lambda: LIMITS)
    interpreter: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=lambda: ENVIRONMENT)
    started: float = STARTED
    journal: list[list[Entry]] = field(default_factory=list)
    requests: list[Sequence[Request]] = field(default_factory=list)
    """The requests that were performed, in order."""
    starts: int = 0
    status: int | None = None
    """The last child's exit status."""

    def run_live(self) -> list[Report]:
        """Keep the pipe open. Return the reports until an answer or the end of the child."""
        reports: list[Report] = []
        with self.start(()) as child:
            for number, cell in enumerate(self.cells):
                child.send({"cell": cell.line(number)})
                self.journal.append([])
                while (line := child.receive()) is not None and "effect" in line:
                    child.send({"entry": self._perform(line["effect"])})
                if line is None:
                    break
                reports.append(_report(line, number))
            child.close_input()
            self.status = child.wait()
        return reports

    def run_replayed(self) -> list[Report]:
        """Close the pipe after each start line, and start again with what the last child asked for. Return the last child's
        reports. Every child must report the earlier cells as the first one did."""
        reports: list[Report] = []
        for number, _ in enumerate(self.cells):
            self.journal.append([])
            run = self.replay(number + 1)
            while run.effect is not None:
                assert run.reports == reports
                self._perform(run.effect)
                run = self.replay(number + 1)
            assert run.reports[: len(reports)] == reports
            reports = run.reports
            if len(reports) <= number or self._is_over(reports):
                break
        return reports

    def run_interrupted(self, rng: Random) -> list[Report]:
        """Keep the pipe of some children open and close that of others, and kill children at random. Return the reports. Every
        child must report the earlier cells as the first one did."""
        reports: list[Report] = []
        while not self._is_over(reports):
            if len(self.journal) == len(reports):
                self.journal.append([])
            with self.start(self.cells[: len(reports) + 1]) as child:
                is_live = rng.random() < LIVE_ODDS
                if not is_live:
                    child.close_input()
                assert [_report(child.receive() or {}, number) for number, _ in enumerate(reports)] == reports
                while self._continue(child, reports) and is_live and rng.random() > KILL_ODDS:
                    if len(self.journal) == len(reports):
                        self.journal.append([])
                        child.send({"cell": self.cells[len(reports)].line(len(reports))})
                    else:
                        child.send({"entry": self.journal[-1][-1]})
        return reports

    def _continue(self, child: Child, reports: list[Report]) -> bool:
        """Take the effect or the end of the newest cell. Return False at the end of the turn."""
        line = child.receive()
        assert line is not None
        if "effect" in line:
            self._perform(line["effect"])
        else:
            reports.append(_report(line, len(reports)))
        return not self._is_over(reports)

    def _is_over(self, reports: Sequence[Report]) -> bool:
        return len(reports) == len(self.cells) or (bool(reports) and reports[-1].final is not None)

    def replay(self, count: int) -> "Replay":
        """Run the first ``count`` cells over the journal in a child whose pipe closes at once."""
        reports: list[Report] = []
        effect: Line | None = None
        last: Line = {}
        with self.start(self.cells[:count]) as child:
            child.close_input()
            while (line := child.receive()) is not None:
                last = line
                if "cell" in line:
                    reports.append(_report(line, len(reports)))
                elif "effect" in line:
                    effect = line["effect"]
            self.status = child.wait()
        if effect is not None:
            assert last == {"suspended": True}
        return Replay(reports, effect, last.get("diverged", {}).get("cell"))

    @contextmanager
    def start(self, cells: Sequence[CellOf]) -> Iterator[Child]:
        self.starts += 1
        journal = [list(entries) for entries in self.journal[: len(cells)]]
        start: dict[str, Json] = {
            "started": self.started,
            "limits": dict(self.limits),
            "variables": dict(self.variables),
            "cells": [cell.line(number) for number, cell in enumerate(cells)],
            "journal": cast("Json", journal),
        }
        with tempfile.TemporaryDirectory() as folder, Child(start, Path(folder), self.interpreter, self.environment) as child:
            yield child

    def _perform(self, effect: Line) -> dict[str, Json]:
        """Answer an effect of the newest cell and write the answer to the journal."""
        assert effect["cell"] == len(self.journal) - 1
        requests: Sequence[Request] = effect["requests"]
        self.requests.append(requests)
        time = STARTED + 10.0 * effect["cell"] + 0.5 * len(self.requests)
        entry: dict[str, Json] = {
            "hash": effect["hash"],
            "time": time,
            "replies": [dict(reply) for reply in self.answer(requests)],
        }
        self.journal[-1].append(entry)
        return entry


class Replay(NamedTuple):
    """The reports of a child before it ended: ``effect`` if it was suspended, ``diverged`` if a cell asked for something else."""

    reports: list[Report]
    effect: Line | None
    diverged: int | None


def run_cell(code: str, **variables: Json) -> Report:
    """Run one cell in a child of its own."""
    (report,) = Turn([CellOf(code)], variables=variables).run_live()
    return report


def _report(line: Line, number: int) -> Report:
    fields = dict(line["cell"])
    assert fields.pop("number") == number
    return Report(**fields)
