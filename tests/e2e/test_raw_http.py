"""Send requests that HTTP clients would refuse to a running gateway: it refuses or disconnects, and no stored state changes."""

import socket
import threading
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.conftest import Gateway
from tests.e2e.malformed_requests import TOKEN
from tests.e2e.raw_http import Answer, assert_sound, exchange, request_bytes

USER: Final = b"raw"
SESSIONS: Final = b"/a1/agents/concise-de/sessions"
DOCUMENTS: Final = b"/a1/rag/indices/raw/documents"
AUTHORIZED: Final = [(b"Authorization", b"Bearer " + TOKEN.encode())]
CALLER: Final = [*AUTHORIZED, (b"SPASS-User-Id", USER)]
MIB: Final = 1024 * 1024

GET_SESSIONS: Final = b"GET " + SESSIONS + b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
POST_SESSION: Final = GET_SESSIONS.replace(b"GET", b"POST", 1) + b"SPASS-User-Id: " + USER + b"\r\n"


@pytest.fixture(autouse=True)
def nothing_changes(gateway: Gateway) -> Iterator[None]:
    """Assert that the gateway still answers after each test, with the same sessions and indexes as before."""
    before = _state(gateway)
    yield
    assert _state(gateway) == before


def _state(gateway: Gateway) -> tuple[object, object]:
    with gateway.client(TOKEN, USER.decode()) as client:
        sessions = client.get(SESSIONS.decode()).raise_for_status().json()
        return sessions, client.get("/a1/rag/indices").raise_for_status().json()


def _expect_refusal(gateway: Gateway, data: bytes, *, finish: bool = False) -> Answer | None:
    """Send ``data`` and return the answer, which must be a 4xx with the error envelope, or None if the gateway disconnected."""
    answer = exchange(gateway.url, data, finish=finish)
    if answer is not None:
        assert 400 <= answer.status < 500
        assert TOKEN.encode() not in answer.body
        assert answer.header("X-Injected") is None
        assert_sound(answer, secrets=[TOKEN, str(gateway.home)], successes=[])
    return answer


def _code(answer: Answer | None) -> object:
    assert answer is not None
    return answer.status, answer.json()["error"]["code"]


@pytest.mark.parametrize("second", [USER, b"ada", b""])
def test_two_user_headers_are_refused(gateway: Gateway, second: bytes) -> None:
    headers = [*CALLER, (b"spass-user-id", second)]
    assert _code(_expect_refusal(gateway, request_bytes(b"POST", SESSIONS, headers, b"{}"))) == (400, "user_id_invalid")


def test_two_authorization_headers_are_refused(gateway: Gateway) -> None:
    headers = [*CALLER, (b"authorization", b"Bearer demo-token")]
    assert _code(_expect_refusal(gateway, request_bytes(b"POST", SESSIONS, headers, b"{}"))) == (401, "invalid_token")


@pytest.mark.parametrize("name", [b"Idempotency-Key", b"SPASS-Caller-Depth", b"SPASS-Parent-Request-Id"])
def test_a_header_that_is_sent_twice_is_refused(gateway: Gateway, name: bytes) -> None:
    headers = [*CALLER, (name, b"1"), (name, b"1")]
    assert _code(_expect_refusal(gateway, request_bytes(b"POST", SESSIONS, headers, b"{}"))) == (400, "invalid_request")


@pytest.mark.parametrize(
    "line",
    [
        b"SPASS-User-Id: ada\rX-Injected: 1",
        b"SPASS-User-Id: ada\x00bob",
        b"SPASS-User-Id: ada\x0bbob",
        b"SPASS-User-Id: ada%0d%0aX-Injected: 1",
        b"SPASS-User-Id: ada\r\n bob",
        b"SPASS-User-Id: ada\r\n\tbob",
        b" SPASS-User-Id: ada",
        b"SPASS-User-Id : ada",
        b"SPASS User Id: ada",
        b"SPASS-User-Id",
        b": ada",
        b"SPASS-User-Id: \xc3\xa4da",
        b"SPASS_User_Id: ada",
    ],
)
def test_a_malformed_header_line_does_not_set_the_user(gateway: Gateway, line: bytes) -> None:
    _expect_refusal(gateway, GET_SESSIONS + line + b"\r\nContent-Length: 2\r\n\r\n{}")


def test_a_bare_newline_ends_only_the_header_line(gateway: Gateway) -> None:
    """RFC 9112, section 2.2, allows this. The next line must become another header of the request, not of the answer."""
    answer = exchange(gateway.url, GET_SESSIONS + b"SPASS-User-Id: " + USER + b"\nX-Injected: 1\r\n\r\n")
    assert answer is not None
    assert_sound(answer, secrets=[TOKEN], successes=[200])
    assert answer.header("X-Injected") is None


@pytest.mark.parametrize(
    "target",
    [
        b"/a1/agents/%/sessions",
        b"/a1/agents/%zz/sessions",
        b"/a1/agents/%c3%28/sessions",
        b"/a1/agents/%ed%a0%80/sessions",
        b"/a1/agents/concise-de%00/sessions",
        b"/a1/agents/concise-de%0d%0aX-Injected:%201/sessions",
        b"/a1/agents/concise-de%2fsessions",
        b"/a1/agents/../agents/concise-de/sessions",
        b"/a1//agents/concise-de/sessions",
        b"//a1/agents/concise-de/sessions",
        b"/a1/agents/concise-de/sessions/",
        b"/a1/agents/concise-de/sessions;v=1",
        b"/a1/agents/\xff/sessions",
        b"/a1/agents/concise-de/sessions HTTP/1.1\r\nX-Injected: 1\r\nX:",
        b"a1/agents/concise-de/sessions",
        b"*",
        b"",
        b"gateway:443",
        b"/" + b"a" * 100_000,
    ],
)
def test_an_invalid_target_does_not_create_a_session(gateway: Gateway, target: bytes) -> None:
    _expect_refusal(gateway, request_bytes(b"POST", target, CALLER, b'{"title":1}'))


def test_invalid_encodings_in_a_query_are_refused(gateway: Gateway) -> None:
    for query in (b"?limit=%", b"?cursor=%ff", b"?cursor=%00", b"?limit=%zz&cursor=%c3%28"):
        assert _code(_expect_refusal(gateway, request_bytes(b"GET", SESSIONS + query, CALLER))) == (400, "invalid_request")


@pytest.mark.parametrize("size", [10_241, 20_000, 60_000, MIB])
def test_headers_larger_than_the_limit_of_api_gateway_are_refused(gateway: Gateway, size: int) -> None:
    one_large_header = _expect_refusal(gateway, request_bytes(b"POST", SESSIONS, [*CALLER, (b"X-Padding", b"x" * size)], b"{}"))
    headers = [(b"X-%d" % number, b"x" * 100) for number in range(size // 100)]
    many_headers = _expect_refusal(gateway, request_bytes(b"POST", SESSIONS, [*CALLER, *headers], b"{}"))
    if size < 60_000:  # the HTTP server closes the connection when headers are larger
        assert _code(one_large_header) == _code(many_headers) == (413, "payload_too_large")


@pytest.mark.parametrize("announced", [5 * MIB, 10**30])
def test_a_body_with_a_content_length_over_the_limit_is_refused(gateway: Gateway, announced: int) -> None:
    data = POST_SESSION + b"Content-Length: %d\r\n\r\n{}" % announced
    _expect_refusal(gateway, data, finish=True)


def test_a_chunked_body_over_four_mebibytes_is_refused(gateway: Gateway) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    data = POST_SESSION + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 65 + b"2\r\n{}\r\n0\r\n\r\n"
    assert _code(_expect_refusal(gateway, data)) == (413, "payload_too_large")


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 100\r\n\r\n{}",
        b"Content-Length: -1\r\n\r\n{}",
        b"Content-Length: +2\r\n\r\n{}",
        b"Content-Length: 0x2\r\n\r\n{}",
        b"Content-Length: two\r\n\r\n{}",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        b"Content-Length: 2, 3\r\n\r\n{} ",
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}123\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n{}",
        b"Transfer-Encoding: chunked, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: gzip\r\n\r\n{}",
        b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_a_body_with_wrong_framing_is_refused(gateway: Gateway, framing: bytes) -> None:
    _expect_refusal(gateway, POST_SESSION + framing, finish=True)


def test_a_content_length_that_is_too_short_does_not_smuggle_a_second_request(gateway: Gateway) -> None:
    hidden = POST_SESSION + b"Content-Length: 2\r\n\r\n{}"
    answer = _expect_refusal(gateway, POST_SESSION + b"Content-Length: 1\r\n\r\n{" + b"}" + hidden)
    assert _code(answer) == (400, "invalid_request")


@pytest.mark.parametrize(
    "data",
    [
        b"POST " + SESSIONS + b" HTTP/1.1\r\n\r\n",
        b"POST " + SESSIONS + b" HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST " + SESSIONS + b" HTTP/1.0\r\n\r\n",
        b"POST " + SESSIONS + b" HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"POST " + SESSIONS + b"\r\n\r\n",
        b"POST  " + SESSIONS + b"  HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"\r\n" * 50,
        b"\x00" * 1000,
        b"{}",
        b"",
    ],
    ids=range(12),
)
def test_bytes_that_are_not_a_valid_request_are_refused_or_cut_off(gateway: Gateway, data: bytes) -> None:
    _expect_refusal(gateway, data, finish=True)


@pytest.mark.parametrize(
    "data",
    [
        GET_SESSIONS + b"X-Odd: a\x00b\r\n\r\n",
        GET_SESSIONS + b"X-Odd: a\rb\r\n\r\n",
        POST_SESSION + b"Content-Length: two\r\n\r\n{}",
        b"GET  / nonsense\r\n\r\n",
    ],
)
def test_requests_that_the_http_server_refuses_get_the_error_envelope(gateway: Gateway, data: bytes) -> None:
    assert _code(_expect_refusal(gateway, data, finish=True)) == (400, "invalid_request")


def test_a_header_that_does_not_end_is_cut_off(gateway: Gateway) -> None:
    """The client keeps the connection open. If the server waited for the end of the header, the test would time out."""
    _expect_refusal(gateway, GET_SESSIONS + b"X-Endless: " + b"x" * MIB)


def test_a_request_keeps_its_own_answer_when_garbage_follows_it(gateway: Gateway) -> None:
    answer = exchange(gateway.url, GET_SESSIONS + b"SPASS-User-Id: " + USER + b"\r\n\r\n" + b"\x00 no request\r\n\r\n")
    assert answer is not None
    assert_sound(answer, secrets=[TOKEN], successes=[200])
    assert answer.status == 200


def test_a_websocket_upgrade_is_refused(gateway: Gateway) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c3Bhc3M=\r\n\r\n"
    assert _code(_expect_refusal(gateway, b"GET /ws HTTP/1.1\r\nHost: localhost\r\n" + upgrade, finish=True)) == (
        404,
        "route_not_found",
    )


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
def test_a_request_without_a_host_is_refused(gateway: Gateway, version: bytes) -> None:
    head = GET_SESSIONS.replace(b"HTTP/1.1\r\nHost: localhost", version)
    refused = _expect_refusal(gateway, head + b"SPASS-User-Id: " + USER + b"\r\n\r\n")
    assert _code(refused) == (400, "invalid_request")


def test_an_http_1_0_request_is_served(gateway: Gateway) -> None:
    head = GET_SESSIONS.replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = exchange(gateway.url, head + b"SPASS-User-Id: " + USER + b"\r\n\r\n")
    assert answer is not None
    assert_sound(answer, secrets=[TOKEN], successes=[200])
    assert _code(_expect_refusal(gateway, head + b"\r\n")) == (400, "user_id_required")


def test_clients_that_send_incomplete_requests_do_not_delay_others(gateway: Gateway) -> None:
    url = urlsplit(gateway.url)
    connections = [socket.create_connection((url.hostname or "", url.port or 80), timeout=10) for _ in range(100)]
    try:
        for number, connection in enumerate(connections):
            connection.sendall(POST_SESSION[: number + 1])
        assert exchange(gateway.url, request_bytes(b"GET", b"/healthz", [])) is not None
    finally:
        for connection in connections:
            connection.close()


def test_clients_that_leave_in_the_middle_of_a_body_change_nothing(gateway: Gateway) -> None:
    url = urlsplit(gateway.url)

    def send_part(missing_bytes: int) -> None:
        with socket.create_connection((url.hostname or "", url.port or 80), timeout=10) as connection:
            body = b'{"documents":[{"id":"a","text":"' + b"x" * 5000 + b'","metadata":{}}]}'
            data = request_bytes(b"POST", DOCUMENTS, CALLER, body)
            connection.sendall(data[: len(data) - missing_bytes])

    threads = [threading.Thread(target=send_part, args=[missing_bytes]) for missing_bytes in (1, 2, 100, 4000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert exchange(gateway.url, request_bytes(b"GET", b"/healthz", [])) is not None


def test_head_is_answered_without_a_body_and_the_connection_stays_open(gateway: Gateway) -> None:
    url = urlsplit(gateway.url)
    with socket.create_connection((url.hostname or "", url.port or 80), timeout=10) as connection:
        head = b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(head + head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        data = b""
        while piece := connection.recv(65536):
            data += piece
    first, second, rest = data.split(b"\r\n\r\n")
    assert rest == b""
    length = len(httpx.get(f"{gateway.url}/healthz", trust_env=False).content)
    for answer in (first, second):
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-length: %d\r\n" % length in answer.lower()


@pytest.mark.parametrize("target", [b"/a1/agents/concise-de/sessions/", b"//a1/agents/concise-de/sessions"])
def test_extra_slashes_around_a_path_are_ignored(gateway: Gateway, target: bytes) -> None:
    answer = exchange(gateway.url, request_bytes(b"GET", target, CALLER))
    assert answer is not None
    assert_sound(answer, secrets=[TOKEN], successes=[200])


@pytest.mark.parametrize(
    ("target", "use"),
    [
        (b"/v1/responses", "POST /v1/chat/completions"),
        (b"/v1/completions", "POST /v1/chat/completions"),
        (b"/v1/messages", "POST /v1/chat/completions"),
        (b"/chat/completions", "POST /v1/chat/completions"),
        (b"/models", "GET /v1/models"),
        (b"/v1//models", "/v1/models"),
    ],
)
def test_the_error_for_a_commonly_confused_path_names_the_route_to_use(gateway: Gateway, target: bytes, use: str) -> None:
    answer = _expect_refusal(gateway, request_bytes(b"POST", target, AUTHORIZED, b"{}"))
    assert _code(answer) == (404, "route_not_found")
    assert answer is not None
    assert f"Use {use}." in answer.json()["error"]["message"]
