"""The history keeps what the model read of a result, and the reply keeps the whole result."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

import pytest

from spass.agents.interrupt import StopSignal, interruptible
from spass.agents.kinds import AgentContext, ToolUsingAgent
from spass.agents.kinds.axes.side_calls import Effects
from spass.agents.kinds.monitor_operative import MonitorOperativeAgent
from spass.core.effects import Infer, RecordResult, Steps, ToolOutcome
from spass.core.errors import InternalError
from spass.core.events import CallEvent, Event, Failed, ResultRecorded, ToolCallFinished, collect
from spass.core.ids import ApprovalId
from spass.core.messages import FinishReason, Role, ToolCall
from spass.sessions.record import TurnRecorder
from tests.unit.agents.driver_harness import ScriptedReply, ScriptedWorld, check_events

pytestmark = pytest.mark.anyio

CALLS = [ScriptedReply("So.", ("first", "second")), ScriptedReply("", ("third",)), ScriptedReply("Done.")]


@dataclass(frozen=True, kw_only=True)
class Shortening(ToolUsingAgent):
    """Record the results of the tools in ``shortened`` as one letter."""

    shortened: Sequence[str]
    call_id: str | None = None

    def steps(self, input: str, context: AgentContext) -> Steps:
        return self.tool_loop(self.opening(input, context), observe=self.observe)

    def observe(self, outcomes: Sequence[ToolOutcome]) -> Effects[Sequence[ToolOutcome]]:
        for outcome in outcomes:
            if outcome.call.name in self.shortened:
                yield RecordResult(self.call_id or outcome.call.id, outcome.call.name[0])
        return [
            replace(outcome, message=replace(outcome.message, content=outcome.call.name[0]))
            if outcome.call.name in self.shortened
            else outcome
            for outcome in outcomes
        ]


async def run(*shortened: str, call_id: str | None = None) -> tuple[list[Event], ScriptedWorld]:
    world = ScriptedWorld(CALLS)
    return await world.run(Shortening(shortened=shortened, call_id=call_id)), world


@pytest.mark.parametrize("shortened", [(), ("first",), ("second",), ("first", "second"), ("third",), ("first", "third")])
async def test_the_history_has_what_the_model_read_and_the_reply_the_whole_results(shortened: tuple[str, ...]) -> None:
    events, world = await run(*shortened)
    outcome = collect(events)
    read = {message.tool_call_id: message.content for message in world.effects[-1].messages if message.role is Role.TOOL}
    kept = {message.tool_call_id: message.content for message in outcome.messages if message.role is Role.TOOL}
    assert kept == read
    assert [tool.call.name for tool in outcome.tool_calls] == ["first", "second", "third"]
    for tool in outcome.tool_calls:
        assert tool.result == tool.call.id
        assert kept[tool.call.id] == (tool.call.name[0] if tool.call.name in shortened else f'"{tool.call.id}"')
    assert sum(isinstance(event, ResultRecorded) for event in events) == len(shortened)


async def test_a_sessions_record_has_what_the_model_read() -> None:
    events, _ = await run("first", "third")
    recorder = TurnRecorder("turn", "Hi", lambda: 0.0)
    for event in events:
        recorder.add(event)
    record = recorder.record(5)
    assert [stored.message for stored in record.messages[1:]] == collect(events).messages
    assert [stored.seq for stored in record.messages] == list(range(5, 12))
    assert len({stored.id for stored in record.messages}) == 7
    tools = [stored.message.content for stored in record.messages if stored.message.role is Role.TOOL]
    assert (tools[0], tools[2]) == ("f", "t")


@pytest.mark.parametrize("call_id", ["unknown", "call_0_0"])
async def test_only_the_results_of_the_last_calls_can_be_recorded(call_id: str) -> None:
    events, _ = await run("third", call_id=call_id)
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, InternalError)
    assert not any(isinstance(event, ResultRecorded) for event in events)


async def test_a_result_that_waits_for_a_person_stays_as_it_is() -> None:
    class WaitingWorld(ScriptedWorld):
        """A world in which the results of all calls wait for a person."""

        async def call_tools(self, calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
            async for event in super().call_tools(calls):
                if isinstance(event, ToolCallFinished):
                    yield ToolCallFinished(replace(event.outcome, waiting=(ApprovalId("apr_1"),)))
                else:
                    yield event

    events = await WaitingWorld(CALLS).run(Shortening(shortened=("first",)))
    assert isinstance(events[-1], Failed)
    assert not any(isinstance(event, ResultRecorded) for event in events)


async def test_a_run_that_is_stopped_during_a_call_made_aside_keeps_the_whole_result() -> None:
    signal = StopSignal()

    def script(effect: Infer) -> ScriptedReply:
        if effect.aside:
            asyncio.get_running_loop().call_soon(signal.stop)
        return ScriptedReply("short") if effect.aside else ScriptedReply("I look.", ("search",))

    world = ScriptedWorld(script, results={"search": "x" * 3000})
    turn = world.driver().run(MonitorOperativeAgent(retrieval_strategy="none"), "?", AgentContext())
    cut = interruptible(turn, signal=signal, deadline=None, tally=world.scope.tally)
    events = [event async for event in cut]
    check_events(events)
    outcome = collect(events)
    assert outcome.finish_reason is FinishReason.CANCELLED
    assert [message.role for message in outcome.messages] == [Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert outcome.messages[1].content == f'"{"x" * 3000}"'
    assert world.open_streams == 0
