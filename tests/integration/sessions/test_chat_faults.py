"""Inject each fault into each AWS call of a chat: its claim, its session, its hold and its commit. The client repeats the POST.

Afterwards there is one session, with the imported history and the turn once, and no hold.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

import pytest

from spass.agents.driver import ShortenHistory
from spass.aws.clients import Aws
from spass.core.errors import Conflict, SpassError, StorageUnavailable
from spass.core.events import Event
from spass.core.ids import AgentName, SessionId, TenantId, UserId
from spass.core.messages import Message, Role
from spass.journal.head import StreamHead, StreamState
from spass.sessions.service import Sessions
from spass.sessions.session import CreateSession
from spass.store.leases import LEASE_SECONDS
from spass.store.tenant_store import TenantStore
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.sampling import sampled
from tests.simulated.memory import aws_for_faults
from tests.unit.scopes import scope_of
from tests.unit.sessions.chats import Chats, say_yes
from tests.unit.sessions.scripted_summarizer import ScriptedSummarizer
from tests.unit.sessions.session_chains import ChainBuilder, plain_turn
from tests.unit.sessions.turns import ScriptedTurn

pytestmark = pytest.mark.anyio
AGENT, USER = AgentName("librarian"), UserId("ana")
START = 1_800_000_000.0
ENTRIES = (Message(Role.USER, "before"), Message(Role.TOOL, "42", tool_call_id="call_1"))
IMPORTED = ["before", "Result of the call call_1: 42"]
KINDS = ["new", "id", "archived", "name"]


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


class Client:
    """A client that chats with one agent. Its gateway's clock is ``now``."""

    def __init__(self, store: TenantStore) -> None:
        self.store = store
        self.now = START
        scope = scope_of(store, USER)
        sessions = Sessions(Cascade(GatewayConfig()), ScriptedSummarizer, clock=lambda: self.now)
        self.chats = Chats(sessions, scope, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.chats.now = self.now

    async def prepare(self, kind: str, number: int) -> tuple[str | None, list[str]]:
        """Return what the chat calls its session, and the texts of that session before the chat."""
        chains = ChainBuilder(self.store, now=self.now)
        if kind == "id":
            return await chains.session(plain_turn("before")), ["before", "yes"]
        if kind == "archived":
            source = await chains.session(plain_turn("before"))
            await chains.compact(source, "short")
            return source, [f"[compaction summary from session {source}] short"]
        return (f"name-{number}" if kind == "name" else None), IMPORTED

    async def post(self, message_id: str, wanted: str | None) -> SessionId:
        """Send the chat until its stream is done. Return the session of the stream."""
        for _ in range(10):
            try:
                started = await self.chats.start(message_id, wanted, ENTRIES)
                if isinstance(started, ScriptedTurn):
                    await started.answer()
                elif started.state is StreamState.RUNNING:
                    self.wait(LEASE_SECONDS / 2)
            except (Conflict, StorageUnavailable) as error:
                self.wait(error.retry_after or 1)
            head = await self.chats.head(message_id)
            if head is not None and head.state is StreamState.DONE:
                return head.last_session
        raise AssertionError("the chat still fails")

    async def sessions(self) -> set[SessionId]:
        return set(await self.chats.list_sessions())


@pytest.fixture
async def client(store: TenantStore) -> Client:
    client = Client(store)
    await client.chats.sessions.create(client.chats.scope, AGENT, CreateSession())  # reads the tenant's settings
    return client


async def count_calls(client: Client, kind: str) -> int:
    wanted, _ = await client.prepare(kind, -1)
    with inject(FaultPlan()) as plan:
        await client.chats.send(f"count-{kind}", wanted, ENTRIES)
    return len(plan.calls)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_chat_runs_once_in_one_session_if_any_call_fails(client: Client, fault: Fault, kind: str, times: int) -> None:
    points = await count_calls(client, kind)
    assert points >= 3
    for point in sampled(range(points), 3, f"{fault} {kind} {times}"):
        where, message_id = f"{fault} at {point}", f"m-{point}"
        wanted, before = await client.prepare(kind, point)
        known = await client.sessions()
        with inject(FaultPlan(fault, at=point, times=times)) as plan, suppress(Crash, Conflict, StorageUnavailable):
            await client.chats.send(message_id, wanted, ENTRIES)
        assert len(plan.calls) > point
        session = await client.post(message_id, wanted)
        assert await client.chats.texts(session) == [*before, "hello", "yes"], where
        assert (await client.chats.sessions.get(client.chats.scope, AGENT, session)).hold is None, where
        assert len(await client.sessions() - known) == (1 if kind in ("new", "name") else 0), where
        if kind == "name":
            assert (await client.chats.send(f"{message_id}-next", wanted)).session_id == session, where


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", list(Fault))
async def test_the_attempt_after_a_crash_may_fail_at_any_call(client: Client, fault: Fault, kind: str) -> None:
    """The first attempt dies before its commit. The second meets its live hold, and fails. The third ends the chat."""
    points = await count_calls(client, kind)
    for point in sampled(range(points), 3, f"{fault} {kind}"):
        message_id = f"m-{point}"
        wanted, before = await client.prepare(kind, point)
        with inject(FaultPlan(Fault.CRASH_BEFORE, at=points - 1)), pytest.raises(Crash):
            await client.chats.send(message_id, wanted, ENTRIES)
        client.chats.now = client.now + LEASE_SECONDS  # only the stream's lease has expired
        with inject(FaultPlan(fault, at=point, times=2)), suppress(Crash, Conflict, StorageUnavailable):
            await client.chats.send(message_id, wanted, ENTRIES)
        client.wait(LEASE_SECONDS)
        session = await client.post(message_id, wanted)
        assert await client.chats.texts(session) == [*before, "hello", "yes"], f"{fault} at {point}"
        assert (await client.chats.sessions.get(client.chats.scope, AGENT, session)).hold is None


async def test_five_first_uses_of_a_name_on_dynamodb_create_one_session(emulated_aws: Aws, tenant: TenantId) -> None:
    chats = Client(emulated_aws.for_tenant(tenant)).chats
    resume = asyncio.Event()

    async def wait(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        await resume.wait()
        async for event in say_yes(history, shorten_history):
            yield event

    starts = [chats.start(f"m-{number}", "notes", ENTRIES, wait) for number in range(5)]
    results: list[ScriptedTurn | StreamHead | BaseException] = await asyncio.gather(*starts, return_exceptions=True)
    (running,) = (result for result in results if isinstance(result, ScriptedTurn))
    winner = f"m-{results.index(running)}"
    refusals = [result for result in results if isinstance(result, SpassError)]
    assert [refusal.details for refusal in refusals] == [{"message_id": winner}] * 4
    resume.set()
    outcome = (await running.answer()).outcome
    assert await chats.list_sessions() == [outcome.session_id]
    assert await chats.texts(outcome.session_id) == [*IMPORTED, "hello", "yes"]
    assert outcome.session_id is not None
    await chats.sessions.delete(chats.scope, AGENT, outcome.session_id)
    assert (await chats.send("m-after", "notes")).session_id != outcome.session_id
