"""Joining of deltas into replies, and the bytes of vectors."""

import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.messages import FinishReason, Role, TokenUsage, ToolCall, ToolCallDelta
from spass.models.types import MAX_CALL_ID_CHARACTERS, ChatDelta, EmbeddingReply, ReplyBuilder, pack_rows
from tests.unit.collected_replies import collect_deltas


def test_pieces_of_two_tool_calls_join_by_index() -> None:
    reply = collect_deltas(
        [
            ChatDelta("I look ", (ToolCallDelta(1, "b", "two"),)),
            ChatDelta("it up.", (ToolCallDelta(0, "a", "one", "{"), ToolCallDelta(1, arguments="[]"))),
            ChatDelta(tool_calls=(ToolCallDelta(0, arguments="}"),), finish_reason=FinishReason.TOOL_CALLS),
            ChatDelta(usage=TokenUsage(3, 4), cost_usd=Decimal("0.5")),
        ]
    )
    assert reply.message.role is Role.ASSISTANT
    assert reply.message.content == "I look it up."
    assert reply.message.tool_calls == (ToolCall("a", "one", "{}"), ToolCall("b", "two", "[]"))
    assert (reply.finish_reason, reply.usage, reply.cost_usd) == (FinishReason.TOOL_CALLS, TokenUsage(3, 4), Decimal("0.5"))


def test_an_answer_without_tool_calls_does_not_end_with_tool_calls() -> None:
    reply = collect_deltas([ChatDelta("Done."), ChatDelta(finish_reason=FinishReason.TOOL_CALLS)])
    assert reply.finish_reason is FinishReason.STOP
    assert collect_deltas([ChatDelta(finish_reason=FinishReason.LENGTH)]).finish_reason is FinishReason.LENGTH
    assert collect_deltas([ChatDelta(tool_calls=(ToolCallDelta(0, "a", "one"),))]).finish_reason is FinishReason.TOOL_CALLS


def test_a_refusal_is_separate_from_the_text() -> None:
    reply = collect_deltas([ChatDelta(refusal="I can"), ChatDelta(refusal="not.", finish_reason=FinishReason.STOP)])
    assert (reply.message.content, reply.refusal) == ("", "I cannot.")
    assert (reply.with_refusal_as_text.message.content, reply.with_refusal_as_text.finish_reason) == (
        "I cannot.",
        FinishReason.CONTENT_FILTER,
    )
    plain = collect_deltas([ChatDelta("Hi")])
    assert plain.with_refusal_as_text == plain


def test_a_cost_of_zero_differs_from_an_unknown_cost() -> None:
    assert collect_deltas([ChatDelta(cost_usd=Decimal(0))]).cost_usd == 0
    assert collect_deltas([ChatDelta()]).cost_usd is None


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.floats(width=32, allow_nan=False), min_size=n, max_size=n), min_size=1)
    )
)
def test_packed_rows_are_little_endian_and_read_back(rows: list[list[float]]) -> None:
    data = pack_rows(rows)
    assert data == b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
    assert EmbeddingReply(data, len(rows), len(rows[0]), TokenUsage()).rows() == rows


def test_calls_left_to_the_client_are_numbered_and_begin_with_their_name() -> None:
    builder = ReplyBuilder({"weather", "map"}.__contains__)
    shown = [
        builder.add(ChatDelta(tool_calls=(ToolCallDelta(0, "a", "calculator", "{}"), ToolCallDelta(3, "b", None, '{"a"')))),
        builder.add(ChatDelta("Hm", (ToolCallDelta(3, None, "weather", ":"),))),
        builder.add(ChatDelta(tool_calls=(ToolCallDelta(3, arguments="1}"), ToolCallDelta(7, None, "map", "[")))),
        builder.add(ChatDelta(tool_calls=(ToolCallDelta(7, "late", arguments="]"),))),
    ]
    assert [list(pieces) for pieces in shown] == [
        [],
        [ToolCallDelta(0, "b", "weather", '{"a":')],
        [ToolCallDelta(0, arguments="1}"), ToolCallDelta(1, "call_7", "map", "[")],
        [ToolCallDelta(1, arguments="]")],
    ]
    assert builder.reply.message.tool_calls == (
        ToolCall("a", "calculator", "{}"),
        ToolCall("b", "weather", '{"a":1}'),
        ToolCall("call_7", "map", "[]"),
    )


PIECES = st.builds(
    ToolCallDelta,
    st.integers(0, 2),
    st.none() | st.sampled_from(["a", "b"]),
    st.none() | st.sampled_from(["weather", "calculator"]),
    st.text("{}", max_size=2),
)


@given(st.lists(st.lists(PIECES, max_size=3), max_size=6))
def test_the_pieces_for_the_client_join_to_the_calls_of_the_reply(answer: list[list[ToolCallDelta]]) -> None:
    builder, client = ReplyBuilder("weather".__eq__), ReplyBuilder()
    for pieces in answer:
        client.add(ChatDelta(tool_calls=tuple(builder.add(ChatDelta(tool_calls=tuple(pieces))))))
    expected = [call for call in builder.reply.message.tool_calls if call.name == "weather"]
    assert sorted(map(repr, client.reply.message.tool_calls)) == sorted(map(repr, expected))


@pytest.mark.parametrize(("size", "kept"), [(MAX_CALL_ID_CHARACTERS, True), (MAX_CALL_ID_CHARACTERS + 1, False)])
def test_an_id_of_a_call_is_ignored_if_it_is_too_long(size: int, kept: bool) -> None:
    builder, long = ReplyBuilder({"weather"}.__contains__), "i" * size
    (shown,) = builder.add(ChatDelta(tool_calls=(ToolCallDelta(3, long, "weather", "{}"),)))
    (call,) = builder.reply.message.tool_calls
    assert call.id == shown.id == (long if kept else "call_3")
