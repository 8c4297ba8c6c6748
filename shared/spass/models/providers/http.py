"""Send requests to one backend, limit the time and the bytes of its answers, and translate every error into ``AttemptFailed``."""

import asyncio
import logging
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Final

import httpx

from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.core.wait_limit import WaitLimit
from spass.models.attempt import Attempt
from spass.models.backends import DEFAULT_MAX_CONNECTIONS
from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendTimeout,
    BackendUnavailable,
    BackendUnreachable,
)
from spass.models.providers.decompression import iter_decompressed
from spass.models.providers.direct import SENT, DirectTransport
from spass.models.providers.error_responses import error_from_response
from spass.models.types import CallContext
from spass.tenancy.config import BackendConfig

CONNECT_SECONDS: Final = 5.0
MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
MAX_ERROR_BYTES: Final = 64 * 1024

_ERROR_SECONDS: Final = 5.0  # to read the body of an error answer
_DRAIN_SECONDS: Final = 0.25  # to read the bytes after the last event, so that the connection can be reused
_KEEPALIVE_SECONDS: Final = 15.0  # shorter than the idle limit of the load balancers in front of models
_NOT_SENT_WHOLE: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.WriteError,
    httpx.WriteTimeout,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
_CONFIGURATION_ERRORS: Final = (
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
    httpx.InvalidURL,
    httpx.CookieConflict,
    UnicodeError,
)
_FOREIGN_ERRORS: Final = (httpx.HTTPError, httpx.StreamError, TimeoutError, *_CONFIGURATION_ERRORS)
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_DEFAULT_HEADERS: Final = {
    "Accept": "*/*",
    "Accept-Encoding": "gzip",  # servers disagree about the format of "deflate"
    "User-Agent": "spass",
    "Content-Type": "application/json",
}

# These libraries log the address of every request at INFO, and the headers with the key at DEBUG.
for _logger in ("httpx", "httpcore"):
    logging.getLogger(_logger).setLevel(logging.WARNING)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of httpx and timeouts of asyncio as ``AttemptFailed``."""
    try:
        yield
    except _FOREIGN_ERRORS as error:
        raise _translate(error) from error


def _translate(error: Exception) -> AttemptFailed:
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return BackendTimeout("The provider did not answer in time.")
    if isinstance(error, _CONFIGURATION_ERRORS):
        return BackendAuthError("The provider cannot be called as it is configured.")
    if isinstance(error, httpx.ConnectError):
        return BackendUnreachable("The provider could not be reached.")
    return BackendUnavailable("The connection to the provider broke off.")


def malformed_response(reason: str) -> BackendUnavailable:
    """Return the failure for an answer that violates the protocol. ``reason`` must not quote the answer."""
    return BackendUnavailable(f"The provider's answer could not be read: {reason}.")


class Connection:
    """Send requests to one backend.

    Each request has ``headers``, which may include the key; ``sign`` may sign requests instead. Callers must never see
    ``secrets``. Connections belong to one event loop; if a process starts another event loop, it opens new connections. Requests
    go to the transport without an ``httpx.AsyncClient``, which would add cookies and redirects.
    """

    def __init__(
        self,
        backend: BackendConfig,
        base_url: str,
        headers: Mapping[str, str],
        *,
        key: str | None = None,
        sign: Callable[[httpx.Request], Awaitable[None]] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._backend = backend
        self._sign = sign
        self._base_url = base_url.rstrip("/")
        self._headers = headers
        self.secrets = _secrets(self._base_url, key)
        self._transport = transport
        self._urls: dict[str, httpx.URL] = {}
        self._open_transport: httpx.AsyncBaseTransport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free_slots = asyncio.Semaphore()

    async def post(self, path: str, body: Mapping[str, Json], context: CallContext, *, generates: bool = False) -> bytes:
        """Return the whole body of a successful answer. With ``generates``, a model writes it before the first byte arrives, so
        only the backend's ``timeout`` (if set) and the deadline limit the wait."""
        read_timeout = self._backend.timeout if generates else self._backend.read_timeout
        async with self._answer(path, body, context, read_timeout) as answer:
            return await answer.read()

    def stream(self, path: str, body: Mapping[str, Json], context: CallContext) -> AbstractAsyncContextManager["Answer"]:
        """Send a request and give its successful answer, of which no byte has been read."""
        return self._answer(path, body, context, self._backend.read_timeout)

    async def aclose(self) -> None:
        if self._open_transport is not None:
            await self._open_transport.aclose()
            self._open_transport = None

    @asynccontextmanager
    async def _answer(
        self, path: str, body: Mapping[str, Json], context: CallContext, read_timeout: float | None
    ) -> AsyncIterator["Answer"]:
        """Send a request and yield its successful answer, whose body has not been read."""
        try:
            content = dump_bytes(body)
        except ValueError as error:
            raise BackendBadRequest("The request holds a number that JSON cannot write.") from error
        async with self._connected(context) as transport:
            with translate_errors():
                seconds = _seconds_left(read_timeout, context.deadline)
                request = await self._request(path, content, context, seconds)
                with _track_sent(request, context.attempt):
                    async with asyncio.timeout(seconds):
                        response = await transport.handle_async_request(request)
            answer = Answer(response, read_timeout, context.deadline)
            try:
                if not response.is_success:
                    raise await self._failure(response, answer, context)
                context.attempt.sent = True
                yield answer
            finally:
                answer.close()
                with suppress(httpx.HTTPError):
                    await response.aclose()

    async def _request(self, path: str, content: bytes, context: CallContext, seconds: float) -> httpx.Request:
        if path not in self._urls:
            self._urls[path] = httpx.URL(self._base_url + path)
        headers = {**_DEFAULT_HEADERS, **context.headers, **self._headers}
        timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        request = httpx.Request(
            "POST", self._urls[path], headers=headers, content=content, extensions={"timeout": timeout.as_dict()}
        )
        if self._sign is not None:
            await self._sign(request)
        return request

    @asynccontextmanager
    async def _connected(self, context: CallContext) -> AsyncIterator[httpx.AsyncBaseTransport]:
        """Wait for one of the backend's ``max_concurrent`` connections, until the deadline, and yield the transport."""
        with translate_errors():
            loop = asyncio.get_running_loop()
            if self._open_transport is None or self._loop is not loop:
                self._free_slots = asyncio.Semaphore(self._backend.max_concurrent or DEFAULT_MAX_CONNECTIONS)
                self._open_transport = self._transport or transport_to(self._base_url)
                self._loop = loop
            transport, free_slots = self._open_transport, self._free_slots
            async with asyncio.timeout(context.deadline.remaining()):
                await free_slots.acquire()
        try:
            yield transport
        finally:
            free_slots.release()

    async def _failure(self, response: httpx.Response, answer: "Answer", context: CallContext) -> AttemptFailed:
        body = b""
        try:
            with suppress(AttemptFailed, TimeoutError):
                async with asyncio.timeout(_ERROR_SECONDS):
                    body = await answer.read(MAX_ERROR_BYTES)
        finally:
            failure = error_from_response(response.status_code, response.headers, body, secrets=self.secrets)
            # A proxy timed out, but the model may have written its answer, which is billed. That is also true for a caller that
            # is cancelled while the body is read.
            context.attempt.sent |= isinstance(failure, BackendTimeout)
        return failure


class Answer:
    """The body of an answer whose status and headers have arrived."""

    def __init__(self, response: httpx.Response, read_timeout: float | None, deadline: Deadline) -> None:
        self._pieces = _iter_body(response)
        self._size = 0
        self._read_timeout = read_timeout
        self._deadline = deadline
        self._limit = WaitLimit()

    async def next_piece(self) -> bytes | None:
        """Return the next bytes of the body, decompressed, or None at its end. A slow reader does not time out.

        Raises:
            AttemptFailed: they did not arrive in time, the connection broke off, or the body is too long.
        """
        seconds = _seconds_left(self._read_timeout, self._deadline)
        try:
            piece = await self._limit.wait(anext(self._pieces), seconds)
        except StopAsyncIteration:
            return None
        except _FOREIGN_ERRORS as error:
            raise _translate(error) from error
        self._size += len(piece)
        if self._size > MAX_RESPONSE_BYTES:
            raise malformed_response("it is too long")
        return piece

    async def read(self, limit: int = MAX_RESPONSE_BYTES) -> bytes:
        """Return the rest of the body. Raise AttemptFailed as ``next_piece``, and if it has more than ``limit`` bytes."""
        pieces: list[bytes] = []
        size = 0
        while (piece := await self.next_piece()) is not None:
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise malformed_response("it is too long")
        return b"".join(pieces)

    async def drain(self) -> None:
        """Read what follows the last event, so that the connection can be reused, unless that takes long."""
        with suppress(AttemptFailed, TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self.read(MAX_ERROR_BYTES)

    def close(self) -> None:
        self._limit.close()


def _iter_body(response: httpx.Response) -> AsyncIterator[bytes]:
    if isinstance(response.stream, httpx.AsyncByteStream) and "content-encoding" not in response.headers:
        return aiter(response.stream)
    return iter_decompressed(response)


def _seconds_left(read_timeout: float | None, deadline: Deadline) -> float:
    """Return the seconds to wait for the next bytes: at most ``read_timeout``, if it is set, and not beyond ``deadline``.

    Raises:
        BackendTimeout: the deadline has passed.
    """
    seconds = deadline.remaining()
    if seconds <= 0:
        raise BackendTimeout("The provider did not answer in time.")
    return seconds if read_timeout is None else min(read_timeout, seconds)


def _secrets(base_url: str, key: str | None) -> tuple[str, ...]:
    """Return the key and the backend's address, with and without its port."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        return (key,) if key else ()
    address = url.netloc.decode("ascii", errors="replace")
    return tuple(dict.fromkeys(filter(None, (key, base_url, address, url.host))))


def transport_to(base_url: str) -> httpx.AsyncBaseTransport:
    """Return a direct transport to ``base_url``, or a transport through the proxy that the environment sets for it."""
    proxy = _find_proxy(httpx.URL(base_url))
    if proxy is None:
        return DirectTransport(keepalive=_KEEPALIVE_SECONDS)
    return httpx.AsyncHTTPTransport(proxy=proxy, limits=httpx.Limits(keepalive_expiry=_KEEPALIVE_SECONDS))


def _find_proxy(url: httpx.URL) -> str | None:
    """Return the URL of the proxy that the environment sets for ``url``, or None. A server on this machine has no proxy."""
    if url.host in _LOOPBACK or urllib.request.proxy_bypass(url.host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


@contextmanager
def _track_sent(request: httpx.Request, attempt: Attempt) -> Iterator[None]:
    """Set ``attempt.sent`` if ``request`` ends without an answer and the provider may have received all of it, as the extension
    ``SENT`` says. With another transport than ``DirectTransport``, only the exceptions in ``_NOT_SENT_WHOLE`` prove the opposite.
    """
    try:
        yield
    except BaseException as error:
        if request.extensions.get(SENT, not isinstance(error, _NOT_SENT_WHOLE)):
            attempt.sent = True
        raise
