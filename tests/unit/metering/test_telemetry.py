"""Test the lines of telemetry, and that they are valid in CloudWatch's embedded metric format."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from spass.core.bus import AGENT_TURN_END, INFERENCE_END, INFERENCE_START, TOOL_CALL_END, EventBus
from spass.core.bus_events import AgentTurnEnd, InferenceEnd, InferenceStart, ToolCallEnd
from spass.core.ids import RequestId
from spass.core.messages import Json
from spass.metering.telemetry import Telemetry
from tests.unit.bus_events import COMMON, inference_end, tool_call_end, turn_end

AT: Final = datetime(2026, 11, 20, 12, 0, 0, 250_000, tzinfo=UTC).timestamp()


def lines_of(*events: InferenceEnd | ToolCallEnd | AgentTurnEnd, namespace: str | None = None) -> list[dict[str, Any]]:
    """Return the lines that are written for ``events``."""
    bus, lines = EventBus(), list[dict[str, Any]]()

    def write(line: Mapping[str, Json]) -> None:
        lines.append(dict(line))

    Telemetry(namespace, write).subscribe(bus)
    for event in events:
        publish(bus, event)
    return lines


def publish(bus: EventBus, event: InferenceEnd | ToolCallEnd | AgentTurnEnd) -> None:
    match event:
        case InferenceEnd():
            bus.publish(INFERENCE_END, lambda: event)
        case ToolCallEnd():
            bus.publish(TOOL_CALL_END, lambda: event)
        case AgentTurnEnd():
            bus.publish(AGENT_TURN_END, lambda: event)


def test_each_end_is_one_line_with_its_fields() -> None:
    inference, tool, agent_turn = lines_of(inference_end(), tool_call_end(), turn_end())
    common = {**COMMON, "level": "info", "failed": 0}
    assert inference == {
        **common,
        "event": "inference_end",
        "call_id": "req_2",
        "model": "small",
        "backend": "main",
        "attempts": 1,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cost_usd": 0.000125,
        "status": "ok",
        "duration_ms": 800,
    }
    assert tool.items() >= {"event": "tool_call_end", "call_id": "req_3", "tool": "calculator", "ok": True}.items()
    assert agent_turn.items() >= {"event": "agent_turn_end", "turns": 2, "finish_reason": "stop", "error": None}.items()


def test_a_start_writes_no_line() -> None:
    bus, lines = EventBus(), list[object]()
    Telemetry(write=lines.append).subscribe(bus)
    bus.publish(INFERENCE_START, lambda: InferenceStart(**COMMON, call_id=RequestId("req_2"), model="small"))
    assert lines == []


@pytest.mark.parametrize(("status", "failed"), [("ok", 0), ("cancelled", 0), ("upstream_error", 1), ("internal_error", 1)])
def test_a_cancelled_call_did_not_fail(status: str, failed: int) -> None:
    error = None if status == "ok" else status
    assert [line["failed"] for line in lines_of(tool_call_end(status=status), turn_end(error))] == [failed, failed]


@pytest.mark.parametrize(
    ("event", "dimension", "names"),
    [
        (inference_end(), "model", {"duration_ms", "failed", "cost_usd"}),
        (tool_call_end(), "tool", {"duration_ms", "failed"}),
        (turn_end(), "kind", {"duration_ms", "failed"}),
    ],
)
def test_metrics_have_one_dimension_and_numbers(
    event: InferenceEnd | ToolCallEnd | AgentTurnEnd, dimension: str, names: set[str]
) -> None:
    (line,) = lines_of(event, namespace="Spass/prod")
    assert line["_aws"]["Timestamp"] == round(AT * 1000)
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert directive.keys() == {"Namespace", "Dimensions", "Metrics"}
    assert (directive["Namespace"], directive["Dimensions"]) == ("Spass/prod", [[dimension]])
    assert {metric["Name"] for metric in directive["Metrics"]} == names
    assert {metric["Unit"] for metric in directive["Metrics"]} <= {"Milliseconds", "Count", "None"}
    assert isinstance(line[dimension], str)
    assert all(type(line[name]) in (int, float) for name in names)


def test_a_call_of_an_unknown_tool_has_a_line_and_no_metrics() -> None:
    (line,) = lines_of(tool_call_end(tool=None, status="tool_not_found"), namespace="Spass/prod")
    assert (line["tool"], line["failed"]) == (None, 1)
    assert "_aws" not in line


def test_without_a_namespace_there_are_no_metrics() -> None:
    assert not any("_aws" in line for line in lines_of(inference_end(), tool_call_end(), turn_end()))
