"""Test frames and the ids of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.journal.frames import EventId, Frame


@given(st.integers(1, 999_999_999), st.integers(1, 999_999_999))
def test_an_event_id_is_read_as_it_is_written(attempt: int, n: int) -> None:
    assert EventId.parse(str(EventId(attempt, n))) == EventId(attempt, n)


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "0-1", "1-0", "01-1", "1-01", "1-1-1", "a-1", "1-1\n", " 1-1", "+1-1", "١-1", "1-" + "9" * 5000]
)
def test_a_text_that_is_not_an_event_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="attempt"):
        EventId.parse(text)


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n"])
def test_a_frame_cannot_contain_a_line_break(line_break: str) -> None:
    for parts in ((line_break, "", "", None), ("", line_break, "", None), ("", "", line_break, None), ("", "", "", line_break)):
        with pytest.raises(ValueError, match="line break"):
            Frame(*parts)


def test_a_frame_with_a_prefix_is_a_token() -> None:
    frame = Frame("Hi", '{"content":"', '"}')
    assert (frame.data, frame.is_token) == ('{"content":"Hi"}', True)
    assert not Frame('{"content":"Hi"}').is_token
