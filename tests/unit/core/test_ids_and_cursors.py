import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.cursors import decode_cursor, encode_cursor
from spass.core.errors import InvalidRequest
from spass.core.ids import new_id
from spass.core.time import timestamp


def test_ids_sort_by_their_time_and_never_repeat() -> None:
    first = new_id("ses")
    time.sleep(0.002)
    later = [new_id("ses") for _ in range(1000)]
    assert all(first < other for other in later)
    assert len(set(later)) == len(later)
    assert {len(other) for other in later} == {len("ses_") + 26}


def test_timestamps_are_rfc_3339_in_utc_with_milliseconds() -> None:
    assert timestamp(1777536862.1239) == "2026-04-30T08:14:22.123Z"
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"


TEXT = st.text(st.characters(codec="utf-8"))


@given(scope=TEXT, position=TEXT)
def test_a_cursor_gives_back_its_position(scope: str, position: str) -> None:
    assert decode_cursor(scope, encode_cursor(scope, position)) == position


@pytest.mark.parametrize("cursor", ["", "x", "====", "é", "AAAA", "a" * 5000, "\x00"])
def test_what_is_no_cursor_is_an_invalid_request(cursor: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_cursor("list", cursor)


def test_a_cursor_is_useless_to_another_tenant() -> None:
    with pytest.raises(InvalidRequest):
        decode_cursor("other|sessions", encode_cursor("demo|sessions", "ses_1"))


@given(st.binary(max_size=80))
def test_no_bytes_crash_the_decoder(raw: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        decode_cursor("list", raw.decode("latin-1"))
