import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.kinds import AgentContext, BaseAgent, user
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.core.effects import HIDDEN, Answer, AssistantReply, CallTools, Infer, MaxTurns, ReportStatus, Steps, VisibleAfter
from spass.core.errors import ContextLengthExceeded, InternalError, UpstreamError
from spass.core.events import (
    Event,
    Failed,
    InferenceFinished,
    InferenceStarted,
    MessageWritten,
    Outcome,
    Status,
    Token,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
    collect,
)
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCall
from tests.unit.agents.driver_harness import USAGE, ScriptedReply, ScriptedWorld, check_events

pytestmark = pytest.mark.anyio

ORCHESTRATOR = OrchestratorAgent()
ASK_TOOL = ToolCall("", "calculator", "{}")

KindFunction = Callable[[str, AgentContext], Steps]


@dataclass(frozen=True, kw_only=True)
class Custom(BaseAgent):
    """Run a function as a kind."""

    function: KindFunction
    max_turns: int = 10

    def steps(self, input: str, context: AgentContext) -> Steps:
        return self.function(input, context)


async def outcome_of(world: ScriptedWorld, agent: BaseAgent = ORCHESTRATOR) -> Outcome:
    return collect(await world.run(agent))


def tokens(events: Sequence[Event]) -> list[tuple[int, str]]:
    return [(event.step, event.text) for event in events if isinstance(event, Token)]


def check_answer(events: Sequence[Event]) -> None:
    """Assert that the tokens of the last step are the answer and that each recorded message was streamed as one step."""
    outcome = collect(events)
    by_step: dict[int, str] = {}
    for step, text in tokens(events):
        assert step >= max(by_step, default=0)
        by_step[step] = by_step.get(step, "") + text
    assert by_step.get(max(by_step, default=0), "") == outcome.content
    for message in outcome.messages:
        if message.role is Role.ASSISTANT and message.content:
            assert message.content in by_step.values()


def check_messages(messages: Sequence[Message]) -> None:
    """Assert that the results of all calls follow their message in order, and that the last message is an answer."""
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
    assert await ScriptedWorld([ScriptedReply("forty|two")]).run(ORCHESTRATOR) == [
        TurnStarted(),
        InferenceStarted(1),
        Token("forty", 1),
        Token("two", 1),
        InferenceFinished(Message(Role.ASSISTANT, "fortytwo"), FinishReason.STOP, USAGE),
        TurnFinished(FinishReason.STOP, USAGE),
    ]


async def test_a_tool_is_executed_and_the_model_receives_its_result() -> None:
    world = ScriptedWorld([ScriptedReply("let me", ("calculator",), FinishReason.TOOL_CALLS), ScriptedReply("42")])
    outcome = await outcome_of(world)
    call = ToolCall("call_0_0", "calculator", "{}")
    asked = Message(Role.ASSISTANT, "let me", (call,))
    answered = Message(Role.TOOL, '"call_0_0"', tool_call_id="call_0_0")
    assert outcome.messages == [asked, answered, Message(Role.ASSISTANT, "42")]
    assert world.effects[1].messages == (user("?"), asked, answered)
    assert (outcome.turns, outcome.usage, outcome.finish_reason) == (2, TokenUsage(20, 2), FinishReason.STOP)


async def test_results_are_recorded_in_the_order_of_the_calls() -> None:
    world = ScriptedWorld([ScriptedReply("", ("slowest", "slow", "x")), ScriptedReply("done")])
    events = await world.run(ORCHESTRATOR)
    assert [event.call.name for event in events if isinstance(event, ToolCallStarted)] == ["slowest", "slow", "x"]
    assert [call.name for call in world.executed] == ["x", "slow", "slowest"]
    outcome = collect(events)
    assert [tool.call.name for tool in outcome.tool_calls] == ["slowest", "slow", "x"]
    check_messages(outcome.messages)


async def test_the_last_model_call_may_not_call_tools() -> None:
    world = ScriptedWorld([ScriptedReply("", ("x",)), ScriptedReply("", ("x",)), ScriptedReply("all|I|know")])
    outcome = await outcome_of(world, OrchestratorAgent(max_turns=3))
    assert [effect.tools for effect in world.effects] == ["offered", "offered", "named"]
    assert (outcome.turns, outcome.content, outcome.finish_reason) == (3, "allIknow", FinishReason.STOP)
    assert outcome.metadata == {}


@pytest.mark.parametrize("max_turns", [1, 2, 5])
async def test_a_model_that_always_calls_tools_stops_after_max_turns(max_turns: int) -> None:
    world = ScriptedWorld([ScriptedReply("hm", ("x",), FinishReason.TOOL_CALLS)])
    outcome = await outcome_of(world, OrchestratorAgent(max_turns=max_turns))
    assert (outcome.turns, len(outcome.tool_calls)) == (max_turns, max_turns - 1)
    assert outcome.finish_reason is FinishReason.MAX_TURNS
    assert outcome.metadata == {"max_turns_exceeded": True}
    assert outcome.content == "hm"
    check_messages(outcome.messages)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
async def test_tool_calls_of_a_truncated_answer_are_dropped(reason: FinishReason) -> None:
    outcome = await outcome_of(ScriptedWorld([ScriptedReply("let me", ("x",), reason)]))
    assert (outcome.turns, outcome.finish_reason, outcome.tool_calls) == (1, reason, [])
    check_messages(outcome.messages)


async def test_tool_calls_are_executed_with_any_finish_reason() -> None:
    outcome = await outcome_of(ScriptedWorld([ScriptedReply("", ("x",), FinishReason.STOP), ScriptedReply("done")]))
    assert len(outcome.tool_calls) == 1


async def test_finish_reason_tool_calls_without_calls_ends_the_turn() -> None:
    outcome = await outcome_of(ScriptedWorld([ScriptedReply("done", (), FinishReason.TOOL_CALLS)]))
    assert outcome.finish_reason is FinishReason.STOP


async def test_an_empty_answer_is_an_answer() -> None:
    outcome = await outcome_of(ScriptedWorld([ScriptedReply("")]))
    assert (outcome.content, outcome.finish_reason) == ("", FinishReason.STOP)
    check_messages(outcome.messages)


async def test_an_empty_answer_is_a_step_of_its_own_after_other_text() -> None:
    events = await ScriptedWorld([ScriptedReply("let me", ("x",)), ScriptedReply("")]).run(ORCHESTRATOR)
    assert tokens(events) == [(1, "let me"), (2, "")]
    check_answer(events)


async def test_a_failure_of_the_tools_fails_the_turn() -> None:
    world = ScriptedWorld([ScriptedReply("", ("x", "broken"))], tool_failure=UpstreamError("The tool's room fell in."))
    events = await world.run(ORCHESTRATOR)
    assert isinstance(events[-1], Failed)
    assert events[-1].error is world.tool_failure


async def test_a_failing_model_fails_the_turn_once() -> None:
    events = await ScriptedWorld([ScriptedReply("", ("x",)), UpstreamError("Down.")]).run(ORCHESTRATOR)
    assert events[-2:] == [InferenceFinished(Message(Role.ASSISTANT, ""), None), events[-1]]
    assert isinstance(events[-1], Failed)


async def test_calls_without_an_id_or_with_the_same_id_get_their_own() -> None:
    def twice(_input: str, _context: AgentContext) -> Steps:
        first, second, third = yield CallTools((ASK_TOOL, ASK_TOOL, replace(ASK_TOOL, id="call_1")), text="Two.")
        assert len({first.call.id, second.call.id, third.call.id}) == 3
        assert third.call.id == "call_1"
        return Answer("Done.")

    events = await ScriptedWorld([]).run(Custom(function=twice))
    outcome = collect(events)
    check_messages(outcome.messages)
    assert isinstance(events[2], MessageWritten)
    assert tokens(events) == [(1, "Two."), (2, "Done.")]
    assert outcome.turns == 0


async def test_a_call_with_the_id_of_an_earlier_call_gets_its_own() -> None:
    world = ScriptedWorld([ScriptedReply("", ("x",)), ScriptedReply("", ("x",)), ScriptedReply("done")], same_ids=True)
    before = ToolCall("call_0_0", "x", "{}")
    history = (Message(Role.ASSISTANT, "", (before,)), Message(Role.TOOL, "1", tool_call_id="call_0_0"))
    outcome = collect(await world.run(ORCHESTRATOR, "?", AgentContext(conversation=history)))
    assert len({"call_0_0", *(tool.call.id for tool in outcome.tool_calls)}) == 3
    check_messages(outcome.messages)
    sent = [call.id for message in world.effects[-1].messages for call in message.tool_calls]
    assert sent == ["call_0_0", *(tool.call.id for tool in outcome.tool_calls)]


async def test_text_that_was_not_shown_is_one_token_of_the_same_step() -> None:
    def shout(input: str, _context: AgentContext) -> Steps:
        reply: AssistantReply = yield Infer((user(input),), show=HIDDEN)
        return Answer(reply.content.upper())

    events = await ScriptedWorld([ScriptedReply("he|llo")]).run(Custom(function=shout))
    assert tokens(events) == [(1, "HELLO")]
    check_answer(events)


async def test_an_answer_that_does_not_begin_as_shown_is_the_next_step() -> None:
    def change(input: str, _context: AgentContext) -> Steps:
        reply: AssistantReply = yield Infer((user(input),))
        yield Infer((user(reply.content),), aside=True)
        yield ReportStatus("thinking")
        return Answer("Better.")

    events = await ScriptedWorld([ScriptedReply("Bad|ly."), ScriptedReply("aside")]).run(Custom(function=change))
    assert tokens(events) == [(1, "Bad"), (1, "ly."), (2, "Better.")]
    outcome = collect(events)
    assert (outcome.turns, outcome.content, outcome.usage) == (1, "Better.", TokenUsage(20, 2))
    assert Status("thinking") in events
    check_answer(events)


async def test_only_the_text_after_the_marker_is_shown() -> None:
    show = VisibleAfter(("Final Answer:",), ("Observation:",))

    def react(input: str, _context: AgentContext) -> Steps:
        reply: AssistantReply = yield Infer((user(input),), show=show)
        return Answer(reply.content.split(":")[-1].strip())

    events = await ScriptedWorld([ScriptedReply("Thought: easy\nFinal An|swer: 4|2")]).run(Custom(function=react))
    assert tokens(events) == [(1, "4"), (1, "2")]


async def test_a_failed_call_aside_is_a_reply_with_its_error() -> None:
    def aside(input: str, _context: AgentContext) -> Steps:
        reply: AssistantReply = yield Infer((user(input),), aside=True)
        assert reply.error is not None
        return Answer(reply.error.code)

    events = await ScriptedWorld([UpstreamError("Down.")]).run(Custom(function=aside))
    outcome = collect(events)
    assert (outcome.content, outcome.turns) == ("upstream_error", 0)
    assert not any(isinstance(event, InferenceStarted) for event in events)


async def test_think_text_is_not_part_of_a_reply() -> None:
    events = await ScriptedWorld([ScriptedReply("<th|ink>secret</think>|Hi")]).run(ORCHESTRATOR)
    assert tokens(events) == [(1, "Hi")]
    events = await ScriptedWorld([ScriptedReply("secret|</think>|Hi")], thinks=True).run(ORCHESTRATOR)
    assert collect(events).content == "Hi"


async def test_a_long_text_is_several_tokens() -> None:
    events = await ScriptedWorld([ScriptedReply("é" * 20_000)]).run(ORCHESTRATOR)
    assert max(len(text.encode()) for _, text in tokens(events)) <= 32 * 1024
    check_answer(events)


async def test_a_kind_may_answer_when_it_has_no_turns_left() -> None:
    def summing(input: str, _context: AgentContext) -> Steps:
        reply: AssistantReply = yield Infer((user(input),))
        try:
            yield CallTools(reply.tool_calls)
        except MaxTurns:
            summary: AssistantReply = yield Infer((user("Sum up."),), aside=True)
            return Answer(summary.content, metadata={"summed": True})
        raise AssertionError

    world = ScriptedWorld([ScriptedReply("hm", ("x",)), ScriptedReply("In sum.")])
    outcome = collect(await world.run(Custom(function=summing, max_turns=1)))
    assert (outcome.content, outcome.finish_reason) == ("In sum.", FinishReason.MAX_TURNS)
    assert outcome.metadata == {"summed": True, "max_turns_exceeded": True}
    assert world.executed == []


async def test_the_text_beside_calls_that_are_not_made_is_the_answer() -> None:
    def saying(input: str, _context: AgentContext) -> Steps:
        yield Infer((user(input),), show=HIDDEN)
        yield CallTools((ASK_TOOL,), text="I would calculate.")
        raise AssertionError

    outcome = collect(await ScriptedWorld([ScriptedReply("x")]).run(Custom(function=saying, max_turns=1)))
    assert (outcome.content, outcome.finish_reason) == ("I would calculate.", FinishReason.MAX_TURNS)


def no_effect(_input: str, _context: AgentContext) -> Steps:
    yield "hello"  # type: ignore[misc]
    return Answer("")


def endless(_input: str, _context: AgentContext) -> Steps:
    while True:
        yield ReportStatus("still here")


def raising(_input: str, _context: AgentContext) -> Steps:
    yield Infer((user("a"),))
    raise ZeroDivisionError


def no_answer(_input: str, _context: AgentContext) -> Steps:
    yield Infer((user("a"),))
    return "the answer"  # type: ignore[return-value]


def undying(_input: str, _context: AgentContext) -> Steps:
    with suppress(GeneratorExit):
        yield Infer((user("a"),))
    yield ReportStatus("Still here.")
    return Answer("")


def wrong_text(_input: str, _context: AgentContext) -> Steps:
    yield Infer((user("a"),))
    return Answer(5)  # type: ignore[arg-type]


def wrong_said(_input: str, _context: AgentContext) -> Steps:
    yield Infer((user("a"),))
    yield CallTools((ASK_TOOL,), text=5)  # type: ignore[arg-type]
    return Answer("")


def cancelling(_input: str, _context: AgentContext) -> Steps:
    yield Infer((user("a"),))
    raise asyncio.CancelledError


def no_generator(_input: str, _context: AgentContext) -> Steps:
    return [ReportStatus("a")]  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [no_effect, endless, raising, no_answer, wrong_text, wrong_said, cancelling, no_generator])
async def test_a_kind_that_misbehaves_fails_with_an_internal_error(kind: KindFunction) -> None:
    events = await ScriptedWorld([ScriptedReply("a")]).run(Custom(function=kind))
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, InternalError)


async def test_a_kind_that_does_not_close_cannot_hold_the_turn() -> None:
    events = await ScriptedWorld([UpstreamError("Down.")]).run(Custom(function=undying))
    assert isinstance(events[-1], Failed)


async def test_after_an_overflow_no_effect_is_performed_twice() -> None:
    shorter = [Message(Role.ASSISTANT, "in short")]
    asked: list[int] = []

    async def shorten() -> Sequence[Message]:
        asked.append(1)
        return shorter

    world = ScriptedWorld(
        [ScriptedReply("one", ("x", "y")), ContextLengthExceeded("Too long."), ScriptedReply("two", ("z",)), ScriptedReply("end")]
    )
    context = AgentContext(conversation=(user("old"), Message(Role.ASSISTANT, "older")))
    events = await world.run(ORCHESTRATOR, "?", context, shorten)
    assert [call.name for call in world.executed] == ["y", "x", "z"]
    assert [effect.messages[0].content for effect in world.effects] == ["old", "old", "in short", "in short"]
    assert world.effects[2].messages[2:] == world.effects[1].messages[3:]
    outcome = collect(events)
    assert (outcome.turns, outcome.content, asked) == (3, "end", [1])
    check_answer(events)


def fickle(_input: str, context: AgentContext) -> Steps:
    if context.conversation:
        yield ReportStatus("I see a history.")
    yield Infer((user("a"),))
    return Answer("Done.")


def fragile(_input: str, context: AgentContext) -> Steps:
    yield Infer((context.conversation[0],))
    return Answer("Done.")


@pytest.mark.parametrize("kind", [fickle, fragile])
async def test_a_replay_that_differs_fails_the_turn_with_the_first_error(kind: KindFunction) -> None:
    async def shorten() -> Sequence[Message]:
        return ()

    world = ScriptedWorld([ContextLengthExceeded("Too long."), ScriptedReply("Done.")])
    events = await world.run(Custom(function=kind), "?", AgentContext(conversation=(user("old"),)), shorten)
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, ContextLengthExceeded)


LINES = st.builds(
    ScriptedReply,
    st.sampled_from(["", "a", "a|b"]),
    st.lists(st.sampled_from(["x", "slow", "calculator", "failing"]), max_size=3).map(tuple),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS, FinishReason.CONTENT_FILTER]),
)


@given(script=st.lists(LINES, min_size=1, max_size=6), max_turns=st.integers(1, 6))
async def test_every_turn_is_well_formed_and_ends_within_max_turns(script: list[ScriptedReply], max_turns: int) -> None:
    world = ScriptedWorld(script)
    events = await world.run(OrchestratorAgent(max_turns=max_turns))
    outcome = collect(events)
    check_messages(outcome.messages)
    check_answer(events)
    assert outcome.finish_reason is not FinishReason.TOOL_CALLS
    assert 1 <= outcome.turns <= max_turns
    assert outcome.turns == len(world.effects)
    for effect in world.effects:
        assert effect.messages[0] == user("?")


@given(script=st.lists(LINES, min_size=1, max_size=4), stop=st.integers(1, 30))
async def test_closing_the_driver_leaves_nothing_open(script: list[ScriptedReply], stop: int) -> None:
    world = ScriptedWorld(script)
    events = world.driver().run(ORCHESTRATOR, "?", AgentContext())
    count = 0
    async for event in events:
        count += 1
        if count == stop or isinstance(event, TurnFinished):
            break
    calls = len(world.effects) + len(world.executed)
    await events.aclose()
    assert world.open_streams == 0
    assert len(world.effects) + len(world.executed) == calls


async def test_a_reply_keeps_128_calls_so_that_the_next_prompt_stays_small() -> None:
    world = ScriptedWorld([ScriptedReply("", ("calculator",) * 5000), ScriptedReply("Done.")])
    outcome = await outcome_of(world)
    assert (len(outcome.tool_calls), len(world.executed), outcome.content) == (128, 128, "Done.")
    _, asking, *results = world.effects[1].messages
    assert [call.id for call in asking.tool_calls] == [result.tool_call_id for result in results]


def test_the_harness_detects_a_list_without_an_end() -> None:
    with pytest.raises(AssertionError):
        check_events([TurnStarted(), InferenceStarted(1)])
