"""Test traces: one line for each turn, with the calls of the turn, in bounded memory."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from spass.core.bus import (
    AGENT_TURN_END,
    AGENT_TURN_START,
    INFERENCE_END,
    INFERENCE_START,
    TOOL_CALL_END,
    TOOL_CALL_START,
    EventBus,
)
from spass.core.bus_events import AgentTurnEnd, AgentTurnStart, InferenceEnd, InferenceStart, ToolCallEnd, ToolCallStart
from spass.core.ids import RequestId, TenantId
from spass.core.messages import FinishReason, Json
from spass.core.time import timestamp
from spass.metering.telemetry import Traces


class TracedWork:
    """Publish the events of work whose ids a test chooses. Each event is one second after the one before."""

    def __init__(self, **limits: int) -> None:
        self.bus = EventBus()
        self.lines: list[dict[str, Any]] = []
        self.traces = Traces(self._write, **limits)
        self.traces.subscribe(self.bus)
        self._seconds = 0

    def _write(self, line: Mapping[str, Json]) -> None:
        self.lines.append(dict(line))

    def common(self, parent: str, request: str) -> dict[str, Any]:
        self._seconds += 1
        names = {"tenant": TenantId("acme"), "agent": None, "kind": None, "session_id": None}
        at = timestamp(self._seconds)
        return {**names, "at": at, "request_id": RequestId(request), "parent_request_id": RequestId(parent)}

    def start_turn(self, parent: str = "req_1", request: str = "req_1") -> None:
        self.bus.publish(AGENT_TURN_START, lambda: AgentTurnStart(**self.common(parent, request), input_chars=7))

    def end_turn(self, parent: str = "req_1", request: str = "req_1") -> None:
        numbers: dict[str, Any] = {"turns": 1, "tool_calls": 0, "prompt_tokens": 1, "completion_tokens": 1, "duration_ms": 5}
        end = AgentTurnEnd(**self.common(parent, request), **numbers, finish_reason=FinishReason.STOP, cost_usd=Decimal("0.5"))
        self.bus.publish(AGENT_TURN_END, lambda: end)

    def start_tool(self, call: str, parent: str = "req_1", request: str = "req_1") -> None:
        start = ToolCallStart(**self.common(parent, request), call_id=RequestId(call), tool="llm")
        self.bus.publish(TOOL_CALL_START, lambda: start)

    def end_tool(self, call: str, parent: str = "req_1", request: str = "req_1") -> None:
        end = ToolCallEnd(
            **self.common(parent, request), call_id=RequestId(call), tool="llm", ok=True, status="ok", duration_ms=4
        )
        self.bus.publish(TOOL_CALL_END, lambda: end)

    def infer(self, call: str, parent: str = "req_1", request: str = "req_1") -> None:
        start = InferenceStart(**self.common(parent, request), call_id=RequestId(call), model="small")
        self.bus.publish(INFERENCE_START, lambda: start)
        numbers: dict[str, Any] = {"attempts": 1, "prompt_tokens": 3, "completion_tokens": 2, "duration_ms": 8}
        end = InferenceEnd(
            **self.common(parent, request),
            **numbers,
            call_id=RequestId(call),
            model="small",
            backend="main",
            cost_usd=Decimal("0.25"),
            status="ok",
        )
        self.bus.publish(INFERENCE_END, lambda: end)


@pytest.fixture
def work() -> TracedWork:
    return TracedWork()


def test_a_turn_is_one_line_with_its_calls(work: TracedWork) -> None:
    work.start_turn()
    work.infer("req_2")
    work.start_tool("req_3")
    work.infer("req_4", parent="req_3")
    work.end_tool("req_3")
    assert work.lines == []
    work.end_turn()
    (line,) = work.lines
    assert line.items() >= {"event": "trace", "request_id": "req_1", "turns": 1, "duration_ms": 5, "cost_usd": 0.5}.items()
    assert (line["started_at"], line["input_chars"], line["dropped_spans"]) == (timestamp(1), 7, 0)
    inference, tool, nested = line["spans"]
    assert inference == {
        "type": "inference",
        "call_id": "req_2",
        "parent_id": "req_1",
        "start_ms": 1000,
        "model": "small",
        "backend": "main",
        "attempts": 1,
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cost_usd": 0.25,
        "status": "ok",
        "duration_ms": 8,
    }
    assert tool.items() >= {"type": "tool_call", "call_id": "req_3", "tool": "llm", "ok": True, "start_ms": 3000}.items()
    assert (nested["type"], nested["parent_id"]) == ("inference", "req_3")


def test_calls_outside_a_turn_have_no_trace(work: TracedWork) -> None:
    work.infer("req_2")
    work.start_turn()
    work.infer("req_3", parent="req_9", request="req_9")
    work.end_turn()
    work.infer("req_4")
    assert [line["spans"] for line in work.lines] == [[]]


def test_a_turn_within_a_turn_has_its_own_line(work: TracedWork) -> None:
    work.start_turn()
    work.start_tool("req_2")
    work.start_turn(parent="req_2")
    work.infer("req_3", parent="req_2")
    work.end_turn(parent="req_2")
    work.infer("req_4", parent="req_2")
    work.end_tool("req_2")
    work.end_turn()
    inner, outer = work.lines
    assert (inner["parent_request_id"], [span["call_id"] for span in inner["spans"]]) == ("req_2", ["req_3"])
    assert (outer["parent_request_id"], [span["call_id"] for span in outer["spans"]]) == ("req_1", ["req_2", "req_4"])


def test_turns_at_the_same_time_keep_their_calls_apart(work: TracedWork) -> None:
    for number in (1, 2):
        work.start_turn(f"req_{number}", f"req_{number}")
    for number in (2, 1):
        work.infer(f"req_{number}0", f"req_{number}", f"req_{number}")
    for number in (1, 2):
        work.end_turn(f"req_{number}", f"req_{number}")
    assert [[span["call_id"] for span in line["spans"]] for line in work.lines] == [["req_10"], ["req_20"]]


def test_a_call_that_is_open_at_the_end_of_its_turn_has_no_duration(work: TracedWork) -> None:
    work.start_turn()
    work.start_tool("req_2")
    work.end_turn()
    work.end_tool("req_2")
    (span,) = work.lines[0]["spans"]
    assert span == {"type": "tool_call", "call_id": "req_2", "parent_id": "req_1", "start_ms": 1000, "tool": "llm"}


def test_an_end_without_a_start_is_ignored(work: TracedWork) -> None:
    work.end_tool("req_2")
    work.end_turn()
    assert work.lines == []


def test_turns_without_an_end_are_dropped() -> None:
    work = TracedWork(max_turns=3)
    for number in range(10):
        work.start_turn(f"req_{number}", f"req_{number}")
        work.start_tool(f"call_{number}", f"req_{number}", f"req_{number}")
    for number in range(10):
        work.end_tool(f"call_{number}", f"req_{number}", f"req_{number}")
        work.end_turn(f"req_{number}", f"req_{number}")
    assert [line["request_id"] for line in work.lines] == ["req_7", "req_8", "req_9"]


def test_spans_over_the_limit_are_counted() -> None:
    work = TracedWork(max_spans=2)
    work.start_turn()
    for number in range(5):
        work.infer(f"call_{number}")
    work.end_turn()
    (line,) = work.lines
    assert ([span["call_id"] for span in line["spans"]], line["dropped_spans"]) == (["call_0", "call_1"], 3)


def test_a_repeated_start_of_the_same_turn_begins_its_trace_anew(work: TracedWork) -> None:
    work.start_turn()
    work.infer("req_2")
    work.start_turn()
    work.infer("req_3")
    work.end_turn()
    (line,) = work.lines
    assert [span["call_id"] for span in line["spans"]] == ["req_3"]
