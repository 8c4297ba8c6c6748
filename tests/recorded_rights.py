"""Record which function makes which call of AWS. The evaluator of roles replays the calls (``tests/infra/test_rights.py``).

A right is a text: the action of IAM, and what it reaches, such as ``dynamodb:GetItem T#`` or ``s3:PutObject uploads/``.
"""

import importlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

from starlette.types import Receive, Scope, Send

from infra.workers import WORKERS, Worker
from spass.aws.bucket import S3Uploads
from spass.aws.clients import Aws
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.store.invocation import ServiceCall
from spass.store.keys import BACKEND_PREFIX, Key
from spass.store.table import Query
from spass.store.writes import Check, Delete, Put, Update, Write
from spass.web.exchange import EdgeMiddleware
from spass.web.services import Services
from spass.web.startup import EventHandler
from tests.functions.gateway import find_route

FILE: Final = Path(__file__).parent / "infra" / "recorded_rights.json"

_WRITES: Final = {Put: "PutItem", Update: "UpdateItem", Delete: "DeleteItem", Check: "ConditionCheckItem"}
_function: Final[ContextVar[str | None]] = ContextVar("function", default=None)


@cache
def known_rights() -> Mapping[str, frozenset[str]]:
    """Return the recorded rights by function."""
    return {name: frozenset(rights) for name, rights in json.loads(FILE.read_text(encoding="utf-8")).items()}


@contextmanager
def recording(record: Callable[[str, str], None]) -> Iterator[None]:
    """Call ``record(function, right)`` for each call that a function makes in the block."""

    def note(rights: Iterator[str]) -> None:
        function = _function.get()
        if function is not None:
            for right in rights:
                record(function, right)

    with ExitStack() as patches:
        for worker in WORKERS:
            _attribute_worker(worker, patches)
        patches.enter_context(mock.patch.object(EdgeMiddleware, "__call__", _attributed(EdgeMiddleware.__call__)))
        for owner, name, rights_of in (
            (ServiceCall, "__init__", lambda service, operation, parameters: rights(service, operation, parameters)),
            (S3Uploads, "presign", lambda *_, **__: iter(["s3:PutObject uploads/"])),
            (Aws, "get_parameters", lambda _: iter(["ssm:GetParameters keys"])),
        ):
            patches.enter_context(mock.patch.object(owner, name, _noted(getattr(owner, name), rights_of, note)))
        yield


def rights(service: str, operation: str, parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rights that a call needs."""
    match service, operation:
        case "dynamodb", "TransactWriteItems":
            yield from (_on_table(_WRITES[type(write)], write.key) for write in cast("list[Write]", parameters["writes"]))
        case "dynamodb", "Query":
            yield _on_table(operation, Key(cast(Query, parameters["query"]).partition, ""))
        case "dynamodb", _:
            yield _on_table(operation, parameters["key"] if "key" in parameters else parameters["write"].key)
        case "s3", "ListObjectsV2":
            yield f"s3:ListBucket {_folder(parameters['Prefix'])}"
        case "s3", "DeleteObjects":
            yield from (f"s3:DeleteObject {_folder(one['Key'])}" for one in parameters["Delete"]["Objects"])
        case "s3", _:
            action = operation.replace("HeadObject", "GetObject")
            yield f"s3:{action}{'Version' if 'VersionId' in parameters else ''} {_folder(parameters['Key'])}"
            if "Tagging" in parameters:
                yield f"s3:PutObjectTagging {_folder(parameters['Key'])}"
        case "sqs", _:
            yield f"sqs:{operation} {_queue(parameters['QueueUrl'])}"
        case "states", _:
            yield f"states:{operation} machine"
        case _:
            yield f"{service}:{operation} entries" if service == "scheduler" else f"{service}:{operation} sandbox"


def _on_table(action: str, key: Key) -> str:
    return f"dynamodb:{action} {BACKEND_PREFIX if key.pk.startswith(BACKEND_PREFIX) else key.pk[:2]}"


def _folder(key: str) -> str:
    return f"{key.partition('/')[0]}/"


def _queue(url: str) -> str:
    return next((name for name in ("compactions", "runs") if name[:-1] in url), "jobs")


def _noted(method: Callable[..., Any], rights_of: Callable[..., Iterator[str]], note: Callable[[Iterator[str]], None]) -> Any:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        note(rights_of(*arguments, **named))
        return method(self, *arguments, **named)

    return call


def _attributed(call: Callable[..., Awaitable[None]]) -> Any:
    async def attribute(self: EdgeMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else None
        route = find_route(scope["method"], path) if path else None
        token = _function.set(route.function_name if route else None)
        try:
            await call(self, scope, receive, send)
        finally:
            _function.reset(token)

    return attribute


def _attribute_worker(worker: Worker, patches: ExitStack) -> None:
    module = importlib.import_module(f"functions.workers.{worker.module}")
    work: EventHandler = module.work

    async def attribute(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
        token = _function.set(worker.function_name)
        try:
            return await work(services, event, deadline)
        finally:
            _function.reset(token)

    patches.enter_context(mock.patch.object(module, "work", attribute))
    patches.enter_context(mock.patch.object(module.handler, "work", attribute))
