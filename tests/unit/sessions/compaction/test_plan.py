"""The cut of a compaction is between turns and keeps at least the requested number of messages."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spass.core.errors import NothingToCompact
from spass.core.ids import MessageId, SessionId, SummaryId
from spass.core.messages import Message, Role, ToolCall
from spass.core.time import Timestamp, timestamp
from spass.sessions.compaction.plan import SummaryRecord, first_kept_seq, format_summary_message, parse_summary_message
from spass.sessions.record import StoredMessage
from spass.store.codec import encode


def live(turns: list[int], *, summarised: bool = False) -> list[StoredMessage]:
    """Return turns with the given numbers of tool calls, after an earlier summary if ``summarised``."""
    messages = [Message(Role.ASSISTANT, "[compaction summary from session ses_1] Ana.")] if summarised else []
    for turn, rounds in enumerate(turns):
        messages.append(Message(Role.USER, f"question {turn}"))
        for number in range(rounds):
            call = ToolCall(f"{turn}-{number}", "calculator", "{}")
            messages += [Message(Role.ASSISTANT, "", (call,)), Message(Role.TOOL, "{}", tool_call_id=call.id)]
        messages.append(Message(Role.ASSISTANT, f"answer {turn}"))
    at = Timestamp("2026-04-30T08:14:22.123Z")
    return [StoredMessage(MessageId(f"msg_{seq}"), seq, at, message) for seq, message in enumerate(messages, 1)]


TURNS = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(TURNS, st.integers(0, 30), st.booleans())
def test_a_cut_never_splits_a_turn_and_keeps_enough_messages(turns: list[int], keep_last: int, summarised: bool) -> None:
    messages = live(turns, summarised=summarised)
    try:
        cut = first_kept_seq(messages, keep_last, starts_with_summary=summarised)
    except NothingToCompact:
        second_turn = next((stored.seq for stored in messages[summarised + 1 :] if stored.message.role is Role.USER), 10**9)
        removable_count = min(second_turn, messages[-1].seq + 1) - 1
        assert len(messages) - removable_count < keep_last  # without the first turn, too few messages would remain
        return
    before_cut, after_cut = [m for m in messages if m.seq < cut], [m for m in messages if m.seq >= cut]
    assert len(after_cut) >= min(keep_last, len(messages))
    assert not after_cut or after_cut[0].message.role is Role.USER
    assert len(before_cut) > summarised
    call_ids = {call.id for stored in before_cut for call in stored.message.tool_calls}
    assert call_ids == {stored.message.tool_call_id for stored in before_cut if stored.message.tool_call_id}


@given(TURNS, st.integers(0, 30))
def test_a_cut_keeps_no_more_turns_than_needed(turns: list[int], keep_last: int) -> None:
    messages = live(turns)
    borders = [stored.seq for stored in messages if stored.message.role is Role.USER] + [messages[-1].seq + 1]
    best = max((seq for seq in borders if messages[-1].seq + 1 - seq >= keep_last), default=1)
    if best == 1:
        with pytest.raises(NothingToCompact):
            first_kept_seq(messages, keep_last, starts_with_summary=False)
    else:
        assert first_kept_seq(messages, keep_last, starts_with_summary=False) == best


def test_a_session_can_keep_no_message() -> None:
    assert first_kept_seq(live([0, 0]), 0, starts_with_summary=False) == 5


def test_a_session_that_keeps_all_or_has_only_a_summary_has_nothing_to_compact() -> None:
    for messages, keep_last, summarised in ((live([0, 0]), 4, False), (live([0, 0], summarised=True), 4, True)):
        with pytest.raises(NothingToCompact) as refusal:
            first_kept_seq(messages, keep_last, starts_with_summary=summarised)
        assert refusal.value.details == {"live_message_count": len(messages), "compact_keep_last_n": keep_last}


def test_an_earlier_summary_is_compacted_into_the_new_one() -> None:
    assert first_kept_seq(live([0, 0], summarised=True), 2, starts_with_summary=True) == 4


@given(st.text())
@example("Ana [sic] moves] to [Berlin] on 3 May.")
@example("[compaction summary from session ses_1] Ana moves.")
def test_parsing_is_the_inverse_of_formatting(text: str) -> None:
    source, successor = SessionId("ses_" + "0" * 26), SessionId("ses_" + "1" * 26)
    record = SummaryRecord(SummaryId("sum_1"), source, successor, text, "small", timestamp(0), 1, 4)
    assert format_summary_message(record) == f"[compaction summary from session {source}] {text}"
    assert parse_summary_message(format_summary_message(record)) == text


def test_the_stored_names_of_a_summary_stay_because_sessions_have_no_expiry() -> None:
    record = SummaryRecord(SummaryId("sum_1"), SessionId("ses_1"), SessionId("ses_2"), "text", "small", timestamp(0), 1, 4)
    names = {"id", "source", "successor", "text", "model", "created_at", "first_seq", "last_seq"}
    assert encode(record).keys() == names
