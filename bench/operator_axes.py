"""Count the model calls that each value of an axis of ``monitor_operative`` makes aside, in a run that calls five tools."""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from bench.kinds import new_scope
from spass.agents.driver import Driver
from spass.agents.kinds.axes.compression import SUMMARY_PROMPT, Compression
from spass.agents.kinds.axes.extraction import EDGES_PROMPT, FACTS_PROMPT, Extraction
from spass.agents.kinds.axes.retrieval import GRADES_PROMPT, RetrievalStrategy
from spass.agents.kinds.base import AgentContext
from spass.agents.kinds.monitor_operative import Decomposition, MonitorOperativeAgent
from spass.calls.scope import CallReports
from spass.core.effects import Infer, Note, Recalled, SearchNotes, StoreNote, ToolOutcome
from spass.core.events import CallEvent, collect
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall, ToolCallDelta, ToolSpec
from spass.models.types import ChatDelta
from spass.tools.concurrent_calls import run_calls

TOOLS: Final = 5
RESULT: Final = "The pump failed because the filter was clogged; the level of the basin then rose. " * 40  # 3,300 characters
TASK: Final = "Find out why the basin overflowed, and write down what has to be repaired."
NOTES: Final = 20
SILENT: Final[Mapping[str, str]] = {
    "observation_compression": "none",
    "memory_extraction": "none",
    "retrieval_strategy": "none",
    "task_decomposition": "monolithic",
}
"""The values without which an axis adds nothing."""
AXES: Final[Mapping[str, Sequence[str]]] = {
    "observation_compression": get_args(Compression),
    "memory_extraction": get_args(Extraction),
    "retrieval_strategy": get_args(RetrievalStrategy),
    "task_decomposition": get_args(Decomposition),
}
_LOOK: Final = ToolSpec("look_up", "Return what is known.", {"type": "object", "properties": {}})
_CHARACTERS_OF_A_TOKEN: Final = 4
_SIDE_REPLIES: Final[Mapping[str, str]] = {
    SUMMARY_PROMPT: "The filter of the pump was clogged, so the pump failed and the basin rose. " * 5,
    EDGES_PROMPT: '{"edges": [{"cause": "clogged filter", "effect": "failed pump", "confidence": 0.9, "evidence": "pump failed"},'
    ' {"cause": "failed pump", "effect": "rising basin", "confidence": 0.8, "evidence": "the level of the basin then rose"}]}',
    FACTS_PROMPT: '{"entities": ["pump", "filter", "basin"], "facts": ["The filter was clogged.", "The basin rose."]}',
    GRADES_PROMPT: '{"grades": {' + ", ".join(f'"{note}": {note % 4}' for note in range(1, NOTES + 1)) + "}}",
}


@dataclass(slots=True)
class MeteredModel:
    """Calls a tool in each of five replies and then answers. It counts the tokens of calls in the run and of those aside, four
    characters to a token."""

    steps: int = 0
    aside: int = 0
    tokens: Counter[str] = field(default_factory=Counter)

    async def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        given = sum(len(message.with_heading_in_text().content) for message in effect.messages) // _CHARACTERS_OF_A_TOKEN
        reply = self._aside(effect) if effect.aside else self._step()
        written = (len(reply.content) + sum(len(call.arguments) for call in reply.tool_calls)) // _CHARACTERS_OF_A_TOKEN
        place = "aside" if effect.aside else "run"
        self.tokens[f"{place} in"] += given
        self.tokens[f"{place} out"] += written
        yield reply

    def begins_thinking(self, _: Infer) -> bool:
        return False

    def _aside(self, effect: Infer) -> ChatDelta:
        self.aside += 1
        content = next(reply for prompt, reply in _SIDE_REPLIES.items() if effect.messages[0].content == prompt)
        return ChatDelta(content, finish_reason=FinishReason.STOP, usage=TokenUsage(1, 1))

    def _step(self) -> ChatDelta:
        self.steps += 1
        if self.steps > TOOLS:
            return ChatDelta("The filter has to be cleaned.", finish_reason=FinishReason.STOP, usage=TokenUsage(1, 1))
        call = ToolCallDelta(0, f"call_{self.steps}", _LOOK.name, "{}")
        return ChatDelta(tool_calls=(call,), finish_reason=FinishReason.TOOL_CALLS, usage=TokenUsage(1, 1))


@dataclass(slots=True)
class TwentyNotes:
    """A memory in which each search finds ten notes of its own. It counts the notes that are kept."""

    kept: int = 0

    async def recall(self, effect: SearchNotes) -> Recalled:
        if effect.by in ("key", "ends"):
            return Recalled()
        first = NOTES // 2 if effect.by == "semantic" else 0
        return Recalled(tuple(Note(f"note-{first + n}", "The basin overflowed in May. " * 10, 1.0) for n in range(effect.limit)))

    async def keep(self, effect: StoreNote) -> str:
        self.kept += 1
        return effect.key or "key"

    def set_state(self, value: Json) -> None:
        """Forget the state."""


async def _look_up(call: ToolCall, _: CallReports) -> ToolOutcome:
    return ToolOutcome(call, {}, RESULT, Message(Role.TOOL, RESULT, tool_call_id=call.id), 0)


def _call_tools(calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
    return run_calls(calls, _look_up, concurrency=8)


async def run(values: Mapping[str, Any]) -> tuple[MeteredModel, TwentyNotes]:
    """Run the kind with these values of its axes."""
    model, memory = MeteredModel(), TwentyNotes()
    driver = Driver(model, _call_tools, new_scope(), memory=memory)
    context = AgentContext(tools=(_LOOK.name,), specs=(_LOOK,))
    turn = collect([event async for event in driver.run(MonitorOperativeAgent(**values), TASK, context)])
    if model.steps != TOOLS + 1 or turn.metadata.get("side_calls"):
        raise SystemExit(f"{values}: {model.steps} steps, {turn.metadata}")
    return model, memory


async def measure() -> None:
    """Print a line for each value of each axis, while the other axes are silent, and one for the defaults."""
    head = f"{'axis':24} {'value':22} {'aside':>6} {'tokens in':>10} {'out':>6} {'run in':>8} {'notes':>6}"
    print(f"A run of monitor_operative with five tools, whose results have {len(RESULT):,} characters\n\n{head}")
    for axis, values in AXES.items():
        for value in values:
            _report(axis, value, *await run({**SILENT, axis: value}))
    _report("all axes", "(defaults)", *await run({}))


def _report(axis: str, value: str, model: MeteredModel, memory: TwentyNotes) -> None:
    tokens = model.tokens
    figures = f"{model.aside:6} {tokens['aside in']:10,} {tokens['aside out']:6,} {tokens['run in']:8,} {memory.kept:6}"
    print(f"{axis:24} {value:22} {figures}")
