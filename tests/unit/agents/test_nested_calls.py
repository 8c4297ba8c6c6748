"""Calls within the calls of a turn: they pass through its driver, are not part of its record, and always end."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from spass.agents.driver import Driver
from spass.agents.kinds import AgentContext
from spass.agents.kinds.orchestrator import OrchestratorAgent
from spass.core.bus import AGENT_TURN_END, EventBus
from spass.core.errors import UpstreamError
from spass.core.events import CallEvent, Failed, Nested, ToolCallFinished, ToolCallStarted, ToolProgress, collect
from spass.core.messages import ToolCall
from tests.unit.agents.driver_harness import ScriptedReply, ScriptedWorld, check_events, echo

pytestmark = pytest.mark.anyio

ORCHESTRATOR = OrchestratorAgent()


class DelegatingWorld(ScriptedWorld):
    """Within each call, an agent calls a tool ``inner``. A call named ``broken`` fails before that call has ended."""

    async def call_tools(self, calls: Sequence[ToolCall]) -> AsyncGenerator[CallEvent, None]:
        async with aclosing(super().call_tools(calls)) as events:
            async for event in events:
                yield event
                if isinstance(event, ToolCallStarted):
                    inner = replace(event.call, id=f"{event.call.id}.1", name="inner")
                    yield Nested("helper", event.call.id, ToolCallStarted(inner))
                    yield Nested("helper", event.call.id, ToolProgress(inner.id, "half"))
                    if event.call.name != "broken":
                        yield Nested("helper", event.call.id, ToolCallFinished(echo(inner)))


async def test_calls_within_a_call_are_shown_but_not_recorded_or_counted() -> None:
    world, bus, counted = DelegatingWorld([ScriptedReply("", ("x", "y")), ScriptedReply("done")]), EventBus(), list[int]()
    bus.subscribe(AGENT_TURN_END, lambda end: counted.append(end.tool_calls))
    events = [event async for event in world.driver(bus).run(ORCHESTRATOR, "?", AgentContext())]
    check_events(events)
    assert sum(isinstance(event, Nested) for event in events) == 6
    assert [tool.call.name for tool in collect(events).tool_calls] == ["x", "y"]
    assert counted == [2]
    without = [event for event in events if not isinstance(event, Nested)]
    assert [type(event) for event in without] == [type(event) for event in await ScriptedWorld(world.script).run(ORCHESTRATOR)]


async def test_a_turn_that_fails_ends_the_calls_within_its_calls() -> None:
    failure = UpstreamError("The tool's room fell in.")
    world = DelegatingWorld([ScriptedReply("", ("x", "broken"))], tool_failure=failure)
    events = await world.run(ORCHESTRATOR)
    assert isinstance(events[-1], Failed)
    ends = [event.event.outcome for event in events if isinstance(event, Nested) and isinstance(event.event, ToolCallFinished)]
    assert [(end.call.id, end.ok) for end in ends] == [("call_0_0.1", True), ("call_0_1.1", False)]
    assert ends[1].result == {"error": {"code": "upstream_error", "message": "The turn failed before this call ended."}}


async def test_a_nested_driver_gives_each_call_an_id_that_no_other_driver_gives() -> None:
    script, ids = [ScriptedReply("", ("x", "y")), ScriptedReply("", ("x",)), ScriptedReply("done")], list[str]()
    for _ in range(3):
        world = ScriptedWorld(script, same_ids=True)
        driver = Driver(world, world.call_tools, world.scope, is_nested=True)
        outcome = collect([event async for event in driver.run(ORCHESTRATOR, "?", AgentContext())])
        ids += [tool.call.id for tool in outcome.tool_calls]
        sent = world.effects[-1].messages
        assert [call.id for message in sent for call in message.tool_calls] == ids[-3:]
        assert [message.tool_call_id for message in sent if message.tool_call_id] == ids[-3:]
    assert len({*ids, "call_0_0", "call_0_1"}) == 11
