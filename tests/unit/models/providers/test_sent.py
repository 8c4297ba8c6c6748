"""A request counts as sent if the provider received all of it and did not refuse it. Then it may be billed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

from spass.models.errors import AttemptFailed, BackendTimeout
from spass.models.providers.http import Connection
from spass.models.types import CallContext
from tests.unit.models.providers.test_over_sockets import Server, hang, json_answer, serving
from tests.unit.models.scripted_upstream import Answer, Upstream, backend, context, provider_at, request
from tests.unit.models.scripted_upstream import json_answer as answering

pytestmark = pytest.mark.anyio

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BODY = {"x": "y"}


async def post(base_url: str, *, seconds: float = 30.0, transport: httpx.AsyncBaseTransport | None = None) -> CallContext:
    """Send a request, which may fail, and return its context."""
    connection, call_context = Connection(backend(), base_url, {}, transport=transport), context(seconds)
    try:
        await connection.post("/chat", BODY, call_context)
    except AttemptFailed:
        pass
    finally:
        await connection.aclose()
    return call_context


async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def close_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")


async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{")
    writer.close()


async def send_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("behaviour", "sent"),
    [
        (json_answer(b"{}"), True),
        (stay_silent, True),
        (hang, True),
        (close_connection, True),
        (break_off, True),
        (send_garbage, True),
        (refuse, False),
    ],
)
async def test_a_request_counts_as_sent_unless_an_error_status_refuses_it(behaviour: Behaviour, sent: bool) -> None:
    async with serving(behaviour) as (server, _):
        assert (await post(f"http://127.0.0.1:{server.port}", seconds=0.3)).attempt.sent is sent


async def test_a_refused_connection_does_not_count_as_sent() -> None:
    async with serving(json_answer(b"{}")) as (server, _):
        pass
    assert not (await post(f"http://127.0.0.1:{server.port}")).attempt.sent


async def test_a_request_after_its_deadline_does_not_count_as_sent() -> None:
    async with serving(json_answer(b"{}")) as (server, _):
        assert not (await post(f"http://127.0.0.1:{server.port}", seconds=0)).attempt.sent
    assert server.connections == 0


@pytest.mark.parametrize("large", [False, True])
async def test_a_cancelled_request_counts_as_sent_if_all_of_it_was_sent(large: bool) -> None:
    server_writer: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")  # leave the body unread, apart from the buffer
        server_writer.set_result(writer)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = Connection(backend(), f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", {})
    call_context = context()
    body = {"x": "y" * (32 * 1024 * 1024 if large else 10)}
    posting = asyncio.create_task(connection.post("/chat", body, call_context))
    server_side = await server_writer
    posting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await posting
    assert call_context.attempt.sent is not large
    await connection.aclose()
    server_side.transport.abort()
    listening.close()
    await asyncio.sleep(0.01)  # so that the aborted connection closes


async def test_a_request_cancelled_while_it_connects_does_not_count_as_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = asyncio.Event()

    async def create_connection(*_: object, **__: object) -> None:
        connecting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create_connection)
    connection, call_context = Connection(backend(), "http://127.0.0.1:9", {}), context()
    posting = asyncio.create_task(connection.post("/chat", BODY, call_context))
    await connecting.wait()
    posting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await posting
    assert not call_context.attempt.sent


@pytest.mark.parametrize("status", [504, 524])
async def test_a_request_that_timed_out_behind_a_proxy_counts_as_sent(status: int) -> None:
    assert (await post("http://x", transport=Upstream(Answer(status)).transport)).attempt.sent


async def test_a_request_cancelled_while_the_body_of_a_504_is_read_counts_as_sent() -> None:
    reading = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        reading.set()
        await asyncio.Event().wait()
        yield b""

    transport = httpx.MockTransport(lambda _: httpx.Response(504, content=body()))
    attempt_context = context()
    posting = asyncio.create_task(Connection(backend(), "http://x", {}, transport=transport).post("/chat", BODY, attempt_context))
    await reading.wait()
    posting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await posting
    assert attempt_context.attempt.sent


@pytest.mark.parametrize("provider", ["openai", "anthropic", "bedrock"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_timeout_of_the_model_counts_as_sent(provider: str, stream: bool) -> None:
    timed_out = Answer(408, headers={"x-amzn-errortype": "ModelTimeoutException"}) if provider == "bedrock" else Answer(504)
    call_context, provider_under_test = context(), provider_at(Upstream(timed_out), provider, base_url="http://x")
    with pytest.raises(BackendTimeout):
        _ = [delta async for delta in provider_under_test.chat(request(stream=stream), call_context)]
    assert call_context.attempt.sent


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (httpx.ConnectError("no"), False),
        (httpx.ConnectTimeout("no"), False),
        (httpx.PoolTimeout("no"), False),
        (httpx.ProxyError("no"), False),
        (httpx.WriteError("no"), False),
        (httpx.WriteTimeout("no"), False),
        (httpx.LocalProtocolError("no"), False),
        (httpx.UnsupportedProtocol("no"), False),
        (httpx.ReadError("no"), True),
        (httpx.ReadTimeout("no"), True),
        (httpx.RemoteProtocolError("no"), True),
    ],
)
async def test_through_a_proxy_the_exception_decides_if_it_counts_as_sent(error: Exception, sent: bool) -> None:
    assert (await post("http://x", transport=Upstream(error).transport)).attempt.sent is sent


async def test_a_refused_second_request_leaves_the_first_sent() -> None:
    upstream = Upstream(answering({}), Answer(429))
    connection, call_context = Connection(backend(), "http://x", {}, transport=upstream.transport), context()
    await connection.post("/embed", BODY, call_context)
    with pytest.raises(AttemptFailed):
        await connection.post("/embed", BODY, call_context)
    assert call_context.attempt.sent


async def test_a_reused_connection_reports_only_its_last_request() -> None:
    answers = [json_answer(b"{}"), refuse]

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answers.pop(0)(reader, writer)

    async with serving(behave) as (server, _):
        connection = Connection(backend(), f"http://127.0.0.1:{server.port}", {})
        first, second = context(), context()
        await connection.post("/chat", BODY, first)
        with pytest.raises(AttemptFailed):
            await connection.post("/chat", BODY, second)
        await connection.aclose()
    assert isinstance(server, Server)
    assert (server.connections, first.attempt.sent, second.attempt.sent) == (1, True, False)
