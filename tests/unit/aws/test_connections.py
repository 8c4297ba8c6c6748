"""A connection goes back to the pool only if nothing of its last answer is left in it, and the pool does not grow."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

import pytest

from spass.aws.connections import Endpoint
from spass.aws.http_connection import NoAnswer

pytestmark = pytest.mark.anyio

REQUEST: Final = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull"

Serve: TypeAlias = Callable[["Peer", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A server. ``opened`` and ``open`` count its connections."""

    def __init__(self) -> None:
        self.opened = self.open = 0
        self.url = ""


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[tuple[Peer, Endpoint]]:
    """Yield a server whose connections ``serve`` serves, and an endpoint for it."""
    peer = Peer()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer.opened += 1
        peer.open += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            await serve(peer, reader, writer)
        peer.open -= 1
        writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    endpoint = Endpoint(peer.url, connect_seconds=1.0, silence_seconds=0.3)
    try:
        yield peer, endpoint
    finally:
        endpoint.close()
        server.close()
        async with asyncio.timeout(5):
            while peer.open:
                await asyncio.sleep(0.005)


def answering(answer: bytes, delay: float = 0.0) -> Serve:
    """Return a server that sends ``answer`` to each request and never closes a connection."""

    async def serve(_: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readexactly(len(REQUEST)):
            await asyncio.sleep(delay)
            writer.write(answer)

    return serve


@pytest.mark.parametrize(
    "surplus",
    [b"garbage", b"HTTP/1.1 200 OK\r\nx: 1\r\ncontent-length: 2\r\n\r\n{}", b"HTTP/1.1 200 OK\r\nx: 1\r\ny: "],
)
async def test_bytes_after_an_answer_are_no_part_of_it_or_of_the_next(surplus: bytes) -> None:
    async with listening(answering(ANSWER + surplus)) as (peer, endpoint):
        for _ in range(3):
            answer = await endpoint.send(REQUEST)
            assert (answer.headers, answer.body) == ({b"content-length": b"4"}, b"null")
        assert peer.opened == 3


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nconnection: close", b"HTTP/1.0 200 OK"])
async def test_a_connection_that_may_not_be_used_again_is_closed(head: bytes) -> None:
    async with listening(answering(head + b"\r\ncontent-length: 2\r\n\r\n{}")) as (peer, endpoint):
        for _ in range(5):
            await endpoint.send(REQUEST)
        await asyncio.sleep(0.05)
        assert (peer.opened, peer.open) == (5, 0)


async def test_a_connection_whose_answer_came_before_the_whole_request_is_closed() -> None:
    head, length = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: ", 16 * 2**20

    async def refuse(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        await asyncio.sleep(0.05)
        if peer.opened == 1:
            await reader.readexactly(length)
        await reader.read()

    async with listening(refuse) as (peer, endpoint):
        for _ in range(2):
            answer = await endpoint.send(head + b"%d\r\n\r\n" % length + b" " * length)
            assert answer.body == b"null"
        assert peer.opened == 2


async def test_requests_on_new_connections_close_the_oldest_idle_ones() -> None:
    async with listening(answering(ANSWER)) as (peer, endpoint):
        for _ in range(120):
            await endpoint.send(REQUEST, on_new_connection=True)
        await asyncio.sleep(0.05)
        assert (peer.opened, peer.open) == (120, 50)


async def test_an_idle_connection_keeps_no_bytes_of_its_answer() -> None:
    long = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + b" " * 1_000_000
    async with listening(answering(long)) as (_, endpoint):
        await endpoint.send(REQUEST)
        [pool] = endpoint._pools.values()
        assert pool.idle[0][0]._pieces == []


async def test_a_connection_in_use_is_closed_after_its_answer_by_close() -> None:
    async with listening(answering(ANSWER, delay=0.05)) as (peer, endpoint):
        call = asyncio.create_task(endpoint.send(REQUEST))
        await asyncio.sleep(0.02)
        endpoint.close()
        assert (await call).body == b"null"
        await asyncio.sleep(0.02)
        assert peer.open == 0


async def test_idle_connections_that_died_silently_cost_one_silence_together() -> None:
    async def serve(peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_silent = peer.opened <= 10
        await reader.readexactly(len(REQUEST))
        await asyncio.sleep(0.05)
        writer.write(ANSWER)
        if is_silent:
            await reader.read()
        while await reader.readexactly(len(REQUEST)):
            writer.write(ANSWER)

    async with listening(serve) as (_, endpoint):
        await asyncio.gather(*(endpoint.send(REQUEST) for _ in range(10)))
        with pytest.raises(NoAnswer) as lost:
            await endpoint.send(REQUEST)
        assert lost.value.is_stale
        for _ in range(3):
            await endpoint.send(REQUEST)


async def test_a_host_is_looked_up_although_the_threads_of_the_event_loop_are_busy() -> None:
    async with listening(answering(ANSWER)) as (peer, _):
        endpoint = Endpoint(peer.url.replace("127.0.0.1", "localhost"), connect_seconds=0.5, silence_seconds=0.3)
        end = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        work = asyncio.get_running_loop().run_in_executor(None, end.wait)
        try:
            assert (await endpoint.send(REQUEST)).body == b"null"
        finally:
            end.set()
            await work
            endpoint.close()
