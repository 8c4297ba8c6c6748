"""Sessions on a table in memory, for requests in sequence."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import pytest

from spass.agents.driver import ShortenHistory
from spass.calls.scope import Scope
from spass.core.events import Event, InferenceFinished, InferenceStarted, TurnFinished, TurnStarted
from spass.core.ids import AgentName, RequestId, SessionId, TenantId, UserId
from spass.core.messages import FinishReason, Message, Role
from spass.core.run_result import AgentRun
from spass.sessions.hold import TurnRequest, messages_path
from spass.sessions.service import Sessions
from spass.sessions.session import CreateSession
from spass.store.idempotency import IdempotentRequest
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from tests.simulated.scripted_turns import LoadHistory, Respond
from tests.unit.scopes import scope_of
from tests.unit.sessions.scripted_summarizer import ScriptedSummarizer
from tests.unit.sessions.turns import ScriptedTurn, start_turn

AGENT = AgentName("librarian")

ScriptedAgent: TypeAlias = Callable[[Sequence[Message], ShortenHistory], AsyncGenerator[Event, None]]
"""Yields the events of a turn, given the messages before the new one."""


@dataclass
class SessionsHarness:
    """Sessions with a clock that the test sets, a model with a window of 250 tokens, and scripted summaries."""

    aws: MemoryAws
    now: float = 1_800_000_000.0
    summarizer: ScriptedSummarizer = field(default_factory=ScriptedSummarizer)

    @cached_property
    def sessions(self) -> Sessions:
        config = GatewayConfig.model_validate(
            {
                "defaults": {"compact_strategy": "manual", "compact_keep_last_n": 7},
                "tenants": [{"id": "demo", "defaults": {"compact_observation_mask": False}}, {"id": "demo-2"}],
            }
        )
        return Sessions(Cascade(config), lambda: self.summarizer, clock=lambda: self.now)

    def scope(self, user: str = "ana", tenant: str = "demo") -> Scope:
        return scope_of(self.aws.for_tenant(TenantId(tenant)), user, route="/a1/agents/{name}/sessions")

    def stored_items(self) -> list[Mapping[str, Any]]:
        return list(self.aws.table.items())

    def stored_objects(self) -> list[str]:
        return self.aws.bucket.keys

    async def create(self, user: str = "ana", title: str | None = None) -> SessionId:
        return await self.create_with(CreateSession(title=title), user)

    async def create_with(self, options: CreateSession, user: str = "ana") -> SessionId:
        self.now += 1
        return (await self.sessions.create(self.scope(user), AGENT, options)).id

    async def say(self, session: SessionId, message: str, answer: str = "yes", user: str = "ana") -> list[Message]:
        """Run a turn and return the history that its agent received."""
        shown: list[Message] = []

        async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
            shown.extend(history)
            for event in answer_events(answer):
                yield event

        await self.turn(session, message, respond, user=user).answer()
        return shown

    def turn(
        self,
        session: SessionId,
        message: str,
        agent: ScriptedAgent,
        *,
        user: str = "ana",
        idempotency: IdempotentRequest | None = None,
        scope: Scope | None = None,
    ) -> ScriptedTurn:
        run = AgentRun(RequestId("req_1"), AGENT, "orchestrator", "talker")
        request = TurnRequest(session, UserId(user), message, run, 250, idempotency)
        return start_turn(self.sessions, scope or self.scope(user), request, responder(agent))


def responder(agent: ScriptedAgent) -> Respond:
    """Return a responder that runs ``agent`` with the history, as an engine does."""

    async def respond(_: str, load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        async with aclosing(agent(await load(), shorten)) as events:
            async for event in events:
                if event != TurnStarted():
                    yield event

    return respond


def answer_events(text: str) -> list[Event]:
    """Return the events of a turn with one model call."""
    message = Message(Role.ASSISTANT, text)
    return [TurnStarted(), InferenceStarted(1), InferenceFinished(message, FinishReason.STOP), TurnFinished(FinishReason.STOP)]


def redirect(request: IdempotentRequest, to: SessionId) -> IdempotentRequest:
    """Return ``request`` as sent to another session."""
    return request.at(messages_path(AGENT, to))


@pytest.fixture
def harness() -> SessionsHarness:
    return SessionsHarness(MemoryAws())
