"""The parsers of server-sent events and of lines."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.models.providers.sse import EventTooLong, LineParser, ServerSentEvent, SseParser


def parse(*chunks: bytes) -> list[ServerSentEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.close()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_each_kind_of_line_end_ends_a_line(end: str) -> None:
    body = end.join(["event: ping", "data: {}", "", "data: a", "data: b", "", ""])
    assert parse(body.encode()) == [ServerSentEvent("ping", "{}"), ServerSentEvent("message", "a\nb")]


def test_comments_unknown_fields_and_events_without_data_are_skipped() -> None:
    assert parse(b": keep-alive\n\nid: 7\nretry: 10\nevent: x\n\ndata: y\n\n") == [ServerSentEvent("message", "y")]


def test_one_space_after_the_colon_is_removed() -> None:
    assert [event.data for event in parse(b"data:a\n\ndata:  b\n\ndata\n\n")] == ["a", " b", ""]


def test_an_event_is_returned_when_it_is_complete() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") == [ServerSentEvent("message", "a")]
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: b\n") == []
    assert parser.feed(b"\n") == [ServerSentEvent("message", "b")]


def test_the_end_of_the_body_completes_an_event_that_lacks_its_blank_line() -> None:
    assert parse(b"data: [DONE]") == [ServerSentEvent("message", "[DONE]")]


def test_a_byte_order_mark_is_removed() -> None:
    assert parse(b"\xef\xbb\xbfdata: a\n\n") == [ServerSentEvent("message", "a")]


def test_invalid_utf8_is_replaced() -> None:
    assert parse(b"data: \xff\n\n") == [ServerSentEvent("message", "�")]


def test_an_endless_event_raises_event_too_long() -> None:
    parser = SseParser(max_event_bytes=100)
    for _ in range(10):
        parser.feed(b"data: ok\n\n")
    with pytest.raises(EventTooLong):
        for _ in range(20):
            parser.feed(b"data: more\n")


@given(
    st.lists(st.text(alphabet="aé😀\u2028 :{}", max_size=6), min_size=1, max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 200), max_size=20),
)
def test_the_size_of_chunks_changes_nothing(texts: list[str], end: str, cuts: list[int]) -> None:
    body = "".join(f"event: e{end}data: {text}{end}{end}" for text in texts).encode()
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[start:stop] for start, stop in pairwise(borders)]
    assert parse(*pieces) == parse(body) == [ServerSentEvent("e", text) for text in texts]


def split_lines(*chunks: bytes) -> list[bytes]:
    parser = LineParser()
    return [line for chunk in chunks for line in parser.feed(chunk)] + parser.close()


def test_blank_lines_and_a_byte_order_mark_are_skipped() -> None:
    assert split_lines(b'\xef\xbb\xbf{"text": "a"}\n\n \r\n{"text": "b"}\r\n\n') == [b'{"text": "a"}', b'{"text": "b"}']


def test_a_line_is_returned_when_it_is_complete() -> None:
    parser = LineParser()
    assert parser.feed(b'{"text":') == []
    assert parser.feed(b' "a"}') == []
    assert parser.feed(b'\n{"text"') == [b'{"text": "a"}']


def test_the_end_of_the_body_completes_a_line_without_its_line_feed() -> None:
    assert split_lines(b'{"text": "a"}\n{"text": "b"}') == [b'{"text": "a"}', b'{"text": "b"}']


def test_an_endless_line_is_too_long() -> None:
    parser = LineParser(max_line_bytes=100)
    for _ in range(10):
        parser.feed(b'{"text": "a line that is short enough"}\n')
    with pytest.raises(EventTooLong):
        for _ in range(20):
            parser.feed(b"more and ")


@given(
    st.lists(st.text(alphabet="aé😀\u2028 :{}", max_size=6), min_size=1, max_size=5), st.lists(st.integers(0, 200), max_size=20)
)
def test_the_size_of_chunks_changes_no_line(texts: list[str], cuts: list[int]) -> None:
    lines = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
    body = b"".join(line + b"\n" for line in lines)
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert split_lines(*[body[start:stop] for start, stop in pairwise(borders)]) == split_lines(body) == lines
