"""What HTTP clients refuse to send, put on the socket of a started gateway: it is refused or cut off, and nothing changes."""

import socket
import threading
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

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

GET_SESSIONS: Final = b"GET " + SESSIONS + b" HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
POST_SESSION: Final = GET_SESSIONS.replace(b"GET", b"POST", 1) + b"SPASS-User-Id: " + USER + b"\r\n"


@pytest.fixture(autouse=True)
def nothing_changes(gateway: Gateway) -> Iterator[None]:
    """Before and after each case: the same sessions and indexes, and a gateway that serves."""
    before = _state(gateway)
    yield
    assert _state(gateway) == before


def _state(gateway: Gateway) -> tuple[object, object]:
    with gateway.client(TOKEN, USER.decode()) as client:
        sessions = client.get(SESSIONS.decode()).raise_for_status().json()
        return sessions, client.get("/a1/rag/indices").raise_for_status().json()


def _refused(gateway: Gateway, data: bytes, *, finish: bool = False) -> Answer | None:
    """The answer to ``data``: a 4xx in the envelope, or none at all."""
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
def test_two_users_are_one_too_many(gateway: Gateway, second: bytes) -> None:
    headers = [*CALLER, (b"spass-user-id", second)]
    assert _code(_refused(gateway, request_bytes(b"POST", SESSIONS, headers, b"{}"))) == (400, "user_id_invalid")


def test_two_tokens_are_one_too_many(gateway: Gateway) -> None:
    headers = [*CALLER, (b"authorization", b"Bearer demo-token")]
    assert _code(_refused(gateway, request_bytes(b"POST", SESSIONS, headers, b"{}"))) == (401, "invalid_token")


@pytest.mark.parametrize("name", [b"Idempotency-Key", b"SPASS-Caller-Depth", b"SPASS-Parent-Request-Id"])
def test_a_header_that_is_sent_twice_is_refused(gateway: Gateway, name: bytes) -> None:
    headers = [*CALLER, (name, b"1"), (name, b"1")]
    assert _code(_refused(gateway, request_bytes(b"POST", SESSIONS, headers, b"{}"))) == (400, "invalid_request")


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
def test_a_header_line_that_is_none_never_becomes_a_user(gateway: Gateway, line: bytes) -> None:
    _refused(gateway, GET_SESSIONS + line + b"\r\nContent-Length: 2\r\n\r\n{}")


def test_a_bare_newline_ends_a_header_line_and_no_more(gateway: Gateway) -> None:
    """RFC 9112, 2.2, lets a server take it for the end of a line. What follows is the next header of the request."""
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
def test_a_target_that_is_not_quite_a_path_makes_no_session(gateway: Gateway, target: bytes) -> None:
    _refused(gateway, request_bytes(b"POST", target, CALLER, b'{"title":1}'))


def test_bad_encodings_in_a_query_are_refused(gateway: Gateway) -> None:
    for query in (b"?limit=%", b"?cursor=%ff", b"?cursor=%00", b"?limit=%zz&cursor=%c3%28"):
        assert _code(_refused(gateway, request_bytes(b"GET", SESSIONS + query, CALLER))) == (400, "invalid_request")


@pytest.mark.parametrize("size", [10_241, 20_000, 60_000, MIB])
def test_headers_over_what_the_front_door_takes_are_refused(gateway: Gateway, size: int) -> None:
    one = _refused(gateway, request_bytes(b"POST", SESSIONS, [*CALLER, (b"X-Padding", b"x" * size)], b"{}"))
    many = [(b"X-%d" % number, b"x" * 100) for number in range(size // 100)]
    several = _refused(gateway, request_bytes(b"POST", SESSIONS, [*CALLER, *many], b"{}"))
    if size < 60_000:  # beyond it the HTTP server itself gives up
        assert _code(one) == _code(several) == (413, "payload_too_large")


@pytest.mark.parametrize("announced", [5 * MIB, 10**30])
def test_a_body_that_is_announced_as_too_large_is_refused(gateway: Gateway, announced: int) -> None:
    data = POST_SESSION + b"Content-Length: %d\r\n\r\n{}" % announced
    _refused(gateway, data, finish=True)


def test_a_chunked_body_over_four_mebibytes_is_refused(gateway: Gateway) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    data = POST_SESSION + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 65 + b"2\r\n{}\r\n0\r\n\r\n"
    assert _code(_refused(gateway, data)) == (413, "payload_too_large")


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
def test_a_body_that_lies_about_its_length_is_not_carried_out(gateway: Gateway, framing: bytes) -> None:
    _refused(gateway, POST_SESSION + framing, finish=True)


def test_a_content_length_that_is_too_short_smuggles_no_second_request(gateway: Gateway) -> None:
    hidden = POST_SESSION + b"Content-Length: 2\r\n\r\n{}"
    answer = _refused(gateway, POST_SESSION + b"Content-Length: 1\r\n\r\n{" + b"}" + hidden)
    assert _code(answer) == (400, "invalid_request")


@pytest.mark.parametrize(
    "data",
    [
        b"POST " + SESSIONS + b" HTTP/1.1\r\n\r\n",
        b"POST " + SESSIONS + b" HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST " + SESSIONS + b" HTTP/1.0\r\n\r\n",
        b"POST " + SESSIONS + b" HTTP/2.0\r\nHost: gateway\r\n\r\n",
        b"POST " + SESSIONS + b"\r\n\r\n",
        b"POST  " + SESSIONS + b"  HTTP/1.1\r\nHost: gateway\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"\r\n" * 50,
        b"\x00" * 1000,
        b"{}",
        b"",
    ],
    ids=range(12),
)
def test_what_is_no_request_of_ours_is_refused_or_cut_off(gateway: Gateway, data: bytes) -> None:
    _refused(gateway, data, finish=True)


@pytest.mark.parametrize(
    "data",
    [
        GET_SESSIONS + b"X-Odd: a\x00b\r\n\r\n",
        GET_SESSIONS + b"X-Odd: a\rb\r\n\r\n",
        POST_SESSION + b"Content-Length: two\r\n\r\n{}",
        b"GET  / nonsense\r\n\r\n",
    ],
)
def test_what_the_http_server_itself_refuses_has_the_envelope_too(gateway: Gateway, data: bytes) -> None:
    assert _code(_refused(gateway, data, finish=True)) == (400, "invalid_request")


def test_a_header_that_does_not_end_is_cut_off(gateway: Gateway) -> None:
    """The connection stays open, so a server that reads on would let the client wait for an answer."""
    _refused(gateway, GET_SESSIONS + b"X-Endless: " + b"x" * MIB)


def test_a_request_keeps_its_own_answer_when_garbage_follows_it(gateway: Gateway) -> None:
    answer = exchange(gateway.url, GET_SESSIONS + b"SPASS-User-Id: " + USER + b"\r\n\r\n" + b"\x00 no request\r\n\r\n")
    assert answer is not None
    assert_sound(answer, secrets=[TOKEN], successes=[200])
    assert answer.status == 200


def test_there_is_no_websocket_here(gateway: Gateway) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: c3Bhc3M=\r\n\r\n"
    assert _code(_refused(gateway, b"GET /ws HTTP/1.1\r\nHost: gateway\r\n" + upgrade, finish=True)) == (404, "route_not_found")


def test_http_1_0_without_a_host_is_served_like_any_other(gateway: Gateway) -> None:
    head = GET_SESSIONS.replace(b"HTTP/1.1\r\nHost: gateway", b"HTTP/1.0")
    answer = exchange(gateway.url, head + b"SPASS-User-Id: " + USER + b"\r\n\r\n")
    assert answer is not None
    assert_sound(answer, secrets=[TOKEN], successes=[200])
    assert _code(_refused(gateway, head + b"\r\n")) == (400, "user_id_required")


def test_clients_that_send_a_byte_and_wait_keep_nobody_else_waiting(gateway: Gateway) -> None:
    where = urlsplit(gateway.url)
    waiting = [socket.create_connection((where.hostname or "", where.port or 80), timeout=10) for _ in range(100)]
    try:
        for number, connection in enumerate(waiting):
            connection.sendall(POST_SESSION[: number + 1])
        assert exchange(gateway.url, request_bytes(b"GET", b"/healthz", [])) is not None
    finally:
        for connection in waiting:
            connection.close()


def test_clients_that_leave_in_the_middle_of_a_body_change_nothing(gateway: Gateway) -> None:
    where = urlsplit(gateway.url)

    def leave(sent: int) -> None:
        with socket.create_connection((where.hostname or "", where.port or 80), timeout=10) as connection:
            body = b'{"documents":[{"id":"a","text":"' + b"x" * 5000 + b'","metadata":{}}]}'
            whole = request_bytes(b"POST", DOCUMENTS, CALLER, body)
            connection.sendall(whole[: len(whole) - sent])

    threads = [threading.Thread(target=leave, args=[sent]) for sent in (1, 2, 100, 4000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert exchange(gateway.url, request_bytes(b"GET", b"/healthz", [])) is not None


def test_head_is_answered_without_a_body_and_the_connection_goes_on(gateway: Gateway) -> None:
    where = urlsplit(gateway.url)
    with socket.create_connection((where.hostname or "", where.port or 80), timeout=10) as connection:
        head = b"HEAD /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n"
        connection.sendall(head + head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = b""
        while part := connection.recv(65536):
            received += part
    first, second, rest = received.split(b"\r\n\r\n")
    assert rest == b""
    for answer in (first, second):
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-length: 15" in answer.lower()


@pytest.mark.parametrize("target", [b"/a1/agents/concise-de/sessions/", b"//a1/agents/concise-de/sessions"])
def test_slashes_around_a_path_reach_the_route(gateway: Gateway, target: bytes) -> None:
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
def test_a_path_that_clients_confuse_names_the_route_to_use(gateway: Gateway, target: bytes, use: str) -> None:
    answer = _refused(gateway, request_bytes(b"POST", target, AUTHORIZED, b"{}"))
    assert _code(answer) == (404, "route_not_found")
    assert answer is not None
    assert f"Use {use}." in answer.json()["error"]["message"]
