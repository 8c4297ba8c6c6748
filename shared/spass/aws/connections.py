"""Send requests to one endpoint of AWS over a pool of connections for each event loop."""

import asyncio
import os
import socket
import ssl
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from spass.aws.http_connection import Answer, Connection, NoAnswer
from spass.core.errors import InternalError

_MAX_CONNECTIONS: Final = 50
_MAX_IDLE_SECONDS: Final = 60.0

# The threads of an event loop also do other work, such as calls of boto3, and a connection has a second.
_lookups: Final = ThreadPoolExecutor(4, thread_name_prefix="hosts")  # starts its threads on demand


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
                answer = await connection.send(request)
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
            _certificates()

    def close(self) -> None:
        """Close the idle connections of the running event loop, in its next iteration, and those in use after their answers."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            pool.is_closed = True
            pool.close_idle(keep=0)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> "Connection":
        try:
            async with asyncio.timeout(self._connect_seconds):
                return await self._connect_to_any(loop)
        except (OSError, UnicodeError) as error:  # UnicodeError: no host has such a name
            reason = f"no connection to {self._host}:{self._port}"
            raise NoAnswer(reason, is_timeout=isinstance(error, TimeoutError)) from error

    async def _connect_to_any(self, loop: asyncio.AbstractEventLoop) -> "Connection":
        """Connect to the first address that accepts a connection."""
        context = _certificates() if self._is_secure else None
        name = self._host if self._is_secure else None
        connect = partial(
            loop.create_connection, partial(Connection, loop, self._silence_seconds), ssl=context, server_hostname=name
        )
        refused: OSError | None = None
        for address in await self._addresses(loop):
            try:
                endpoints = await connect(address, self._port)
            except OSError as error:
                refused = error
                continue
            connection: Connection = endpoints[1]
            return connection
        raise refused or OSError("the host has no address")

    async def _addresses(self, loop: asyncio.AbstractEventLoop) -> list[str]:
        look_up = partial(socket.getaddrinfo, self._host, self._port, type=socket.SOCK_STREAM)
        try:
            found = look_up(flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await loop.run_in_executor(_lookups, look_up)
        return [str(address[0]) for *_, address in found]


def _certificates() -> ssl.SSLContext:
    """Return a context with the certificates that boto3 trusts.

    Raises:
        InternalError: there are none where the environment says.
    """
    import certifi

    return _read_certificates(os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or certifi.where())


@cache
def _read_certificates(trusted: str) -> ssl.SSLContext:
    """Return a context with the certificates at ``trusted``. Cached: it takes 20 ms to read them, and a function calls two
    services."""
    try:
        if Path(trusted).is_dir():
            return ssl.create_default_context(capath=trusted)
        return ssl.create_default_context(cafile=trusted)
    except OSError as error:  # ssl.SSLError is one
        message = "AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE does not name a file of certificates, or a folder of them."
        raise InternalError(message) from error


class _Pool:
    """The idle connections of one event loop, and its slots for open ones."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self.idle: deque[tuple[Connection, float]] = deque()  # the one that was used last is at the end
        self.in_use = 0
        self.is_closed = False

    def take_idle(self, now: float) -> "Connection | None":
        """Return the connection that was used last and is still open, or None."""
        while self.idle:
            connection, until = self.idle.pop()
            if until > now and connection.is_open:
                return connection
            connection.close()
        return None

    def give_back(self, connection: "Connection", until: float) -> None:
        """Keep ``connection`` for other requests, if it is still open."""
        if connection.is_open and not self.is_closed:
            self.idle.append((connection, until))
        else:
            connection.close()

    def close_idle(self, *, keep: int) -> None:
        """Close idle connections, the least recently used first, until ``keep`` are left."""
        while len(self.idle) > keep:
            self.idle.popleft()[0].close()
