"""Providers over real sockets, with servers that fail in the middle of an answer."""

import asyncio
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import spass
from spass.core.errors import UpstreamError
from spass.models.errors import BackendTimeout, BackendUnavailable
from spass.models.provider_registry import make_provider
from spass.models.router import Router
from spass.models.types import Provider
from spass.tenancy.config import BackendConfig, LlmConfig
from tests.unit.models.scripted_upstream import KEY, context, deltas_of, reply_of, request

pytestmark = pytest.mark.anyio

OK = b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}'
FIRST = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
LAST = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """A server on a free loopback port that reads a request and then runs ``behaviour``."""

    behaviour: Behaviour
    port: int = 0
    connections: int = 0
    connection_closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await _read_request(reader):
                await self.behaviour(reader, writer)
                await writer.drain()
                if writer.is_closing():
                    break
        except ConnectionError:
            pass
        finally:
            self.connection_closed.set()
            writer.close()

    @property
    def backend(self) -> BackendConfig:
        return BackendConfig(
            name="b", provider="openai", base_url=f"http://127.0.0.1:{self.port}/v1", supported_models=("model-1",)
        )


async def _read_request(reader: asyncio.StreamReader) -> bool:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return False
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    await reader.readexactly(length)
    return True


@asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[tuple[Server, Provider]]:
    server = Server(behaviour)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    provider = make_provider(server.backend, KEY)
    try:
        yield server, provider
    finally:
        await provider.aclose()
        listener.close()
        await listener.wait_closed()


def json_answer(body: bytes) -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    return behave


def chunked(*chunks: bytes, ends: bool = True) -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for chunk in chunks:
            writer.write(b"%x\r\n" % len(chunk) + chunk + b"\r\n")
            await writer.drain()
        if ends:
            writer.write(b"0\r\n\r\n")
        else:
            writer.close()

    return behave


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the first event of a stream, then wait until the client closes the connection."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(FIRST) + FIRST + b"\r\n")
    await writer.drain()
    await reader.read()
    writer.close()


async def test_connections_are_reused_also_after_streams() -> None:
    async with serving(chunked(FIRST, LAST)) as (server, provider):
        for _ in range(3):
            assert (await reply_of(provider, request(stream=True))).message.content == "Hi"
    assert server.connections == 1
    async with serving(json_answer(OK)) as (server, provider):
        for _ in range(3):
            assert (await reply_of(provider)).message.content == "Hi"
    assert server.connections == 1


async def test_a_connection_that_ends_during_a_stream_is_a_failure() -> None:
    async with serving(chunked(FIRST, ends=False)) as (_, provider):
        with pytest.raises(BackendUnavailable):
            await deltas_of(provider, request(stream=True))


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + OK, b"SSH-2.0-OpenSSH_9.6\r\n\r\n"])
async def test_an_answer_that_is_too_short_or_not_http_is_a_failure(sent: bytes) -> None:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    async with serving(send) as (_, provider):
        with pytest.raises(BackendUnavailable):
            await reply_of(provider)


async def test_a_refused_connection_is_a_failure() -> None:
    async with serving(json_answer(OK)) as (server, _):
        pass
    provider = make_provider(server.backend, KEY)
    with pytest.raises(BackendUnavailable):
        await reply_of(provider)
    await provider.aclose()


async def test_a_silent_provider_times_out() -> None:
    async with serving(hang) as (server, provider):
        with pytest.raises(BackendTimeout):
            await deltas_of(provider, request(stream=True), seconds=0.3)
        await asyncio.wait_for(server.connection_closed.wait(), 5)


async def test_a_reader_that_comes_after_the_deadline_leaves_nothing_behind() -> None:
    async with serving(hang) as (_, provider):
        async with aclosing(provider.chat(request(stream=True), context(0.2))) as chat:
            await anext(chat)
            await asyncio.sleep(0.3)
            with pytest.raises(BackendTimeout):
                await anext(chat)
        gc.collect()  # it would warn of a coroutine that was never awaited


async def test_closing_a_stream_closes_the_connection() -> None:
    async with serving(hang) as (server, _):
        router = Router(LlmConfig(backends=(server.backend,)), [], lambda _: None)
        async with aclosing(router.chat(request(stream=True), context())) as chat:
            assert (await anext(chat)).content == "Hi"
            assert not server.connection_closed.is_set()
        await asyncio.wait_for(server.connection_closed.wait(), 5)
        await router.aclose()


async def test_cancelling_a_request_closes_the_connection() -> None:
    async with serving(hang) as (server, provider):
        task = asyncio.create_task(deltas_of(provider, request(stream=True)))
        while not server.connections:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.connection_closed.wait(), 5)


async def test_a_stream_that_breaks_after_its_first_token_is_not_retried() -> None:
    async with serving(chunked(FIRST, ends=False)) as (server, _):
        router = Router(LlmConfig(backends=(server.backend,)), [], lambda _: None)
        with pytest.raises(UpstreamError):
            async for _ in router.chat(request(stream=True), context()):
                pass
        await router.aclose()
    assert server.connections == 1


def test_importing_the_router_does_not_import_an_http_client() -> None:
    code = "import sys, spass.models.router; sys.exit(bool({'httpx', 'numpy'} & set(sys.modules)))"
    path = str(Path(spass.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": path}).returncode == 0
