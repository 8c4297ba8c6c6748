"""Test the decoder of AWS event streams."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.aws.eventstream import BrokenEventStream, EventStreamDecoder, StreamMessage
from tests.unit.aws.eventstreams import event, exception, frame

STREAM = event("one", {"a": "ä"}) + exception("oneException", {"message": "no"}) + event("two", {})
MESSAGES = [
    StreamMessage("one", '{"a": "ä"}'.encode()),
    StreamMessage("oneException", b'{"message": "no"}', failed=True),
    StreamMessage("two", b"{}"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_messages_are_complete_for_any_split_into_chunks(cuts: list[int]) -> None:
    decoder = EventStreamDecoder()
    pieces = [STREAM[begin:stop] for begin, stop in pairwise([0, *sorted(cuts), len(STREAM)])]
    assert [message for piece in pieces for message in decoder.feed(piece)] == MESSAGES


def test_the_text_of_an_undefined_error_is_read_from_a_header() -> None:
    error = frame({":message-type": "error", ":error-code": "Internal", ":error-message": "no"}, b"")
    assert EventStreamDecoder().feed(error) == [StreamMessage("Internal", b"no", failed=True)]


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_damaged_bytes_are_never_decoded_as_a_message(at: int, by: int) -> None:
    damaged = bytearray(STREAM)
    damaged[at] ^= by
    with pytest.raises(BrokenEventStream):
        EventStreamDecoder().feed(bytes(damaged))
