"""Bodies: one JSON object that every floor can store and write back, or a 4xx that says why."""

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
from spass.web.json import MAX_BODY_BYTES, dump, parse_object, read_body

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values), st.booleans())
def test_every_object_comes_through_as_it_is(value: dict[str, Any], escaped: bool) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=escaped).encode()) == value


@given(st.binary())
def test_no_bytes_do_worse_than_being_refused(body: bytes) -> None:
    try:
        value = parse_object(body)
    except InvalidRequest:
        return
    assert json.loads(dump(value)) == value


@given(st.dictionaries(st.text(), st.text()))
def test_half_characters_never_come_in(value: dict[str, str]) -> None:
    body = json.dumps(value).encode()
    try:
        parse_object(body)
    except InvalidRequest:
        with pytest.raises(UnicodeEncodeError):
            json.dumps(value, ensure_ascii=False).encode()
    else:
        json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("body", "says"),
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
def test_what_is_not_one_plain_object_is_refused_with_the_reason(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_object(body)
    assert says in refused.value.message
    assert len(refused.value.message) < 200


def test_an_object_may_be_as_deep_as_the_limit_and_hold_a_whole_surrogate_pair() -> None:
    depth = MAX_DEPTH - 1
    assert parse_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


def test_four_mebibytes_are_parsed_in_a_time_that_grows_as_they_do() -> None:
    for body in (
        b'{"a": [' + b"[]," * 1_300_000 + b"1]}",
        b'{"a": [' + b"1.5," * 1_000_000 + b"1]}",
        b'{"a": [' + b"[1.5,1.5,1.5,1.5]," * 9_000 + b"1]}",
        b'{"a": "' + b"\\u00fc" * 600_000 + b'"}',
    ):
        started = time.process_time()
        with suppress(InvalidRequest):
            parse_object(body)
        assert time.process_time() - started < 60  # of this process alone: what grows with the square takes an hour


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_the_checks_of_many_lists_take_no_longer_than_a_few_parsings() -> None:
    body = b'{"a":[' + b",".join([b"[" + b",".join([b"[]"] * 100) + b"]"] * 300) + b"]}"

    def seconds(parse: Callable[[bytes], object]) -> float:
        started = time.process_time()
        parse(body)
        return time.process_time() - started

    # 4 to 6 times; checks against an abstract type took 20.
    assert min(seconds(parse_object) for _ in range(7)) < 10 * min(seconds(json.loads) for _ in range(7))


@pytest.mark.anyio
async def test_a_body_over_the_limit_is_refused_by_what_it_says_before_it_is_read() -> None:
    read: list[bytes] = []

    async def watched() -> AsyncIterator[bytes]:
        read.append(b"")
        yield b""

    for said in (str(MAX_BODY_BYTES + 1), "9" * 5000):
        with pytest.raises(PayloadTooLarge):
            await read_body(watched(), said)
    assert read == []


@pytest.mark.anyio
async def test_a_body_that_does_not_say_its_size_is_refused_while_it_is_read() -> None:
    half = b" " * (MAX_BODY_BYTES // 2)
    assert len(await read_body(chunks(half, half), None)) == MAX_BODY_BYTES
    with pytest.raises(PayloadTooLarge):
        await read_body(chunks(half, half, b" "), "17")


@pytest.mark.anyio
async def test_bodies_are_refused_over_http_as_well(client: httpx.AsyncClient) -> None:
    for body, headers, status, code in (
        (b"{", {}, 400, "invalid_request"),
        (b"", {}, 400, "invalid_request"),
        (b"[1]", {}, 400, "invalid_request"),
        (b"{}", {"Content-Type": "text/plain"}, 400, "invalid_request"),
        (b"{}", {"Content-Type": "application/x-www-form-urlencoded"}, 400, "invalid_request"),
        (b"{}", {"Content-Type": "application/json; charset=latin-1"}, 400, "invalid_request"),
        (b" " * (MAX_BODY_BYTES + 1), {}, 413, "payload_too_large"),
    ):
        response = await client.post("/v1/echo", content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    for good in ({}, {"Content-Type": "application/json"}, {"Content-Type": "Application/JSON; charset=UTF-8"}):
        assert (await client.post("/v1/echo", content=b'{"a": 1}', headers=good)).json()["keys"] == ["a"]


@pytest.mark.anyio
async def test_whoever_is_not_known_hears_that_first_whatever_they_send(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/echo", content=b"{", headers={"Authorization": ""})
    assert response.json()["error"]["code"] == "missing_token"
