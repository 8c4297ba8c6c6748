"""The names under which the laptop's gateway answers."""

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from local.home import LocalError
from local.hosts import HostGuard, extra_hosts, page_origins

pytestmark = pytest.mark.anyio


async def _status(host: str, *extra: str) -> int:
    guard = HostGuard(PlainTextResponse("served"), extra)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=guard), base_url="http://127.0.0.1") as client:
        return (await client.get("/", headers={"Host": host})).status_code


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:3000", "localhost:1", "LocalHost", "[::1]", "[::1]:3000"])
async def test_a_loopback_name_is_served_with_any_port(host: str) -> None:
    assert await _status(host) == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example:3000", "127.0.0.1:x", "0.0.0.0", "a@localhost", "[::2]"]
)
async def test_another_name_is_refused(host: str) -> None:
    assert await _status(host) == 400


@pytest.mark.parametrize("headers", [[], [(b"host", b"localhost"), (b"host", b"evil.example")]])
async def test_a_request_without_a_host_or_with_a_second_one_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    await HostGuard(PlainTextResponse("served"), [])(scope, receive, send)
    assert sent[0]["status"] == 400


async def test_a_name_that_the_operator_allows_is_served() -> None:
    names = extra_hosts({"SPASS_ALLOWED_HOSTS": "Gateway.Test, 10.0.0.7"})
    assert await _status("gateway.test:3000", *names) == await _status("10.0.0.7", *names) == 200
    assert await _status("other.test", *names) == 400
    assert {"http://127.0.0.1:3000", "https://gateway.test", "http://10.0.0.7:3000"} <= {*page_origins(3000, names)}


@pytest.mark.parametrize("value", ["https://gateway.test", "gateway.test:3000", "*"])
def test_what_is_not_a_host_prevents_the_start(value: str) -> None:
    with pytest.raises(LocalError, match="SPASS_ALLOWED_HOSTS"):
        extra_hosts({"SPASS_ALLOWED_HOSTS": value})
