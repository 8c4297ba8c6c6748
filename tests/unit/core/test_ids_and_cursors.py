import base64
import contextlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.errors import InvalidRequest
from spass.core.ids import new_id
from spass.core.paging import AN_ID, decode_cursor, encode_cursor
from spass.core.time import timestamp


def test_ids_increase_and_are_unique() -> None:
    first = new_id("ses")
    time.sleep(0.002)
    later = [new_id("ses") for _ in range(1000)]
    assert all(first < other for other in later)
    assert later == sorted(set(later))
    assert {len(other) for other in later} == {len("ses_") + 26}


def test_timestamps_are_rfc_3339_in_utc_with_milliseconds() -> None:
    assert timestamp(1777536862.1239) == "2026-04-30T08:14:22.123Z"
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"


TEXT = st.text(st.characters(codec="utf-8"))


@given(scope=TEXT, position=st.from_regex(AN_ID, fullmatch=True))
def test_a_cursor_decodes_to_its_position(scope: str, position: str) -> None:
    assert decode_cursor(scope, encode_cursor(scope, position)) == position


@pytest.mark.parametrize("position", ["", "x" * 129, "x" * 1025, "ü", "a/b", "a\n", "\x00", "[" * 3000, '"x"'])
def test_a_cursor_with_a_position_that_is_not_an_id_is_refused(position: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_cursor("list", encode_cursor("list", position))


def test_a_list_can_define_the_pattern_of_its_positions() -> None:
    numbers = re.compile(r"[0-9]{1,9}")
    assert decode_cursor("list", encode_cursor("list", "17"), numbers) == "17"
    for position in ("x", "1:2", "1" * 10, "-1", "\N{ARABIC-INDIC DIGIT ONE}"):
        with pytest.raises(InvalidRequest):
            decode_cursor("list", encode_cursor("list", position), numbers)


@pytest.mark.parametrize("cursor", ["", "x", "====", "é", "AAAA", "a" * 5000, "\x00"])
def test_a_text_that_is_not_a_cursor_is_an_invalid_request(cursor: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_cursor("list", cursor)


def test_a_cursor_of_another_tenant_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        decode_cursor("other|sessions", encode_cursor("demo|sessions", "ses_1"))


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_an_invalid_request(raw: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        decode_cursor("list", raw.decode("latin-1"))
    with contextlib.suppress(InvalidRequest):
        decode_cursor("list", base64.urlsafe_b64encode(raw).decode())
