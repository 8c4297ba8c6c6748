"""What a route file exports: the app of its one route, as AWS Lambda calls it; and what a worker file does.

Short routes run through Mangum, long ones as plain ASGI under the Lambda Web Adapter. Outside Lambda neither makes anything
before it is first called, so that the laptop, which serves the routers itself, may import every route file.
"""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from fastapi import APIRouter
from mangum import Mangum
from mangum.handlers import APIGateway
from mangum.types import LambdaContext, LambdaEvent
from mangum.types import Scope as EventScope
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spass.aws.log import capture_library_logs, failure_line, write_line
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.app import create_app
from spass.web.edge import API_GATEWAY_REQUEST_ID, normal_path
from spass.web.services import Services

if TYPE_CHECKING:
    from fastapi import FastAPI

_REQUEST_CONTEXT: Final = b"x-amzn-request-context"
_RESTORE_HOOK: Final = "AWS_LWA_SNAPSTART_AFTER_RESTORE_PATH"
_SHUTDOWN_SECONDS: Final = 30.0  # of a worker's time, left to end in order
_starts_functions: Final = ContextVar("starts_functions", default=True)


WarmUp: TypeAlias = Callable[[Services], object]
"""Touches the services that a route will use, so that they are made while its function starts."""

EventHandler: TypeAlias = Callable[[Services, Mapping[str, Any], Deadline], Awaitable[Json]]
"""What a worker does with one event, until when; it answers what the caller of the function is told."""


def lambda_handler(router: APIRouter, services: Services | None = None) -> "LambdaFunction":
    """The Lambda handler of a short route."""
    return LambdaFunction(router, services)


def stream_app(router: APIRouter, services: Services | None = None, *, needs: WarmUp | None = None) -> "StreamApp":
    """The ASGI app of a long route, to run under the Lambda Web Adapter."""
    return StreamApp(router, services, needs)


def worker_handler(work: EventHandler, services: Services | None = None, *, needs: WarmUp | None = None) -> "WorkerFunction":
    """The Lambda handler of a worker: of what a queue, a state machine or a schedule calls."""
    return WorkerFunction(work, services, needs)


def routers_of(modules: Iterable[str]) -> list[APIRouter]:
    """Import route files and return their routers, without starting their own functions.

    Each of those would read files, make clients and read provider keys that the function of this process does not use.
    """
    before = _starts_functions.set(False)
    try:
        return [import_module(module).router for module in modules]
    finally:
        _starts_functions.reset(before)


def _in_lambda() -> bool:
    return "AWS_LAMBDA_FUNCTION_NAME" in os.environ


class FunctionFailed(Exception):
    """A function failed. Why is in the log; this says no more than the kind of it."""


@contextmanager
def log_startup_failure() -> Iterator[None]:
    """While a function starts in Lambda. From here on the log says only what we write, and a start that fails says why in a line
    of it and ends the process: an exception would be printed with its text and its trace.
    """
    capture_library_logs()
    try:
        yield
    except Exception as error:  # noqa: BLE001 (the edge: what is raised further, the runtime prints)
        write_line({**failure_line(error, ""), "event": "start_failed", **_problems(error)})
        raise SystemExit(1) from None


@contextmanager
def log_failure() -> Iterator[None]:
    """While a function works. In Lambda, what goes wrong is a line in the log, and the runtime hears of its kind alone."""
    try:
        yield
    except Exception as error:
        if not _in_lambda():
            raise
        write_line({**failure_line(error, ""), "event": "function_failed"})
        raise _without_trace(type(error).__name__) from None


def _without_trace(kind: str) -> Exception:
    """What a handler raises so that the invocation fails as one of this ``kind``, and the runtime logs no trace. It does so for
    one exception only, its own for faults (https://github.com/aws/aws-lambda-python-runtime-interface-client, bootstrap.py).
    """
    runtime = sys.modules.get("awslambdaric.lambda_runtime_exception")
    if runtime is None:
        return FunctionFailed(kind)
    fault: Exception = runtime.FaultException(kind, str(FunctionFailed.__doc__), None)
    return fault


def _problems(error: Exception) -> dict[str, Json]:
    """What is wrong with a file of the operator's: its name, the line and what."""
    from spass.redaction.text import redact_provider_text
    from spass.tenancy.yaml_source import ConfigError

    if not isinstance(error, ConfigError):
        return {}
    return {
        "problems": [
            {"file": PurePath(problem.file).name, "line": problem.line, "problem": redact_provider_text(problem.message)}
            for problem in error.problems
        ]
    }


class _RouteFunction:
    def __init__(self, router: APIRouter, services: Services | None, needs: WarmUp | None = None) -> None:
        self._router = router
        self._services = services
        self._needs = needs
        if _in_lambda() and _starts_functions.get():
            # While a function starts it has a whole processor and is not yet keeping anybody waiting.
            with log_startup_failure():
                self._prepare()

    def _prepare(self) -> None:
        """Make what every request of the route uses."""
        made: Services = self.app.state.services
        _ = made.tokens
        made.aws.connect()
        if self._needs is not None:
            self._needs(made)

    @cached_property
    def app(self) -> "FastAPI":
        return create_app([self._router], self._services)


class LambdaFunction(_RouteFunction):
    """Answers API Gateway's proxy events."""

    @cached_property
    def _mangum(self) -> Mangum:
        return Mangum(self.app, lifespan="off", custom_handlers=[RestApi])

    def __call__(self, event: LambdaEvent, context: LambdaContext) -> dict[str, Any]:
        with log_failure():
            return self._mangum(event, context)


class StreamApp(_RouteFunction):
    """Answers HTTP. The web adapter hands on what API Gateway knows of the request in a header."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self.app
        if scope["type"] == "http" and _in_lambda():
            if _is_restore_hook(scope):
                app = Response(status_code=204 if self._restore() else 500)
            else:
                scope = {**scope, **_scope_from_header(scope)}
        await app(scope, receive, send)

    def _restore(self) -> bool:
        """Replace what processes restored from one snapshot must not share. If that fails, log why and return False."""
        services: Services = self.app.state.services
        try:
            services.forget_snapshot()
            self._prepare()
        except Exception as error:  # noqa: BLE001 (the edge: the adapter only needs to know that the restore failed)
            write_line({**failure_line(error, ""), "event": "restore_failed"})
            return False
        return True


class WorkerFunction:
    """Works on events, one at a time, all in one event loop: what the services keep open belongs to it."""

    def __init__(self, work: EventHandler, services: Services | None, needs: WarmUp | None) -> None:
        self.work = work  # for a process that has a loop and services of its own
        self._given = services
        self._one_at_a_time = threading.Lock()
        if _in_lambda():
            with log_startup_failure():
                self.services.aws.connect()
                if needs is not None:
                    needs(self.services)

    @cached_property
    def services(self) -> Services:
        return self._given or Services()

    @cached_property
    def _runner(self) -> asyncio.Runner:
        return asyncio.Runner()

    def __call__(self, event: Mapping[str, Any], context: LambdaContext) -> Json:
        with self._one_at_a_time, log_failure():
            seconds = context.get_remaining_time_in_millis() / 1000 - _SHUTDOWN_SECONDS
            return self._runner.run(self._worked(event, Deadline.after(seconds)))

    def close(self) -> None:
        """Gives open connections back, where a process outlives its workers."""
        with self._one_at_a_time:
            if "_runner" in self.__dict__:
                self._runner.run(self.services.aclose())
                self._runner.close()
                del self._runner

    async def _worked(self, event: Mapping[str, Any], deadline: Deadline) -> Json:
        return await self.work(self.services, event, deadline)


class RequestPath(NamedTuple):
    """Where a request's path splits: what lies before the API (a stage, a base path), and the whole, as ASGI wants them."""

    root_path: str
    path: str


def split_path(*, path: str, full_path: str, resource: str) -> RequestPath:
    """Split the path of a request by the resource it matched, which has as many segments as the API's own part, unless its last
    parameter is greedy (``{name+}``).

    ``path`` is that of the event, ``full_path`` that of its request context (with the stage, or the base path of a custom
    domain), ``resource`` the matched template. All are as sent, percent-escapes, a trailing slash and doubled leading slashes
    included.
    """
    path, full_path = normal_path(path), normal_path(full_path)
    if resource.endswith("+}"):
        own = path[max(0, path.find(resource[: resource.rindex("{")])) :]
    else:
        count = resource.rstrip("/").count("/")
        segments = path.split("/")
        own = "/" + "/".join(segments[-count:]) if 0 < count < len(segments) else path
    root = full_path.removesuffix(own) if full_path.endswith(own) else ""
    root = unquote(root.rstrip("/"))
    return RequestPath(root, root + unquote(own))


class RestApi(APIGateway):
    """Mangum's reading of an API Gateway event, but with each header as often as it was sent, and the root path known."""

    @property
    def scope(self) -> EventScope:
        scope = super().scope
        context: Mapping[str, Any] = self.event["requestContext"]
        path = str(self.event.get("path") or "/")
        at = split_path(
            path=path,
            full_path=str(context.get("path") or path),
            resource=str(self.event.get("resource") or path),
        )
        many: Mapping[str, list[str]] | None = self.event.get("multiValueHeaders")
        if many:
            scope["headers"] = [
                [name.lower().encode("latin-1", "replace"), value.encode("utf-8", "replace")]
                for name, values in many.items()
                for value in values
            ]
        scope["path"] = at.path
        scope["root_path"] = at.root_path
        scope["raw_path"] = path.encode()
        scope[API_GATEWAY_REQUEST_ID] = context.get("requestId")
        return scope


def _is_restore_hook(scope: Scope) -> bool:
    """Return True for the web adapter's request after a SnapStart restore, which comes before any other.

    The adapter sets the header with the request context on every request that a caller sent, so a caller cannot send this one.
    """
    hook = os.environ.get(_RESTORE_HOOK)
    is_hook = bool(hook) and scope["method"] == "POST" and scope["path"] == hook
    return is_hook and not any(name == _REQUEST_CONTEXT for name, _ in scope["headers"])


def _scope_from_header(scope: Scope) -> Mapping[str, Any]:
    """``path``, ``root_path`` and the gateway's id by the request context that the web adapter passes on."""
    raw = next((value for name, value in scope["headers"] if name == _REQUEST_CONTEXT), None)
    try:
        context = json.loads(raw) if raw else None
    except ValueError:
        context = None
    if not isinstance(context, dict):
        return {}
    raw_path = scope.get("raw_path") or scope["path"].encode()
    path = bytes(raw_path).decode("latin-1")
    at = split_path(
        path=path,
        full_path=str(context.get("path") or path),
        resource=str(context.get("resourcePath") or path),
    )
    return {"path": at.path, "root_path": at.root_path, API_GATEWAY_REQUEST_ID: context.get("requestId")}
