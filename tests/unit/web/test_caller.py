"""The caller is read from the headers: the checks, their order, and the errors."""

import re

import httpx
import pytest
from starlette.datastructures import Headers

from spass.completions.augment import Augment
from spass.core.errors import InvalidAugment
from spass.web.caller import parse_augment

pytestmark = pytest.mark.anyio

AUTH = ("Authorization", "Bearer demo-token")
SESSION = "/a1/agents/a/sessions/ses_" + "0" * 26


async def code(client: httpx.AsyncClient, method: str, path: str, headers: list[tuple[str, str]], body: bytes = b"{}") -> str:
    request = client.build_request(method, path, content=body if method == "POST" else None)
    defaults = [(name, value) for name, value in request.headers.items() if name != "authorization"]
    raw = [(name.encode(), value.encode("latin-1")) for name, value in [*defaults, *headers]]
    request.headers = httpx.Headers(raw)
    response = await client.send(request)
    assert re.fullmatch(r"req_[0-9a-z]{26}", response.headers["spass-request-id"])
    return str(response.json()["error"]["code"]) if response.is_error else "ok"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], "missing_token"),
        ([("Authorization", "")], "missing_token"),
        ([("Authorization", "Bearer")], "missing_token"),
        ([("Authorization", "Bearer  ")], "missing_token"),
        ([("Authorization", "Basic ZGVtbw==")], "missing_token"),
        ([("Authorization", "Bearer demo-token-not")], "invalid_token"),
        ([("Authorization", "Bearer demo-tokeñ")], "invalid_token"),
        ([AUTH, AUTH], "invalid_token"),
        ([("Authorization", "bEaReR demo-token")], "ok"),
    ],
)
async def test_a_request_needs_exactly_one_known_token(
    client: httpx.AsyncClient, headers: list[tuple[str, str]], expected: str
) -> None:
    assert await code(client, "GET", "/v1/pages", headers) == expected


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ([], "user_id_required"),
        ([""], "user_id_required"),
        (["ada", "ada"], "user_id_invalid"),
        (["ada, bob"], "user_id_invalid"),
        (["a" * 129], "user_id_invalid"),
        (["a/b"], "user_id_invalid"),
        (["a#b"], "user_id_invalid"),
        (["ü"], "user_id_invalid"),
        (["a\tb"], "user_id_invalid"),
        (["a" * 128], "ok"),
        (["Ada.L_1@x:y+z-0"], "ok"),
        (["demo-token"], "user_id_invalid"),
        (["AKIAIOSFODNN7EXAMPLE"], "user_id_invalid"),
    ],
)
async def test_the_user_header_is_required_on_a1_and_always_checked(
    client: httpx.AsyncClient, users: list[str], expected: str
) -> None:
    headers = [AUTH, *(("SPASS-User-Id", user) for user in users)]
    assert await code(client, "GET", SESSION, headers) == expected
    on_v1 = "ok" if not users else expected.replace("user_id_required", "user_id_invalid")
    assert await code(client, "GET", "/v1/pages", headers) == on_v1


async def test_user_id_in_a_body_or_query_of_a1_is_refused(client: httpx.AsyncClient) -> None:
    headers = [AUTH, ("SPASS-User-Id", "ada")]
    refused = "user_id_not_allowed"
    assert await code(client, "GET", SESSION + "?user_id=", headers) == refused
    assert await code(client, "GET", SESSION + "?user_id=ada", headers) == refused
    for value in (b'"ada"', b"null", b"[]"):
        assert await code(client, "POST", "/a1/echo", headers, b'{"user_id": ' + value + b"}") == refused
    assert await code(client, "POST", "/v1/echo", headers, b'{"user_id": "ada"}') == "ok"
    request = client.build_request("DELETE", SESSION, headers=headers, content=b'{"user_id": 1}')
    assert (await client.send(request)).json()["error"]["code"] == refused


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("SPASS-Caller-Depth", ["0"], "ok"),
        ("SPASS-Caller-Depth", ["2"], "ok"),
        ("SPASS-Caller-Depth", ["3"], "recursion_depth_exceeded"),
        ("SPASS-Caller-Depth", ["999999999"], "recursion_depth_exceeded"),
        ("SPASS-Caller-Depth", ["-1"], "invalid_request"),
        ("SPASS-Caller-Depth", ["1.0"], "invalid_request"),
        ("SPASS-Caller-Depth", [""], "invalid_request"),
        ("SPASS-Caller-Depth", ["²"], "invalid_request"),
        ("SPASS-Caller-Depth", ["9" * 6000], "invalid_request"),
        ("SPASS-Caller-Depth", ["0", "0"], "invalid_request"),
        ("SPASS-Parent-Request-Id", ["req_1"], "ok"),
        ("SPASS-Parent-Request-Id", ["a b"], "invalid_request"),
        ("SPASS-Parent-Request-Id", ["x" * 129], "invalid_request"),
        ("SPASS-Parent-Request-Id", ["a", "b"], "invalid_request"),
        ("SPASS-Parent-Request-Id", ["demo-token"], "invalid_request"),
        ("SPASS-Parent-Request-Id", ["sk-proj-" + "a1B2" * 12], "invalid_request"),
        ("Idempotency-Key", ["x" * 255], "ok"),
        ("Idempotency-Key", ["x" * 256], "invalid_request"),
        ("Idempotency-Key", [""], "invalid_request"),
        ("Idempotency-Key", ["ü"], "invalid_request"),
        ("Idempotency-Key", ["a", "a"], "invalid_request"),
    ],
)
async def test_depth_parent_and_idempotency_key_are_checked(
    client: httpx.AsyncClient, name: str, values: list[str], expected: str
) -> None:
    assert await code(client, "POST", "/v1/echo", [AUTH, *((name, value) for value in values)]) == expected


async def test_of_several_faults_the_first_in_the_documented_order_is_reported(client: httpx.AsyncClient) -> None:
    order = [
        ([], "missing_token"),
        ([AUTH], "user_id_required"),
        ([AUTH, ("SPASS-User-Id", "ada")], "recursion_depth_exceeded"),
    ]
    faults = [("SPASS-Caller-Depth", "7"), ("Idempotency-Key", "")]
    for headers, expected in order:
        assert await code(client, "POST", "/a1/echo", [*headers, *faults], b"{") == expected
    assert await code(client, "PUT", "/a1/echo", faults) == "method_not_allowed"


async def test_idempotency_keys_of_different_users_are_different(client: httpx.AsyncClient) -> None:
    async def digest(key: str, **headers: str) -> str:
        response = await client.post("/v1/echo", json={}, headers={"Idempotency-Key": key, **headers})
        return str(response.json()["idempotent"])

    assert await digest("k") == await digest("k")
    assert len({await digest("k"), await digest("l"), await digest("k", **{"SPASS-User-Id": "ada"})}) == 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Augment()),
        ([""], Augment()),
        (["memory=off"], Augment(memory=False)),
        (["server-tools=off, system-prompt=off,memory=off"], Augment(False, False, False)),
        (["server-tools=off", "memory=off"], Augment(server_tools=False, memory=False)),
        ([" Server-Tools = OFF "], Augment(server_tools=False)),
    ],
)
def test_each_part_of_the_augmentation_can_be_switched_off(values: list[str], expected: Augment) -> None:
    assert parse_augment(Headers(raw=[(b"spass-augment", value.encode()) for value in values])) == expected


@pytest.mark.parametrize("value", ["memory", "memory=", "memory=on", "memory=0", "tools=off", "=off", "memory=off;x=off"])
def test_an_unknown_augmentation_is_refused(value: str) -> None:
    with pytest.raises(InvalidAugment):
        parse_augment(Headers(raw=[(b"spass-augment", value.encode())]))
