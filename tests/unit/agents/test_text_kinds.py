"""Kinds with a text protocol on the driver: what is streamed, recorded and returned is the same, and each call has its result."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.driver import Driver
from spass.agents.kinds.base import AgentContext, ToolUsingAgent
from spass.agents.kinds.native_react import NativeReActAgent
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.agents.kinds.protocols import REACT, STRUCTURED, Protocol
from spass.core.effects import Infer, user
from spass.core.errors import ContextLengthExceeded
from spass.core.events import Event, InferenceFinished, Token, TurnFinished, collect
from spass.core.messages import FinishReason, Message, Role, ToolSpec
from tests.unit.agents.driver_harness import ScriptedReply, ScriptedWorld
from tests.unit.tools.fakes import scope_for, table_of, toolbox_of

pytestmark = pytest.mark.anyio

AGENTS: Final[dict[str, tuple[ToolUsingAgent, Protocol]]] = {
    "react": (NativeReActAgent(), REACT),
    "structured": (OrchestratorAgent(mode="structured"), STRUCTURED),
}
KINDS = pytest.mark.parametrize("kind", AGENTS)
CLOCK: Final = ToolSpec("clock", "Tell the time.", {"type": "object", "properties": {}})
CONTEXT: Final = AgentContext(tools=("clock",), specs=(CLOCK,))


def tokens(events: Sequence[Event]) -> list[tuple[str, int]]:
    return [(event.text, event.step) for event in events if isinstance(event, Token)]


def messages(events: Sequence[Event]) -> list[tuple[str, str, int]]:
    return [(message.role, message.content, len(message.tool_calls)) for message in collect(events).messages]


@KINDS
async def test_the_final_answer_is_streamed_and_the_words_beside_a_call_are_recorded(kind: str) -> None:
    agent, p = AGENTS[kind]
    call = ScriptedReply(f"{p.thought} I |look\n{p.action} clock\n")
    answer = ScriptedReply(f"{p.thought} easy\n{p.final[:4]}|{p.final[4:]} It| is| noon.\n")
    world = ScriptedWorld([call, answer])
    events = await world.run(agent, context=CONTEXT)
    assert tokens(events) == [("I look", 1), ("It", 2), (" is", 2), (" noon.", 2)]
    (made,) = world.executed
    assert (made.name, made.arguments) == ("clock", "{}")
    assert messages(events) == [("assistant", "I look", 1), ("tool", f'"{made.id}"', 0), ("assistant", "It is noon.", 0)]
    assert collect(events).finish_reason is FinishReason.STOP
    assert world.effects[1].messages[-1] == user(f'Observation: "{made.id}"', data=True)


@KINDS
async def test_a_model_that_always_calls_a_tool_stops_after_max_turns(kind: str) -> None:
    agent, p = AGENTS[kind]
    world = ScriptedWorld([ScriptedReply(f"{p.thought} I look\n{p.action} clock")])
    events = await world.run(type(agent)(**{**vars(agent), "max_turns": 2}), context=CONTEXT)
    outcome = collect(events)
    assert (len(world.effects), len(world.executed), outcome.turns) == (2, 1, 2)
    assert (outcome.content, outcome.finish_reason) == ("I look", FinishReason.MAX_TURNS)
    assert outcome.metadata == {"max_turns_exceeded": True}


@KINDS
async def test_replies_that_make_no_sense_end_with_max_turns(kind: str) -> None:
    agent, p = AGENTS[kind]
    world = ScriptedWorld([ScriptedReply(f"{p.thought} I look\n{p.action}")])
    outcome = collect(await world.run(agent, context=CONTEXT))
    assert (outcome.turns, outcome.content, outcome.finish_reason) == (10, "I look", FinishReason.MAX_TURNS)
    assert world.executed == []


@KINDS
async def test_after_an_overflow_the_shorter_history_is_text_and_no_tool_runs_twice(kind: str) -> None:
    agent, p = AGENTS[kind]
    history = (user("Old."), Message(Role.ASSISTANT, "Older."))
    shorter = (user("Summary.", data=True), Message(Role.ASSISTANT, "Short."))

    async def shorten() -> Sequence[Message]:
        return shorter

    def script(effect: Infer) -> ScriptedReply | Exception:
        contents = [message.content for message in effect.messages]
        if not any(text.startswith("Observation:") for text in contents):
            return ScriptedReply(f"{p.action} clock")
        return ContextLengthExceeded("too long") if "Old." in contents else ScriptedReply(f"{p.final} Noon.")

    world = ScriptedWorld(script)
    events = await world.run(agent, context=AgentContext(history, ("clock",), specs=(CLOCK,)), shorten=shorten)
    assert collect(events).content == "Noon."
    assert len(world.executed) == 1
    assert world.effects[-1].messages[1:3] == (shorter[0], Message(Role.ASSISTANT, f"{p.final} Short."))
    assert [effect.messages[3:] for effect in world.effects[1:2]] == [effect.messages[3:] for effect in world.effects[2:]]


@KINDS
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ('A: calculator\nI: {"expression": "2', "Write one JSON object."),
        ('A: calculator\nI: {"expression": "2", "expression": "3"}', "the key 'expression' stands twice in one object"),
        ("A: calculator\nI: {'expression': 2 + 2}", "Write one JSON object."),
        ("A: calculator", "expression: is missing, but it is required."),
        ('A: calculator\nI: {"expr": "2"}', "expr: unknown parameter; known: expression."),
        ("A: rag_query\nI: opening hours", "Write one JSON object."),
        ("A: current_datetime\nI wait.", "Write one JSON object."),
        ("A: weather\nI: Berlin", "There is no tool 'weather'. There are: calculator, current_datetime, rag_query."),
        (
            'A: calculator("2+2")\nI: {}',
            "There is no tool 'calculator__2_2__'. There are: calculator, current_datetime, rag_query.",
        ),
    ],
)
async def test_a_bad_call_is_not_run_and_the_model_reads_why(kind: str, call: str, error: str) -> None:
    agent, p = AGENTS[kind]
    world = ScriptedWorld([ScriptedReply(call.replace("A:", p.action).replace("I:", p.input)), ScriptedReply(f"{p.final} No.")])
    toolbox, scope = toolbox_of(), scope_for()
    names = ("calculator", "current_datetime", "rag_query")
    driver = Driver(world, partial(toolbox.run_all, scope, allowed=names), scope)
    events = [event async for event in driver.run(agent, "?", AgentContext(tools=names, specs=toolbox.specs(scope, names)))]
    (outcome,) = collect(events).tool_calls
    assert not outcome.ok
    observation = world.effects[1].messages[-1]
    assert observation == user(f"Observation: {outcome.message.content}", data=True)
    assert error in observation.content
    assert [status for _, status in table_of(scope).audited("tool")] in (["invalid_arguments"], ["tool_not_found"])


def lines(p: Protocol) -> st.SearchStrategy[str]:
    parts = (
        p.thought,
        p.action,
        p.input,
        p.final,
        p.observation,
        " clock",
        " failing",
        " {}",
        "\n",
        "\n",
        "\n```\n",
        "x",
        " y|",
        "|",
    )
    return st.lists(st.sampled_from(parts) | st.just(f"\n{p.action} clock\n{p.input} {{}}\n"), max_size=12).map("".join)


def scripted(p: Protocol) -> st.SearchStrategy[list[ScriptedReply]]:
    replies = st.builds(ScriptedReply, lines(p), reason=st.sampled_from([*FinishReason][:4]))
    return st.lists(replies, min_size=1, max_size=5)


RUNS = st.sampled_from([*AGENTS.values()]).flatmap(lambda pair: st.tuples(st.just(pair[0]), st.just(pair[1]), scripted(pair[1])))


@given(RUNS, st.integers(1, 4))
async def test_any_replies_make_a_turn_that_streams_what_it_records(
    run: tuple[ToolUsingAgent, Protocol, list[ScriptedReply]], max_turns: int
) -> None:
    agent, _, script = run
    world = ScriptedWorld(script)
    events = await world.run(type(agent)(**{**vars(agent), "max_turns": max_turns}), context=CONTEXT)
    assert isinstance(events[-1], TurnFinished)
    outcome = collect(events)
    shown = tokens(events)
    assert "".join(text for text, step in shown if shown and step == shown[-1][1]) == outcome.content
    assert outcome.turns == len(world.effects) <= max_turns
    recorded = [event.message for event in events if isinstance(event, InferenceFinished)]
    assert [call.id for message in recorded for call in message.tool_calls] == [call.id for call in world.executed]
    assert all(len(message.tool_calls) <= 1 for message in recorded)
    replies = "\n".join(line.text.replace("|", "") for line in script)
    assert all(call.arguments == "{}" or call.arguments in replies for call in world.executed)
