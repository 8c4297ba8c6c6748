"""Chats from end to end in one loop: the real routes over a table in memory, and a model that answers by a script.

Each request runs in a process of its own, which may crash. Time is the loop's virtual time.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, TypeVar

import pytest
from starlette.types import ASGIApp, Message

from functions.agents import chat
from functions.ask import create as ask
from functions.sessions import append, delete, history
from functions.sessions import get as get_session
from functions.sessions import list as list_sessions
from functions.streams import create, get, stop
from spass.aws.clients import Aws
from spass.core.ids import SessionId, TenantId
from spass.journal.follower import follow
from spass.models.retries import Timing
from spass.models.router import Router
from spass.runs.service import Runs
from spass.sessions.record import TurnRecord, load_turns
from spass.sessions.service import Sessions
from spass.sessions.session import Session, decode_session
from spass.store.invocation import CALL_PLAN, PendingCall, ServiceCall
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, FaultPlan, inject
from spass.testing.gateway import ScriptedServices
from spass.testing.model import ScriptedModel
from spass.web.app import create_app
from tests.functions.gateway import write_operators_files

T = TypeVar("T")

EPOCH: Final = 1_800_000_000.0
TENANT: Final = TenantId("demo")
AGENT: Final = "counting"
USER: Final = "ada"


def virtual_now() -> float:
    """Return the seconds since the epoch in the loop's time."""
    return EPOCH + asyncio.get_running_loop().time()


@dataclass
class Process(FaultPlan):
    """One process. Its AWS calls run in the loop, without threads. ``crashed_at`` is the time of its crash."""

    in_threads = False

    latency: float = 0.004
    crashed_at: float | None = None

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        try:
            return await super().around(call, run)
        finally:
            if self.crashed and self.crashed_at is None:
                self.crashed_at = virtual_now()

    async def run_call(self, run: PendingCall[T]) -> T:
        await asyncio.sleep(self.latency)
        return await run()

    async def wait_while_paused(self) -> None:
        """Wait until the process runs. This one always does."""


@dataclass
class PausedProcess(Process):
    """A process that pauses at the call number ``at``: before it takes effect, or with ``after``, before its reply. As long as it
    pauses, it makes no call, sends no byte and gets no answer of a model."""

    after: bool = False
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        is_pause = len(self.calls) == self.at
        if is_pause and not self.after:
            self.paused.set()
        await self.wait_while_paused()
        try:
            return await super().around(call, run)
        finally:
            if is_pause and self.after:
                self.paused.set()
            await self.wait_while_paused()

    async def wait_while_paused(self) -> None:
        if self.paused.is_set():
            await self.resumed.wait()


@dataclass
class Answer:
    """What a client has received of a response. ``status`` is 0 until it begins. ``is_whole``: it has ended."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")


class ClockedServices(ScriptedServices):
    """Services in the loop's time."""

    @cached_property
    def router(self) -> Router:
        timing = Timing(clock=lambda: asyncio.get_running_loop().time(), wall=virtual_now)
        return Router(self.config.llm, self.config.models, lambda _: "a key", provider_of=lambda *_: self._model, timing=timing)

    @cached_property
    def sessions(self) -> Sessions:
        return Sessions(self.cascade, lambda: self.summarizer, clock=virtual_now)

    @cached_property
    def runs(self) -> Runs:
        return Runs(self.engine, lambda: self.sessions, self.config, clock=virtual_now)


class Chats:
    """The gateway's routes of chats. ``model`` answers for all models. ``agents`` are the texts of more agents' files by name."""

    def __init__(self, folder: Path, agents: Mapping[str, str] = MappingProxyType({})) -> None:
        self._settings = write_operators_files(folder)
        for name, text in agents.items():
            (self._settings.agents / f"{name}.yaml").write_text(text)
        self._first: ClockedServices | None = None
        asyncio.get_running_loop().set_exception_handler(ignore_crashes)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Empty the stores and the caches. This is faster than a new gateway."""
        self.stores = self._empty_stores()
        self.model = ScriptedModel()
        self.replace_worker()

    def _empty_stores(self) -> Aws:
        return MemoryAws(clock=virtual_now)

    def replace_worker(self) -> None:
        """Let a new worker without cached settings answer all further requests."""
        self.services = ClockedServices(self._settings, self.model, self.stores)
        if self._first is None:
            self._first = self.services
            of_sessions = [append, delete, get_session, history, list_sessions]
            self.app = create_app([route.router for route in (create, get, stop, chat, ask, *of_sessions)], self.services)
        for name in ("config", "agents", "tokens"):
            self.services.__dict__[name] = getattr(self._first, name)
        self.app.state.services = self.services

    @property
    def aws(self) -> MemoryAws:
        """Return the stores in memory."""
        assert isinstance(self.stores, MemoryAws)
        return self.stores

    @property
    def store(self) -> TenantStore:
        return self.stores.for_tenant(TENANT)

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        process: Process | None = None,
        headers: Mapping[str, str] | None = None,
        answer: Answer | None = None,
    ) -> Answer:
        """Send a request to a process. Return what the client received until the response ended or the process crashed. If
        ``answer`` is given, it is filled meanwhile."""
        process, received = process or Process(), answer or Answer()
        content = json.dumps(body).encode() if body is not None else b""
        sent = {"host": "gateway.test", "authorization": "Bearer demo-token", "spass-user-id": USER, **(headers or {})}
        sent |= {"content-type": "application/json"} if content else {}
        incoming: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "https",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "server": ("gateway.test", 443),
            "client": ("127.0.0.1", 1),
        }

        async def receive() -> Message:
            if incoming:
                return incoming.pop()
            await asyncio.get_running_loop().create_future()
            raise AssertionError

        async def reply(message: Message) -> None:
            await process.wait_while_paused()
            if process.crashed:
                raise Crash
            if message["type"] == "http.response.start":
                received.status = message["status"]
                received.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                received.body += message.get("body", b"")
                received.is_whole = not message.get("more_body", False)

        with inject(process):
            request = asyncio.create_task(_run(self.app, scope, receive, reply))
        await asyncio.wait({request})
        if (error := request.exception()) and not process.crashed:
            raise error
        return received

    async def post(self, body: Mapping[str, Any], **more: Any) -> Answer:
        """Send a chat."""
        return await self.send("POST", f"/c1/agents/{AGENT}/chat", body, **more)

    async def follow(self, message_id: str, **more: Any) -> Answer:
        return await self.send("GET", f"/c1/agents/{AGENT}/chat/{message_id}", **more)

    async def stop(self, message_id: str, **more: Any) -> Answer:
        return await self.send("DELETE", f"/c1/agents/{AGENT}/chat/{message_id}", **more)

    def items(self) -> list[Item]:
        return list(self.aws.table.items())

    def sessions(self) -> list[Session]:
        """Return the heads of all sessions, oldest first."""
        heads = [item for item in self.items() if item["sk"] == "HEAD" and "#SES#" in str(item["pk"])]
        return sorted(map(decode_session, heads), key=lambda head: head.id)

    async def turns(self, session: SessionId) -> list[TurnRecord]:
        with inject(Process()):
            return await load_turns(self.store, session, 1)


def ignore_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report errors of tasks except crashes, whose processes no longer await their tasks."""
    if not isinstance(context.get("exception"), Crash):
        loop.default_exception_handler(context)


async def wait_while_paused() -> None:
    """Wait until the process of this task runs."""
    process = CALL_PLAN.get()
    assert isinstance(process, Process)
    await process.wait_while_paused()


async def _run(app: ASGIApp, *arguments: Any) -> None:
    await app(*arguments)


@contextmanager
def virtual_clocks(*, stop_poll: float | None = None) -> Iterator[None]:
    """Take the time of day, deadlines and durations from the running loop.

    With ``stop_poll``, a stream looks for its stop after so many seconds, and a commit is repeated without a delay, so that
    enumerations of calls have a fixed length.
    """
    clock = SimpleNamespace(
        time=virtual_now, monotonic=lambda: asyncio.get_running_loop().time(), time_ns=lambda: int(virtual_now() * 1e9)
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in (
            "spass.core.time",
            "spass.core.ids",
            "spass.runs.following",
            "spass.managed.following",
            "spass.tools.builtin.aider_edit",
        ):
            patch.setattr(f"{module}.time", clock)
        patch.setattr("spass.runs.following.follow", partial(follow, clock=virtual_now))
        if stop_poll is not None:
            patch.setattr("spass.runs.run._STOP_POLL_SECONDS", stop_poll)
            patch.setattr("spass.runs.commit._COMMIT_DELAY", 0.0)
        yield
