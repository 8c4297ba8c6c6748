"""The parser of NDJSON."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from spass.models.errors import BackendUnavailable
from spass.models.providers.ndjson import NdjsonParser
from spass.models.providers.sse import EventTooLong


class Line(BaseModel):
    text: str


def parse(*chunks: bytes) -> list[str]:
    parser = NdjsonParser(Line)
    return [line.payload.text for line in [line for chunk in chunks for line in parser.feed(chunk)] + parser.close()]


def test_each_line_is_an_object() -> None:
    assert parse(b'{"text": "a"}\n{"text": "b"}\r\n') == ["a", "b"]


def test_blank_lines_and_a_byte_order_mark_are_skipped() -> None:
    assert parse(b'\xef\xbb\xbf{"text": "a"}\n\n \r\n{"text": "b"}\n\n') == ["a", "b"]


def test_a_line_is_returned_when_it_is_complete() -> None:
    parser = NdjsonParser(Line)
    assert parser.feed(b'{"text":') == []
    assert parser.feed(b' "a"}') == []
    assert [line.payload.text for line in parser.feed(b'\n{"text"')] == ["a"]


def test_the_end_of_the_body_completes_a_line_without_its_line_feed() -> None:
    assert parse(b'{"text": "a"}\n{"text": "b"}') == ["a", "b"]


@pytest.mark.parametrize("damaged", [b"{", b"[1]", b"null", b"Bad Gateway", b'{"text": 1}', b"[" * 100_000])
def test_a_damaged_line_does_not_hide_the_lines_before_it(damaged: bytes) -> None:
    first, second = NdjsonParser(Line).feed(b'{"text": "a"}\n' + damaged + b"\n")
    assert first.payload.text == "a"
    with pytest.raises(BackendUnavailable, match="it is not what the protocol says"):
        _ = second.payload


def test_an_endless_line_is_too_long() -> None:
    parser = NdjsonParser(Line, max_line_bytes=100)
    for _ in range(10):
        parser.feed(b'{"text": "a line that is short enough"}\n')
    with pytest.raises(EventTooLong):
        for _ in range(20):
            parser.feed(b"more and ")


@given(
    st.lists(st.text(alphabet="aé😀\u2028 :{}", max_size=6), min_size=1, max_size=5), st.lists(st.integers(0, 200), max_size=20)
)
def test_the_size_of_chunks_changes_nothing(texts: list[str], cuts: list[int]) -> None:
    body = "".join(Line(text=text).model_dump_json() + "\n" for text in texts).encode()
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert parse(*[body[start:stop] for start, stop in pairwise(borders)]) == parse(body) == texts
