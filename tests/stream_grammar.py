"""The grammar of an agent's stream: read the body of a stream, check it, and collect it as a client does.

Every test of streams uses this one checker. A stream is ``planning (status_update | token | tool_call | approval)* complete usage
done``, or it ends at any point with ``error error``. docs/streaming.md describes the fields.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spass.journal.frames import EventId
from tests.functions.gateway import Reply

Event = dict[str, Any]

MAX_TOKEN_BYTES: Final = 32 * 1024
RETRY_MILLISECONDS: Final = 1000
_CODES: Final = {
    "status planning": "p",
    "status executing": "s",
    "status complete": "C",
    "status error": "x",
    "token": "t",
    "tool_call": "c",
    "approval": "a",
    "usage": "u",
    "done": "d",
    "error": "e",
}
_WHOLE: Final = re.compile("p[pstca]*Cud|(p[pstca]*(Cu?)?)?xe")
_UNFINISHED: Final = re.compile("(p[pstca]*(Cu?)?)?x?")
_STATUS: Final = {"type", "status", "detail"}
_PLANNING: Final = _STATUS | {"request_id", "session_id"}
_FIELDS: Final = {
    "status planning": [_PLANNING, _PLANNING | {"message_id", "attempt"}],
    "status executing": [_STATUS, _STATUS | {"tool_call"}, _STATUS | {"tool_call_id", "progress"}],
    "status complete": [_STATUS],
    "status error": [_STATUS],
    "token": [{"type", "content", "step"}],
    "tool_call": [{"type", "id", "tool", "args", "result", "ok", "duration_ms", "agent", "parent_id", "rich"}],
    "approval": [{"type", "approval"}],
    "usage": [{"type", "usage", "cost_usd", "cost"}],
    "error": [{"type", "error", "request_id"}],
}


@dataclass(frozen=True, slots=True)
class SentEvent:
    """One event as it was sent. ``id`` is None in a stream without ids."""

    event: Event
    id: EventId | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """What a client received on one connection. ``rest`` is the start of an event that the connection cut off."""

    sent: Sequence[SentEvent]
    retry: int | None = None
    comments: int = 0
    rest: str = ""

    @property
    def events(self) -> list[Event]:
        return [sent.event for sent in self.sent]

    @property
    def ids(self) -> list[EventId]:
        return [sent.id for sent in self.sent if sent.id is not None]


def receive(body: str | bytes) -> Received:
    """Parse the body of one connection, which may be cut off at any byte. Check the form of its lines."""
    text = body if isinstance(body, str) else body.decode("utf-8", "ignore")
    *blocks, rest = text.split("\n\n")
    sent: list[SentEvent] = []
    retry, comments = None, 0
    for block in blocks:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, colon, value = line.partition(":")
            assert colon, block
            assert name in ("", "retry", "id", "event", "data"), block
            assert name not in fields, block
            assert value.startswith(" "), block
            fields[name] = value[1:]
        comments += "" in fields
        if "retry" in fields:
            assert retry is None
            assert not sent, "the time before a reconnection precedes the events"
            retry = int(fields["retry"])
        if "data" not in fields:
            assert fields.keys() <= {"", "retry"}, block
            continue
        assert len(fields["data"].splitlines()) == 1, "some clients split lines at other characters than LF"
        event_id = EventId.parse(fields["id"]) if "id" in fields else None
        sent.append(SentEvent(json.loads(fields["data"]), event_id, fields.get("event")))
    return Received(sent, retry, comments, rest)


def read_events(reply: Reply) -> list[Event]:
    """Return the events of a whole stream. Check everything."""
    assert reply.status == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return parse_events(reply.text)


def parse_events(*connections: str | bytes) -> list[Event]:
    """Return the events of a whole stream, which a client may have received over several ``connections``: each but the first
    resumed after the last complete event of the one before. Check everything."""
    received = [receive(connection) for connection in connections]
    assert received[-1].rest == ""
    sent = [event for connection in received for event in connection.sent]
    check_ids(sent)
    for connection in received:
        assert connection.retry == RETRY_MILLISECONDS or (connection.retry is None and not connection.ids)
    events = [event.event for event in sent]
    check_events(events)
    return events


def check_ids(sent: Sequence[SentEvent], after: EventId | None = None) -> None:
    """Assert that either no event has an id, or that all ids are of one attempt and count without gaps, from 1 or ``after``. The
    end of a stream that the journal does not have, because the worker died or storage failed, has no ids."""
    if [event.event["type"] for event in sent[-2:]] == ["status_update", "error"] and sent[-1].id is None:
        assert sent[-2].id is None
        sent = sent[:-2]
    ids = [event.id for event in sent if event.id is not None]
    assert len(ids) in (0, len(sent)), "some events have an id and some have none"
    if ids:
        first = EventId(after.attempt, after.n + 1) if after is not None else EventId(ids[0].attempt, 1)
        assert ids == [EventId(first.attempt, first.n + at) for at in range(len(ids))]
        for event in sent:
            if _kind(event.event) == "status planning":
                assert event.event["attempt"] == first.attempt


def check_events(events: Sequence[Event], *, whole: bool = True) -> None:
    """Assert the grammar, the fields of each event and their relations. If not ``whole``, the end may be missing."""
    codes = "".join(_CODES[_kind(event)] for event in events)
    assert _WHOLE.fullmatch(codes) or (not whole and _UNFINISHED.fullmatch(codes)), codes
    for event in events:
        assert set(event) in _FIELDS.get(_kind(event), [set(event)]), event
        assert len(event.get("content", "").encode()) <= MAX_TOKEN_BYTES
        assert event["type"] != "status_update" or event["detail"], "people read what happens"
    _check_sessions([event for event in events if _kind(event) == "status planning"])
    steps = [event["step"] for event in of_type(events, "token")]
    assert steps == sorted(steps)
    assert all(step >= 1 for step in steps)
    _check_calls(events)


def _check_sessions(plannings: Sequence[Event]) -> None:
    """Assert that a stream names its session again only when a compaction moved the turn to another one."""
    sessions = [planning["session_id"] for planning in plannings]
    assert len(set(sessions)) == len(sessions) <= 2
    assert len({(planning["request_id"], planning.get("message_id")) for planning in plannings}) <= 1
    assert len(sessions) < 2 or "message_id" in plannings[0]


def _check_calls(events: Sequence[Event]) -> None:
    """Assert that a call starts once, proceeds only while it runs, and ends once. Only a call that was cancelled can end without
    having started. A call within another one starts and ends while that one runs. A replay shows only ends of calls of the turn
    itself."""
    started: dict[str, Event] = {}
    ended: set[str] = set()
    is_replay = not any("tool_call" in event for event in events)
    for event in events:
        if "tool_call" in event:
            call = event["tool_call"]
            assert set(call) == {"id", "tool", "args", "agent", "parent_id"}
            assert call["id"] not in started
            assert (call["agent"] is None) == (call["parent_id"] is None)
            assert call["parent_id"] is None or call["parent_id"] in started.keys() - ended
            started[call["id"]] = call
        elif "tool_call_id" in event:
            assert event["tool_call_id"] in started.keys() - ended
        elif event["type"] == "tool_call":
            assert event["id"] not in ended
            ended.add(event["id"])
            if event["id"] in started:
                start = started[event["id"]]
                assert all(event[name] == start[name] for name in ("tool", "args", "agent", "parent_id"))
            else:
                assert event["parent_id"] is None
                assert is_replay or _is_cancelled(event)
            assert all(started[call]["parent_id"] != event["id"] for call in started.keys() - ended)
        elif _kind(event) == "status complete":
            assert started.keys() <= ended


def _is_cancelled(call: Event) -> bool:
    result = call["result"]
    return call["ok"] is False and isinstance(result, dict) and result.get("error", {}).get("code") == "cancelled"


def _kind(event: Event) -> str:
    kind: str = event["type"]
    return f"status {event['status']}" if kind == "status_update" else kind


def of_type(events: Sequence[Event], name: str) -> list[Event]:
    return [event for event in events if event["type"] == name]


def answer_text(events: Sequence[Event]) -> str:
    """Return the joined tokens of the last step."""
    tokens = of_type(events, "token")
    return "".join(token["content"] for token in tokens if token["step"] == tokens[-1]["step"])


def _in_any_order(calls: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return the calls in an order that does not depend on when they ended."""
    return sorted(calls, key=json.dumps)


def collect_reply(events: Sequence[Event]) -> dict[str, Any]:
    """Return a stream that ended with ``done`` as the blocking reply, without ids and times."""
    (done,), (usage,) = of_type(events, "done"), of_type(events, "usage")
    assert "content" not in done
    assert "content" not in done["message"]
    return {
        "agent": done["agent"],
        "model": done["model"],
        "content": answer_text(events),
        "tool_calls": _in_any_order(
            [call["tool"], call["args"], call["result"]] for call in of_type(events, "tool_call") if call["parent_id"] is None
        ),
        "usage": usage["usage"],
        "turns": done["turns"],
        "finish_reason": done["finish_reason"],
        "compaction": done["compaction"] is not None,
        "metadata": done["metadata"],
        "seq": done["message"]["seq"],
    }


def check_collected(events: Sequence[Event], blocking: dict[str, Any]) -> None:
    """Check that a stream, collected, is the blocking answer of the same route: a reply, or an answer of /v1/ask."""
    if "message" in blocking:
        assert collect_reply(events) == comparable_reply(blocking)
    else:
        assert collect_ask(events) == comparable_ask(blocking)


def collect_ask(events: Sequence[Event]) -> dict[str, Any]:
    """Return a stream of /v1/ask that ended with ``done`` as the blocking answer, without ids and times."""
    (done,), (usage,) = of_type(events, "done"), of_type(events, "usage")
    if done["session_id"] is None:
        assert (done["compaction"], done["message"]["id"], done["message"]["seq"]) == (None,) * 3
    else:  # an operator; the session in the metadata of a foreign agent is its own
        assert done["metadata"]["session_id"] == done["session_id"]
    return {
        **{name: done[name] for name in ("agent", "kind", "model", "turns", "finish_reason")},
        "metadata": _without_session(done["metadata"]),
        "content": answer_text(events),
        "tool_results": _in_any_order(
            [call["tool"], call["result"], call["ok"]] for call in of_type(events, "tool_call") if call["parent_id"] is None
        ),
        "usage": usage["usage"],
    }


def comparable_ask(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a blocking answer of /v1/ask without ids and times."""
    names = ("agent", "kind", "model", "turns", "finish_reason", "content", "usage")
    results = ([result["tool_name"], json.loads(result["content"]), result["success"]] for result in answer["tool_results"])
    metadata = _without_session(answer["metadata"])
    return {**{name: answer[name] for name in names}, "metadata": metadata, "tool_results": _in_any_order(results)}


def _without_session(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata without the id of an operator's session. It is in both forms of an answer, or in neither."""
    return {name: None if name == "session_id" else value for name, value in metadata.items()}


def comparable_reply(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a blocking reply without ids and times."""
    return {
        "agent": reply["agent"],
        "model": reply["model"],
        "content": reply["message"]["content"],
        "tool_calls": _in_any_order([call["name"], call["arguments"], call["result"]] for call in reply["tool_calls"]),
        "usage": reply["usage"],
        "turns": reply["turns"],
        "finish_reason": reply["finish_reason"],
        "compaction": reply["compaction"] is not None,
        "metadata": reply["metadata"],
        "seq": reply["message"]["seq"],
    }
