"""The program of the image, for containers of the recording runtime, and turns of every kind to compare."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from spass.agents.driver import Driver, ShortenHistory
from spass.agents.kinds import KINDS, AgentContext, BaseAgent, user
from spass.agents.kinds.axes.compression import SUMMARY_PROMPT
from spass.agents.kinds.axes.retrieval import GRADES_PROMPT
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.agents.performers.code import CodePerformer
from spass.core.code_calls import Sandbox
from spass.core.effects import Infer, Note
from spass.core.errors import ContextLengthExceeded, UpstreamError
from spass.core.events import Event, Failed
from spass.core.messages import FinishReason, Message, Role, ToolSpec
from tests.simulated.interpreter import InProcessSandbox
from tests.unit.agents.driver_harness import NoteBook, Script, ScriptedReply, ScriptedWorld, check_events

_LIBRARY: Final = Path(__file__).resolve().parents[1] / "shared"
IMAGE: Final = f"import sys\nsys.path.insert(0, {str(_LIBRARY)!r})\nfrom spass.agents.container_main import main\nmain()\n"
"""The program of the image ``spass-sandbox``."""
SPECS: Final = (ToolSpec("calculator", "Calculate.", {"type": "object", "properties": {"expression": {"type": "string"}}}),)
CONTEXT: Final = AgentContext(
    conversation=(user("old"), Message(Role.ASSISTANT, "older ä\u2028")),
    tools=("calculator",),
    memory_results=("Berlin is large.\nHamburg has a harbour.", {"rows": [1, None, 2.5, True]}),
    metadata={"trace": {"id": "x"}},
    specs=SPECS,
)
_CODE: Final = "Let me look.\n```python\nx = {}\nprint(x, len(context))\n```"
_ID_OR_TIME: Final = re.compile(r"\b(call|req)_\w+|duration_ms=\d+")


def _read_long_results(effect: Infer) -> ScriptedReply | Exception:
    """Answer a model call of a turn whose tools have long results. The summary of one of them fails, and so does the first answer
    over the whole history."""
    asked = effect.messages[0].content
    if effect.aside and asked == SUMMARY_PROMPT:
        return UpstreamError("Down.") if "failing" in effect.messages[-1].content else ScriptedReply("It was rust.")
    if effect.aside:
        return ScriptedReply('{"grades": [3]}' if asked == GRADES_PROMPT else _EDGES)
    if not any(message.role is Role.TOOL for message in effect.messages):
        return ScriptedReply("So.", ("search", "calculator", "failing"))
    is_whole = any("older" in message.content for message in effect.messages)
    return ContextLengthExceeded("Too long.") if is_whole else ScriptedReply("Done.")


_EDGES: Final = '{"edges": [{"cause": "rust", "effect": "leak", "confidence": 0.5, "evidence": "wet"}]}'
TURNS: Final[Mapping[str, Script]] = {
    "an answer": [ScriptedReply("Hello| there.")],
    "calls": [ScriptedReply("So.", ("calculator", "failing")), ScriptedReply("", ("calculator",)), ScriptedReply("Done.")],
    "a written call": [
        ScriptedReply('Thought: hm\nAction: calculator\nAction Input: {"expression": "1"}'),
        ScriptedReply("THOUGHT: ok\nFinal Answer: 42\nFINAL_ANSWER: 42"),
    ],
    "calls without end": [ScriptedReply("Again.", ("calculator",))],
    "written calls without end": [ScriptedReply("Thought: x\nTOOL: calculator\nINPUT: 1\nAction: calculator\nAction Input: 1")],
    "an error of the model": [ScriptedReply("So.", ("calculator",)), UpstreamError("Down.")],
    "an overflow": [ContextLengthExceeded("Too long."), ScriptedReply("Short.")],
    "an overflow later": [ScriptedReply("So.", ("calculator",)), ContextLengthExceeded("Too long."), ScriptedReply("Short.")],
    "a cut reply": [ScriptedReply("Half", reason=FinishReason.LENGTH)],
    "code": [
        ScriptedReply(_CODE.format(1)),
        ScriptedReply("```python\nprint(x + 1, llm_query('?'))\n1 / 0\n```"),
        ScriptedReply("```python\nFINAL({'a': x})\n```"),
        ScriptedReply("Done."),
    ],
    "code and an overflow": [
        ScriptedReply(_CODE.format(7)),
        ContextLengthExceeded("Too long."),
        ScriptedReply("```python\nprint(x, calculator(expression='1'))\n```"),
        ScriptedReply("Done."),
    ],
    "code without end": [ScriptedReply(_CODE.format(3))],
    "long results and an overflow": _read_long_results,
}
"""Replies of the model, by what happens in the turn. Kinds read them differently."""
_RESULTS: Final = {"search": {"text": "The valve was stuck, so the pump stopped. " * 80}, "failing": {"error": "failing " * 400}}
"""The results of tools that do not echo."""


AGENTS: Final[Mapping[str, Callable[[], BaseAgent]]] = {
    key: partial(KINDS.get(key), system_prompt="Work.", **({"max_turns": 3} if hasattr(KINDS.get(key), "max_turns") else {}))
    for key in list(KINDS.keys())
    if KINDS.canonical(key) == key and KINDS.get(key).needs in (None, "code")
} | {"orchestrator structured": partial(OrchestratorAgent, max_turns=3, mode="structured")}
"""Every kind that runs no foreign agent."""
TYPICAL: Final = (
    *((kind, "an answer") for kind in AGENTS),
    *(("orchestrator", turn) for turn in ("calls", "calls without end", "an error of the model", "an overflow later")),
    *((kind, turn) for kind in ("orchestrator structured", "native_react") for turn in TURNS if "written" in turn),
    *(("simple", turn) for turn in ("an overflow", "a cut reply")),
    *((kind, turn) for kind in AGENTS if AGENTS[kind]().needs == "code" for turn in TURNS if "code" in turn),
    *(
        (kind, turn)
        for kind in ("operative", "monitor_operative")
        for turn in ("calls", "calls without end", "long results and an overflow")
    ),
)
"""Kinds and turns in which they differ."""


def driver_of(world: ScriptedWorld, sandbox: Sandbox | None = None) -> Driver:
    """Return a driver that also runs code: in ``sandbox``, unless the source of the effects has its own interpreter."""
    place = sandbox or InProcessSandbox()

    def open_code() -> CodePerformer:
        return CodePerformer(
            world.scope, lambda _: world, lambda _, calls: world.call_tools(calls), ("calculator",), lambda: place, str
        )

    return Driver(world, world.call_tools, world.scope, open_code=open_code, memory=world.memory)


async def events_of(agent: BaseAgent, turn: str, context: AgentContext = CONTEXT, sandbox: Sandbox | None = None) -> list[str]:
    """Return the events of one of ``TURNS`` and what the operator remembers after it, without what differs between two equal
    turns: ids and times."""
    memory = NoteBook({"dry": Note("dry", "What is dry?")}, '{"input": "?", "answer": "It was dry."}')
    world = ScriptedWorld(TURNS[turn], results=_RESULTS, memory=memory)
    shorten: ShortenHistory | None = _shorter if "overflow" in turn else None
    events = [event async for event in driver_of(world, sandbox).run(agent, "What is it?", context, shorten)]
    check_events(events)
    assert world.open_streams == 0
    return [*(_ID_OR_TIME.sub("…", _describe(event)) for event in events), repr(memory)]


async def _shorter() -> Sequence[Message]:
    return (Message(Role.ASSISTANT, "in short"),)


def _describe(event: Event) -> str:
    return f"{type(event.error).__name__}: {event.error.message}" if isinstance(event, Failed) else repr(event)
