"""A driver for a client of chat completions: unfiltered text, refusals apart from it, and calls that the client answers."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from spass.agents.driver import Driver
from spass.agents.kinds import AgentContext, user
from spass.agents.kinds.server_tools import ServerToolsAgent
from spass.core.effects import Infer
from spass.core.events import Event, InferenceFinished, RefusalDelta, Token, ToolCallStarted, TurnFinished
from spass.core.messages import FinishReason, ToolCall, ToolCallDelta
from spass.models.types import ChatDelta
from tests.unit.agents.driver_harness import ScriptedWorld, check_events
from tests.unit.tools.fakes import scope_for

CLIENT_TOOLS = frozenset({"weather", "get_time"})


class World(ScriptedWorld):
    """A model that always replies with ``deltas``, which it begins to think about."""

    def __init__(self, deltas: Sequence[ChatDelta]) -> None:
        super().__init__((), thinks=True)
        self.deltas = deltas

    async def perform(self, effect: Infer) -> AsyncGenerator[ChatDelta, None]:
        self.effects.append(effect)
        for delta in self.deltas:
            yield delta


def chat(*deltas: ChatDelta) -> tuple[list[Event], World]:
    world = World(deltas)

    async def run() -> list[Event]:
        driver = Driver(world, world.call_tools, scope_for(), client_tools=CLIENT_TOOLS)
        agent = ServerToolsAgent(client_tools=CLIENT_TOOLS, max_turns=2)
        return [event async for event in driver.run(agent, "", AgentContext((user("How is it?"),)))]

    events = asyncio.run(run())
    check_events(events)
    return events, world


def of_type(events: Sequence[Event], *types: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, types)]


def calls(*names: str) -> tuple[ToolCallDelta, ...]:
    return tuple(ToolCallDelta(index, f"call_{index}", name, "{}") for index, name in enumerate(names))


def test_think_text_stays_and_a_refusal_is_not_text() -> None:
    events, _ = chat(
        ChatDelta("<think>Hm.</think>I"), ChatDelta(" see."), ChatDelta(refusal="No.", finish_reason=FinishReason.STOP)
    )
    assert of_type(events, Token, RefusalDelta) == [Token("<think>Hm.</think>I", 1), Token(" see.", 1), RefusalDelta("No.")]
    (finished,) = (event for event in events if isinstance(event, InferenceFinished))
    assert finished.message.content == "<think>Hm.</think>I see."
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].finish_reason is FinishReason.STOP


def test_calls_of_client_tools_pass_in_pieces_and_end_the_turn() -> None:
    late = ChatDelta(tool_calls=(ToolCallDelta(1, "call_1", None, "{"),))
    rest = ChatDelta(tool_calls=(ToolCallDelta(1, None, "get.time", "}"),), finish_reason=FinishReason.TOOL_CALLS)
    events, world = chat(ChatDelta(tool_calls=calls("calculator")), late, rest)
    assert of_type(events, ToolCallDelta, ToolCallStarted) == [ToolCallDelta(0, "call_1", "get_time", "{}")]
    (finished,) = (event for event in events if isinstance(event, InferenceFinished))
    assert finished.message.tool_calls == (ToolCall("call_1", "get_time", "{}"),)
    assert len(world.effects) == 1


def test_a_reply_that_was_cut_off_keeps_the_clients_calls_alone() -> None:
    for reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER):
        events, world = chat(ChatDelta("So", calls("weather", "calculator"), reason))
        (finished,) = (event for event in events if isinstance(event, InferenceFinished))
        assert [call.name for call in finished.message.tool_calls] == ["weather"]
        assert isinstance(events[-1], TurnFinished)
        assert events[-1].finish_reason is reason
        events, _ = chat(ChatDelta("So", calls("calculator"), reason))
        assert not of_type(events, ToolCallDelta, ToolCallStarted)
        assert world.executed == []


def test_other_calls_are_executed_and_not_passed_to_the_client() -> None:
    events, world = chat(ChatDelta("Again.", calls("calculator"), FinishReason.TOOL_CALLS))
    assert not of_type(events, ToolCallDelta)
    assert [call.name for call in world.executed] == ["calculator"]
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].finish_reason is FinishReason.MAX_TURNS
    assert [effect.tools for effect in world.effects] == ["offered", "named"]


def test_all_calls_of_the_client_remain_but_only_128_others() -> None:
    events, world = chat(ChatDelta(tool_calls=calls(*["calculator"] * 500)))
    assert len(of_type(events, ToolCallStarted)) == len(world.executed) == 128
    events, world = chat(ChatDelta(tool_calls=calls(*["calculator"] * 500, *["weather"] * 200)))
    (finished,) = [event for event in events if isinstance(event, InferenceFinished)]
    assert len(finished.message.tool_calls) == 200
    assert not world.executed
