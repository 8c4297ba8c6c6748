"""Read the stream of an agent's run, check its grammar, and collect it as a client does."""

import json
import re
from typing import Any

from tests.functions.gateway import Reply

_STATUS_CODES = {"planning": "p", "executing": "s", "complete": "C", "error": "x"}
_EVENT_CODES = {"token": "t", "tool_call": "c", "approval": "a", "usage": "u", "done": "d", "error": "e"}
_GRAMMAR = re.compile("p[stca]*Cud|(p[stca]*(Cu?)?)?xe")
_FIELDS = {
    "token": {"type", "content", "step"},
    "tool_call": {"type", "id", "tool", "args", "result", "ok", "duration_ms", "agent", "parent_id", "rich"},
    "usage": {"type", "usage", "cost_usd", "cost"},
    "error": {"type", "error", "request_id"},
}

Event = dict[str, Any]


def read_events(reply: Reply) -> list[Event]:
    """Return the events of a stream. Check the grammar and the fields of each event."""
    assert reply.status == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return parse_events(reply.text)


def parse_events(body: str) -> list[Event]:
    """Return the events in the body of a stream. Check the grammar and the fields of each event."""
    blocks = [block for block in body.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    events: list[Event] = [json.loads(block.removeprefix("data: ")) for block in blocks]
    codes = "".join(
        _STATUS_CODES[event["status"]] if event["type"] == "status_update" else _EVENT_CODES[event["type"]] for event in events
    )
    assert _GRAMMAR.fullmatch(codes), codes
    steps = [event["step"] for event in events if event["type"] == "token"]
    assert steps == sorted(steps)
    assert all(step >= 1 for step in steps)
    for event in events:
        assert set(event) == _FIELDS.get(event["type"], set(event)), event
        assert len(event.get("content", "").encode()) <= 32 * 1024
        assert event["type"] != "status_update" or {"status", "detail"} < set(event)
    if events and events[0]["type"] == "status_update" and events[0]["status"] == "planning":
        assert {"request_id", "session_id"} < set(events[0])
    return events


def of_type(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["type"] == name]


def answer_text(events: list[Event]) -> str:
    """Return the joined tokens of the last step."""
    tokens = of_type(events, "token")
    return "".join(token["content"] for token in tokens if token["step"] == tokens[-1]["step"])


def collect_reply(events: list[Event]) -> dict[str, Any]:
    """Return a stream that ended with ``done`` as the blocking reply, without ids and times."""
    (done,), (usage,) = of_type(events, "done"), of_type(events, "usage")
    assert "content" not in done
    assert "content" not in done["message"]
    return {
        "agent": done["agent"],
        "model": done["model"],
        "content": answer_text(events),
        "tool_calls": [
            (call["tool"], call["args"], call["result"]) for call in of_type(events, "tool_call") if call["parent_id"] is None
        ],
        "usage": usage["usage"],
        "turns": done["turns"],
        "finish_reason": done["finish_reason"],
        "compaction": done["compaction"] is not None,
        "metadata": done["metadata"],
        "seq": done["message"]["seq"],
    }


def collect_ask(events: list[Event]) -> dict[str, Any]:
    """Return a stream of /v1/ask that ended with ``done`` as the blocking answer, without ids and times."""
    (done,), (usage,) = of_type(events, "done"), of_type(events, "usage")
    assert (done["session_id"], done["compaction"], done["message"]["id"], done["message"]["seq"]) == (None,) * 4
    return {
        **{name: done[name] for name in ("agent", "kind", "model", "turns", "finish_reason", "metadata")},
        "content": answer_text(events),
        "tool_results": [(call["tool"], call["result"], call["ok"]) for call in of_type(events, "tool_call")],
        "usage": usage["usage"],
    }


def comparable_ask(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a blocking answer of /v1/ask without ids and times."""
    names = ("agent", "kind", "model", "turns", "finish_reason", "metadata", "content", "usage")
    results = [(result["tool_name"], json.loads(result["content"]), result["success"]) for result in answer["tool_results"]]
    return {**{name: answer[name] for name in names}, "tool_results": results}


def comparable_reply(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a blocking reply without ids and times."""
    return {
        "agent": reply["agent"],
        "model": reply["model"],
        "content": reply["message"]["content"],
        "tool_calls": [(call["name"], call["arguments"], call["result"]) for call in reply["tool_calls"]],
        "usage": reply["usage"],
        "turns": reply["turns"],
        "finish_reason": reply["finish_reason"],
        "compaction": reply["compaction"] is not None,
        "metadata": reply["metadata"],
        "seq": reply["message"]["seq"],
    }
