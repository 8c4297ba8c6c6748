"""A launcher whose children follow a script, or run a small language of commands as the real child runs Python."""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from spass.core.code_calls import CallReply, CodeRequest, Query
from spass.core.effects import Cell, Queries
from spass.core.slots import Slots
from spass.sandbox.child_process import ChildFailed
from spass.sandbox.interpreter import TurnInterpreter
from spass.sandbox.limits import LIMITS, Limits

QUERIES: Final = Queries(model=None, temperature=0.3, max_tokens=100, max_calls=100)


@dataclass(frozen=True)
class Raw:
    """Bytes that the child writes as they are."""

    line: bytes


@dataclass(frozen=True)
class Hang:
    """The child computes for ever. It uses ``cpu`` seconds of processor time."""

    cpu: float = 0.0


@dataclass(frozen=True)
class Die:
    """The child ends."""

    fault: str = "ended unexpectedly"


class Wait:
    """The child reads a line, which it finds in its ``inbox``."""


Move: TypeAlias = Mapping[str, Any] | Raw | Hang | Die | Wait
Script: TypeAlias = "Callable[[ScriptedChild], Iterator[Move]]"


class ScriptedChild:
    """A child that makes the moves of a script. A mapping is a line of the protocol."""

    def __init__(self, launcher: "ScriptedLauncher", request: Mapping[str, Any], script: "Script") -> None:
        self.is_live = launcher.is_live
        self.request: dict[str, Any] = json.loads(json.dumps(request))
        self.inbox: list[dict[str, Any]] = []
        self.cpu = launcher.cpu
        self._launcher = launcher
        self._moves = script(self)
        self._has_mail = asyncio.Event()
        self._fault: str | None = None
        self._is_stopped = asyncio.Event()

    def send(self, line: Mapping[str, Any]) -> None:
        assert self.is_live
        self.inbox.append(json.loads(json.dumps(line)))
        self._has_mail.set()

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        while True:
            if self._fault is not None:
                raise ChildFailed(self._fault)
            match next(self._moves, Die()):
                case Die(fault=fault):
                    raise ChildFailed(fault)
                case Raw(line=line):
                    return line
                case Hang(cpu=cpu):
                    self.cpu += cpu
                    await self._is_stopped.wait()
                case Wait():
                    await self._read()
                case move:
                    return f"{self.request['token']} {json.dumps(move)}\n".encode()

    async def _read(self) -> None:
        if not self.is_live:
            return
        mail = asyncio.create_task(self._has_mail.wait())
        stopped = asyncio.create_task(self._is_stopped.wait())
        try:
            await asyncio.wait({mail, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            mail.cancel()
            stopped.cancel()
        self._has_mail.clear()

    def pause(self) -> None:
        """Do nothing: a script computes nothing."""

    def stop(self, fault: str) -> None:
        self._fault = fault
        self._is_stopped.set()

    def cpu_seconds(self) -> float:
        return self.cpu

    async def close(self) -> None:
        self._launcher.open_children.discard(self)
        self.stop("was closed")
        await asyncio.sleep(0)


@dataclass
class ScriptedLauncher:
    """Starts children with the ``scripts``, and then children that run commands. ``starts`` are the requests."""

    scripts: "list[Script]" = field(default_factory=list)
    is_live: bool = True
    cpu: float = 0.0
    slots: Slots = field(default_factory=lambda: Slots(2))
    name: str = "scripted"
    starts: list[ScriptedChild] = field(default_factory=list)
    open_children: set[ScriptedChild] = field(default_factory=set)

    async def start(self, owner_id: str, request: Mapping[str, Any]) -> ScriptedChild:
        await asyncio.sleep(0)
        assert owner_id == "owner"
        child = ScriptedChild(self, request, self.scripts.pop(0) if self.scripts else run_commands)
        self.starts.append(child)
        self.open_children.add(child)
        return child


def run_commands(child: ScriptedChild) -> Iterator[Move]:
    """Run the commands in the lines of each cell: ``say TEXT``, ``ask PROMPT …``, ``call TOOL``, ``set NAME``, ``get NAME``,
    ``final TEXT``, ``exceed``, ``die``, ``hang`` and ``spin SECONDS``. What comes back from outside is said."""
    yield {"ready": {"seccomp": True}}
    cells, journals = list(child.request["cells"]), [list(journal) for journal in child.request["journal"]]
    names: set[str] = set()
    for number in itertools.count():
        if number == len(cells):
            yield Wait()
            if not child.inbox:
                return
            cells.append(child.inbox.pop(0)["cell"])
            journals.append([])
        yield from _CommandCell(child, number, journals[number], names).run(cells[number]["code"].splitlines())


class _CommandCell:
    """A cell of commands."""

    def __init__(self, child: ScriptedChild, number: int, journal: list[Any], names: set[str]) -> None:
        self._child = child
        self._number = number
        self._journal = journal
        self._names = names
        self._said = ""

    def run(self, commands: Sequence[str]) -> Iterator[Move]:
        for command in commands:
            verb, _, rest = command.partition(" ")
            match verb:
                case "say":
                    self._said += rest
                case "set":
                    self._names.add(rest)
                case "get" if rest not in self._names:
                    yield self._end(error=f"NameError: {rest}")
                    return
                case "exceed":
                    yield self._end(error="MemoryError", exceeded="memory")
                    return
                case "ask" | "call":
                    yield from self._call(verb, rest)
                case "final":
                    yield self._end(final=rest)
                    yield Die()
                case "die":
                    yield Die()
                case "hang" | "spin":
                    yield Hang(float(rest or 0))
        yield self._end()

    def _call(self, verb: str, rest: str) -> Iterator[Move]:
        requests = [{"query": prompt} for prompt in rest.split()] if verb == "ask" else [{"tool": rest, "arguments": {"a": 1}}]
        if not self._journal:
            yield {"effect": {"cell": self._number, "hash": rest, "requests": requests}}
            yield Wait()
            if not self._child.inbox:
                yield {"suspended": True}
                yield Die()
            self._journal.append(self._child.inbox.pop(0)["entry"])
        entry = self._journal.pop(0)
        if entry["hash"] != rest:
            yield {"diverged": {"cell": self._number}}
            yield Die()
        self._said += "".join(reply.get("value") or reply["error"]["code"] for reply in entry["replies"])

    def _end(self, **values: Any) -> Mapping[str, Any]:
        return end_of_cell(self._number, **{"output": self._said, **values})


def end_of_cell(number: int, **values: Any) -> dict[str, Any]:
    """Return the line that ends a cell."""
    nothing = {"output": "", "error": None, "truncated": 0, "final": None, "exceeded": None}
    return {"cell": {"number": number, **nothing, **values}}


class Outside:
    """Perform the calls of code: record each one, and answer with the prompt in capitals."""

    def __init__(self) -> None:
        self.performed: list[str] = []

    async def perform(self, requests: Sequence[CodeRequest]) -> Sequence[CallReply]:
        await asyncio.sleep(0)
        names = [request.prompt if isinstance(request, Query) else request.name for request in requests]
        self.performed += names
        return [CallReply(name.upper()) for name in names]


def cell(*commands: str, **values: Any) -> Cell:
    """Return a cell whose code may call models and tools."""
    return Cell("\n".join(commands), **{"queries": QUERIES, "tools": True, **values})


def interpreter(launcher: ScriptedLauncher, limits: Limits = LIMITS, tenant_id: str = "tenant") -> TurnInterpreter:
    """Return an interpreter over ``launcher``."""
    return TurnInterpreter(launcher, tenant_id, "owner", limits)
