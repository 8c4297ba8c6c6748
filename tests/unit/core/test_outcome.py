"""The stored outcome of an agent's run, of this release and of the one before."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spass.core.cost import NO_COST, Cost, CostSource
from spass.core.ids import MessageId, RequestId, SessionId, SummaryId
from spass.core.json import dump, read_object
from spass.core.messages import FinishReason, TokenUsage
from spass.core.outcome import AgentRun, CompactionIds, ToolRecord, TurnOutcome, decode_outcome, encode_outcome
from spass.core.time import Timestamp

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT, lambda value: st.lists(value, max_size=3))
COUNT = st.integers(0, 10**9)
AMOUNT = st.decimals(0, 1000, places=12)
RICH = st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2).map(tuple)
APPROVALS = st.none() | st.dictionaries(TEXT, JSON, min_size=1, max_size=2)
TOOLS = st.builds(ToolRecord, TEXT, TEXT, JSON, JSON, st.booleans(), COUNT, RICH, APPROVALS)
COSTS = st.builds(Cost, AMOUNT, AMOUNT, st.sampled_from(CostSource), COUNT)
OUTCOMES = st.builds(
    TurnOutcome,
    run=st.builds(AgentRun, TEXT.map(RequestId), TEXT, TEXT, TEXT),
    content=TEXT,
    created_at=TEXT.map(Timestamp),
    tools=st.lists(TOOLS, max_size=3).map(tuple),
    usage=st.builds(TokenUsage, COUNT, COUNT),
    cost=COSTS,
    turns=COUNT,
    finish_reason=st.sampled_from(FinishReason),
    metadata=st.dictionaries(TEXT, JSON, max_size=3),
    session_id=st.none() | TEXT.map(SessionId),
    message_id=st.none() | TEXT.map(MessageId),
    seq=st.none() | COUNT,
    compaction=st.none() | st.builds(CompactionIds, TEXT.map(SessionId), TEXT.map(SessionId), TEXT.map(SummaryId)),
    compaction_error=st.none() | TEXT,
)

FORMER_REPLY: dict[str, Any] = {
    "request_id": "req_01k9aaaaaaaaaaaaaaaaaaaaaa",
    "agent": "librarian",
    "model": "grok-4.1",
    "session_id": "ses_01k9bbbbbbbbbbbbbbbbbbbbbb",
    "message": {
        "id": "msg_01k9cccccccccccccccccccccc",
        "seq": 8,
        "role": "assistant",
        "content": "It is 42.",
        "created_at": "2026-11-22T10:00:00.000Z",
    },
    "tool_calls": [
        {"name": "calculator", "arguments": {"expression": "6*7"}, "result": {"value": 42}, "duration_ms": 3},
        {
            "name": "rag_query",
            "arguments": {},
            "result": {"error": {"code": "x", "message": "?"}},
            "duration_ms": 0,
        },
    ],
    "usage": {"prompt_tokens": 40, "completion_tokens": 6, "total_tokens": 46},
    "turns": 2,
    "finish_reason": "length",
    "compaction": {
        "source_session_id": "ses_01k9dddddddddddddddddddddd",
        "successor_session_id": "ses_01k9bbbbbbbbbbbbbbbbbbbbbb",
        "summary_id": "sum_01k9eeeeeeeeeeeeeeeeeeeeee",
    },
}
"""A reply as the release before this one stored it."""


@given(OUTCOMES)
def test_an_outcome_is_read_as_it_was_written(outcome: TurnOutcome) -> None:
    assert decode_outcome(read_object(dump(encode_outcome(outcome))), {}) == outcome


@given(OUTCOMES)
def test_the_former_release_reads_calls_without_blocks_and_approvals(outcome: TurnOutcome) -> None:
    plain = replace(outcome, tools=tuple(replace(tool, rich=(), approval=None) for tool in outcome.tools))
    former = [[tool.id, tool.name, tool.arguments, tool.result, tool.ok, tool.duration_ms] for tool in outcome.tools]
    (stored,) = encode_outcome(plain).values()
    assert isinstance(stored, dict)
    assert stored["tools"] == former


def test_a_reply_that_the_former_release_stored_is_read_as_an_outcome() -> None:
    headers = {
        "SPASS-Cost-Eur": "0.0001",
        "SPASS-Cost-Usd": "0.0002",
        "SPASS-Cost-Source": "catalog",
        "SPASS-Cost-Sub-Calls": "3",
        "SPASS-Compacted-From": "ses_01k9dddddddddddddddddddddd",
        "SPASS-Session-Id": "ses_01k9bbbbbbbbbbbbbbbbbbbbbb",
    }
    error: Any = {"code": "x", "message": "?"}
    assert decode_outcome(FORMER_REPLY, headers) == TurnOutcome(
        run=AgentRun(RequestId("req_01k9aaaaaaaaaaaaaaaaaaaaaa"), "librarian", "orchestrator", "grok-4.1"),
        content="It is 42.",
        created_at=Timestamp("2026-11-22T10:00:00.000Z"),
        tools=(
            ToolRecord("call_1", "calculator", {"expression": "6*7"}, {"value": 42}, True, 3),
            ToolRecord("call_2", "rag_query", {}, {"error": error}, False, 0),
        ),
        usage=TokenUsage(40, 6),
        cost=Cost(Decimal("0.0002"), Decimal("0.0001"), CostSource.CATALOG, 3),
        turns=2,
        finish_reason=FinishReason.LENGTH,
        session_id=SessionId("ses_01k9bbbbbbbbbbbbbbbbbbbbbb"),
        message_id=MessageId("msg_01k9cccccccccccccccccccccc"),
        seq=8,
        compaction=CompactionIds(
            SessionId("ses_01k9dddddddddddddddddddddd"),
            SessionId("ses_01k9bbbbbbbbbbbbbbbbbbbbbb"),
            SummaryId("sum_01k9eeeeeeeeeeeeeeeeeeeeee"),
        ),
    )


def test_a_chat_and_a_failed_compaction_of_the_former_release_are_read_too() -> None:
    chat = {**FORMER_REPLY, "session_id": None, "compaction": None, "tool_calls": []}
    chat["message"] = {**FORMER_REPLY["message"], "id": None, "seq": None}
    outcome = decode_outcome(chat, {"SPASS-Compaction-Error": "summary_failed"})
    assert (outcome.session_id, outcome.message_id, outcome.seq, outcome.compaction, outcome.tools) == (
        None,
        None,
        None,
        None,
        (),
    )
    assert (outcome.compaction_error, outcome.cost) == ("summary_failed", NO_COST)
