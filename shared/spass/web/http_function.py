"""The app of one route as AWS Lambda invokes it: short routes through Mangum, long routes as ASGI under the Lambda Web Adapter.

Outside Lambda an app is created at its first call. The laptop imports every route file and serves the routers itself.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from fastapi import APIRouter
from mangum import Mangum
from mangum.adapter import DEFAULT_TEXT_MIME_TYPES
from mangum.handlers import APIGateway
from mangum.types import LambdaContext, LambdaEvent
from mangum.types import Scope as EventScope
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spass.redaction.log import failure_line, write_line
from spass.web.app import create_app
from spass.web.bodies import DECODED_AS_TEXT
from spass.web.exchange import API_GATEWAY_REQUEST_ID, normalize_path
from spass.web.public_routing import BundledFileRoute
from spass.web.services import Services
from spass.web.startup import WarmUp, in_lambda, log_failure, log_startup_failure, prepare_tracer

if TYPE_CHECKING:
    from fastapi import FastAPI

_REQUEST_CONTEXT: Final = b"x-amzn-request-context"
# Mangum returns other bodies in base64, which API Gateway decodes only for a client that asks for a binary media type.
_TEXT_TYPES: Final = [*DEFAULT_TEXT_MIME_TYPES, "image/svg+xml"]
_RESTORE_HOOK: Final = "AWS_LWA_SNAPSTART_AFTER_RESTORE_PATH"
_starts_functions: Final = ContextVar("starts_functions", default=True)


def lambda_handler(router: APIRouter, services: Services | None = None) -> "LambdaFunction":
    """Return the Lambda handler of a short route."""
    return LambdaFunction(router, services)


def stream_app(router: APIRouter, services: Services | None = None, *, warm_up: WarmUp | None = None) -> "StreamApp":
    """Return the ASGI app of a long route, to run under the Lambda Web Adapter."""
    return StreamApp(router, services, warm_up)


def import_routers(modules: Iterable[str]) -> list[APIRouter]:
    """Import route files and return their routers. Do not start the functions of these files.

    Each function would read files, create clients and read provider keys that this process does not use.
    """
    token = _starts_functions.set(False)
    try:
        return [import_module(module).router for module in modules]
    finally:
        _starts_functions.reset(token)


class _RouteFunction:
    def __init__(self, router: APIRouter, services: Services | None, warm_up: WarmUp | None = None) -> None:
        self._router = router
        self._services = services
        self._warm_up = warm_up
        if in_lambda() and _starts_functions.get():
            with log_startup_failure():
                if all(isinstance(route, BundledFileRoute) for route in router.routes):
                    _ = self.app
                else:
                    self._prepare()

    def _prepare(self) -> None:
        services: Services = self.app.state.services
        _ = services.tokens
        services.aws.connect()
        prepare_tracer(services)
        if self._warm_up is not None:
            self._warm_up(services)

    @cached_property
    def app(self) -> "FastAPI":
        return create_app([self._router], self._services)


class LambdaFunction(_RouteFunction):
    """The handler of API Gateway's proxy events."""

    @cached_property
    def _mangum(self) -> Mangum:
        return Mangum(self.app, lifespan="off", custom_handlers=[RestApi], text_mime_types=_TEXT_TYPES)

    def __call__(self, event: LambdaEvent, context: LambdaContext) -> dict[str, Any]:
        with log_failure():
            return self._mangum(event, context)


class StreamApp(_RouteFunction):
    """The ASGI app of a long route. The web adapter passes API Gateway's request context in a header."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self.app
        if scope["type"] == "http" and in_lambda():
            if _is_restore_hook(scope):
                app = Response(status_code=204 if self._restore() else 500)
            else:
                scope = {**scope, **_scope_from_header(scope)}
        await app(scope, receive, send)

    def _restore(self) -> bool:
        """Replace the state that processes restored from one snapshot must not share. If that fails, log it and return False."""
        services: Services = self.app.state.services
        try:
            services.forget_snapshot()
            self._prepare()
        except Exception as error:  # noqa: BLE001 (the edge: the adapter only needs to know that the restore failed)
            write_line({**failure_line(error, ""), "event": "restore_failed"})
            return False
        return True


class RestApi(APIGateway):
    """Mangum's reader of an API Gateway event, which keeps repeated headers and sets the root path."""

    @property
    def scope(self) -> EventScope:
        scope = super().scope
        context: Mapping[str, Any] = self.event["requestContext"]
        path = str(self.event.get("path") or "/")
        split = split_path(path, context.get("path"), self.event.get("resource"))
        multi_headers: Mapping[str, list[str]] | None = self.event.get("multiValueHeaders")
        if multi_headers:
            scope["headers"] = [
                [name.lower().encode("latin-1", "replace"), value.encode("utf-8", "replace")]
                for name, values in multi_headers.items()
                for value in values
            ]
        scope["path"] = split.path
        scope["root_path"] = split.root_path
        scope["raw_path"] = path.encode()
        scope[API_GATEWAY_REQUEST_ID] = context.get("requestId")
        scope[DECODED_AS_TEXT] = bool(self.event.get("body")) and not self.event.get("isBase64Encoded")
        return scope


def _is_restore_hook(scope: Scope) -> bool:
    """Return True for the web adapter's request after a SnapStart restore. It is the first request after the restore.

    The adapter sets the header with the request context on every request that a caller sent, so a caller cannot send this one.
    """
    hook = os.environ.get(_RESTORE_HOOK)
    is_hook = bool(hook) and scope["method"] == "POST" and scope["path"] == hook
    return is_hook and not any(name == _REQUEST_CONTEXT for name, _ in scope["headers"])


def _scope_from_header(scope: Scope) -> Mapping[str, Any]:
    """Return ``path``, ``root_path`` and API Gateway's request id, from the request context that the web adapter passes on."""
    raw = next((value for name, value in scope["headers"] if name == _REQUEST_CONTEXT), None)
    try:
        context = json.loads(raw) if raw else None
    except ValueError:
        context = None
    if not isinstance(context, dict):
        return {}
    raw_path = scope.get("raw_path") or scope["path"].encode()
    path = bytes(raw_path).decode("latin-1")
    split = split_path(path, str(context.get("path") or ""), str(context.get("resourcePath") or ""))
    return {"path": split.path, "root_path": split.root_path, API_GATEWAY_REQUEST_ID: context.get("requestId")}


class RequestPath(NamedTuple):
    """A path as ASGI defines it: ``root_path`` is the prefix before the API (a stage, a base path), ``path`` the whole path."""

    root_path: str
    path: str


def split_path(path: str, full_path: str | None, resource: str | None) -> RequestPath:
    """Split the path of a request where the API's own part begins. That part has as many segments as ``resource``, unless the
    last parameter of ``resource`` is greedy (``{name+}``).

    ``path`` is the path of the event. ``full_path`` is the path of its request context, which begins with the stage or with the
    base path of a custom domain. ``resource`` is the matched template. Without them, ``path`` takes their place. The paths are as
    the client sent them: with percent-escapes, a trailing slash and repeated leading slashes.
    """
    if resource == "/":  # the whole path is the prefix
        root = unquote(normalize_path(full_path or path).rstrip("/"))
        return RequestPath(root, f"{root}/")
    resource = resource or path
    path, full_path = normalize_path(path), normalize_path(full_path or path)
    if resource.endswith("+}"):
        api_path = path[max(0, path.find(resource[: resource.rindex("{")])) :]
    else:
        count = resource.rstrip("/").count("/")
        segments = path.split("/")
        api_path = "/" + "/".join(segments[-count:]) if 0 < count < len(segments) else path
    root = full_path.removesuffix(api_path) if full_path.endswith(api_path) else ""
    root = unquote(root.rstrip("/"))
    return RequestPath(root, root + unquote(api_path))
