"""Send requests to one endpoint of AWS over HTTP/1.1 with asyncio, and parse the answers with llhttp (``httptools``).

A provider's transport (``models/providers/direct.py``) streams its answers. This one reads whole answers.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_MAX_CONNECTIONS: Final = 50
_MAX_IDLE_SECONDS: Final = 60.0
_MAX_ANSWER_BYTES: Final = 64 * 2**20
_WHOLE_ANSWER: Final = 10
"""The time limit of a whole answer, in silences: an endpoint that sends a byte now and then must not hold a call for ever."""

# The threads of an event loop also do other work, such as calls of boto3, and a connection has a second.
_lookups: Final = ThreadPoolExecutor(4, thread_name_prefix="hosts")  # starts its threads on demand


class NoAnswer(Exception):
    """The endpoint was unreachable, or there was no whole answer in time. It may have received the request.

    ``is_stale`` is True if the request was the second or later one of its connection and no byte of an answer arrived: such a
    connection may have died while nobody used it, as in a function that was frozen.
    """

    def __init__(self, reason: str, *, is_stale: bool = False) -> None:
        super().__init__(reason)
        self.is_stale = is_stale


class Answer(NamedTuple):
    """A whole answer. The names of the headers are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Endpoint:
    """The connections of this process to ``url``: at most 50 at once for each event loop.

    ``connect_seconds`` limits the start of a connection, ``silence_seconds`` the time without a byte of the answer.
    """

    def __init__(self, url: str, *, connect_seconds: float, silence_seconds: float) -> None:
        self.url = url
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._is_secure = parts.scheme == "https"
        default_port = ":443" if self._is_secure else ":80"
        self.host_header = parts.netloc.rpartition("@")[2].removesuffix(default_port)
        self.path = parts.path or "/"
        self._connect_seconds = connect_seconds
        self._silence_seconds = silence_seconds
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    async def send(self, request: bytes, *, on_new_connection: bool = False) -> Answer:
        """Send a whole request and return its answer. A cancelled call closes its connection.

        Raises:
            NoAnswer: there is no whole answer in time.
        """
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            for known in list(self._pools):  # another thread may add its loop meanwhile
                if known.is_closed():
                    self._pools.pop(known, None)
            pool = self._pools[loop] = _Pool()
        async with pool.slots:
            connection = None if on_new_connection else pool.take_idle(loop.time())
            pool.in_use += 1
            try:
                if connection is None:
                    pool.close_idle(keep=_MAX_CONNECTIONS - pool.in_use)
                    connection = await self._connect(loop)
                answer = await connection.send(request, self._silence_seconds)
            except NoAnswer as error:
                if error.is_stale:
                    pool.close_idle(keep=0)  # they were idle for longer; a dead one costs a whole silence
                raise
            finally:
                pool.in_use -= 1
            pool.give_back(connection, loop.time() + _MAX_IDLE_SECONDS)
            return answer

    def prepare(self) -> None:
        """Read the certificates now, instead of at the first request."""
        if self._is_secure:
            _ = self._certificates

    def close(self) -> None:
        """Close the idle connections of the running event loop, in its next iteration, and those in use after their answers."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            pool.is_closed = True
            pool.close_idle(keep=0)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> "_Connection":
        try:
            async with asyncio.timeout(self._connect_seconds):
                return await self._connect_to_any(loop)
        except (OSError, UnicodeError) as error:  # UnicodeError: no host has such a name
            raise NoAnswer(f"no connection to {self._host}:{self._port}") from error

    async def _connect_to_any(self, loop: asyncio.AbstractEventLoop) -> "_Connection":
        """Connect to the first address that accepts a connection."""
        context = self._certificates if self._is_secure else None
        name = self._host if self._is_secure else None
        connect = partial(loop.create_connection, partial(_Connection, loop), ssl=context, server_hostname=name)
        refused: OSError | None = None
        for address in await self._addresses(loop):
            try:
                endpoints = await connect(address, self._port)
            except OSError as error:
                refused = error
                continue
            connection: _Connection = endpoints[1]
            return connection
        raise refused or OSError("the host has no address")

    async def _addresses(self, loop: asyncio.AbstractEventLoop) -> list[str]:
        look_up = partial(socket.getaddrinfo, self._host, self._port, type=socket.SOCK_STREAM)
        try:
            found = look_up(flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await loop.run_in_executor(_lookups, look_up)
        return [str(address[0]) for *_, address in found]

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        """Return a context with the certificates that boto3 trusts, which takes 20 ms to read."""
        import certifi

        trusted = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or certifi.where()
        return ssl.create_default_context(cafile=trusted)


class _Pool:
    """The idle connections of one event loop, and its slots for open ones."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self.idle: deque[tuple[_Connection, float]] = deque()  # the one that was used last is at the end
        self.in_use = 0
        self.is_closed = False

    def take_idle(self, now: float) -> "_Connection | None":
        """Return the connection that was used last and is still open, or None."""
        while self.idle:
            connection, until = self.idle.pop()
            if until > now and connection.is_open:
                return connection
            connection.close()
        return None

    def give_back(self, connection: "_Connection", until: float) -> None:
        """Keep ``connection`` for other requests, if it is still open."""
        if connection.is_open and not self.is_closed:
            self.idle.append((connection, until))
        else:
            connection.close()

    def close_idle(self, *, keep: int) -> None:
        """Close idle connections, the least recently used first, until ``keep`` are left."""
        while len(self.idle) > keep:
            self.idle.popleft()[0].close()


class _Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = False
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._requests = 0
        self._answer: asyncio.Future[Answer] | None = None  # of the request under way
        self._begun = self._heard = 0.0  # when the request was sent, and when its last bytes arrived
        self._received = 0  # bytes since the request was sent
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, request: bytes, silence_seconds: float) -> Answer:
        """Write ``request`` and return its answer.

        Raises:
            NoAnswer: the connection ended, or was silent for too long.
        """
        self._requests += 1
        self._begin_answer()
        self._received = 0
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._answer = answer
        self._begun = self._heard = self._loop.time()
        if self._transport is not None and self.is_open:
            self._transport.write(request)
            self._watch(silence_seconds)
        else:
            self._fail("the connection ended before the request")
        try:
            return await answer
        except BaseException:
            self.close()
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._answer = None

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # a stream connection always gets a Transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # these bytes answer no request
            return
        self._heard = self._loop.time()
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            self.is_open = False  # also if the answer was whole
            self._fail("the answer is not HTTP")
        if self._received > _MAX_ANSWER_BYTES:
            self._fail("the answer is too long")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if exc is None and self._status and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self.on_message_complete()  # the end of the connection is the end of such an answer
        self._fail("the connection ended before the answer did")

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.is_open = False  # more bytes than the answer has: those of the next one could not be told from them

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # the final answer follows
            self._begin_answer()
        else:
            self._status = status

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._status and self._answer is not None and not self._answer.done():
            self.is_open = self.is_open and self._parser.should_keep_alive()
            self._answer.set_result(Answer(self._status, self._headers, b"".join(self._pieces)))
            self._begin_answer()  # an idle connection must not keep the bytes

    def _begin_answer(self) -> None:
        self._status, self._headers, self._pieces = 0, {}, []

    def _fail(self, reason: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NoAnswer(reason, is_stale=self._requests > 1 and not self._received))

    def _watch(self, silence_seconds: float) -> None:
        """Fail the request if the endpoint was silent for too long, and otherwise look again when it would have been."""
        end = min(self._heard + silence_seconds, self._begun + silence_seconds * _WHOLE_ANSWER)
        if self._loop.time() < end:
            self._timer = self._loop.call_at(end, self._watch, silence_seconds)
        else:
            self._fail("no answer in time")
