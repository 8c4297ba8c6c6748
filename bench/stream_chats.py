"""Chats in process: a gateway with a table in memory, whose model writes tokens at a given rate, and a client without sockets."""

import asyncio
import gc
import json
import os
import re
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp, Message

from bench.processes import TOKEN, USER, write_config
from functions.sessions.append import router as messages
from functions.sessions.create import router as sessions
from functions.streams.create import router as chats
from functions.streams.get import router as streams
from spass.core.messages import FinishReason, TokenUsage
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices
from spass.testing.model import ScriptedModel
from spass.web.app import create_app
from spass.web.services import Settings

CHAT: Final = "/c1/agents/bench/chat"
SESSIONS: Final = "/a1/agents/bench/sessions"
_WORDS: Final = (" The", " river", " rises", " in", " the", " hills", " and", " it", " crosses", " two", " borders")
_ORDER: Final = re.compile(r"(\d+) tokens, (\d+) a second")
_ID: Final = re.compile(rb"^id: 1-(\d+)$", re.MULTILINE)
_HEADERS: Final = {"authorization": f"Bearer {TOKEN}", "spass-user-id": USER, "content-type": "application/json"}


@dataclass(slots=True)
class Received:
    """The answer that a client has read. ``arrived`` maps the number of each event to the second at which it arrived."""

    status: int = 0
    body: bytes = b""
    events: int = 0
    arrived: dict[int, float] = field(default_factory=dict)


class Model:
    """A model that writes what the user orders: ``100 tokens, 20 a second``, where 0 a second is as fast as they are read, one
    after the other. It ends its answer when ``may_end`` is set."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.asked_at = 0.0

    def script(self, request: ChatRequest, _: CallContext) -> AsyncGenerator[ChatDelta, None]:
        self.asked_at = time.perf_counter()
        order = _ORDER.search(request.messages[-1].content)
        if order is None:
            raise SystemExit("a message of this bench orders tokens")
        return self._write(int(order[1]), int(order[2]))

    async def _write(self, tokens: int, rate: int) -> AsyncGenerator[ChatDelta, None]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number, word in zip(range(tokens), cycle(_WORDS), strict=False):
            await asyncio.sleep(began + (number + 1) / rate - loop.time() if rate else 0)
            yield ChatDelta(word)
        await self.may_end.wait()
        yield ChatDelta(finish_reason=FinishReason.STOP, usage=TokenUsage(10, tokens))


class Chats:
    """A client of the gateway. Each message has an id of its own, unless the caller gives one."""

    def __init__(self, app: ASGIApp, model: Model) -> None:
        self.model = model
        self._app = app
        self._numbers = count()

    async def say(
        self,
        order: str,
        *,
        session: str | None = None,
        message_id: str | None = None,
        received: Received | None = None,
        with_text: bool = False,
    ) -> Received:
        """Send ``order`` and read the stream to its end."""
        body = {"message_id": message_id or f"m-{next(self._numbers)}", "messages": [{"role": "user", "content": order}]}
        into = received or Received()
        return await self.request("POST", CHAT, body | ({"session_id": session} if session else {}), into, with_text=with_text)

    async def follow(self, message_id: str, received: Received) -> Received:
        return await self.request("GET", f"{CHAT}/{message_id}", None, received)

    async def request(
        self, method: str, path: str, body: Mapping[str, object] | None, received: Received, *, with_text: bool = True
    ) -> Received:
        """Send a request and read its answer into ``received``. ``with_text`` keeps the body."""
        asgi = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in _HEADERS.items()],
            "server": ("gateway", 80),
            "client": ("bench", 1),
        }
        send = _reader(received, with_text=with_text)
        await self._app(asgi, _request_body(b"" if body is None else json.dumps(body).encode()), send)
        if received.status not in (200, 201):
            raise SystemExit(f"{method} {path} was answered with {received.status}")
        return received


def _request_body(body: bytes) -> Callable[[], Awaitable[Message]]:
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()  # the client stays
        return parts.pop()

    return receive


def _reader(received: Received, *, with_text: bool) -> Callable[[Message], Awaitable[None]]:
    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            received.status = message["status"]
            return
        body = message["body"]
        received.events += body.count(b"\ndata: ")
        if with_text:
            now = time.perf_counter()
            received.body += body
            received.arrived |= {int(n): now for n in _ID.findall(body)}

    return send


@asynccontextmanager
async def open_chats() -> AsyncIterator[Chats]:
    """Yield a client of a new gateway."""
    gc.set_threshold(10_000, 20, 50)  # as the gateway does when it serves
    with tempfile.TemporaryDirectory() as folder:
        environment = write_config(Path(folder), "http://nowhere.invalid")
        model = Model()
        settings = Settings.from_environment({**os.environ, **environment})
        services = ScriptedServices(settings, ScriptedModel(model.script), MemoryAws())
        yield Chats(create_app([chats, streams, sessions, messages], services), model)
