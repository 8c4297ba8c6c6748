"""Event streams of AWS, read."""

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
def test_messages_come_whole_wherever_the_network_cuts(cuts: list[int]) -> None:
    decoder = EventStreamDecoder()
    pieces = [STREAM[begin:stop] for begin, stop in pairwise([0, *sorted(cuts), len(STREAM)])]
    assert [message for piece in pieces for message in decoder.feed(piece)] == MESSAGES


def test_an_error_that_no_model_names_says_its_words_in_a_header() -> None:
    error = frame({":message-type": "error", ":error-code": "Internal", ":error-message": "no"}, b"")
    assert EventStreamDecoder().feed(error) == [StreamMessage("Internal", b"no", failed=True)]


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_damage_is_never_read_as_a_message(at: int, by: int) -> None:
    damaged = bytearray(STREAM)
    damaged[at] ^= by
    with pytest.raises(BrokenEventStream):
        EventStreamDecoder().feed(bytes(damaged))
