"""A session's world for tests: an agent by script, a clock that is set by hand, a client that retries."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import pytest

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.idempotency import IdempotentRequest, StoredAnswer
from spass.aws.table import Put, Update
from spass.core.events import (
    Event,
    InferenceFinished,
    InferenceStarted,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
    Usage,
)
from spass.core.ids import AgentName, SessionId, UserId, new_id
from spass.core.messages import FinishReason, Json, Message, Role, TokenUsage, ToolCall
from spass.core.time import timestamp
from spass.sessions.deletion import delete_session
from spass.sessions.record import StoredMessage, load_turns
from spass.sessions.session import Session, session_of
from spass.sessions.turn import Recorded, Relief, Turn, TurnRequest

AGENT = AgentName("librarian")
USER = UserId("ana")


class Pause:
    """A point in a turn at which it waits for the test."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()


@dataclass(slots=True)
class World:
    """One tenant's table, an agent that answers by script, and the time of day, which only moves when told."""

    store: TenantStore
    now: float = 1_800_000_000.0
    model_calls: int = 0
    histories: list[list[Message]] = field(default_factory=list)

    async def session(self) -> SessionId:
        at = timestamp(self.now)
        session = Session(SessionId(new_id("ses")), AGENT, USER, None, at, at, "auto", 10, True)
        await self.store.table.write(Put(keys.session_head(self.store.tenant, session.id), session.attributes()))
        return session.id

    def turn(self, session: SessionId, message: str, key: str | None = None, *, pause: Pause | None = None) -> Turn:
        """Start a turn whose agent calls one tool and then answers, in between telling ``pause`` and waiting for it."""

        async def respond(history: Sequence[Message], relief: Relief) -> AsyncGenerator[Event, None]:
            self.model_calls += 1
            self.histories.append(list(history))
            call = ToolCall("call_1", "calculator", '{"expression":"1+1"}')
            yield TurnStarted()
            yield InferenceStarted(1)
            yield InferenceFinished(Message(Role.ASSISTANT, "", (call,)), FinishReason.TOOL_CALLS)
            yield Usage(TokenUsage(10, 2))
            yield ToolCallStarted(call)
            yield ToolCallFinished(
                call, {"expression": "1+1"}, {"value": 2}, Message(Role.TOOL, '{"value":2}', (), call.id), duration_ms=3
            )
            if pause is not None:
                pause.reached.set()
                await pause.go_on.wait()
            yield InferenceStarted(2)
            text = f"answer to {message}"
            yield Token(text)
            yield InferenceFinished(Message(Role.ASSISTANT, text), FinishReason.STOP)
            yield Usage(TokenUsage(20, 5))
            yield TurnFinished(FinishReason.STOP)

        request = TurnRequest(session, AGENT, USER, message, idempotent(key, message) if key else None)
        return Turn(self.store, request, respond, render, clock=lambda: self.now)

    def idempotent(self, key: str, body: str) -> IdempotentRequest:
        return idempotent(key, body)

    async def expire_claim(self, request: IdempotentRequest) -> None:
        """A minute passes for whoever carries out ``request``."""
        key = keys.idempotency(self.store.tenant, request.digest)
        await self.store.table.write(Update(key, "SET expires_at = :past", values={":past": 0}))

    def pause(self) -> Pause:
        return Pause()

    async def delete(self, session: SessionId) -> None:
        await delete_session(self.store, session, AGENT, USER, self.now)

    async def head(self, session: SessionId) -> Session:
        item = await self.store.table.get(keys.session_head(self.store.tenant, session))
        assert item is not None
        return session_of(item)

    async def history(self, session: SessionId) -> list[StoredMessage]:
        """All stored messages; their numbers and the head's are asserted to be gapless and to agree."""
        messages = [message for turn in await load_turns(self.store, session, 1) for message in turn.messages]
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
        assert (await self.head(session)).message_count == len(messages)
        return messages


def idempotent(key: str, body: str) -> IdempotentRequest:
    return IdempotentRequest(hashlib.sha256(key.encode()).hexdigest(), hashlib.sha256(body.encode()).hexdigest())


def render(recorded: Recorded) -> StoredAnswer:
    """A reply that tells one recording from another."""
    answer = recorded.turn.answer
    body: dict[str, Json] = {
        "session_id": recorded.session.id,
        "turn": recorded.turn.id,
        "message": {"id": answer.id, "seq": answer.seq, "content": answer.message.content},
        "usage": recorded.outcome.usage.total_tokens,
    }
    return StoredAnswer(body, {"SPASS-Cost-Sub-Calls": "2"})


@pytest.fixture
def world(store: TenantStore) -> World:
    return World(store)
