"""Change requests and answers as API Gateway and Lambda do, before and after our code."""

import gzip
import re
from collections.abc import Iterable
from typing import Final

import anyio
import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.routes import BINARY_MEDIA_TYPES, MIN_COMPRESSED_BYTES, ROUTE_HINTS, ROUTES, Route
from spass.core.errors import PayloadTooLarge, RouteNotFound, SpassError, UpstreamError, UpstreamTimeout
from spass.core.ids import RequestId, new_id
from spass.core.paging import event_bytes
from spass.web.errors import error_response
from spass.web.exchange import normalize_path

MAX_HEADER_BYTES: Final = 10_240  # the request line and all headers
MAX_EVENT_BYTES: Final = 6 * 1024 * 1024  # a Lambda invocation, and a buffered answer
SHORT_SECONDS: Final = 29.0
_ENVELOPE_BYTES: Final = 4096  # of an event without its body and headers, and of an answer with its headers

# A REST API renames the first and drops the second of these headers in a Lambda's answer.
# (https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-known-issues.html)
_REMAPPED: Final = frozenset(
    (b"authorization", b"connection", b"content-md5", b"date", b"max-forwards", b"server", b"user-agent", b"www-authenticate")
)
_DROPPED: Final = frozenset(
    (b"expect", b"host", b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"via")
)


class LambdaEdge:
    """ASGI middleware that answers what API Gateway and Lambda would answer.

    It limits the sizes of headers and events on all routes, and on short ones the time and size of an answer, which it buffers.
    It answers a path of another API with 404 and the route to use instead.
    It renames and drops headers of answers, as a REST API does, and compresses buffered answers for clients that accept gzip.
    """

    def __init__(self, app: ASGIApp, *, short_seconds: float = SHORT_SECONDS, routes: Iterable[Route] = ROUTES) -> None:
        self._app = app
        self._short_seconds = short_seconds
        self._routes = [(route, _pattern(route.path)) for route in routes]
        self._route_hints = [(_pattern(path), message) for path, message in ROUTE_HINTS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "path": normalize_path(scope["path"])}
        header_bytes = _header_bytes(scope)
        if header_bytes > MAX_HEADER_BYTES:
            await _refuse(
                PayloadTooLarge(f"The request line and headers are over {MAX_HEADER_BYTES} bytes."), scope, receive, send
            )
            return
        if hint := self._route_hint(scope["path"]):
            await _refuse(RouteNotFound(hint), scope, receive, send)
            return
        limit = MAX_EVENT_BYTES - header_bytes - _ENVELOPE_BYTES
        first = await _read_body(receive, limit, in_base64=_is_binary(scope))
        if first is None:
            await _refuse(
                PayloadTooLarge("The request is over 6 MiB as an event of Lambda. A body may have at most 4194304 bytes."),
                scope,
                receive,
                send,
            )
            return
        replayed = _Replay(first, receive)
        remapping = _remapping(send)
        if self._is_long(scope):
            await self._app(scope, replayed, remapping)
        else:
            await self._buffered(scope, replayed, remapping)

    def _is_long(self, scope: Scope) -> bool:
        return any(
            route.long and scope["method"] in route.methods and pattern.fullmatch(scope["path"])
            for route, pattern in self._routes
        )

    def _route_hint(self, path: str) -> str | None:
        """Return which route to use instead of ``path``, for paths that clients confuse with a route."""
        for pattern, message in self._route_hints:
            if pattern.fullmatch(path):
                return message
        if "//" not in path:
            return None
        templates = [route.path for route, _ in self._routes if _pattern(route.path, empty=True).fullmatch(path)]
        if templates:
            return f"No path has an empty segment (//). Use {templates[0]}: the part between the slashes is empty."
        plain = re.sub("/{2,}", "/", path)
        paths = dict.fromkeys(route.path for route, pattern in self._routes if pattern.fullmatch(plain))
        return f"No path has an empty segment (//). Use {' or '.join(paths)}." if paths else None

    async def _buffered(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        with anyio.move_on_after(self._short_seconds) as limit:
            await self._app(scope, receive, keep)
        if limit.cancelled_caught:
            await _refuse(UpstreamTimeout("The request took longer than 29 seconds."), scope, receive, send)
        elif _answer_bytes(answer) > MAX_EVENT_BYTES - _ENVELOPE_BYTES:
            await _refuse(UpstreamError("The answer is over 6 MiB; ask for a smaller page."), scope, receive, send)
        else:
            for message in await _compressed(scope, answer):
                await send(message)


async def _compressed(scope: Scope, answer: list[Message]) -> list[Message]:
    """Return the answer as API Gateway sends it: compressed if it is large enough and the client prefers gzip.

    (https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-gzip-compression-decompression.html)
    """
    start, body = answer[0], b"".join(message.get("body", b"") for message in answer)
    if len(body) < MIN_COMPRESSED_BYTES or "content-encoding" in Headers(scope=start) or not _prefers_gzip(Headers(scope=scope)):
        return answer
    body = await anyio.to_thread.run_sync(gzip.compress, body)
    headers = MutableHeaders(raw=list(start["headers"]))
    headers["Content-Encoding"], headers["Content-Length"] = "gzip", str(len(body))
    return [{**start, "headers": headers.raw}, {"type": "http.response.body", "body": body}]


def _prefers_gzip(headers: Headers) -> bool:
    """Return True if no other coding that ``Accept-Encoding`` names has a higher weight than gzip."""
    weights: dict[str, float] = {}
    for coding in ",".join(headers.getlist("accept-encoding")).split(","):
        name, _, parameter = coding.partition(";")
        weight = re.fullmatch(r"\s*q=([01](?:\.\d{0,3})?)\s*", parameter, re.IGNORECASE)
        weights[name.strip().lower()] = float(weight[1]) if weight else 1.0
    gzip_weight = weights.get("gzip", 0.0)
    return gzip_weight > 0 and gzip_weight == max(weights.values())


class _Replay:
    """An ASGI ``receive`` that first returns ``body``, which was already read, and then the server's messages."""

    def __init__(self, body: Message, receive: Receive) -> None:
        self._body: Message | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return body
        return await self._receive()


def _remapping(send: Send) -> Send:
    """Return a ``send`` that renames and drops headers of answers, as a REST API does."""

    async def remap(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = ((name.lower(), value) for name, value in message.get("headers", ()))
            remapped = [(_remapped(name), value) for name, value in headers if name not in _DROPPED]
            message = {**message, "headers": remapped}
        await send(message)

    return remap


def _remapped(name: bytes) -> bytes:
    return b"x-amzn-remapped-" + name if name in _REMAPPED else name


async def _read_body(receive: Receive, limit: int, *, in_base64: bool) -> Message | None:
    """Return the whole body as one message, or None if it is over ``limit`` bytes as an event."""
    parts: list[bytes] = []
    size = 0.0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message
        parts.append(message.get("body", b""))
        size += len(parts[-1]) * 4 / 3 if in_base64 else event_bytes(parts[-1])
        if size > limit:
            return None
        if not message.get("more_body"):
            return {"type": "http.request", "body": b"".join(parts), "more_body": False}


def _is_binary(scope: Scope) -> bool:
    """Return True if API Gateway passes the body on in base64, not as text."""
    types = [value for name, value in scope["headers"] if name == b"content-type"]
    return any(value.decode("latin-1").partition(";")[0].strip().lower() in BINARY_MEDIA_TYPES for value in types)


def _header_bytes(scope: Scope) -> int:
    line = len(scope["method"]) + len(scope.get("raw_path") or scope["path"]) + len(scope.get("query_string", b"")) + 12
    return line + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def _answer_bytes(answer: Iterable[Message]) -> int:
    """Return the bytes of an answer in the form in which a Lambda returns it."""
    return sum(event_bytes(message.get("body", b"")) for message in answer)


def _pattern(path: str, *, empty: bool = False) -> re.Pattern[str]:
    """Match the paths of a route. With ``empty``, its variables may be empty."""
    return re.compile(re.sub(r"\{\w+\}", "[^/]*" if empty else "[^/]+", path))


async def _refuse(error: SpassError, scope: Scope, receive: Receive, send: Send) -> None:
    request_id = RequestId(new_id("req"))
    response = error_response(error, request_id, {"SPASS-Request-Id": request_id})
    await response(scope, receive, send)
