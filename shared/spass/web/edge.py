"""The outermost layer. It adds the request id to each answer, answers every failure, and writes one log line per request."""

import re
import time
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spass.aws.log import failure_line, write_line
from spass.core.errors import InternalError, RouteNotFound
from spass.core.messages import Json
from spass.core.time import now
from spass.web.errors import error_response, route_not_found, unexpected_error
from spass.web.exchange import Exchange, begin_exchange

CLIENT_CLOSED_REQUEST: Final = 499
API_GATEWAY_REQUEST_ID: Final = "spass.gateway_request_id"
"""The key of an ASGI scope with API Gateway's own id of the request. It links its access log to our log."""

_MAX_SHOWN_CHARACTERS: Final = 300
_WRITE_METHODS: Final = ("DELETE", "PATCH", "PUT")
_UNSAFE_ESCAPE: Final = re.compile(rb"%(5c|00)|^((?!/v1/models/).)*%2f", re.IGNORECASE | re.DOTALL)
"""A percent-encoded ``/``, ``\\`` or NUL. Decoding would change the path. Only the name of a model may contain ``/``."""


class EdgeMiddleware:
    """ASGI middleware that answers every request, even if the app raises an exception."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method: str = scope["method"]
        # Routes declare only GET. Answer HEAD like GET, without the body (RFC 9110, 9.3.2).
        scope = {**scope, "method": "GET" if method == "HEAD" else method, "path": normalize_path(scope["path"])}
        exchange = begin_exchange(scope)
        sender = _ResponseSender(exchange, send, omit_body=method == "HEAD")
        try:
            if refusal := _check_path(method, scope):
                exchange.error = refusal.code
                await error_response(refusal, exchange.request_id)(scope, receive, sender.send)
            else:
                await self._app(scope, receive, sender.send)
        except ClientDisconnect:
            sender.status = CLIENT_CLOSED_REQUEST
        except Exception as error:  # noqa: BLE001 (the edge: every failure gets an answer and a line in the log)
            exchange.error = InternalError.code
            write_line(failure_line(error, exchange.request_id))
            if not sender.status:
                response = error_response(unexpected_error(), exchange.request_id)
                await response(scope, receive, sender.send)
        finally:
            write_line(_build_log_line(scope, method, exchange, sender.status))


def _check_path(method: str, scope: Scope) -> RouteNotFound | None:
    """Return the error for an unsafe path, or None if the path is safe.

    HTTP clients shorten ``/a1/rag/indices/notes/documents/..`` to ``/a1/rag/indices/notes/``. A DELETE of that path would
    delete the index, so methods that change or delete need the exact path.
    """
    raw_path: bytes = scope.get("raw_path") or b""
    if _UNSAFE_ESCAPE.search(raw_path):
        return route_not_found()
    raw_text = raw_path.decode("latin-1")
    path = normalize_path(raw_text)
    if method not in _WRITE_METHODS or raw_text == path:
        return None
    return RouteNotFound(
        f"The path of a {method} must not end with a slash or begin with two. Use "
        f"{path[:_MAX_SHOWN_CHARACTERS]} if you mean that path. HTTP clients remove . and .. from a path, so these cannot be ids."
    )


def normalize_path(path: str) -> str:
    """Return ``path`` with one leading slash and without a trailing one. API Gateway chooses the same route with and without
    extra slashes, and passes the path on unchanged.
    """
    return "/" + path.strip("/") if path.startswith("/") else path


class _ResponseSender:
    """A sender that adds the headers of every response, and leaves out the body if ``omit_body``."""

    def __init__(self, exchange: Exchange, send: Send, *, omit_body: bool) -> None:
        self._exchange = exchange
        self._send = send
        self._omit_body = omit_body
        self.status = 0

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
        elif self._omit_body:
            message = {**message, "body": b""}
        await self._send(message)


def _build_log_line(scope: Scope, method: str, exchange: Exchange, status: int) -> dict[str, Json]:
    gateway_id: dict[str, Json] = {"gateway_request_id": scope[API_GATEWAY_REQUEST_ID]} if API_GATEWAY_REQUEST_ID in scope else {}
    return gateway_id | {
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
