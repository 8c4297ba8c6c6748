"""The outermost layer: every answer gets its request id, every failure its envelope, every request one line in the log."""

import re
import time
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spass.aws.log import failure_line, write_line
from spass.core.errors import InternalError, RouteNotFound
from spass.core.messages import Json
from spass.core.time import now
from spass.web.errors import error_response, route_not_found
from spass.web.exchange import Exchange, begin

CLIENT_CLOSED_REQUEST: Final = 499
API_GATEWAY_REQUEST_ID: Final = "spass.gateway_request_id"
"""Where an ASGI scope holds API Gateway's own id of a request, by which its access log can be matched with ours."""

_MAX_LOGGED_CHARACTERS: Final = 300
_WRITE_METHODS: Final = ("DELETE", "PATCH", "PUT")
_ESCAPED: Final = re.compile(rb"%(5c|00)|^((?!/v1/models/).)*%2f", re.IGNORECASE | re.DOTALL)
"""``/``, ``\\`` and NUL, escaped in a path. Unescaped they would change the path. Only a model's name may hold a ``/``."""


class EdgeMiddleware:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method: str = scope["method"]
        # Routes declare GET. HEAD is answered as GET is, without the body (RFC 9110, 9.3.2).
        scope = {**scope, "method": "GET" if method == "HEAD" else method, "path": normal_path(scope["path"])}
        exchange = begin(scope)
        answer = _ResponseSender(exchange, send, bodiless=method == "HEAD")
        try:
            if refusal := _refusal(method, scope):
                exchange.error = refusal.code
                await error_response(refusal, exchange.request_id)(scope, receive, answer.send)
            else:
                await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            answer.status = CLIENT_CLOSED_REQUEST
        except Exception as error:  # noqa: BLE001 (the edge: whatever went wrong gets an answer and a line in the log)
            exchange.error = InternalError.code
            write_line(failure_line(error, exchange.request_id))
            if not answer.status:
                response = error_response(InternalError("Something went wrong on our side."), exchange.request_id)
                await response(scope, receive, answer.send)
        finally:
            write_line(_request_line(scope, method, exchange, answer.status))


def _refusal(method: str, scope: Scope) -> RouteNotFound | None:
    """Return why the path as it was sent leads to no route.

    HTTP clients shorten ``/a1/rag/indices/notes/documents/..`` to ``/a1/rag/indices/notes/``. A DELETE of that would delete the
    index, so requests that change what a path names take no such spelling.
    """
    raw_path: bytes = scope.get("raw_path") or b""
    if _ESCAPED.search(raw_path):
        return route_not_found()
    sent = raw_path.decode("latin-1")
    path = normal_path(sent)
    if method not in _WRITE_METHODS or sent == path:
        return None
    return RouteNotFound(
        f"The path of a {method} has no slash at its end and no two at its start. Use {path[:_MAX_LOGGED_CHARACTERS]}"
        ' if you mean that. HTTP clients remove "." and ".." from a path, so an id that is one of these gets lost.'
    )


def normal_path(path: str) -> str:
    """Return ``path`` with one leading slash and no trailing one. API Gateway picks the same route for all these spellings and
    passes on the one that was sent.
    """
    return "/" + path.strip("/") if path.startswith("/") else path


class _ResponseSender:
    """Pass an answer on, with the headers that every answer has, and without its body if ``bodiless``."""

    def __init__(self, exchange: Exchange, send: Send, *, bodiless: bool) -> None:
        self._exchange = exchange
        self._send = send
        self._bodiless = bodiless
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            present = dict(headers)
            own: dict[str, str] = {"SPASS-Request-Id": self._exchange.request_id}
            if not present.get(b"content-type", b"").startswith(b"text/event-stream"):
                # A stream's headers leave before its last call; what is known by then would be some of the cost.
                own |= self._exchange.cost_headers()
            headers += [
                (name.lower().encode(), value.encode()) for name, value in own.items() if name.lower().encode() not in present
            ]
            message = {**message, "headers": headers}
        elif self._bodiless:
            message = {**message, "body": b""}
        await self._send(message)


def _request_line(scope: Scope, method: str, exchange: Exchange, status: int) -> dict[str, Json]:
    known: dict[str, Json] = {"gateway_request_id": scope[API_GATEWAY_REQUEST_ID]} if API_GATEWAY_REQUEST_ID in scope else {}
    return known | {
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
