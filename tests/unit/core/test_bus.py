"""Test the event bus: the order of calls, failing subscribers, and subscriptions that change during a call."""

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any, Final, cast

import pytest

from spass.core.bus import AGENT_TURN_END, TOOL_CALL_END, TOOL_CALL_START, EventBus, EventType
from spass.core.bus_events import (
    AgentTurnEnd,
    AgentTurnStart,
    BusEvent,
    InferenceEnd,
    InferenceStart,
    ToolCallEnd,
    ToolCallStart,
)
from spass.core.ids import AgentName, RequestId, TenantId
from spass.core.time import timestamp

EVENT: Final = ToolCallStart(
    at=timestamp(0),
    tenant=TenantId("acme"),
    request_id=RequestId("req_1"),
    parent_request_id=RequestId("req_1"),
    agent=AgentName("helper"),
    kind="orchestrator",
    session_id=None,
    call_id=RequestId("req_2"),
    tool="calculator",
)


def publish(bus: EventBus) -> None:
    bus.publish(TOOL_CALL_START, lambda: EVENT)


def note(notes: list[str], name: str) -> Callable[[ToolCallStart], None]:
    return lambda event: notes.append(f"{name} {event.tool}")


def test_subscribers_are_called_in_the_order_of_subscription() -> None:
    bus, notes = EventBus(), list[str]()
    for name in "cab":
        bus.subscribe(TOOL_CALL_START, note(notes, name))
    publish(bus)
    assert notes == ["c calculator", "a calculator", "b calculator"]


def test_a_subscriber_receives_only_events_of_its_type() -> None:
    bus, notes = EventBus(), list[str]()
    bus.subscribe(TOOL_CALL_END, lambda event: notes.append(event.status))
    publish(bus)
    assert notes == []


def test_an_event_without_subscribers_is_not_built() -> None:
    bus = EventBus()

    def build() -> ToolCallStart:
        raise AssertionError("nobody needs this event")

    bus.publish(TOOL_CALL_START, build)
    bus.subscribe(TOOL_CALL_START, print)()
    bus.publish(TOOL_CALL_START, build)
    bus.subscribe(AGENT_TURN_END, print)
    bus.publish(TOOL_CALL_START, build)


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError(), GeneratorExit()])
def test_a_failing_subscriber_is_reported_and_the_others_are_called(error: BaseException) -> None:
    reported: list[tuple[EventType[Any], BaseException]] = []
    bus, notes = EventBus(lambda *report: reported.append(report)), list[str]()

    def fail(_: ToolCallStart) -> None:
        raise error

    bus.subscribe(TOOL_CALL_START, note(notes, "before"))
    bus.subscribe(TOOL_CALL_START, fail)
    bus.subscribe(TOOL_CALL_START, note(notes, "after"))
    publish(bus)
    assert notes == ["before calculator", "after calculator"]
    assert reported == [(TOOL_CALL_START, error)]


def test_a_failing_subscriber_is_logged_once_by_default(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()

    def fail(_: ToolCallStart) -> None:
        raise ValueError("broken")

    bus.subscribe(TOOL_CALL_START, fail)
    publish(bus)
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.ERROR, "spass.core.bus")
    assert record.getMessage() == "A subscriber of tool_call_start failed."


def test_a_failing_report_does_not_reach_the_publisher() -> None:
    def fail(*_: object) -> None:
        raise ValueError("broken")

    bus, notes = EventBus(fail), list[str]()
    bus.subscribe(TOOL_CALL_START, fail)
    bus.subscribe(TOOL_CALL_START, note(notes, "after"))
    publish(bus)
    assert notes == ["after calculator"]


def test_an_interrupt_of_the_process_is_raised() -> None:
    bus = EventBus()

    def interrupt(_: ToolCallStart) -> None:
        raise KeyboardInterrupt

    bus.subscribe(TOOL_CALL_START, interrupt)
    with pytest.raises(KeyboardInterrupt):
        publish(bus)


def test_a_subscription_made_during_a_call_receives_only_later_events() -> None:
    bus, notes = EventBus(), list[str]()

    def subscribe_once(_: ToolCallStart) -> None:
        if not notes:
            notes.append("subscribed")
            bus.subscribe(TOOL_CALL_START, note(notes, "new"))

    bus.subscribe(TOOL_CALL_START, subscribe_once)
    bus.subscribe(TOOL_CALL_START, note(notes, "old"))
    publish(bus)
    assert notes == ["subscribed", "old calculator"]
    publish(bus)
    assert notes[2:] == ["old calculator", "new calculator"]


def test_a_subscription_may_end_during_a_call() -> None:
    bus, notes = EventBus(), list[str]()
    ends: list[Callable[[], None]] = []

    def end_all(_: ToolCallStart) -> None:
        for end in ends:
            end()

    ends.append(bus.subscribe(TOOL_CALL_START, end_all))
    bus.subscribe(TOOL_CALL_START, note(notes, "stays"))
    ends.append(bus.subscribe(TOOL_CALL_START, note(notes, "ends")))
    publish(bus)
    notes.clear()
    publish(bus)
    assert notes == ["stays calculator"]


def test_each_subscription_of_the_same_function_ends_by_its_own_call() -> None:
    bus, notes = EventBus(), list[str]()
    receive = note(notes, "same")
    first, second = bus.subscribe(TOOL_CALL_START, receive), bus.subscribe(TOOL_CALL_START, receive)
    first()
    first()
    publish(bus)
    assert notes == ["same calculator"]
    second()
    publish(bus)
    assert notes == ["same calculator"]


def test_a_name_instead_of_a_type_is_refused() -> None:
    with pytest.raises(TypeError, match="TOOL_CALL_START"):
        EventBus().subscribe(cast("EventType[ToolCallStart]", "tool_call_start"), print)


def test_events_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        EVENT.tool = "another"  # type: ignore[misc]


def test_events_have_exactly_the_documented_fields() -> None:
    common = {"at", "tenant", "request_id", "parent_request_id", "agent", "kind", "session_id"}
    call, tokens = {"call_id", "duration_ms", "status"}, {"prompt_tokens", "completion_tokens", "cost_usd"}
    own: dict[type[BusEvent], set[str]] = {
        AgentTurnStart: {"input_chars"},
        AgentTurnEnd: {"turns", "tool_calls", "finish_reason", "error", "duration_ms"} | tokens,
        ToolCallStart: {"call_id", "tool"},
        ToolCallEnd: {"tool", "ok"} | call,
        InferenceStart: {"call_id", "model"},
        InferenceEnd: {"model", "backend", "attempts"} | call | tokens,
    }
    for event_class, names in own.items():
        assert {field.name for field in fields(event_class)} == common | names


def test_a_gateway_without_subscribers_does_not_load_the_classes_of_events() -> None:
    program = "import sys, functions.chat.completions, functions.agents.chat; print('spass.core.bus_events' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"


def test_the_example_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert isinstance(names["bus"], EventBus)
