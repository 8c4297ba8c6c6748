"""Send requests over HTTP/1.1 with asyncio, and parse the answers with llhttp (``httptools``).

``docs/decisions/015`` lists the libraries that were tried instead, and what each of them lacks.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from functools import cache, partial
from typing import Final, TypeAlias, cast

import httpx
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

SENT: Final = "sent"
"""The request extension that is True if the whole request has left this process."""
LONGEST_HEAD: Final = 64 * 1024
"""The maximum bytes of headers, and of successive bytes of an answer that do not belong to its body."""

_READ_AHEAD: Final = 256 * 1024  # unread bytes of a body at which the connection is paused
_DISALLOWED_IN_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

_Origin: TypeAlias = tuple[bytes, bytes, int, str]
"""Scheme, host, port, and the name in the certificate."""


class DirectTransport(httpx.AsyncBaseTransport):
    """Send requests over connections of one event loop, and keep idle connections for ``keepalive`` seconds."""

    def __init__(self, *, keepalive: float) -> None:
        self._keepalive = keepalive
        self._idle: dict[_Origin, list[tuple[_Connection, float]]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send ``request``, whose body is in memory, and return when the status and headers of its answer have arrived.

        The extension ``sni_hostname`` is the name that the certificate must have, if the URL has an address as host.

        Raises:
            httpx.TransportError: there is no answer. Then, and after a cancellation, the extension ``SENT`` is True if the
                server may have received the whole request.
        """
        head = _encode_head(request)
        origin = (request.url.raw_scheme, request.url.raw_host, _port(request.url), _server_name(request))
        request.extensions[SENT] = False
        connection = self._take_idle(origin) or await _connect(request)
        try:
            answer = connection.send(head + request.content, partial(self._keep, origin, connection))
            await answer.wait_for_head()
        except BaseException:
            request.extensions[SENT] = connection.has_sent_all
            connection.abort()
            raise
        return httpx.Response(answer.status, headers=answer.headers, stream=answer, request=request)

    async def aclose(self) -> None:
        for idle in self._idle.values():
            for connection, _ in idle:
                connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop closes an aborted connection in its next iteration

    def _keep(self, origin: _Origin, connection: "_Connection") -> None:
        """Keep an idle connection for the next request. Its last answer must have been read to the end."""
        self._idle.setdefault(origin, []).append((connection, asyncio.get_running_loop().time() + self._keepalive))

    def _take_idle(self, origin: _Origin) -> "_Connection | None":
        """Return the most recently used idle connection that can be reused, or None."""
        now = asyncio.get_running_loop().time()
        idle = self._idle.get(origin, [])
        while idle:
            connection, until = idle.pop()
            if until > now and connection.is_quiet:
                return connection
            connection.abort()
        return None


class _Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self) -> None:
        self.is_quiet = True  # open, and has received only answers to requests
        self._transport: asyncio.Transport | None = None
        self._answer: _Answer | None = None
        self._is_written = False
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a stream connection always gets a Transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.is_complete:
            self.is_quiet = False
            return
        self._answer.feed(data)
        if self._answer.unread > _READ_AHEAD and self._transport is not None:
            self._transport.pause_reading()
            self._is_paused = True

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_quiet = False
        if self._answer is not None:
            self._answer.end(exc)

    @property
    def has_sent_all(self) -> bool:
        return self._is_written and self._transport is not None and not self._transport.get_write_buffer_size()

    def send(self, data: bytes, keep: Callable[[], None]) -> "_Answer":
        """Write a request and return its answer, which calls ``keep`` at its end if the connection can be reused.

        Raises:
            httpx.WriteError: the connection has ended.
        """
        self._is_written = False
        if self._transport is None or not self.is_quiet:
            raise httpx.WriteError("the connection is closed")
        self._answer = _Answer(self, keep)
        self._transport.write(data)
        self._is_written = True
        return self._answer

    def resume(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Answer(httpx.AsyncByteStream):
    """One answer as the parser reports it: its status and headers, then its body in pieces. Closing it before its end aborts the
    connection."""

    def __init__(self, connection: _Connection, keep: Callable[[], None]) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.unread = 0  # bytes of the body
        self.is_complete = False
        self._connection: _Connection | None = connection
        self._keep = keep
        self._is_last = True  # the connection cannot carry another request
        self._is_early = False  # the headers arrived before the whole request was sent
        self._pieces: list[bytes] = []
        self._overhead = 0  # bytes since the last byte of the body
        self._error: httpx.RemoteProtocolError | None = None
        self._changed = asyncio.Event()
        self._parser = HttpResponseParser(self)
        # Some servers pad the size of a chunk, or send a length together with chunks (RFC 9112, 6.3: chunks take precedence).
        self._parser.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True, lenient_chunked_length=True)

    async def wait_for_head(self) -> None:
        while not self.status:
            await self._wait()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while self._connection is not None:
            if self._pieces:
                piece = b"".join(self._pieces)
                self._pieces.clear()
                self.unread = 0
                self._connection.resume()
                return piece
            if not self.is_complete:
                await self._wait()
            elif self._is_last or not self._connection.is_quiet:
                await self.aclose()
            else:
                self._connection = None
                self._keep()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def feed(self, data: bytes) -> None:
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
            if self._overhead > LONGEST_HEAD and not self.is_complete:
                raise HttpParserError("too many bytes without a body")
        except (HttpParserError, HttpParserUpgrade) as error:
            self._is_last = True
            self._fail("the answer is not HTTP", error)
        self._changed.set()

    def end(self, cause: Exception | None) -> None:
        """Record the end of the connection. It also ends a body without a length."""
        if self.status and cause is None and not self._values(b"content-length") + self._values(b"transfer-encoding"):
            self.is_complete = True
        self._fail("the connection ended before the answer did", cause)
        self._changed.set()

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("an answer without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # a header, not a trailer
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if not 100 <= status <= 599:
            raise ValueError("an unknown status")
        if status < 200:  # the final answer follows
            self.headers.clear()
            return
        if self._values(b"transfer-encoding") not in ([], [b"chunked"]):
            raise ValueError("an unknown transfer coding")
        if sum(len(name) + len(value) for name, value in self.headers) > LONGEST_HEAD:
            raise ValueError("too many headers")
        self.status = status
        # A server that answers early may read the rest of the request as the next request (RFC 9112, 9.3.1).
        self._is_early = self._connection is None or not self._connection.has_sent_all
        self._overhead = 0

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self.unread += len(body)
        self._overhead = 0

    def on_message_complete(self) -> None:
        if self.status:
            self.is_complete = True
            is_ambiguous = self._values(b"content-length") and self._values(b"transfer-encoding")
            self._is_last = bool(is_ambiguous) or self._is_early or not self._parser.should_keep_alive()

    def _values(self, name: bytes) -> list[bytes]:
        return [value.lower() for known, value in self.headers if known.lower() == name]

    def _fail(self, what: str, cause: Exception | None) -> None:
        if not self.is_complete and self._error is None:
            self._error = httpx.RemoteProtocolError(what)
            self._error.__cause__ = cause

    async def _wait(self) -> None:
        """Wait for more bytes or for the end of the connection.

        Raises:
            httpx.RemoteProtocolError: the answer cannot be read further.
        """
        if self._error is not None:
            raise self._error
        self._changed.clear()
        await self._changed.wait()


def _encode_head(request: httpx.Request) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    for name, value in request.headers.raw:
        if _DISALLOWED_IN_VALUE.search(value):
            raise httpx.LocalProtocolError("a header value contains a disallowed character")
        lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"\r\n"])


async def _connect(request: httpx.Request) -> _Connection:
    url = request.url
    if url.scheme not in ("http", "https"):
        raise httpx.UnsupportedProtocol("only http and https are supported")
    ssl_context = _certificates() if url.scheme == "https" else None
    host = url.raw_host.decode("ascii")
    name = _server_name(request) if ssl_context else None
    loop = asyncio.get_running_loop()
    connect = partial(loop.create_connection, _Connection, host, _port(url), ssl=ssl_context, server_hostname=name)
    try:
        async with asyncio.timeout(request.extensions.get("timeout", {}).get("connect")):
            # uvloop, which uvicorn uses if it is installed, does not support happy eyeballs.
            endpoints = await (connect(happy_eyeballs_delay=0.25) if isinstance(loop, asyncio.BaseEventLoop) else connect())
    except TimeoutError as error:
        raise httpx.ConnectTimeout("no connection in time") from error
    except OSError as error:
        raise httpx.ConnectError("no connection") from error
    connection: _Connection = endpoints[1]
    return connection


def _server_name(request: httpx.Request) -> str:
    name: str = request.extensions.get("sni_hostname") or request.url.raw_host.decode("ascii")
    return name


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


@cache
def _certificates() -> ssl.SSLContext:
    """Return a context with the certificates that httpx trusts, including those of ``SSL_CERT_FILE``. Reading them is slow."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
