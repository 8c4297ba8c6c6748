"""The ASGI app. A Lambda function serves one route with it, and the laptop serves all routes."""

import gc
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from spass.core.errors import InternalError, MethodNotAllowed, SpassError, StorageUnavailable
from spass.redaction.log import failure_line, write_line
from spass.web.errors import error_response, from_http, from_validation
from spass.web.exchange import EdgeMiddleware, get_exchange
from spass.web.services import Services

TITLE: Final = "Spass"

# A request creates a few thousand objects and no cycles. Python's default, a collection after every 700 objects, takes a tenth of
# the request's time.
_GC_THRESHOLDS: Final = (10_000, 20, 50)

# FastAPI would send bodies and exceptions unredacted to any OpenTelemetry exporter. We write to the log instead.
_NO_TELEMETRY: Final[TelemetryConfig] = {"tracing": False, "metrics": False, "logs": False}


def create_app(routers: Sequence[APIRouter], services: Services | None = None) -> FastAPI:
    """Return an ASGI app that serves ``routers``, and answers every other request with an error in the envelope."""
    app = FastAPI(
        title=TITLE,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        telemetry=_NO_TELEMETRY,
    )
    app.state.services = services or Services()
    for router in routers:
        # ``include_router`` would build each route again. That takes longer in a cold start than all our own code.
        app.router.routes.extend(router.routes)
    app.add_exception_handler(SpassError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_error)
    app.add_exception_handler(HTTPException, _on_error)
    app.add_middleware(EdgeMiddleware, tracer=lambda: app.state.services.tracer)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    gc.set_threshold(*_GC_THRESHOLDS)
    yield
    services: Services = app.state.services
    await services.aclose()


async def _on_error(request: Request, error: Exception) -> Response:
    exchange = get_exchange(request)
    headers: dict[str, str] = {}
    match error:
        case SpassError():
            public_error = error
        case RequestValidationError():
            public_error = from_validation(error)
        case HTTPException(status_code=405):
            headers["Allow"] = methods = ", ".join(_allowed_methods(request))
            public_error = MethodNotAllowed(f"This route does not answer to this method. It answers to {methods}.")
        case HTTPException():
            public_error = from_http(error)
        case _:
            raise error
    exchange.fail(public_error)
    if isinstance(public_error, InternalError | StorageUnavailable):
        write_line(failure_line(public_error, exchange.request_id))
    services: Services = request.app.state.services
    # The route's class is not imported: functions without a caller, such as the page's, start without it.
    names: Collection[str] = getattr(request.scope.get("route"), "query_names", ())
    return error_response(public_error, exchange.request_id, headers, redact=services.redact, query_names=names)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of every route on this path. Starlette names only the methods of the first one, without HEAD."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(dict(request.scope))[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)


def location(request: Request, path: str) -> str:
    """Return ``path`` (from the API's root, unquoted) as a ``Location`` that also works behind a stage or a base path."""
    root: str = request.scope.get("root_path", "")
    return quote(root.rstrip("/") + path, safe="/:@!$&'()*+,;=~-._")
