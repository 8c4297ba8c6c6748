"""Records of turns and sessions are decoded unchanged and fit into an item."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.cost import decimal_text
from spass.core.events import InferenceFinished
from spass.core.ids import AgentName, MessageId, SessionId, SummaryId, UserId
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCall
from spass.core.time import Timestamp, timestamp
from spass.sessions import record
from spass.sessions.record import StoredMessage, ToolRun, TurnRecord, TurnRecorder, load_turns
from spass.sessions.session import Hold, HoldKind, Session, decode_session

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import SessionsHarness

TEXT = st.text()
COUNT = st.integers(0, 10**9)
STAMP = st.integers(0, 4_000_000_000).map(timestamp)
CALL = st.builds(ToolCall, TEXT, TEXT, TEXT)
MESSAGE = st.builds(
    Message,
    st.sampled_from([Role.USER, Role.ASSISTANT, Role.TOOL]),
    TEXT,
    st.lists(CALL, max_size=3).map(tuple),
    st.one_of(st.none(), TEXT),
)
TURN = st.builds(
    TurnRecord,
    TEXT,
    st.lists(st.builds(StoredMessage, TEXT.map(MessageId), COUNT, STAMP, MESSAGE), min_size=1, max_size=5).map(tuple),
    st.builds(TokenUsage, COUNT, COUNT),
    COUNT,
    st.sampled_from(FinishReason),
    st.lists(st.builds(ToolRun, TEXT, TEXT, COUNT), max_size=3).map(tuple),
    st.one_of(st.none(), st.decimals(0, 10**6, places=9).map(decimal_text)),
)
SESSION = st.builds(
    Session,
    id=TEXT.map(SessionId),
    agent=TEXT.map(AgentName),
    user=TEXT.map(UserId),
    title=st.one_of(st.none(), TEXT),
    created_at=STAMP,
    updated_at=STAMP,
    compact_strategy=st.sampled_from(["auto", "manual", "off"]),
    compact_keep_last_n=COUNT,
    compact_observation_mask=st.booleans(),
    next_seq=COUNT,
    compacted_before=COUNT,
    parent_session_id=st.one_of(st.none(), TEXT.map(SessionId)),
    successor_session_id=st.one_of(st.none(), TEXT.map(SessionId)),
    summary_id=st.one_of(st.none(), TEXT.map(SummaryId)),
    archived_at=st.one_of(st.none(), STAMP),
    archived_by=st.one_of(st.none(), TEXT),
    deleted_at=st.one_of(st.none(), STAMP),
    hold=st.one_of(st.none(), st.builds(Hold, TEXT, st.sampled_from(HoldKind), COUNT)),
)


@given(TURN)
def test_a_stored_turn_is_decoded_unchanged(turn: TurnRecord) -> None:
    assert record._decode(turn.id, record._encode(turn).decode()) == turn


@given(SESSION)
def test_a_session_is_decoded_from_its_head_and_without_hold_from_its_entry(session: Session) -> None:
    assert decode_session(session.attributes()) == session
    assert decode_session(session.entry() | {"hold": None}) == decode_session({**session.attributes(), "hold": None})
    assert None not in session.attributes().values()


def test_messages_get_their_times_on_arrival_and_their_numbers_at_the_end() -> None:
    times = iter((1.0, 2.0))
    recorder = TurnRecorder("turn_1", "hello", lambda: next(times))
    recorder.add(InferenceFinished(Message(Role.ASSISTANT, "yes"), FinishReason.STOP))
    recorded = [recorder.record(first_seq).messages for first_seq in (1, 7)]
    assert [[stored.seq for stored in messages] for messages in recorded] == [[1, 2], [7, 8]]
    assert [stored.id for stored in recorded[0]] == [stored.id for stored in recorded[1]]
    assert [stored.created_at for stored in recorded[0]] == [timestamp(1), timestamp(2)]


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 100_000, 174_500, 175_500, 300_000])
async def test_a_turn_of_any_size_can_be_stored(harness: "SessionsHarness", size: int) -> None:
    """Each character is two bytes in UTF-8. From about 175,000 characters on, the body does not fit into an item."""
    session = await harness.create()
    await harness.say(session, "ü" * size, "short")
    assert len(harness.stored_objects()) == (2 * size > record.INLINE_BYTES)
    (turn,) = await load_turns(harness.scope().store, session, 1)
    assert [stored.message.content for stored in turn.messages] == ["ü" * size, "short"]
    assert [stored.created_at for stored in turn.messages] == [Timestamp(timestamp(harness.now))] * 2
