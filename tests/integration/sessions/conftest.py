"""A harness for turns, with a scripted agent and a clock that the test sets."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import pytest

from spass.agents.driver import ShortenHistory
from spass.calls.scope import Scope
from spass.core.errors import ContextLengthExceeded
from spass.core.events import Event, InferenceStarted, Token, TurnStarted
from spass.core.ids import AgentName, RequestId, SessionId, UserId, new_id
from spass.core.messages import Message, TokenUsage
from spass.core.run_result import AgentRun
from spass.core.time import timestamp
from spass.runs import commit
from spass.sessions.deletion import delete_session
from spass.sessions.hold import TurnRequest, messages_path
from spass.sessions.record import StoredMessage, load_turns
from spass.sessions.service import Sessions
from spass.sessions.session import Session, decode_session
from spass.store import keys
from spass.store.idempotency import IdempotentRequest
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put, Update
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from tests.simulated.scripted_turns import LoadHistory, answer_with, call_calculator
from tests.unit.idempotent_requests import idempotent_request
from tests.unit.scopes import scope_of
from tests.unit.sessions.scripted_summarizer import ScriptedSummarizer
from tests.unit.sessions.turns import ScriptedTurn, start_turn

AGENT = AgentName("librarian")
USER = UserId("ana")


class Pause:
    """A point at which a turn waits for the test."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()


@dataclass(slots=True)
class SessionHarness:
    """One tenant's table, a scripted agent and a clock, which moves only when a test sets ``now``.

    The agent's model has a window of ``context_window`` tokens. After the tool call, the provider accepts a history of up to
    ``takes`` characters.
    """

    store: TenantStore
    now: float = 1_800_000_000.0
    context_window: int = 1_000_000
    takes: int = 1_000_000
    summarizer: ScriptedSummarizer = field(default_factory=ScriptedSummarizer)
    model_calls: int = 0
    histories: list[list[Message]] = field(default_factory=list)

    async def session(self, *, keep: int = 10) -> SessionId:
        at = timestamp(self.now)
        session = Session(SessionId(new_id("ses")), AGENT, USER, None, at, at, "auto", keep, True)
        await self.store.table.write(Put(keys.session_head(self.store.tenant, session.id), session.attributes()))
        return session.id

    def turn(self, session: SessionId, message: str, key: str | None = None, *, pause: Pause | None = None) -> ScriptedTurn:
        """Start a turn whose agent calls one tool, waits at ``pause``, and then answers."""

        return self.turn_of(session, message, idempotent(key, message) if key else None, pause=pause)

    def turn_of(
        self, session: SessionId, message: str, client_request: IdempotentRequest | None, *, pause: Pause | None = None
    ) -> ScriptedTurn:
        """Start such a turn for an idempotent request."""

        async def respond(_: str, load: LoadHistory, shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
            yield TurnStarted()
            history = await load()
            self.model_calls += 1
            self.histories.append(list(history))
            yield InferenceStarted(1)
            async for event in call_calculator():
                yield event
            if pause is not None:
                pause.reached.set()
                await pause.go_on.wait()
            yield InferenceStarted(2)
            if not self._fits(history):
                shorter = await shorten_history()
                if shorter is None or not self._fits(shorter):
                    raise ContextLengthExceeded("The prompt is too long.")
            text = f"answer to {message}"
            yield Token(text, 2)
            for last in answer_with(text, TokenUsage(30, 7)):
                yield last

        run = AgentRun(RequestId("req_1"), AGENT, "orchestrator", "talker")
        request = TurnRequest(session, USER, message, run, self.context_window, client_request)
        sessions = Sessions(Cascade(GatewayConfig()), lambda: self.summarizer, clock=lambda: self.now)
        return start_turn(sessions, self.scope, request, respond)

    @property
    def scope(self) -> Scope:
        return scope_of(self.store, USER, route="/a1/agents/{name}/sessions")

    def _fits(self, history: Sequence[Message]) -> bool:
        return sum(len(message.content) for message in history) <= self.takes

    def idempotent(self, key: str, body: str) -> IdempotentRequest:
        return idempotent(key, body)

    async def expire_claim(self, request: IdempotentRequest) -> None:
        """Let the claim of ``request`` expire."""
        key = keys.idempotency(self.store.tenant, request.digest)
        await self.store.table.write(Update(key, set={"expires_at": 0}))

    def pause(self) -> Pause:
        return Pause()

    async def delete(self, session: SessionId) -> None:
        await delete_session(self.store, session, AGENT, USER, self.now)

    async def head(self, session: SessionId) -> Session:
        item = await self.store.table.get(keys.session_head(self.store.tenant, session))
        assert item is not None
        return decode_session(item)

    async def history(self, session: SessionId) -> list[StoredMessage]:
        """Return all stored messages. Assert that their numbers have no gaps and agree with the head."""
        messages = [message for turn in await load_turns(self.store, session, 1) for message in turn.messages]
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
        assert (await self.head(session)).message_count == len(messages)
        return messages


def idempotent(key: str, body: str) -> IdempotentRequest:
    return idempotent_request(key, hashlib.sha256(body.encode()).hexdigest())


def redirect(request: IdempotentRequest, to: SessionId) -> IdempotentRequest:
    """Return ``request`` as the client sends it to another session."""
    return request.at(messages_path(AGENT, to))


@pytest.fixture(autouse=True)
def no_commit_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_COMMIT_DELAY", 0.0)


@pytest.fixture
def harness(store: TenantStore) -> SessionHarness:
    return SessionHarness(store)
