"""The stream of a run: each event as JSON, and the outcome as its end."""

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spass.agents.answers import Reply
from spass.agents.render.events import EventWriter, render_failure
from spass.core.cost import Cost, CostSource
from spass.core.effects import ToolOutcome
from spass.core.events import (
    InferenceStarted,
    Nested,
    RefusalDelta,
    Status,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
)
from spass.core.ids import RequestId, SessionId
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCall
from spass.core.outcome import AgentRun, ToolRecord, TurnOutcome
from spass.core.time import Timestamp

CALL = ToolCall("call_1", "calculator", '{"expression": "1+1"}')
STARTED = ToolCallStarted(CALL)
FINISHED = ToolCallFinished(ToolOutcome(CALL, {"expression": "1+1"}, {"result": 2}, Message(Role.TOOL, "{}", (), "call_1"), 1))
OUTCOME = TurnOutcome(
    AgentRun(RequestId("req_2"), "librarian", "native_react", "grok-4.1"),
    "It is 2.",
    Timestamp("2026-11-22T10:00:00.000Z"),
    tools=(ToolRecord("call_1", "calculator", {"expression": "1+1"}, {"result": 2}, True, 3),),
    usage=TokenUsage(7, 2),
    cost=Cost(Decimal("0.000002"), Decimal("0.000001"), CostSource.CATALOG, 2),
    turns=2,
    finish_reason=FinishReason.MAX_TURNS,
    metadata={"max_turns_exceeded": True},
)


def written(item: Any) -> list[Any]:
    return list(EventWriter(RequestId("req_1"), SessionId("ses_1")).write(item))


def test_the_first_event_names_the_request_and_the_session() -> None:
    assert written(TurnStarted()) == [
        {"type": "status_update", "status": "planning", "detail": None, "request_id": "req_1", "session_id": "ses_1"}
    ]


def test_a_tool_call_is_shown_when_it_starts_while_it_runs_and_when_it_ends() -> None:
    executing = {"type": "status_update", "status": "executing", "detail": None}
    args = {"expression": "1+1"}
    assert written(ToolCallStarted(CALL)) == [
        executing | {"tool_call": {"id": "call_1", "tool": "calculator", "args": args, "agent": None, "parent_id": None}}
    ]
    assert written(ToolProgress("call_1", "half")) == [executing | {"tool_call_id": "call_1", "progress": "half"}]
    outcome = ToolOutcome(CALL, args, {"error": {}}, Message(Role.TOOL, "{}", (), "call_1"), 4, ok=False)
    assert written(ToolCallFinished(outcome)) == [
        {
            "type": "tool_call",
            "id": "call_1",
            "tool": "calculator",
            "args": args,
            "result": {"error": {}},
            "ok": False,
            "duration_ms": 4,
            "agent": None,
            "parent_id": None,
            "rich": None,
        }
    ]


def test_events_within_a_call_name_that_call_and_the_agent_that_works_in_it() -> None:
    nested = [written(Nested("dir-code", "call_0", event)) for event in (STARTED, ToolProgress("call_1", "half"), FINISHED)]
    plain = [written(event) for event in (STARTED, ToolProgress("call_1", "half"), FINISHED)]
    place = {"agent": "dir-code", "parent_id": "call_0"}
    ((started,), progress, (finished,)), ((plain_start,), plain_progress, (plain_end,)) = nested, plain
    assert started == plain_start | {"tool_call": plain_start["tool_call"] | place}
    assert progress == plain_progress
    assert finished == plain_end | place


def test_arguments_that_are_not_an_object_are_shown_as_text() -> None:
    for arguments, shown in (("{", "{"), ("", {}), ("[1]", "[1]"), ('{"a": NaN}', '{"a": NaN}'), ("x\ud800", "x?")):
        (event,) = written(ToolCallStarted(ToolCall("call_1", "calculator", arguments)))
        assert event["tool_call"]["args"] == shown


def test_the_arguments_of_a_call_that_starts_are_those_of_its_end_and_bounded() -> None:
    nested = '{"a":' * 40 + "1" + "}" * 40
    for arguments in ('{"thought": "' + "x" * 3_000_000 + '"}', "y" * 3_000_000, nested):
        (event,) = written(ToolCallStarted(ToolCall("call_1", "think", arguments)))
        assert event["tool_call"]["args"] == arguments[: 32 * 1024]


def test_a_status_has_its_detail_and_other_events_are_not_shown() -> None:
    assert written(Status("reading")) == [{"type": "status_update", "status": "executing", "detail": "reading"}]
    assert written(InferenceStarted(1)) == written(RefusalDelta("No.")) == []


def test_an_empty_token_is_shown_because_it_begins_a_step() -> None:
    assert written(Token("", 2)) == [{"type": "token", "content": "", "step": 2}]


@given(st.text(st.characters(codec="utf-8"), max_size=12), st.integers(1, 9_000))
def test_the_pieces_of_a_token_have_at_most_32_kib(text: str, times: int) -> None:
    events = written(Token(text * times, 1))
    assert "".join(event["content"] for event in events) == text * times
    assert all(len(event["content"].encode()) <= 32 * 1024 for event in events)


def test_the_end_has_the_fields_of_the_reply_without_its_text() -> None:
    complete, usage, done = written(OUTCOME)
    assert complete == {"type": "status_update", "status": "complete", "detail": None}
    assert usage == {
        "type": "usage",
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        "cost_usd": 0.000002,
        "cost": {"eur": "0.000001", "usd": "0.000002", "source": "catalog", "sub_calls": 2},
    }
    reply = Reply.of(OUTCOME).to_dict()
    left_out = {"message", "tool_calls", "usage"}
    assert done == {
        "type": "done",
        **{name: value for name, value in reply.items() if name not in left_out},
        "message": {"id": None, "seq": None, "created_at": "2026-11-22T10:00:00.000Z"},
    }
    assert "It is 2." not in str(done)


def test_the_end_names_the_kind_if_the_route_asks_for_it() -> None:
    writer = EventWriter(RequestId("req_2"), shows_kind=True)
    *_, done = writer.write(OUTCOME)
    assert done["kind"] == "native_react"


def test_a_recorded_outcome_is_replayed_under_its_own_request() -> None:
    events = list(EventWriter(RequestId("req_9")).replay(OUTCOME))
    assert [event["type"] for event in events] == ["status_update", "tool_call", "token", "status_update", "usage", "done"]
    assert (events[0]["request_id"], events[2]) == ("req_2", {"type": "token", "content": "It is 2.", "step": 2})
    assert events[3:] == written(OUTCOME)


def test_a_failure_is_a_status_and_an_error() -> None:
    error: dict[str, Any] = {"code": "upstream_error", "message": "The model failed.", "type": "api_error"}
    assert render_failure(error, "req_1") == (
        {"type": "status_update", "status": "error", "detail": "The model failed."},
        {"type": "error", "error": error, "request_id": "req_1"},
    )
