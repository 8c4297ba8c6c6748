"""The laptop's app, which has all routes, and its HTTP server."""

import asyncio
import importlib
import socket
from functools import cached_property
from types import FrameType
from typing import Final

import uvicorn
from fastapi import APIRouter
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from infra.routes import ROUTES
from local.edge import LambdaEdge
from spass.core.errors import InvalidRequest
from spass.core.ids import RequestId, new_id
from spass.models.backends import check_backend
from spass.redaction.log import capture_library_logs
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.tools.registry import TOOLS
from spass.web.app import create_app
from spass.web.errors import error_response
from spass.web.services import Services

_DRAIN_SECONDS: Final = 5
_CLEANUP_SECONDS: Final = 10
_MAX_HEAD_BYTES: Final = 65_536


def routers() -> list[APIRouter]:
    """Return the router of every route file in ROUTES."""
    modules = dict.fromkeys(route.module for route in ROUTES)
    return [importlib.import_module(f"functions.{module}").router for module in modules]


class LocalServices(Services):
    """Services that do not log the notices about ``gateway.yaml``. The banner prints them, with the line numbers of the
    operator's own file; the file that the services read was written by the start."""

    @cached_property
    def config(self) -> GatewayConfig:
        return load_gateway_config(self.settings.config, TOOLS, check_backend)


def local_services() -> Services:
    """Return the services of this process, with the operator's files loaded before the first request.

    Raises:
        ConfigError: an operator's file has mistakes.
    """
    services = LocalServices()
    _ = services.tokens, services.agents, services.router
    return services


def local_app(services: Services) -> ASGIApp:
    """Return the gateway with every route, behind the limits that AWS would apply."""
    return LambdaEdge(create_app(routers(), services))


def server(app: ASGIApp) -> uvicorn.Server:
    """Return the HTTP server for ``app``. It treats a WebSocket upgrade as an ordinary request, and logs in the gateway's
    format."""
    capture_library_logs()
    return _Server(
        uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
        )
    )


class _Server(uvicorn.Server):
    """A server that ignores a second Ctrl-C, which would interrupt the app while it closes. A stop takes seconds. It waits until
    the requests that it cancels have cleaned up, because the end of the event loop would cancel them a second time."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if tasks := self.server_state.tasks:
            await asyncio.wait(tasks, timeout=_CLEANUP_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            super().handle_exit(sig, frame)


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1. It bounds the size of headers, and refuses bad requests with our envelope."""

    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            # The parser keeps incomplete headers in memory without a limit.
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request line and headers are too long.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        current: RequestResponseCycle | None = self.cycle
        if current and not current.more_body and not current.response_complete:
            # The invalid bytes follow a complete request. Let it have its answer, then close the connection.
            current.keep_alive = False
            self.flow.pause_reading()
            return
        request_id = RequestId(new_id("req"))
        error = InvalidRequest(msg, details={"errors": [{"loc": ["header"], "message": msg, "type": InvalidRequest.code}]})
        response = error_response(error, request_id, {"SPASS-Request-Id": request_id, "Connection": "close"})
        headers = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
        self.transport.write(STATUS_LINE[response.status_code] + headers + b"\r\n" + bytes(response.body))
        self.transport.close()
