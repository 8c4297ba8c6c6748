"""The HTTP side of a provider: one client, one place that translates what goes wrong, bounded time and bounded bytes."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Final, Protocol, TypeVar

import httpx

from spass.core.messages import Json
from spass.llm.backends import DEFAULT_MAX_CONNECTIONS
from spass.llm.errors import BackendAuthError, BackendBadRequest, BackendError, BackendTimeout, BackendUnavailable
from spass.llm.providers.decompression import iter_decompressed
from spass.llm.providers.error_responses import error_from_response
from spass.llm.providers.sse import EventTooLong
from spass.llm.providers.transports import track_sent, transport_to
from spass.llm.types import CallContext
from spass.tenancy.config import BackendConfig

E = TypeVar("E")

CONNECT_SECONDS: Final = 5.0
MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
MAX_ERROR_BYTES: Final = 64 * 1024

_ERROR_SECONDS: Final = 5.0  # the status is known by then; the words are worth no longer wait
_DRAIN_SECONDS: Final = 0.25
_dump_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_DEFAULT_HEADERS: Final = {
    "Accept": "*/*",
    "Accept-Encoding": "gzip, deflate",
    "User-Agent": "spass",
    "Content-Type": "application/json",
}

# They log the address of every request, and headers with the key below that.
for _talkative in ("httpx", "httpcore"):
    logging.getLogger(_talkative).setLevel(logging.WARNING)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raises what httpx raises, and a deadline of asyncio, as ``BackendError``."""
    try:
        yield
    except (httpx.TimeoutException, TimeoutError) as error:
        raise BackendTimeout("The provider did not answer in time.") from error
    except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL, httpx.CookieConflict, UnicodeError) as error:
        raise BackendAuthError("The provider cannot be called as it is configured.") from error
    except httpx.ConnectError as error:
        raise BackendUnavailable("The provider could not be reached.") from error
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise BackendUnavailable("The connection to the provider broke off.") from error


class ErrorParser(Protocol):
    """``failures.error_from_response``, or a provider's own way to read its errors."""

    def __call__(self, status: int, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str] = ()) -> BackendError: ...


def malformed_response(what: str) -> BackendUnavailable:
    """The failure of an answer that is not what the protocol says. ``what`` is ours, never a part of the answer."""
    return BackendUnavailable(f"The provider's answer could not be read: {what}.")


class StreamParser(Protocol[E]):
    """Takes the bytes of a stream in whatever pieces they come and gives its events as soon as they are whole."""

    def feed(self, chunk: bytes) -> list[E]:
        """The events that ``chunk`` completes.

        Raises:
            EventTooLong: an event does not end.
            BackendError: the bytes are not what the protocol says.
        """
        ...

    def close(self) -> list[E]:
        """The event that the end of the body completes."""
        ...


class Connection:
    """Requests to one backend. ``headers`` go out with each, among them the key; where there is none, ``auth`` may sign instead.
    ``secrets`` are what no caller may read of it. ``error_from_response`` says what an unsuccessful answer means.

    Connections belong to the event loop they were first used in; a process may see several, one after the other. Requests go
    straight to the transport: what an ``httpx.AsyncClient`` adds (cookies, redirects) nobody may want of a provider.
    """

    def __init__(
        self,
        backend: BackendConfig,
        base_url: str,
        headers: Mapping[str, str],
        *,
        key: str | None = None,
        auth: httpx.Auth | None = None,
        error_from_response: ErrorParser = error_from_response,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._backend = backend
        self._auth = auth
        self._failure_of = error_from_response
        self._base_url = base_url.rstrip("/")
        self._headers = headers
        self.secrets = _secrets(self._base_url, key)
        self._transport = transport
        self._urls: dict[str, httpx.URL] = {}
        self._opened: httpx.AsyncBaseTransport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spare = asyncio.Semaphore()

    async def post(self, path: str, body: Mapping[str, Json], context: CallContext, *, generates: bool = False) -> bytes:
        """Return the whole body of a successful answer. ``generates``: a model writes all of it before the first byte comes, so
        that without a ``timeout`` of the backend only the deadline ends the wait."""
        silence = self._backend.timeout if generates else self._backend.silence
        async with self._answer(path, body, context, silence) as answer:
            return await answer.read(MAX_RESPONSE_BYTES)

    async def stream(
        self,
        path: str,
        body: Mapping[str, Json],
        context: CallContext,
        *,
        parser: StreamParser[E],
        is_last: Callable[[E], bool],
    ) -> AsyncGenerator[E, None]:
        """The events of a successful answer, as they come, up to the one that ``is_last`` or to the end of the body."""
        whole = self._answer(path, body, context, self._backend.silence)
        async with whole as answer, aclosing(answer.chunks(MAX_RESPONSE_BYTES)) as chunks:
            try:
                async for chunk in chunks:
                    for event in parser.feed(chunk):
                        yield event
                        if is_last(event):
                            await answer.drain()
                            return
                for event in parser.close():
                    yield event
            except EventTooLong as error:
                raise malformed_response("an event does not end") from error

    async def aclose(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()
            self._opened = None

    @asynccontextmanager
    async def _answer(
        self, path: str, body: Mapping[str, Json], context: CallContext, silence: float | None
    ) -> AsyncIterator["_Response"]:
        content = _encode(body)
        patience = _ReadTimeout(silence, context)
        async with self._connected(context) as transport:
            with translate_errors():
                seconds = patience.seconds
                request = await self._request(path, content, context, seconds)
                with track_sent(request, context.attempt):
                    async with asyncio.timeout(seconds):
                        response = await transport.handle_async_request(request)
            answer = _Response(response, patience)
            try:
                if not response.is_success:
                    failure = await self._failure(answer)
                    # A proxy or the provider gave up the wait; the model may have written its answer all the same.
                    context.attempt.sent |= isinstance(failure, BackendTimeout)
                    raise failure
                context.attempt.sent = True
                yield answer
            finally:
                with suppress(httpx.HTTPError):
                    await response.aclose()

    async def _request(self, path: str, content: bytes, context: CallContext, seconds: float) -> httpx.Request:
        headers = {**_DEFAULT_HEADERS, **context.headers, **self._headers}
        timeout = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        request = httpx.Request(
            "POST", self._url(path), headers=headers, content=content, extensions={"timeout": timeout.as_dict()}
        )
        if self._auth is None:
            return request
        async with aclosing(self._auth.async_auth_flow(request)) as signing:
            return await anext(signing)

    def _url(self, path: str) -> httpx.URL:
        """Read once: a backend has as many paths as it has models, at most."""
        if path not in self._urls:
            self._urls[path] = httpx.URL(self._base_url + path)
        return self._urls[path]

    @asynccontextmanager
    async def _connected(self, context: CallContext) -> AsyncIterator[httpx.AsyncBaseTransport]:
        """The transport, with a connection to spare. Who waits for one does not wait for the
        provider: only the deadline ends it."""
        with translate_errors():
            transport, spare = self._open()
            async with asyncio.timeout(context.deadline.remaining()):
                await spare.acquire()
        try:
            yield transport
        finally:
            spare.release()

    async def _failure(self, answer: "_Response") -> BackendError:
        response = answer.response
        body = b""
        with suppress(BackendError, TimeoutError):
            async with asyncio.timeout(_ERROR_SECONDS):
                body = await answer.read(MAX_ERROR_BYTES)
        return self._failure_of(response.status_code, response.headers, body, secrets=self.secrets)

    def _open(self) -> tuple[httpx.AsyncBaseTransport, asyncio.Semaphore]:
        loop = asyncio.get_running_loop()
        if self._opened is None or self._loop is not loop:
            self._spare = asyncio.Semaphore(self._backend.max_concurrent or DEFAULT_MAX_CONNECTIONS)
            self._opened = self._transport or transport_to(self._base_url)
            self._loop = loop
        return self._opened, self._spare


class _ReadTimeout:
    """Bounds the wait for bytes: at most ``silence`` seconds for the first and for each that follow, and in all until the
    deadline of the request. An answer that flows is never cut off for its length. None waits until the deadline."""

    def __init__(self, silence: float | None, context: CallContext) -> None:
        self._silence = silence
        self._deadline = context.deadline

    @property
    def seconds(self) -> float:
        """What is left for the next bytes.

        Raises:
            BackendTimeout: nothing.
        """
        seconds = self._deadline.remaining()
        if self._silence is not None:
            seconds = min(self._silence, seconds)
        if seconds <= 0:
            raise BackendTimeout("The provider did not answer in time.")
        return seconds


class _Response:
    """A response under way."""

    def __init__(self, response: httpx.Response, patience: _ReadTimeout) -> None:
        self.response = response
        self._patience = patience
        self._pieces = _iter_body(response)

    async def chunks(self, limit: int) -> AsyncGenerator[bytes, None]:
        """The body piece by piece, decompressed, up to ``limit`` bytes.

        The clock runs only while waiting for the provider's bytes: a timeout must never strike whoever reads.
        """
        size = 0
        with translate_errors():
            while True:
                async with asyncio.timeout(self._patience.seconds):
                    piece = await anext(self._pieces, None)
                if piece is None:
                    return
                size += len(piece)
                if size > limit:
                    raise malformed_response("it is too long")
                yield piece

    async def read(self, limit: int) -> bytes:
        async with aclosing(self.chunks(limit)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def drain(self) -> None:
        """Reads the little that follows the last event, so that the connection can serve again; soon gives up."""
        with suppress(BackendError, TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self.read(MAX_ERROR_BYTES)


def _iter_body(response: httpx.Response) -> AsyncIterator[bytes]:
    """Return the body as it comes, unpacked if it is compressed."""
    if isinstance(response.stream, httpx.AsyncByteStream) and "content-encoding" not in response.headers:
        return aiter(response.stream)
    return iter_decompressed(response)


def _secrets(base_url: str, key: str | None) -> tuple[str, ...]:
    """The key, and where the backend is, with its port and without."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        return (key,) if key else ()
    address = url.netloc.decode("ascii", errors="replace")
    return tuple(dict.fromkeys(filter(None, (key, base_url, address, url.host))))


def _encode(body: Mapping[str, Json]) -> bytes:
    try:
        # What a tool or a model wrote may hold half a surrogate pair, which UTF-8 cannot write.
        return _dump_json(body).encode(errors="replace")
    except ValueError as error:
        raise BackendBadRequest("The request holds a number that JSON cannot write.") from error
