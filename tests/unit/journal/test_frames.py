"""Test frames and the ids of events."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.ids import SessionId, TenantId
from spass.journal.frames import MAX_CHUNK_BYTES, Chunk, EventId, Frame, split
from spass.store import keys
from spass.store.writes import Put
from spass.testing.table import ITEM_BYTES, MemoryTable
from tests.unit.journal.conftest import DIGEST, token


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


LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=8)
EVENTS = st.none() | st.sampled_from(["", "token", "done"])
# Few prefixes and suffixes, so that there are runs.
TOKENS = st.builds(Frame, LINES, st.sampled_from(["<", '{"text":"']), st.sampled_from(["", ">"]), EVENTS)
FRAMES = st.lists(TOKENS | st.builds(Frame, LINES, event=EVENTS), max_size=30)


def store_and_read(chunk: Chunk) -> Chunk:
    table = MemoryTable(lambda: 0.0)
    key = keys.stream_chunk(TenantId("demo"), SessionId("ses_a"), DIGEST, 3, chunk.first)
    table.write(write=Put(key, chunk.attributes(2_000_000_000)))
    item = table.get(key=key, consistent=True).value
    assert item is not None
    return Chunk.of(item)


@given(FRAMES, st.integers(1, 10**9), st.booleans())
def test_a_chunk_is_read_as_it_was_written(frames: Sequence[Frame], first: int, is_last: bool) -> None:
    chunk = Chunk(first, frames, is_last)
    assert store_and_read(chunk) == chunk


def test_half_of_a_surrogate_pair_is_stored_as_it_is_sent() -> None:
    frames = [Frame("\ud83d", "<"), Frame("a\udc00b", event="\ud800")]
    assert store_and_read(Chunk(1, frames)).frames == [Frame("?", "<"), Frame("a?b", event="?")]


@given(st.lists(st.sampled_from([1, 1_000, 90_000, 299_000, 350_000]), max_size=12), st.booleans())
def test_frames_are_split_into_parts_that_fit_in_items(sizes: Sequence[int], is_token: bool) -> None:
    frames = [Frame('"' * size, "{" if is_token else "") for size in sizes]
    parts = list(split(frames))
    assert all(parts)
    assert [frame for part in parts for frame in part] == frames
    assert all(store_and_read(Chunk(1, part)).frames == list(part) for part in parts)
    assert all(len(part) == 1 or sum(len(frame.data) for frame in part) <= MAX_CHUNK_BYTES < ITEM_BYTES for part in parts)
    assert all(
        sum(len(frame.data) for frame in [*part, following[0]]) > 0.9 * MAX_CHUNK_BYTES for part, following in pairwise(parts)
    )


def test_the_size_of_a_part_is_in_bytes() -> None:
    assert [len(part) for part in split([Frame("ß" * 100_000)] * 2)] == [1, 1]
    assert [len(part) for part in split([Frame("s" * 100_000)] * 2)] == [2]


@pytest.mark.parametrize("text", [" word", "ß", '\\"'])
def test_a_second_of_50_tokens_is_one_write_unit(text: str) -> None:
    table = MemoryTable(lambda: 0.0)
    key = keys.stream_chunk(TenantId("a-tenant-with-a-name"), SessionId("ses_01k9aaaaaaaaaaaaaaaaaaaaaa"), DIGEST, 1, 12_345)
    chunk = Chunk(12_345, [token(text)] * 50)
    assert table.write(write=Put(key, chunk.attributes(2_000_000_000))).capacity_units == 1.0
