"""HTTP/1.1 straight over asyncio, for the one thing that a provider's connection does: a request, and its answer piece by piece.

httpx's own transport goes through five layers, and takes as long for a request as all the rest of the gateway. What it can do
beyond this one (HTTP/2, uploads in pieces) a provider does not need, or gets from it (proxies: see ``http``).
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Final, NoReturn, cast

import httpx

from spass.llm.providers.http_head import LONGEST_HEAD, NOT_IN_A_VALUE, Head, MalformedAnswer, chunk_size, parse_head

SENT: Final = "sent"
"""The extension of a request that says whether all of it was sent."""

_LONGEST_CHUNK_LINE: Final = 4096
_AHEAD: Final = 256 * 1024  # bytes read before the reader has asked for them
_PIECE: Final = 64 * 1024


class DirectTransport(httpx.AsyncBaseTransport):
    """Connections of one event loop to whatever is asked for, kept ``keepalive`` seconds when they are idle."""

    def __init__(self, *, keepalive: float) -> None:
        self._keepalive = keepalive
        self._idle: dict[tuple[bytes, bytes, int], list[tuple[_Wire, float]]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send ``request``, whose body is in memory, and return when the head of its answer is there.

        Raises:
            httpx.TransportError: that did not come about. The request's extension ``SENT`` then says whether the other side may
                have all of the request, also after a cancellation.
        """
        head = _head_of(request)
        origin = (request.url.raw_scheme, request.url.raw_host, _port(request.url))
        request.extensions[SENT] = False
        wire = self._kept(origin) or await _connected(request)
        try:
            wire.write(head + request.content)
            with _as_httpx():
                answer = await _read_head(wire)
        except BaseException:
            request.extensions[SENT] = wire.has_sent_all
            wire.abort()
            raise
        stream = _Body(self, origin, wire, answer)
        return httpx.Response(answer.status, headers=answer.headers, stream=stream, request=request)

    async def aclose(self) -> None:
        for kept in self._idle.values():
            for wire, _ in kept:
                wire.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # what is aborted is closed by the event loop's next turn

    def keep(self, origin: tuple[bytes, bytes, int], wire: "_Wire") -> None:
        """Take a connection back whose answer has been read to its end."""
        self._idle.setdefault(origin, []).append((wire, asyncio.get_running_loop().time() + self._keepalive))

    def _kept(self, origin: tuple[bytes, bytes, int]) -> "_Wire | None":
        """The connection that was used last, if it is still good."""
        now = asyncio.get_running_loop().time()
        kept = self._idle.get(origin, [])
        while kept:
            wire, until = kept.pop()
            if until > now and wire.is_quiet:
                return wire
            wire.abort()
        return None


class _Wire(asyncio.Protocol):
    """One connection: what has come over it and has not been read."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._ended = False
        self._broken: Exception | None = None
        self._paused = False
        self._written = False
        self._waiting: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # of a stream it is one, in every event loop

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _AHEAD and self._transport is not None:
            self._transport.pause_reading()
            self._paused = True
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._broken = exc
        self._wake()

    @property
    def is_quiet(self) -> bool:
        """Whether it is open and nothing has come that nobody asked for."""
        return not self._ended and not self._buffer

    @property
    def has_sent_all(self) -> bool:
        """Return whether what was written has left this process."""
        return self._written and self._transport is not None and not self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        self._written = False
        if self._transport is None or self._ended:
            raise httpx.WriteError("the connection is closed")
        self._transport.write(data)
        self._written = True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def line(self, end: bytes, longest: int) -> bytes:
        """The bytes before ``end``, which is taken off too."""
        searched = 0
        while (at := self._buffer.find(end, searched, longest + len(end))) < 0:
            if len(self._buffer) >= longest + len(end):
                raise MalformedAnswer("a line does not end")
            searched = max(0, len(self._buffer) - len(end) + 1)
            if not await self._more():
                _broke_off(self._broken)
        taken = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return taken

    async def some(self, most: int) -> bytes:
        """What is there, at least one byte; none when the other side has ended the connection in order."""
        if not self._buffer and not await self._more():
            if self._broken is not None:
                _broke_off(self._broken)
            return b""
        taken = bytes(self._buffer[:most])
        del self._buffer[:most]
        if self._paused and self._transport is not None and len(self._buffer) <= _AHEAD // 2:
            self._paused = False
            self._transport.resume_reading()
        return taken

    async def _more(self) -> bool:
        """Waits for more bytes; says whether some came."""
        if self._ended:
            return False
        had = len(self._buffer)
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None
        return len(self._buffer) > had

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class _Body(httpx.AsyncByteStream):
    """The body of an answer, as it comes. Read to its end, it gives the connection back; closed before, it ends it."""

    def __init__(self, transport: DirectTransport, origin: tuple[bytes, bytes, int], wire: _Wire, head: Head) -> None:
        self._transport = transport
        self._origin = origin
        self._wire: _Wire | None = wire
        self._head = head

    async def __aiter__(self) -> AsyncIterator[bytes]:
        wire = self._wire
        if wire is None:
            return
        if self._head.chunked:
            pieces = _chunks(wire)
        elif self._head.length is not None:
            pieces = _measured(wire, self._head.length)
        else:
            pieces = _all(wire)
        with _as_httpx():
            async for piece in pieces:
                yield piece
        self._wire = None
        if self._head.reusable and wire.is_quiet:
            self._transport.keep(self._origin, wire)
        else:
            wire.abort()

    async def aclose(self) -> None:
        if self._wire is not None:
            self._wire.abort()
            self._wire = None


async def _measured(wire: _Wire, length: int) -> AsyncIterator[bytes]:
    while length:
        piece = await wire.some(min(length, _PIECE))
        if not piece:
            _broke_off()
        length -= len(piece)
        yield piece


async def _all(wire: _Wire) -> AsyncIterator[bytes]:
    while piece := await wire.some(_PIECE):
        yield piece


async def _chunks(wire: _Wire) -> AsyncIterator[bytes]:
    while True:
        length = chunk_size(await wire.line(b"\r\n", _LONGEST_CHUNK_LINE))
        if not length:
            break
        async for piece in _measured(wire, length):
            yield piece
        if await wire.line(b"\r\n", 2):
            raise MalformedAnswer("the end of a chunk")
    while await wire.line(b"\r\n", LONGEST_HEAD):  # trailers
        pass


def _head_of(request: httpx.Request) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    for name, value in request.headers.raw:
        if NOT_IN_A_VALUE.search(value):
            raise httpx.LocalProtocolError("a header's value holds what no header may")
        lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"\r\n"])


async def _read_head(wire: _Wire) -> Head:
    while (head := parse_head(await wire.line(b"\r\n\r\n", LONGEST_HEAD))).is_interim:
        pass
    return head


async def _connected(request: httpx.Request) -> _Wire:
    url = request.url
    if url.scheme not in ("http", "https"):
        raise httpx.UnsupportedProtocol("only http and https are spoken")
    secure = _certificates() if url.scheme == "https" else None
    host = url.raw_host.decode("ascii")
    loop = asyncio.get_running_loop()
    connect = partial(loop.create_connection, _Wire, host, _port(url), ssl=secure, server_hostname=host if secure else None)
    try:
        async with asyncio.timeout(request.extensions.get("timeout", {}).get("connect")):
            # Of two addresses the other is tried soon. (uvloop, which uvicorn takes where it is installed, knows no such thing.)
            made = await (connect(happy_eyeballs_delay=0.25) if isinstance(loop, asyncio.BaseEventLoop) else connect())
    except TimeoutError as error:
        raise httpx.ConnectTimeout("no connection in time") from error
    except OSError as error:
        raise httpx.ConnectError("no connection") from error
    wire: _Wire = made[1]
    return wire


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


@cache
def _certificates() -> ssl.SSLContext:
    """As httpx has them, ``SSL_CERT_FILE`` included. Once for the process: they take a while to read."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@contextmanager
def _as_httpx() -> Iterator[None]:
    try:
        yield
    except MalformedAnswer as error:
        raise httpx.RemoteProtocolError(f"an answer that is no HTTP: {error}") from error


def _broke_off(cause: Exception | None = None) -> NoReturn:
    raise httpx.RemoteProtocolError("the connection ended before the answer did") from cause
