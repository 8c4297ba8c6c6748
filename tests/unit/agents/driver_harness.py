"""A driver over a scripted model and scripted tools."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spass.agents.driver import Driver, ShortenHistory
from spass.agents.kinds import AgentContext, BaseAgent
from spass.calls.scope import Scope
from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.code_calls import Interpreter, Perform
from spass.core.cost import NO_COST
from spass.core.effects import CallError, Cell, CellResult, Infer, Note, Recalled, RunCode, SearchNotes, StoreNote, ToolOutcome
from spass.core.events import (
    CallEvent,
    Event,
    Failed,
    InferenceFinished,
    InferenceStarted,
    Nested,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnFinished,
    TurnStarted,
)
from spass.core.json import dump
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall, ToolCallDelta
from spass.models.types import ChatDelta
from tests.unit.tools.fakes import scope_for

USAGE = TokenUsage(10, 1)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """A reply of the model: words, the names of the tools that it calls, and its finish reason."""

    text: str = ""
    calls: tuple[str, ...] = ()
    reason: FinishReason = FinishReason.STOP

    def deltas(self, number: int) -> list[ChatDelta]:
        words = [ChatDelta(word) for word in self.text.split("|")]
        calls = tuple(ToolCallDelta(at, f"call_{number}_{at}", name, "{}") for at, name in enumerate(self.calls))
        return [*words, ChatDelta("", calls, self.reason, USAGE)]


Script = Sequence[ScriptedReply | Exception] | Callable[[Infer], ScriptedReply | Exception]


@dataclass
class ScriptedWorld:
    """The performers of a driver: the model answers by ``script``, of which the last line repeats, and tools echo their name.

    Each call of the model adds ``USAGE`` to the tally of ``scope``, as the pipeline does. A tool named ``broken`` raises
    ``tool_failure``. With ``same_ids``, all replies number their calls alike. ``effects`` are the performed model calls,
    ``executed`` the executed tools and cells. ``code`` runs cells; ``open_interpreters`` counts the interpreters of turns.
    ``results`` are the results of tools that do not echo, and ``memory`` is that of the operator.
    """

    script: Script
    tool_failure: Exception | None = None
    thinks: bool = False
    same_ids: bool = False
    scope: Scope = field(default_factory=scope_for)
    effects: list[Infer] = field(default_factory=list)
    executed: list[ToolCall] = field(default_factory=list)
    open_streams: int = 0
    open_interpreters: int = 0
    results: Mapping[str, Json] = field(default_factory=dict)
    memory: "NoteBook | None" = None

    @property
    def code(self) -> "ScriptedCode":
        return ScriptedCode(self)

    async def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        self.effects.append(effect)
        number = len(self.effects) - 1
        line = self.script(effect) if callable(self.script) else self.script[min(number, len(self.script) - 1)]
        self.open_streams += 1
        try:
            await asyncio.sleep(0)
            if isinstance(line, Exception):
                raise line
            *deltas, last = line.deltas(0 if self.same_ids else number)
            for delta in deltas:
                yield delta
            self.scope.tally.add(NO_COST, USAGE)
            yield last
        finally:
            self.open_streams -= 1

    def begins_thinking(self, _effect: Infer) -> bool:
        return self.thinks

    async def call_tools(self, calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
        self.open_streams += 1
        try:
            for call in calls:
                yield ToolCallStarted(call)
            for call in reversed(calls):
                self.executed.append(call)
                await asyncio.sleep(0)
                if call.name == "broken" and self.tool_failure is not None:
                    raise self.tool_failure
                yield ToolCallFinished(answer(call, self.results.get(call.name, call.id)))
        finally:
            self.open_streams -= 1

    def driver(self, bus: EventBus = EMPTY_BUS) -> Driver:
        return Driver(self, self.call_tools, self.scope, open_code=lambda: self.code, memory=self.memory, bus=bus)

    async def run(
        self, agent: BaseAgent, input: str = "?", context: AgentContext | None = None, shorten: ShortenHistory | None = None
    ) -> list[Event]:
        """Return the events of one turn and check that they begin, nest and end as every turn's do."""
        events = [event async for event in self.driver().run(agent, input, context or AgentContext(), shorten)]
        check_events(events)
        assert self.open_streams == self.open_interpreters == 0
        return events


@dataclass
class ScriptedCode:
    """Cells whose output is their code. A cell with the word ``FINAL`` answers, one with ``fails`` fails, one with ``calls``
    makes a call, and one with ``broken`` raises the ``tool_failure`` of the world."""

    world: ScriptedWorld

    def open(self) -> "ScriptedCode":
        self.world.open_interpreters += 1
        return self

    async def close(self) -> None:
        self.world.open_interpreters -= 1

    async def run(self, cell: Cell, tools: Sequence[str], perform: Perform) -> CellResult:
        raise AssertionError("cells are performed by this performer alone")

    async def perform(
        self, effect: RunCode, call: ToolCall, interpreter: Interpreter
    ) -> AsyncGenerator[CallEvent | CellResult, None]:
        assert interpreter == self
        self.world.open_streams += 1
        code = effect.cell.code
        try:
            yield ToolCallStarted(call)
            self.world.executed.append(call)
            await asyncio.sleep(0)
            if "broken" in code and self.world.tool_failure is not None:
                raise self.world.tool_failure
            if "calls" in code:
                inner = ToolCall(f"{call.id}-inner", "calculator", "{}")
                yield Nested("agent", call.id, ToolCallStarted(inner))
                yield Nested("agent", call.id, ToolCallFinished(echo(inner)))
            yield ToolCallFinished(echo(call))
            error = "It failed." if "fails" in code else None
            yield CellResult(code, error, final=code if "FINAL" in code else None)
        finally:
            self.world.open_streams -= 1


@dataclass
class NoteBook:
    """The memory of an operator, in this process. A search finds notes that share a word with the query, the oldest first; one
    by meaning fails with ``error``. ``written`` are the keys of all writes, in order, and ``states`` all states."""

    notes: dict[str, Note] = field(default_factory=dict)
    state: str | None = None
    error: CallError | None = None
    written: list[str] = field(default_factory=list)
    states: list[Json] = field(default_factory=list)

    async def recall(self, effect: SearchNotes) -> Recalled:
        if effect.by == "key":
            if effect.query == "state":
                return Recalled(() if self.state is None else (Note("state", self.state),))
            return Recalled(tuple(note for note in self.notes.values() if note.key == effect.query))
        if effect.by == "semantic" and self.error is not None:
            return Recalled((), self.error)
        return Recalled(tuple(note for note in self.notes.values() if self._matches(effect, note))[: effect.limit])

    @staticmethod
    def _matches(effect: SearchNotes, note: Note) -> bool:
        if effect.by == "ends":
            return effect.query.casefold() in {end.casefold() for end in note.ends}
        return bool({*effect.query.casefold().split()} & {*note.content.casefold().split()})

    async def keep(self, effect: StoreNote) -> str:
        key = effect.key or hashlib.sha256(effect.content.encode()).hexdigest()[:8]
        self.notes[key] = Note(key, effect.content, ends=effect.ends)
        self.written.append(key)
        return key

    def set_state(self, value: Json) -> None:
        self.states.append(value)


def echo(call: ToolCall) -> ToolOutcome:
    """Return an outcome that repeats the id of the call."""
    return answer(call, call.id)


def answer(call: ToolCall, result: Json) -> ToolOutcome:
    """Return the outcome of ``call`` with ``result``. A call of the tool ``failing`` fails."""
    message = Message(Role.TOOL, dump(result), tool_call_id=call.id)
    return ToolOutcome(call, {}, result, message, 1, call.name != "failing")


def check_events(events: Sequence[Event], *, cut: bool = False) -> None:
    """Assert that the list starts with ``TurnStarted``, ends with its one end, and that all work in it begins and ends once.
    In a turn that was ``cut``, calls that had not begun end too."""
    assert isinstance(events[0], TurnStarted)
    assert isinstance(events[-1], TurnFinished | Failed)
    assert not any(isinstance(event, TurnStarted) for event in events[1:])
    assert not any(isinstance(event, TurnFinished | Failed) for event in events[:-1])
    inferring = False
    running: set[str] = set()
    nested: dict[str, str] = {}  # the open calls within calls, with the call that each is part of
    for event in events:
        match event:
            case Nested(parent_id=parent, event=ToolCallStarted(call=call)):
                assert parent in running or parent in nested
                assert call.id not in running.union(nested)
                nested[call.id] = parent
            case Nested(parent_id=parent, event=ToolProgress(call_id=call_id)):
                assert nested[call_id] == parent
            case Nested(parent_id=parent, event=ToolCallFinished(outcome=outcome)):
                assert outcome.call.id not in nested.values()
                assert nested.pop(outcome.call.id) == parent
            case InferenceStarted():
                assert not inferring
                assert not running
                inferring = True
            case InferenceFinished():
                assert inferring
                inferring = False
            case ToolCallStarted(call=call):
                assert not inferring
                assert call.id not in running
                running.add(call.id)
            case ToolCallFinished(outcome=outcome):
                assert outcome.call.id in running or cut
                assert outcome.call.id not in nested.values()
                running.discard(outcome.call.id)
            case _:
                pass
    assert not inferring
    assert not running
    assert not nested
