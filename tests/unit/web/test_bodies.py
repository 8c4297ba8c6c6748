"""Bodies: a body is one JSON object that can be stored and written back, or it gets a 4xx with the reason."""

import gc
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.errors import InvalidRequest, PayloadTooLarge
from spass.core.json import MAX_DEPTH
from spass.web.bodies import MAX_BODY_BYTES, dump, parse_object, read_body

pytestmark = pytest.mark.anyio

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**60), 10**60) | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(names, values, max_size=5), st.booleans())
def test_a_valid_object_is_parsed_without_a_change(value: dict[str, Any], escaped: bool) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=escaped).encode()) == value


@given(st.binary())
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    try:
        value = parse_object(body)
    except InvalidRequest:
        return
    assert json.loads(dump(value)) == value


@given(st.dictionaries(st.text(), st.text()))
def test_a_parsed_object_has_no_unpaired_surrogates(value: dict[str, str]) -> None:
    body = json.dumps(value).encode()
    try:
        parse_object(body)
    except InvalidRequest:
        with pytest.raises(UnicodeEncodeError):
            json.dumps(value, ensure_ascii=False).encode()
    else:
        json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"text"', "object"),
        (b"{", "line 1"),
        (b'{"a": 1} x', "not valid JSON"),
        (b'{"a": 1}{}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"a": 1, "a": 1}', "twice"),
        (b'{"b": [{"a": 1, "\\u0061": 2}]}', "twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 65 + b"}", "digits"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "digits"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\uDFFF": 1}', "surrogate"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "UTF-8"),
        ('{"a": "ü"}'.encode("utf-16"), "UTF-8"),
        (b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "nested"),
        (b'{"a":' * 200_000, "nested"),
        (b"[" * 1_000_000, "nested"),
        (json.dumps({str(number): 1 for number in range(1001)}).encode(), "keys"),
        (json.dumps({"a": {"b": [1] * 10_001}}).encode(), "items"),
    ],
)
def test_a_body_that_is_not_one_plain_object_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_object(body)
    assert reason in refused.value.message
    assert len(refused.value.message) < 200


def test_the_deepest_object_and_a_surrogate_pair_are_accepted() -> None:
    depth = MAX_DEPTH - 1
    assert parse_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


def test_the_time_to_parse_four_mebibytes_is_not_quadratic() -> None:
    for body in (
        b'{"a": [' + b"[]," * 1_300_000 + b"1]}",
        b'{"a": [' + b"1.5," * 1_000_000 + b"1]}",
        b'{"a": [' + b"[1.5,1.5,1.5,1.5]," * 9_000 + b"1]}",
        b'{"a": "' + b"\\u00fc" * 600_000 + b'"}',
    ):
        started = time.process_time()
        with suppress(InvalidRequest):
            parse_object(body)
        assert time.process_time() - started < 60  # the processor time of this process; a quadratic check takes an hour


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_the_checks_of_many_lists_take_less_than_ten_times_their_parsing() -> None:
    body = b'{"a":[' + b",".join([b"[" + b",".join([b"[]"] * 100) + b"]"] * 300) + b"]}"

    def seconds(parse: Callable[[bytes], object]) -> float:
        started = time.process_time()
        parse(body)
        return time.process_time() - started

    gc.disable()  # a collection takes longer than the parsing, depending on the tests that ran before
    try:
        # 4 to 6 times; checks against an abstract type took 20.
        assert min(seconds(parse_object) / seconds(json.loads) for _ in range(7)) < 10
    finally:
        gc.enable()


async def test_a_content_length_over_the_limit_is_refused_before_the_body_is_read() -> None:
    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    for content_length in (str(MAX_BODY_BYTES + 1), "9" * 5000):
        with pytest.raises(PayloadTooLarge):
            await read_body(unread(), content_length)


async def test_a_body_without_a_true_content_length_is_refused_while_it_is_read() -> None:
    half = b" " * (MAX_BODY_BYTES // 2)
    assert len(await read_body(chunks(half, half), None)) == MAX_BODY_BYTES
    with pytest.raises(PayloadTooLarge):
        await read_body(chunks(half, half, b" "), "17")


async def test_bad_bodies_get_a_4xx_over_http(client: httpx.AsyncClient) -> None:
    for body, headers, status, code in (
        (b"{", {}, 400, "invalid_request"),
        (b"", {}, 400, "invalid_request"),
        (b"[1]", {}, 400, "invalid_request"),
        (b"{}", {"Content-Type": "text/plain"}, 400, "invalid_request"),
        (b"{}", {"Content-Type": "application/x-www-form-urlencoded"}, 400, "invalid_request"),
        (b"{}", {"Content-Type": "application/json; charset=latin-1"}, 400, "invalid_request"),
        (b"{}", {"Content-Type": "application/a/b+json"}, 400, "invalid_request"),
        (b" " * (MAX_BODY_BYTES + 1), {}, 413, "payload_too_large"),
    ):
        response = await client.post("/v1/echo", content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    for headers in ({}, {"Content-Type": "application/json"}, {"Content-Type": "Application/JSON; charset=UTF-8"}):
        assert (await client.post("/v1/echo", content=b'{"a": 1}', headers=headers)).json()["keys"] == ["a"]


async def test_a_missing_token_is_reported_before_a_bad_body(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/echo", content=b"{", headers={"Authorization": ""})
    assert response.json()["error"]["code"] == "missing_token"
