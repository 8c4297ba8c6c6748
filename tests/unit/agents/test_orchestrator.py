"""The tool loop: for any answers of the model the turn ends, and its conversation is well-formed."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.kinds import orchestrator
from spass.agents.kinds.context import ModelEvent
from spass.core.effects import ToolOutcome
from spass.core.errors import UpstreamError
from spass.core.events import (
    Event,
    InferenceFinished,
    InferenceStarted,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
    collect,
)
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCall

pytestmark = pytest.mark.anyio
QUESTION = (Message(Role.USER, "What is six times seven?"),)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One answer of the model: its text, and its tool calls (by the duration of each)."""

    text: str = ""
    calls: tuple[str, ...] = ()
    reason: FinishReason = FinishReason.STOP


@dataclass(slots=True)
class ScriptedContext:
    """A ``KindContext`` whose model answers with ``lines``, and then repeats the last one."""

    lines: Sequence[ScriptedReply]
    max_turns: int = 10
    seen: list[Sequence[Message]] = field(default_factory=list)
    allowed: list[bool] = field(default_factory=list)
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def model(
        self, conversation: Sequence[Message], step: int, *, may_call_tools: bool
    ) -> AsyncGenerator[ModelEvent, None]:
        number = len(self.seen)
        line = self.lines[min(number, len(self.lines) - 1)]
        self.seen.append(tuple(conversation))
        self.allowed.append(may_call_tools)
        for word in line.text.split(" "):
            if word:
                yield Token(word, step)
        calls = tuple(ToolCall(f"call_{number}_{at}", name, "{}") for at, name in enumerate(line.calls))
        yield InferenceFinished(Message(Role.ASSISTANT, line.text.replace(" ", ""), calls), line.reason, TokenUsage(10, 1))

    async def tools(self, calls: Sequence[ToolCall]) -> Sequence[ToolOutcome]:
        self.asked.append(tuple(call.name for call in calls))
        if "broken" in self.asked[-1]:
            raise UpstreamError("The tool's room fell in.")
        answers = [Message(Role.TOOL, f'"{call.id}"', tool_call_id=call.id) for call in calls]
        return [ToolOutcome(call, {}, call.id, answer, 1) for call, answer in zip(calls, answers, strict=True)]


async def turn(script: ScriptedContext) -> list[Event]:
    return [event async for event in orchestrator.run(script, QUESTION)]


def check_well_formed(messages: Sequence[Message]) -> None:
    """Assert that the results of all calls follow their message in order, and that the last message is an answer with text."""
    waiting: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            assert waiting
            assert message.tool_call_id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in message.tool_calls]
    assert not waiting
    assert messages[-1].role is Role.ASSISTANT


async def test_an_answer_without_tools_is_one_model_call() -> None:
    assert await turn(ScriptedContext([ScriptedReply("forty two")])) == [
        TurnStarted(),
        InferenceStarted(1),
        Token("forty", 1),
        Token("two", 1),
        InferenceFinished(Message(Role.ASSISTANT, "fortytwo"), FinishReason.STOP, TokenUsage(10, 1)),
        TurnFinished(FinishReason.STOP, TokenUsage(10, 1)),
    ]


async def test_a_tool_is_executed_and_the_model_receives_its_result() -> None:
    script = ScriptedContext([ScriptedReply("let me", ("calculator",), FinishReason.TOOL_CALLS), ScriptedReply("42")])
    outcome = collect(await turn(script))
    call = ToolCall("call_0_0", "calculator", "{}")
    asked = Message(Role.ASSISTANT, "letme", (call,))
    answered = Message(Role.TOOL, '"call_0_0"', tool_call_id="call_0_0")
    assert outcome.messages == [asked, answered, Message(Role.ASSISTANT, "42")]
    assert script.seen[1] == (*QUESTION, asked, answered)
    assert (outcome.turns, outcome.usage, outcome.finish_reason) == (2, TokenUsage(20, 2), FinishReason.STOP)


async def test_the_calls_of_one_answer_run_together_and_are_reported_in_order() -> None:
    script = ScriptedContext([ScriptedReply("", ("slowest", "slow", "x")), ScriptedReply("done")])
    events = await turn(script)
    assert script.asked == [("slowest", "slow", "x")]
    started = [event.call.name for event in events if isinstance(event, ToolCallStarted)]
    finished = [event.outcome.call.name for event in events if isinstance(event, ToolCallFinished)]
    assert started == finished == ["slowest", "slow", "x"]


async def test_the_last_model_call_may_not_call_tools() -> None:
    script = ScriptedContext([ScriptedReply("", ("x",)), ScriptedReply("", ("x",)), ScriptedReply("all I know")], max_turns=3)
    outcome = collect(await turn(script))
    assert script.allowed == [True, True, False]
    assert (outcome.turns, outcome.content, outcome.finish_reason) == (3, "allIknow", FinishReason.STOP)


@pytest.mark.parametrize("max_turns", [1, 2, 5])
async def test_a_model_that_always_calls_tools_stops_after_max_turns(max_turns: int) -> None:
    outcome = collect(await turn(ScriptedContext([ScriptedReply("hm", ("x",), FinishReason.TOOL_CALLS)], max_turns=max_turns)))
    assert (outcome.turns, len(outcome.tool_calls)) == (max_turns, max_turns - 1)
    assert outcome.finish_reason is FinishReason.MAX_TURNS
    assert outcome.content == "hm"
    check_well_formed(outcome.messages)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
async def test_tool_calls_of_a_truncated_answer_are_dropped(reason: FinishReason) -> None:
    script = ScriptedContext([ScriptedReply("let me", ("x",), reason)])
    outcome = collect(await turn(script))
    assert (outcome.turns, outcome.finish_reason, outcome.tool_calls) == (1, reason, [])
    check_well_formed(outcome.messages)


async def test_tool_calls_are_executed_with_any_finish_reason() -> None:
    outcome = collect(await turn(ScriptedContext([ScriptedReply("", ("x",), FinishReason.STOP), ScriptedReply("done")])))
    assert len(outcome.tool_calls) == 1


async def test_finish_reason_tool_calls_without_calls_ends_the_turn() -> None:
    assert (
        collect(await turn(ScriptedContext([ScriptedReply("done", (), FinishReason.TOOL_CALLS)]))).finish_reason
        is FinishReason.STOP
    )


async def test_an_empty_answer_is_an_answer() -> None:
    outcome = collect(await turn(ScriptedContext([ScriptedReply("")])))
    assert (outcome.content, outcome.finish_reason) == ("", FinishReason.STOP)
    check_well_formed(outcome.messages)


async def test_a_failure_of_the_tools_fails_the_turn() -> None:
    script = ScriptedContext([ScriptedReply("", ("x", "broken"))])
    events: list[Event] = []
    with pytest.raises(UpstreamError):
        async for event in orchestrator.run(script, QUESTION):
            events.append(event)
    assert not any(isinstance(event, TurnFinished) for event in events)


async def test_closing_the_events_closes_the_model_stream() -> None:
    closed: list[bool] = []

    class Watched(ScriptedContext):
        async def model(
            self, conversation: Sequence[Message], step: int, *, may_call_tools: bool
        ) -> AsyncGenerator[ModelEvent, None]:
            try:
                yield Token("a", 1)
                yield Token("b", 1)
            finally:
                closed.append(True)

    events = orchestrator.run(Watched([ScriptedReply()]), QUESTION)
    async for event in events:
        if isinstance(event, Token):
            break
    await events.aclose()
    assert closed == [True]


lines = st.builds(
    ScriptedReply,
    st.sampled_from(["", "a", "a b"]),
    st.lists(st.sampled_from(["x", "slow", "calculator"]), max_size=3).map(tuple),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS, FinishReason.CONTENT_FILTER]),
)


@given(script=st.lists(lines, min_size=1, max_size=6), max_turns=st.integers(1, 6))
async def test_every_turn_is_well_formed_and_ends_within_max_turns(script: list[ScriptedReply], max_turns: int) -> None:
    context = ScriptedContext(script, max_turns)
    events = await turn(context)
    outcome = collect(events)
    check_well_formed(outcome.messages)
    assert isinstance(events[-1], TurnFinished)
    assert outcome.finish_reason is not FinishReason.TOOL_CALLS
    assert 1 <= outcome.turns <= max_turns
    assert outcome.turns == len(context.seen)
    last_inference = [event for event in events if isinstance(event, InferenceStarted)][-1]
    said = "".join(event.text for event in events[events.index(last_inference) :] if isinstance(event, Token))
    assert said == outcome.content
    for conversation in context.seen[1:]:
        assert conversation[: len(QUESTION)] == QUESTION
