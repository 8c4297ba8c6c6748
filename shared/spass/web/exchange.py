"""One HTTP request: its state, which the route and the services share, and the edge, which is the outermost layer.

The edge adds the request id to each answer, answers every failure, and writes one log line per request.
"""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Depends
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from spass.core.cost import Cost, decimal_text
from spass.core.errors import GATEWAY_STOPPED, InternalError, RouteNotFound, SpassError, internal_error
from spass.core.ids import RequestId, new_id
from spass.core.messages import Json
from spass.core.time import now
from spass.redaction.log import failure_line, write_line
from spass.web.errors import error_response, route_not_found

if TYPE_CHECKING:
    from spass.calls.scope import Scope
    from spass.limits.places import PlaceKind
    from spass.limits.shard import Reservation
    from spass.observability.tracer import RequestTrace, Tracer
    from spass.store.idempotency import IdempotentRequest
    from spass.web.services import Services

_KEY: Final = "spass.exchange"
CLIENT_CLOSED_REQUEST: Final = 499
API_GATEWAY_REQUEST_ID: Final = "spass.gateway_request_id"
"""The key of an ASGI scope under which API Gateway's id of the request is stored. Our log line contains the id, so that it can be
matched with API Gateway's access log."""

IS_HEAD: Final = "spass.is_head"
"""The key of an ASGI scope that says whether the client's method was HEAD, which routes see as GET."""

_MAX_SHOWN_CHARACTERS: Final = 300
_WRITE_METHODS: Final = ("DELETE", "PATCH", "PUT")
_UNSAFE_ESCAPE: Final = re.compile(rb"%(5c|00)|^((?!/v1/models/).)*%2f", re.IGNORECASE | re.DOTALL)
"""Match an encoded ``/``, ``\\`` or NUL, because decoding it would change the path. Only a model's name may contain ``/``."""


@dataclass(slots=True)
class Exchange:
    """The state of one request. The edge creates it, and the route adds the caller.

    ``started`` is in seconds of ``time.monotonic``. ``route`` is the path template of the route. ``error`` is the error's code,
    and ``limit`` the name of the limit that it reports. ``idempotency`` identifies a request with an Idempotency-Key. ``trace``
    is None unless the operator exports spans.
    """

    request_id: RequestId = field(default_factory=lambda: RequestId(new_id("req")))
    started: float = field(default_factory=time.monotonic)
    route: str | None = None
    error: str | None = None
    limit: str | None = None
    trace: "RequestTrace | None" = None
    _scope: "Scope | None" = None
    _services: "Services | None" = None
    idempotency: "IdempotentRequest | None" = None
    _place: "Reservation | None" = None

    def enter(self, scope: "Scope", services: "Services") -> None:
        """Add the caller's scope and the services."""
        self._scope = scope
        self._services = services
        if self.trace is not None:
            tenant = scope.caller.tenant
            self.trace.identify(tenant, is_trusted=services.config.trusts_traces(tenant))

    def fail(self, error: SpassError) -> None:
        """Name ``error`` in the request's line of the log."""
        limit = error.details.get("limit")
        self.error, self.limit = error.code, limit if isinstance(limit, str) else None

    @property
    def scope(self) -> "Scope":
        if self._scope is None:
            raise RuntimeError("a public route has no caller")
        return self._scope

    @property
    def services(self) -> "Services":
        if self._services is None:
            raise RuntimeError("a public route has no services")
        return self._services

    async def take_place(self, kind: "PlaceKind") -> None:
        """Take one of the places of the tenant, until the answer has been sent. A request has one at most: it gives back the one
        that it has. Errors are those of ``Places.take``."""
        await self.give_back_place()
        self._place = await self.services.places.take(self.scope.store, kind)

    async def give_back_place(self) -> None:
        """Give back the place of this request, if it has one."""
        place, self._place = self._place, None
        if place is not None:
            await place.settle(tokens=0)

    async def end_trace(self, status: int, *, is_streamed: bool) -> None:
        """End the trace of this request, if it has one, and send it."""
        if self.trace is not None:
            await self.trace.end(self.request_id, self.route, status, self.error, is_streamed=is_streamed)

    @property
    def tenant(self) -> str | None:
        return self._scope.caller.tenant if self._scope else None

    def cost_headers(self) -> Mapping[str, str]:
        """Return the headers with the cost of the model calls so far; empty if there were none."""
        return render_cost_headers(self._scope.tally.total) if self._scope is not None else {}


def render_cost_headers(cost: Cost) -> Mapping[str, str]:
    """Return the headers with ``cost``; none if there were no model calls."""
    if not cost.sub_calls:
        return {}
    return {
        "SPASS-Cost-Eur": decimal_text(cost.eur),
        "SPASS-Cost-Usd": decimal_text(cost.usd),
        "SPASS-Cost-Source": cost.source.value,
        "SPASS-Cost-Sub-Calls": str(cost.sub_calls),
    }


def get_exchange(request: Request) -> Exchange:
    """Return the exchange of ``request``."""
    exchange: Exchange = request.scope[_KEY]
    return exchange


async def _provide_exchange(request: Request) -> Exchange:
    return get_exchange(request)


CurrentExchange = Annotated[Exchange, Depends(_provide_exchange)]
"""A parameter of a route: the exchange, with the caller and the services."""


class EdgeMiddleware:
    """ASGI middleware that answers every request, even if the app raises an exception. ``tracer`` returns the tracer of the
    process, or None if no spans are exported."""

    def __init__(self, app: ASGIApp, tracer: "Callable[[], Tracer | None]" = lambda: None) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method: str = scope["method"]
        # Routes declare only GET. Answer HEAD like GET, without the body (RFC 9110, 9.3.2).
        is_head = method == "HEAD"
        scope = {**scope, "method": "GET" if is_head else method, "path": _route_path(scope), IS_HEAD: is_head}
        exchange = scope[_KEY] = Exchange(trace=_begin_trace(self._tracer(), method, scope))
        sender = _ResponseSender(exchange, send, omit_body=is_head)
        try:
            if path_error := _check_path(method, scope):
                exchange.fail(path_error)
                await error_response(path_error, exchange.request_id)(scope, receive, sender.send)
            else:
                await self._app(scope, receive, sender.send)
        except ClientDisconnect:
            sender.status = CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:  # the server stops; the work has cleaned up
            exchange.fail(GATEWAY_STOPPED)
            if not sender.status:
                await error_response(GATEWAY_STOPPED, exchange.request_id)(scope, receive, sender.send)
        except Exception as error:  # noqa: BLE001 (the edge: every failure gets an answer and a line in the log)
            exchange.error = InternalError.code
            write_line(failure_line(error, exchange.request_id))
            if not sender.status:
                response = error_response(internal_error(error), exchange.request_id)
                await response(scope, receive, sender.send)
        finally:
            await exchange.give_back_place()
            write_line(_build_log_line(scope, method, exchange, sender.status))
            if exchange.trace is not None:
                await exchange.end_trace(sender.status, is_streamed=True)
                exchange.trace.leave()


def _begin_trace(tracer: "Tracer | None", method: str, scope: AsgiScope) -> "RequestTrace | None":
    """Begin the trace of a request, if there is a tracer."""
    if tracer is None:
        return None
    traceparents = [value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"]
    return tracer.begin_request(method, scope["scheme"], traceparents)


def _check_path(method: str, scope: AsgiScope) -> RouteNotFound | None:
    """Return the error for an unsafe path, or None if the path is safe.

    HTTP clients shorten ``/a1/rag/indices/notes/documents/..`` to ``/a1/rag/indices/notes/``. A DELETE of that path would
    delete the index, so DELETE, PATCH and PUT need the exact path.
    """
    raw_path: bytes = scope.get("raw_path") or b""
    if _UNSAFE_ESCAPE.search(raw_path):
        return route_not_found()
    raw_text = raw_path.decode("latin-1")
    path = normalize_path(raw_text)
    if method not in _WRITE_METHODS or raw_text == path:
        return None
    return RouteNotFound(
        f"The path of a {method} request must begin with exactly one slash and must not end with a slash. If you mean "
        f"{path[:_MAX_SHOWN_CHARACTERS]}, use that path. An id cannot be . or .., because HTTP clients remove them from a path."
    )


def normalize_path(path: str) -> str:
    """Return ``path`` with exactly one leading slash and without trailing slashes.

    API Gateway ignores such extra slashes when it chooses the route, but it passes the path on unchanged.
    """
    return "/" + path.strip("/") if path.startswith("/") else path


def _route_path(scope: AsgiScope) -> str:
    """Return the normalised path. The API's root below a prefix keeps its slash, without which Starlette finds no route."""
    path, root = normalize_path(scope["path"]), scope.get("root_path")
    return f"{path}/" if root and path == root else path


class _ResponseSender:
    """Send a response with the headers that every response has. If ``omit_body`` is True, send no body."""

    def __init__(self, exchange: Exchange, send: Send, *, omit_body: bool) -> None:
        self._exchange = exchange
        self._send = send
        self._omit_body = omit_body
        self.status = 0
        self._is_streamed = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            existing = dict(headers)
            extra_headers: dict[str, str] = {"SPASS-Request-Id": self._exchange.request_id}
            if not existing.get(b"content-type", b"").startswith(b"text/event-stream"):
                # A stream's headers are sent before its last call, when only a part of the cost is known.
                extra_headers |= self._exchange.cost_headers()
            headers += [
                (name.lower().encode(), value.encode())
                for name, value in extra_headers.items()
                if name.lower().encode() not in existing
            ]
            message = {**message, "headers": headers}
        else:
            if self._omit_body:
                message = {**message, "body": b""}
            # A function in AWS stands still after the last byte. If the client has left, the work may go on until the edge ends.
            if message.get("more_body"):
                self._is_streamed = True
            elif not _is_cancelled():
                await self._exchange.give_back_place()
                await self._exchange.end_trace(self.status, is_streamed=self._is_streamed)
        await self._send(message)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _build_log_line(scope: AsgiScope, method: str, exchange: Exchange, status: int) -> dict[str, Json]:
    gateway_id: dict[str, Json] = {"gateway_request_id": scope[API_GATEWAY_REQUEST_ID]} if API_GATEWAY_REQUEST_ID in scope else {}
    refused: dict[str, Json] = {"limit": exchange.limit} if exchange.limit else {}
    return (
        gateway_id
        | {
            "at": now(),
            "level": "info",
            "request_id": exchange.request_id,
            "method": method,
            "route": exchange.route,
            "status": status,
            "ms": round((time.monotonic() - exchange.started) * 1000, 1),
            "tenant": exchange.tenant,
            "error": exchange.error,
        }
        | refused
    )
