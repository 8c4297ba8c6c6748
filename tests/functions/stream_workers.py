"""Several processes of a gateway over one store, in virtual time, and clients whose connections are cut at any byte."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, ParamSpec, TypeVar
from unittest.mock import patch

from fastapi import APIRouter
from starlette.types import ASGIApp, Message
from typing_extensions import TypeVarTuple, Unpack

from spass.aws.clients import Aws
from spass.store.invocation import CALL_PLAN, PendingCall, ServiceCall
from spass.testing.gateway import ScriptedServices
from spass.testing.model import ScriptedModel
from spass.web.app import create_app
from spass.web.http_function import import_routers
from spass.web.services import Settings
from tests.unit.virtual_time import VirtualLoop

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_ROUTES: Final = (
    "streams.create",
    "streams.get",
    "streams.stop",
    "sessions.append",
    "sessions.create",
    "sessions.delete",
    "sessions.get",
    "sessions.history",
    "audit.get",
    "managed.create",
    "managed.message_send",
    "managed.messages",
    "managed.run_stream",
    "managed.runs",
)
_CLOSED: Final[Message] = {"type": "http.disconnect"}


class Steps:
    """A plan for ``CALL_PLAN``: AWS calls take a step of the loop and no thread."""

    in_threads = False

    async def around(self, _: ServiceCall, run: PendingCall[T]) -> T:
        await asyncio.sleep(0)
        return await run()


class _InLoop(Executor):
    """An executor whose work is done at once, because a loop with virtual time does not wait for threads."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        done = Future[T]()
        done.set_result(fn(*args, **kwargs))
        return done


async def _run_in_loop(work: Callable[[Unpack[Ts]], T], *args: *Ts, **_: object) -> T:
    await asyncio.sleep(0)
    return work(*args)


@contextmanager
def virtual_time() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield a loop with virtual time, in which nothing runs in a thread. Cancel what still runs at the end."""
    token = CALL_PLAN.set(Steps())
    threads = patch("spass.core.tasks._thread", _InLoop()), patch("anyio.to_thread.run_sync", _run_in_loop)
    try:
        with threads[0], threads[1], asyncio.Runner(loop_factory=VirtualLoop) as runner:
            yield runner.get_loop()
    finally:
        CALL_PLAN.reset(token)


@dataclass(frozen=True, slots=True)
class Response:
    """What a client received until the response ended or its connection was cut."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        """Return the bytes of the events that arrived completely. The time for reconnections and comments are not events."""
        *blocks, _ = self.body.split(b"\n\n")
        return [block for block in blocks if b"data: " in block]


def event_id(block: bytes) -> str:
    """Return the id of an event."""
    name, _, value = block.split(b"\n")[0].partition(b": ")
    assert name == b"id", block
    return value.decode()


@cache
def _routers() -> list[APIRouter]:
    return import_routers([f"functions.{route}" for route in _ROUTES])


@dataclass
class Worker:
    """One process. ``connections`` are those that its server has not ended yet, also if the client has left."""

    services: ScriptedServices
    app: ASGIApp
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    def start(cls, settings: Settings, model: ScriptedModel, aws: Aws) -> "Worker":
        services = ScriptedServices(settings, model, aws)
        return cls(services, create_app(_routers(), services))

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        after: str | None = None,
        cut: int | None = None,
        seconds: float | None = None,
        token: str = "demo-token",
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request, and read the response to its end, to the byte ``cut``, or for ``seconds``. ``after`` is the id of the
        last event that the client has read."""
        sent = {"Authorization": f"Bearer {token}", "SPASS-User-Id": "ada", "Content-Type": "application/json", **(headers or {})}
        if after is not None:
            sent["Last-Event-ID"] = after
        connection = _Connection(method, path, sent, b"" if body is None else json.dumps(body).encode(), cut)
        serving = asyncio.create_task(connection.serve(self.app))
        self.connections.add(serving)
        serving.add_done_callback(self.connections.discard)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await connection.ended.wait()
        connection.ended.set()
        if serving.done():
            serving.result()
        return Response(connection.status, connection.headers, bytes(connection.received))

    async def wait(self) -> None:
        """Wait until all responses have ended."""
        while self.connections:
            await asyncio.wait(set(self.connections))


class _Connection:
    """One request of a client that leaves when it has received ``cut`` bytes of the body."""

    def __init__(self, method: str, path: str, headers: Mapping[str, str], body: bytes, cut: int | None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.received = bytearray()
        self.ended = asyncio.Event()
        self._cut = cut
        self._incoming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            "server": ("gateway", 80),
            "client": ("client", 1),
        }

    async def serve(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self._receive, self._send)
        finally:
            self.ended.set()

    async def _receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop()
        await self.ended.wait()
        return _CLOSED

    async def _send(self, message: Message) -> None:
        if self.ended.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self.received += message.get("body", b"")
        if self._cut is not None and len(self.received) >= self._cut:
            del self.received[self._cut :]
            self.ended.set()
