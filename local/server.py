"""All routes in one app, as the laptop serves them, and the HTTP server before it."""

import importlib
from types import FrameType
from typing import Final

import h11
import uvicorn
from fastapi import APIRouter
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from infra.routes import ROUTES
from local.edge import LambdaEdge
from spass.aws.log import take_over
from spass.core.errors import InvalidRequest
from spass.core.ids import RequestId, new_id
from spass.tenancy.config import load_gateway_config
from spass.web.app import create_app
from spass.web.errors import error_response
from spass.web.services import Services

_DRAIN_SECONDS: Final = 5


def routers() -> list[APIRouter]:
    """The router of every route file that ROUTES names."""
    modules = dict.fromkeys(route.module for route in ROUTES)
    return [importlib.import_module(f"functions.{module}").router for module in modules]


def local_app() -> ASGIApp:
    """The gateway with every route, behind what AWS would put before it.

    Raises:
        ConfigError: a file of the operator's has mistakes; they are found here and not by the first request.
    """
    services = Services()
    # Loaded here, as a deployment would log its notices; the banner says them with the lines of the operator's own file.
    services.config = load_gateway_config(services.settings.config)
    _ = services.tokens, services.agents, services.router
    return LambdaEdge(create_app(routers(), services))


def server(app: ASGIApp) -> uvicorn.Server:
    """The HTTP server for ``app``. A request to upgrade to WebSocket is one like any other. What the server itself has to say
    is in the log as it would be in AWS."""
    take_over()
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
    """A server that stops once: a second Ctrl-C would cut the app off while it closes, and a stop is short anyway."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            super().handle_exit(sig, frame)


class _Protocol(H11Protocol):
    """HTTP/1.1, but that what is no HTTP is refused as everything else is."""

    def send_400_response(self, msg: str) -> None:
        request_id = RequestId(new_id("req"))
        error = InvalidRequest(msg, details={"errors": [{"loc": ["header"], "message": msg, "type": InvalidRequest.code}]})
        response = error_response(error, request_id, {"SPASS-Request-Id": request_id, "Connection": "close"})
        start = h11.Response(status_code=response.status_code, headers=response.raw_headers, reason=b"Bad Request")
        for event in (start, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
