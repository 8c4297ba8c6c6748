"""Build sessions with messages, and compact them with scripted summaries."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from spass.calls.scope import Scope
from spass.core.ids import AgentName, MessageId, SessionId, UserId, new_id
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCall
from spass.core.time import timestamp
from spass.sessions.compaction.commit import CompactionResult, commit_compaction
from spass.sessions.compaction.plan import CompactionPlan, Summary, first_kept_seq
from spass.sessions.deletion import delete_session
from spass.sessions.hold import acquire_hold
from spass.sessions.record import StoredMessage, TurnRecord, load_turns, store_body
from spass.sessions.session import Hold, HoldKind, Session, decode_session
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put, Update
from spass.testing.aws import MemoryAws
from tests.unit.scopes import scope_of

AGENT = AgentName("librarian")
USER = UserId("ana")
START = 1_800_000_000.0


def plain_turn(question: str, answer: str = "yes") -> list[Message]:
    """Return the messages of a turn without tools."""
    return [Message(Role.USER, question), Message(Role.ASSISTANT, answer)]


def tool_turn(question: str, tool: str, arguments: str, result: str, answer: str = "yes") -> list[Message]:
    """Return the messages of a turn with one tool call. All calls have the same id, as with some providers."""
    call = ToolCall("call_1", tool, arguments)
    return [
        Message(Role.USER, question),
        Message(Role.ASSISTANT, "", (call,)),
        Message(Role.TOOL, result, tool_call_id=call.id),
        Message(Role.ASSISTANT, answer),
    ]


@dataclass(slots=True)
class ChainBuilder:
    """One user's sessions with one agent. The clock advances by a second with each call."""

    store: TenantStore
    user: UserId = USER
    agent: AgentName = AGENT
    now: float = START

    @property
    def scope(self) -> Scope:
        return scope_of(self.store, self.user)

    def within(self, session: SessionId) -> Scope:
        return self.scope.for_agent(self.agent, session)

    async def session(self, *turns: Sequence[Message]) -> SessionId:
        self.now += 1
        at = timestamp(self.now)
        session = Session(SessionId(new_id("ses")), self.agent, self.user, "a title", at, at, "manual", 0, True)
        head = keys.session_head(self.store.tenant, session.id)
        await self.store.table.write(Put(head, session.attributes(), ITEM_ABSENT))
        entry = keys.user_session(self.store.tenant, self.user, self.agent, session.id)
        await self.store.table.write(Put(entry, session.entry()))
        for turn in turns:
            await self.say(session.id, turn)
        return session.id

    async def say(self, session: SessionId, messages: Sequence[Message]) -> None:
        """Add a turn with these messages."""
        self.now += 1
        head = keys.session_head(self.store.tenant, session)
        first = (await self.head(session)).next_seq
        at = timestamp(self.now)
        stored = tuple(StoredMessage(MessageId(new_id("msg")), seq, at, one) for seq, one in enumerate(messages, first))
        turn = TurnRecord(new_id("turn"), stored, TokenUsage(), 1, FinishReason.STOP)
        body = await store_body(self.store, session, turn)
        await self.store.table.write(Put(keys.session_turn(self.store.tenant, session, first), body, ITEM_ABSENT))
        await self.store.table.write(Update(head, set={"next_seq": turn.next_seq}))

    async def hold(self, session: SessionId, owner: str = "job_1") -> Session:
        return await acquire_hold(
            self.store, session, self.agent, self.user, Hold(owner, HoldKind.JOB, int(self.now) + 60), self.now
        )

    async def compact(self, session: SessionId, summary: str = "what was said", keep: int = 0) -> SessionId:
        """Compact the session and return its successor, which keeps at least the last ``keep`` messages."""
        return (await self.commit(await self.hold(session), summary, keep)).session.id

    async def commit(
        self,
        source: Session,
        summary: str = "what was said",
        keep: int = 0,
        owner: str = "job_1",
        live: Sequence[TurnRecord] | None = None,
    ) -> CompactionResult:
        """Commit a compaction. ``live`` are the turns of the source, if they were read before."""
        self.now += 1
        live = live or await load_turns(self.store, source.id, 1)
        messages = [stored for turn in live for stored in turn.messages]
        cut = first_kept_seq(messages, keep, starts_with_summary=source.parent_session_id is not None)
        plan = CompactionPlan.new(source.id, cut)
        return await commit_compaction(self.store, source, live, plan, Summary(summary, "scripted"), owner=owner, at=self.now)

    async def chain(self, length: int, keep: int = 0) -> list[SessionId]:
        """Return a chain of ``length`` sessions, oldest first. Each has a turn "question n", the first one also "question 0"."""
        members = [await self.session(plain_turn("question 0", "answer 0"))]
        for number in range(1, length + 1):
            await self.say(members[-1], plain_turn(f"question {number}", f"answer {number}"))
            if number < length:
                members.append(await self.compact(members[-1], f"summary {number}", keep))
        return members

    async def delete(self, session: SessionId) -> None:
        await delete_session(self.store, session, self.agent, self.user, self.now)

    async def head(self, session: SessionId) -> Session:
        item = await self.store.table.get(keys.session_head(self.store.tenant, session))
        assert item is not None
        return decode_session(item)

    async def texts(self, session: SessionId) -> list[str]:
        return [stored.message.content for turn in await load_turns(self.store, session, 1) for stored in turn.messages]


@contextmanager
def memory_store() -> Iterator[MemoryAws]:
    """Yield a table and a bucket in memory, with one thread for their calls and a fixed clock."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as one:
        patch.setattr("spass.store.invocation._threads", one)
        yield MemoryAws(clock=lambda: START)
