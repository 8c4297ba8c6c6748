"""Chats whose turns are stopped at random moments, in virtual time: a model and a search engine that take their time."""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from functions.streams import get, stop
from spass.agents.interrupt import StopSignal
from spass.calls.scope import ReportProgress
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCallDelta
from spass.models.errors import BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.shielded import run_shielded
from spass.testing.model import ScriptedModel
from spass.tools.editor.protocol import Ask, EditRequest, EditResult, MayEdit
from spass.tools.search_engine import Hit, SearchEngine
from spass.web.app import create_app
from tests.functions.gateway import AGENTS, CONFIG
from tests.simulated.chats import AGENT, Chats, ClockedServices, Process

T = TypeVar("T")

SUMMARY: Final = "Ada asked about the weather."
NESTED: Final = "Translate it."
_PIECES: Final = ("So ", "far", " so good. ", " ", "\n", "über 🙂 ", "<think>hidden</think>", "1", ".")
_CALLS: Final = (
    ("calculator", '{"expression": "6*7"}'),
    ("calculator", '{"expression": '),
    ("llm", f'{{"prompt": "{NESTED}"}}'),
    ("web_search", '{"query": "weather"}'),
    ("aider_edit", '{"message": "Add a line.", "files": ["main.py"]}'),
    ("absent_tool", "{}"),
)

_MORE: Final = "max_turns: 5\nworkspace: default\npaths: {write: ['**']}"


@dataclass
class Work:
    """The calls of the model, the search engine and the editor. ``begun`` counts them, ``begun_before_stop`` those before the
    turn got its stop. ``cuts`` are the places at which a call was cancelled. ``edited`` counts the edits that were not."""

    rng: random.Random
    running: int = 0
    begun: int = 0
    begun_before_stop: int | None = None
    last_end: float = 0.0
    edited: int = 0
    cuts: list[str] = field(default_factory=list)

    async def pause(self, longest: float = 2.0) -> None:
        await asyncio.sleep(self.rng.choice([0.0, 0.3, longest]) * self.rng.random())

    def begin(self) -> None:
        self.running += 1
        self.begun += 1

    def end(self) -> None:
        self.running -= 1
        self.last_end = asyncio.get_running_loop().time()


@dataclass
class SlowModel(ScriptedModel):
    """A model that writes texts and calls tools at random, with pauses. The first of its calls in a turn is the agent's number
    ``overflow_at``: it reports that the conversation is too long."""

    work: Work = field(default_factory=lambda: Work(random.Random(0)))
    steps: int = 1
    overflow_at: int | None = None
    step: int = 0

    async def chat(self, request: ChatRequest, context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        self.requests.append(request)
        self.contexts.append(context)
        is_agent = bool(request.tools)
        place = "before the first token" if is_agent else "in a compaction" if request.model == "dear" else "in a tool"
        self.work.begin()
        try:
            await self.work.pause(6.0 if place == "in a tool" else 2.0)
            async for delta in self._answer(request):
                place = "in the text" if is_agent else place
                yield delta
                await self.work.pause()
        except (asyncio.CancelledError, GeneratorExit):
            self.work.cuts.append(place)
            raise
        finally:
            self.work.end()

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        rng, usage = self.work.rng, TokenUsage(10, 5)
        if request.model == "dear":
            yield ChatDelta(SUMMARY, finish_reason=FinishReason.STOP, usage=usage)
            return
        if not request.tools:
            yield ChatDelta("Übersetzt.", finish_reason=FinishReason.STOP, usage=usage)
            return
        if self.step == self.overflow_at:
            self.overflow_at = None
            raise BackendContextLength("The conversation is too long.")
        self.step += 1
        for _ in range(rng.choice([0, 1, 4])):
            yield ChatDelta(rng.choice(_PIECES))
        if self.step >= self.steps:
            yield ChatDelta("The end.", finish_reason=FinishReason.STOP, usage=usage)
            return
        chosen = enumerate(rng.choices(_CALLS, k=rng.choice([1, 1, 3])))
        calls = tuple(ToolCallDelta(index, f"call_{index}", *call) for index, call in chosen)
        yield ChatDelta(tool_calls=calls, finish_reason=FinishReason.TOOL_CALLS, usage=usage)


class SlowEngine(SearchEngine):
    """A search engine that takes its time."""

    def __init__(self, work: Work) -> None:
        self._work = work

    @property
    def source(self) -> str:
        return "wikipedia"

    async def search(self, query: str, count: int) -> Sequence[Hit]:
        self._work.begin()
        try:
            await self._work.pause(6.0)
            return [Hit("Weather", "https://example.org", "Rain.")][:count]
        except asyncio.CancelledError:
            self._work.cuts.append("in a tool")
            raise
        finally:
            self._work.end()


class SlowEditor:
    """An editor that takes its time, asks the model once and adds its answer to each file."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def edit(self, request: EditRequest, ask: Ask, may_edit: MayEdit, report: ReportProgress) -> EditResult:
        self._work.begin()
        try:
            await self._work.pause(6.0)
            answer = await ask([Message(Role.USER, request.message)])
            await self._work.pause(6.0)
        except asyncio.CancelledError:
            self._work.cuts.append("in an edit")
            raise
        finally:
            self._work.end()
        self._work.edited += 1
        texts = {**dict.fromkeys(request.create, ""), **request.files}
        return EditResult({path: f"{text}{answer}\n" for path, text in texts.items()}, answer)


@dataclass
class SlowCommits(Process):
    """A process whose transactions take ``seconds``. A write that has begun is made even if its caller is cancelled."""

    seconds: float = 0.0

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        return await (super().around(call, run) if call.is_read else run_shielded(self._write(call, run)))

    async def _write(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == "TransactWriteItems":
            await asyncio.sleep(self.seconds)
        return await super().around(call, run)


class LeavingClient:
    """An app whose client disconnects when ``left`` is set, and gets nothing more. ``has_ended``: its response has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.left = asyncio.Event()
        self.has_ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: list[AsgiMessage] = [await receive()]

        async def receive_or_leave() -> AsgiMessage:
            if body:
                return body.pop()
            await self.left.wait()
            return {"type": "http.disconnect"}

        async def send_unless_left(message: AsgiMessage) -> None:
            if not self.left.is_set():
                await send(message)

        try:
            await self._app(scope, receive_or_leave, send_unless_left)
        finally:
            self.has_ended = True


class StoppedChats(Chats):
    """Chats with an agent that calls tools. ``elsewhere`` is another worker over the same stores."""

    def __init__(self, folder: Path) -> None:
        self.work = Work(random.Random(0))
        super().__init__(folder)
        agent = AGENTS[AGENT].replace("[calculator, rag_query]", f"[calculator, llm, web_search, aider_edit]\n{_MORE}")
        (folder / "agents" / f"{AGENT}.yaml").write_text(agent)
        defaults = "defaults: {embedding_model: mini-embed"
        config = CONFIG.replace(defaults, f"{defaults}, compact_keep_last_n: 2, compact_summary_model: dear")
        assert config != CONFIG
        (folder / "gateway.yaml").write_text(config)
        self._first = None
        self.begin_anew()
        self._other_app = create_app([get.router, stop.router], self.services)

    def begin(self, seed: int) -> random.Random:
        """Empty the stores and prepare a turn. Return the random numbers of this seed."""
        rng = random.Random(seed)
        self.begin_anew()
        self.work = Work(rng)
        self.model = self.slow_model = SlowModel(work=self.work, steps=rng.choice([1, 2, 3, 4]))
        self.services._model = self.model
        self.services.__dict__["search_engine"] = SlowEngine(self.work)
        self.services.__dict__["editor"] = SlowEditor(self.work)
        return rng

    def versions(self) -> list[int]:
        """Return the versions of all workspaces."""
        return sorted(
            int(str(item["sk"])[2:]) for item in self.items() if "#WS#" in str(item["pk"]) and str(item["sk"]).startswith("V#")
        )

    @contextmanager
    def watching_stops(self) -> Iterator[None]:
        """Count how many calls have begun when a turn gets its stop."""
        stop_turn = StopSignal.stop

        def stop_and_count(signal: StopSignal, reason: FinishReason = FinishReason.CANCELLED) -> None:
            self.work.begun_before_stop = self.work.begun
            stop_turn(signal, reason)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StopSignal, "stop", stop_and_count)
            yield

    @property
    def elsewhere(self) -> Chats:
        services = ClockedServices(self.services.settings, self.model, self.aws)
        for name in ("config", "agents", "tokens"):
            services.__dict__[name] = getattr(self.services, name)
        other = copy(self)
        other.app = self._other_app
        other.app.state.services = services
        return other

    def leaving(self) -> tuple[Chats, LeavingClient]:
        """Return a client that can leave, and the app through which it does."""
        client, app = copy(self), LeavingClient(self.app)
        client.app = app  # type: ignore[assignment]
        return client, app
