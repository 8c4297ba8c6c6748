"""Test that a page fits into a Lambda response, whatever text it contains."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core import paging as pages
from spass.core.paging import PAGE_BYTES, PAGE_EVENT_BYTES, PageSizeLimit, event_bytes

LAMBDA_BYTES = 6 * 1024 * 1024


def as_json_string(text: str) -> int:
    """Return the JSON string that Lambda's runtime writes (https://github.com/aws/aws-lambda-python-runtime-interface-client)."""
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2


@given(st.text(st.characters(codec="utf-8")))
def test_event_bytes_is_the_size_of_the_json_string(text: str) -> None:
    assert event_bytes(text.encode()) == as_json_string(text) + sum(text.count(short) for short in "\b\f") * 4


@given(st.binary(), st.binary())
def test_the_size_of_a_text_is_the_sum_of_its_pieces(one: bytes, other: bytes) -> None:
    assert event_bytes(one + other) == event_bytes(one) + event_bytes(other)


@pytest.mark.parametrize("text", ["plain text ", '{"k": "v"}\n', "größe ", "\x01\\"])
def test_a_full_page_fits_into_a_lambda_response_and_is_nearly_full(text: str) -> None:
    entry = json.dumps({"content": text * (20_000 // len(text))}, ensure_ascii=False)
    room, taken = PageSizeLimit(), 0
    while room.add(entry.encode()):
        taken += 1
    page = json.dumps({"entries": [json.loads(entry)] * taken, "next_cursor": "x" * 100}, ensure_ascii=False)
    assert len(page.encode()) <= PAGE_BYTES
    assert as_json_string(page) < LAMBDA_BYTES - 10_240
    more = entry * (taken + 2)
    assert len(more.encode()) > PAGE_BYTES or as_json_string(more) > PAGE_EVENT_BYTES


def test_the_overhead_of_each_entry_counts() -> None:
    room, taken, entry = PageSizeLimit(entry_overhead=b"y" * 100), 0, b"x" * 100
    while room.add(entry):
        taken += 1
    assert taken * 201 <= PAGE_BYTES < (taken + 10) * 201


def test_the_first_entry_always_fits_but_nothing_fits_after_a_too_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 1024 + 12)
    room = PageSizeLimit()
    assert room.add(b"x" * 13)
    assert not room.add(b"")
    room = PageSizeLimit()
    assert [room.add(b"x" * 5) for _ in range(3)] == [True, True, False]
