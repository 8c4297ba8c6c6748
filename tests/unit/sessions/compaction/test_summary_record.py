"""Convert a summary to the first message of a successor and back."""

from hypothesis import example, given
from hypothesis import strategies as st

from spass.core.ids import SessionId, SummaryId
from spass.core.time import timestamp
from spass.sessions.compaction.summary_record import SummaryRecord, format_summary_message, parse_summary_message
from spass.store.codec import encode


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
