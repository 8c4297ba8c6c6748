"""The laptop's edge refuses what API Gateway and Lambda refuse."""

import gzip

import anyio
import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.routes import BINARY_MEDIA_TYPES, MIN_COMPRESSED_BYTES, ROUTE_HINTS, ROUTES, Route
from local.edge import MAX_EVENT_BYTES, MAX_HEADER_BYTES, LambdaEdge

pytestmark = pytest.mark.anyio

SHORT = next(route for route in ROUTES if not route.long and route.method == "GET" and "{" not in route.path)
LONG = next(route for route in ROUTES if route.long)


def app(*, seconds: float = 0, body: bytes = b"xx", seen: list[int] | None = None) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if seen is not None:
            seen.append(len(message["body"]))
        await anyio.sleep(seconds)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return LambdaEdge(answer, short_seconds=0.05)


async def request(
    edge: ASGIApp, method: str, path: str, *, headers: dict[str, str] | None = None, body: bytes = b""
) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(edge), base_url="http://edge") as client:
        return await client.request(method, path, headers=headers, content=body)


async def test_a_request_within_the_limits_passes_untouched() -> None:
    seen: list[int] = []
    answer = await request(app(seen=seen), LONG.method, LONG.path, body=b"y" * 4_000_000)
    assert (answer.status_code, answer.content, seen) == (200, b"xx", [4_000_000])


async def test_too_many_bytes_of_headers_are_refused() -> None:
    answer = await request(app(), "GET", SHORT.path, headers={"x-long": "a" * MAX_HEADER_BYTES})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "payload_too_large"
    assert answer.headers["spass-request-id"] == answer.json()["request_id"]


async def test_an_event_over_6_mib_is_refused() -> None:
    for body in (b"z" * MAX_EVENT_BYTES, b'"' * (MAX_EVENT_BYTES // 2)):
        answer = await request(app(), LONG.method, LONG.path, body=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


async def test_a_binary_body_counts_in_base64_and_not_as_escaped_text() -> None:
    four_mib = b"\n" * (4 * 1024 * 1024)
    for content_type in (*BINARY_MEDIA_TYPES, "Application/ZIP; x=1"):
        headers = {"Content-Type": content_type}
        assert (await request(app(), LONG.method, LONG.path, headers=headers, body=four_mib)).status_code == 200
        answer = await request(app(), LONG.method, LONG.path, headers=headers, body=b"x" * (5 * 1024 * 1024))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
    for content_type in ("application/json", "application/zipped", "text/plain; x=application/zip"):
        answer = await request(app(), LONG.method, LONG.path, headers={"Content-Type": content_type}, body=four_mib)
        assert answer.status_code == 413


async def test_a_short_route_has_a_shorter_time_limit_than_a_long_one() -> None:
    slow = app(seconds=0.2)
    late = await request(slow, "GET", SHORT.path)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "upstream_timeout")
    long_path = LONG.path.replace("{", "a").replace("}", "")
    assert (await request(slow, LONG.method, long_path)).status_code == 200


@pytest.mark.parametrize("body", [b"x" * (MAX_EVENT_BYTES + 1), b'"' * (MAX_EVENT_BYTES // 2 + 1)])
async def test_an_answer_of_a_short_route_over_6_mib_is_an_error(body: bytes) -> None:
    answer = await request(app(body=body), "GET", SHORT.path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")
    long_path = LONG.path.replace("{", "a").replace("}", "")
    assert (await request(app(body=body), LONG.method, long_path)).content == body


@pytest.mark.parametrize("route", [SHORT, LONG], ids=["buffered", "streamed"])
async def test_headers_of_an_answer_are_renamed_and_dropped_as_in_a_rest_api(route: Route) -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        sent = [(b"WWW-Authenticate", b"Bearer"), (b"date", b"now"), (b"via", b"1.1 x"), (b"retry-after", b"3")]
        await send({"type": "http.response.start", "status": 401, "headers": sent})
        await send({"type": "http.response.body", "body": b""})

    path = route.path.replace("{", "a").replace("}", "")
    answered = await request(LambdaEdge(answer), route.method, path)
    assert dict(answered.headers) == {
        "x-amzn-remapped-www-authenticate": "Bearer",
        "x-amzn-remapped-date": "now",
        "retry-after": "3",
    }


async def test_a_path_of_another_api_gets_the_route_to_use() -> None:
    for path, message in ROUTE_HINTS.items():
        for method in ("GET", "POST"):
            answer = await request(app(), method, path.replace("{", "").replace("}", ""))
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")
            assert answer.json()["error"]["message"] == message
            assert answer.headers["spass-request-id"] == answer.json()["request_id"]


async def test_a_path_with_an_empty_segment_gets_the_route_to_use() -> None:
    answer = await request(app(), "POST", "/v1//chat/completions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")
    assert "Use /v1/chat/completions." in answer.json()["error"]["message"]
    assert (await request(app(), "GET", "/nothing//here")).status_code == 200, "the edge does not refuse unknown routes"


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("GET", "/a1/rag/indices//documents", "/a1/rag/indices/{index_id}/documents"),
        ("POST", "/a1/agents/concise-de/sessions//messages", "/a1/agents/{name}/sessions/{session_id}/messages"),
        ("POST", "/a1/agents//chat", "/a1/agents/{name}/chat"),
        ("POST", "/a1/agents//sessions//messages", "/a1/agents/{name}/sessions/{session_id}/messages"),
    ],
)
async def test_an_empty_variable_gets_the_route_in_which_it_is_missing(method: str, path: str, route: str) -> None:
    answer = await request(app(), method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")
    assert answer.json()["error"]["message"].endswith(f"Use {route}: the part between the slashes is empty.")


async def test_a_long_route_is_recognised_with_extra_slashes() -> None:
    slow = app(seconds=0.2)
    for path in ("/v1/chat/completions/", "//v1/chat/completions"):
        assert (await request(slow, "POST", f"http://edge{path}")).status_code == 200


async def _stream(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for n in range(3):
        await send({"type": "http.response.body", "body": b"data: %d\n\n" % n * 1000, "more_body": n < 2})


async def raw_request(edge: ASGIApp, method: str, path: str, accepted: str | None) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the headers of the answer and the bodies of its messages, as they are sent."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"accept-encoding", accepted.encode())] if accepted is not None else []
    await edge({"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}, receive, send)
    return dict(sent[0]["headers"]), [message["body"] for message in sent[1:]]


ACCEPTED = [
    ("gzip", True),
    ("gzip, deflate, br, zstd", True),
    ("GZIP;q=0.5", True),
    ("br;q=0.5, gzip;q=1.0", True),
    ("br, gzip;q=0.8", False),
    ("gzip;q=0", False),
    ("identity", False),
    ("*", False),
    ("", False),
    (None, False),
]


@pytest.mark.parametrize(("accepted", "compressed"), ACCEPTED)
async def test_a_buffered_answer_is_compressed_for_clients_that_prefer_gzip(accepted: str | None, compressed: bool) -> None:
    content = "ü".encode() * 50_000
    headers, (body,) = await raw_request(app(body=content), "GET", SHORT.path, accepted)
    assert (headers.get(b"content-encoding") == b"gzip") is compressed
    assert (gzip.decompress(body) if compressed else body) == content
    if compressed:
        assert headers[b"content-length"] == str(len(body)).encode()


async def test_small_answers_and_streams_are_not_compressed() -> None:
    headers, bodies = await raw_request(app(body=b"x" * (MIN_COMPRESSED_BYTES - 1)), "GET", SHORT.path, "gzip")
    assert (headers, bodies) == ({}, [b"x" * (MIN_COMPRESSED_BYTES - 1)])
    headers, bodies = await raw_request(LambdaEdge(_stream), LONG.method, LONG.path, "gzip")
    assert b"content-encoding" not in headers
    assert bodies == [b"data: %d\n\n" % n * 1000 for n in range(3)]


async def test_an_answer_with_a_coding_of_its_own_is_not_compressed_again() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-encoding", b"br")]})
        await send({"type": "http.response.body", "body": b"x" * 5000})

    headers, bodies = await raw_request(LambdaEdge(answer), "GET", SHORT.path, "gzip")
    assert (headers, bodies) == ({b"content-encoding": b"br"}, [b"x" * 5000])
