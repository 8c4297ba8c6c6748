"""The stream of a run: each event as JSON, and the outcome as its end."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.render.events import EventWriter, render_failure
from spass.agents.responses import Reply
from spass.core.cost import Cost, CostSource
from spass.core.effects import ToolOutcome
from spass.core.events import (
    Event,
    InferenceFinished,
    InferenceStarted,
    MessageWritten,
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
from spass.core.run_result import AgentRun, RunResult, ToolRecord
from spass.core.time import Timestamp

CALL = ToolCall("call_1", "calculator", '{"expression": "1+1"}')
STARTED = ToolCallStarted(CALL)
FINISHED = ToolCallFinished(ToolOutcome(CALL, {"expression": "1+1"}, {"result": 2}, Message(Role.TOOL, "{}", (), "call_1"), 1))
OUTCOME = RunResult(
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
    return list(EventWriter(RequestId("req_1"), "librarian", SessionId("ses_1")).write(item))


def test_the_first_event_names_the_request_and_the_session() -> None:
    assert written(TurnStarted()) == [
        {
            "type": "status_update",
            "status": "planning",
            "detail": "librarian begins to work.",
            "request_id": "req_1",
            "session_id": "ses_1",
        }
    ]


def test_a_tool_call_is_shown_when_it_starts_while_it_runs_and_when_it_ends() -> None:
    executing = {"type": "status_update", "status": "executing"}
    args = {"expression": "1+1"}
    assert written(ToolCallStarted(CALL)) == [
        executing
        | {"detail": "librarian uses calculator."}
        | {"tool_call": {"id": "call_1", "tool": "calculator", "args": args, "agent": None, "parent_id": None}}
    ]
    assert written(ToolProgress("call_1", "half")) == [
        executing | {"detail": "half", "tool_call_id": "call_1", "progress": "half"}
    ]
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
    assert started == plain_start | {"detail": "dir-code uses calculator.", "tool_call": plain_start["tool_call"] | place}
    assert progress == plain_progress
    assert finished == plain_end | place


def test_the_detail_of_a_call_counts_the_calls_of_the_same_reply() -> None:
    writer = EventWriter(RequestId("req_1"), "librarian")

    def details(*items: Event) -> list[Any]:
        return [event["detail"] for item in items for event in writer.write(item) if event["type"] == "status_update"]

    calls = (replace(CALL, id="call_2"), replace(CALL, id="call_3", name="think"))
    said = InferenceFinished(Message(Role.ASSISTANT, "", calls), FinishReason.TOOL_CALLS)
    assert details(said, ToolCallStarted(calls[0]), Nested("dir-code", "call_2", STARTED), ToolCallStarted(calls[1])) == [
        "librarian uses calculator (call 1 of 2).",
        "dir-code uses calculator.",
        "librarian uses think (call 2 of 2).",
    ]
    assert details(MessageWritten(replace(said.message, tool_calls=(CALL,))), STARTED) == ["librarian uses calculator."]
    assert writer.move(SessionId("ses_2"))["detail"] == (
        "The session became too long. librarian continues in a new one that begins with a summary."
    )


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (FinishReason.STOP, "librarian is done"),
        (FinishReason.LENGTH, "librarian used up the tokens of its reply"),
        (FinishReason.CANCELLED, "librarian was stopped"),
        (FinishReason.DEADLINE, "librarian used up its time"),
        (FinishReason.CONTENT_FILTER, "A filter ended the reply of librarian"),
    ],
)
def test_the_last_detail_tells_how_the_run_ended_and_what_it_took(reason: FinishReason, end: str) -> None:
    waiting = replace(OUTCOME.tools[0], approval={"id": "apr_1"})
    assert written(replace(OUTCOME, turns=1, finish_reason=reason))[0]["detail"] == f"{end}: 1 model call, 1 tool call."
    outcome = replace(OUTCOME, finish_reason=reason, tools=(waiting, *OUTCOME.tools))
    assert written(outcome)[0]["detail"] == f"{end}: 2 model calls, 2 tool calls. 1 call waits for a decision."
    outcome = replace(OUTCOME, finish_reason=reason, tools=(waiting, waiting))
    assert written(outcome)[0]["detail"].endswith("2 calls wait for a decision.")


def test_a_detail_is_short_and_has_no_arguments() -> None:
    secret = ToolCall("call_1", "x" * 3_000, '{"password": "hunter2"}')
    ((started,), (progress,)) = written(ToolCallStarted(secret)), written(ToolProgress("call_1", "y" * 3_000))
    assert started["detail"] == f"librarian uses {'x' * 64}…."
    assert (progress["detail"], progress["progress"]) == ("y" * 200 + "…", "y" * 3_000)


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
    assert complete == {
        "type": "status_update",
        "status": "complete",
        "detail": "librarian used up its model calls: 2 model calls, 1 tool call.",
    }
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
    writer = EventWriter(RequestId("req_2"), "librarian", shows_kind=True)
    *_, done = writer.write(OUTCOME)
    assert done["kind"] == "native_react"


def test_a_recorded_outcome_is_replayed_under_its_own_request() -> None:
    events = list(EventWriter(RequestId("req_9"), "native_react").replay(OUTCOME))
    assert [event["type"] for event in events] == ["status_update", "tool_call", "token", "status_update", "usage", "done"]
    assert (events[0]["request_id"], events[2]) == ("req_2", {"type": "token", "content": "It is 2.", "step": 2})
    assert events[3:] == written(OUTCOME)
    assert events[0]["detail"] == written(TurnStarted())[0]["detail"]


def test_a_failure_is_a_status_and_an_error() -> None:
    error: dict[str, Any] = {"code": "upstream_error", "message": "The model failed.", "type": "api_error"}
    assert render_failure(error, "req_1") == (
        {"type": "status_update", "status": "error", "detail": "The model failed."},
        {"type": "error", "error": error, "request_id": "req_1"},
    )
