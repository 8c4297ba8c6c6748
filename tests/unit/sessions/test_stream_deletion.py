"""Delete a session with streams and a name: no word of it stays in the table or the bucket."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from spass.agents.driver import ShortenHistory
from spass.core.errors import SessionNotFound, SpassError
from spass.core.events import Event, InferenceStarted
from spass.core.ids import AgentName, SessionId
from spass.core.messages import Message, Role
from spass.journal.frames import Chunk, Frame
from spass.journal.head import StreamHead, stream_digest
from spass.sessions import record
from spass.store import keys
from spass.store.leases import LEASE_SECONDS, LeaseLost
from spass.store.overflow import Overflow
from spass.store.writes import Delete, Put, Update
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.sampling import sampled
from tests.unit.sessions.chats import Chats
from tests.unit.sessions.session_chains import ChainBuilder
from tests.unit.sessions.turns import ScriptedTurn

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import SessionsHarness

pytestmark = pytest.mark.anyio
AGENT = AgentName("librarian")
SECRET = "Zanzibar"
ENTRIES = (Message(Role.USER, f"{SECRET}?"), Message(Role.TOOL, f"{SECRET}!", tool_call_id="call_1"))


@pytest.fixture
def chats(harness: "SessionsHarness") -> Chats:
    return Chats(harness.sessions, harness.scope(), harness.now)


async def write_chunks(chats: Chats, message_id: str, session: SessionId, firsts: Sequence[int] = range(1, 31)) -> StreamHead:
    """Write chunks of a stream into the partition of ``session``, more than one batch of a deletion."""
    head, store = await chats.head(message_id), chats.scope.store
    assert head is not None
    for first in firsts:
        key = keys.stream_chunk(store.tenant, session, head.digest, head.attempt, first)
        chunk = Chunk(first, (Frame(SECRET, '{"type":"token","text":"', '"}'),))
        await store.table.write(Put(key, chunk.attributes(head.ttl)))
    return head


async def chat_in(chats: Chats, name: str | None, *message_ids: str) -> SessionId:
    """Return a session with one stream per message id. All its texts, and ``name``, contain the secret."""
    session = name
    for message_id in message_ids:
        outcome = await chats.send(message_id, session, ENTRIES, message=f"{SECRET} {message_id}")
        session = outcome.session_id
        assert outcome.session_id is not None
        await write_chunks(chats, message_id, outcome.session_id)
    return SessionId(str(session))


def traces(harness: "SessionsHarness", session: SessionId) -> list[str]:
    """Return the keys of everything stored that contains the secret or the session's id."""
    items = [f"{item['pk']} {item['sk']}" for item in harness.stored_items() if SECRET in str(item) or session in str(item)]
    return items + [key for key in harness.stored_objects() if session in key]


@pytest.mark.parametrize("overflow", [False, True])
async def test_a_deleted_session_leaves_no_word_and_no_stream(
    harness: "SessionsHarness", chats: Chats, overflow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "BODY", Overflow("body", 10 if overflow else record.INLINE_BYTES))
    other = (await chats.send("m-other")).session_id
    assert other is not None
    kept = await write_chunks(chats, "m-other", other, [])
    session = await chat_in(chats, SECRET, "m-1", "m-2")
    assert len(traces(harness, session)) > 60
    await harness.sessions.delete(harness.scope(), AGENT, session)
    assert traces(harness, session) == []
    assert [await chats.head(message_id) for message_id in ("m-1", "m-2")] == [None, None]
    assert await chats.head("m-other") == kept
    assert await chats.texts(other) == ["hello", "yes"]


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_repeated_delete_finds_the_name_and_the_streams(harness: "SessionsHarness", chats: Chats, fault: Fault) -> None:
    session = await chat_in(chats, SECRET, "m-0")
    with inject(FaultPlan()) as plan:
        await harness.sessions.delete(harness.scope(), AGENT, session)
    points = len(plan.calls)
    assert points > 30
    for point in sampled([*range(10), *range(points - 10, points)], 4, fault):
        session = await chat_in(chats, SECRET, "m-0")
        with inject(FaultPlan(fault, at=point, times=2)), suppress(SpassError, Crash):
            await harness.sessions.delete(harness.scope(), AGENT, session)
        with suppress(SessionNotFound):
            await harness.sessions.delete(harness.scope(), AGENT, session)
        assert traces(harness, session) == [], f"{fault} at {point}"
        assert await chats.head("m-0") is None


async def test_a_stream_that_a_compaction_moved_is_deleted_with_either_session(harness: "SessionsHarness", chats: Chats) -> None:
    chains = ChainBuilder(chats.scope.store, now=harness.now)
    for number, deletes_source in enumerate((True, False)):
        source = await chat_in(chats, SECRET, f"m-{number}")
        successor = await chains.compact(source, "short")
        head = await write_chunks(chats, f"m-{number}", successor, [31, 32])
        stream = keys.stream_head(chats.scope.store.tenant, head.digest)
        await chats.scope.store.table.write(Update(stream, set={"successor": successor}))
        await chains.delete(source if deletes_source else successor)
        assert await chats.head(f"m-{number}") is None
        remaining = await chats.send(f"m-after-{number}", SECRET)
        assert (remaining.session_id == successor) is deletes_source, "the name stays with the successor"
        assert remaining.session_id is not None
        for session in {remaining.session_id, source, successor}:
            with suppress(SessionNotFound):
                await harness.sessions.delete(harness.scope(), AGENT, session)
        words = [str(item) for item in harness.stored_items() if SECRET in str(item)]
        assert words == [], "also the heads that stay in the chain contain no word"


async def test_a_name_given_to_another_session_stays_when_a_delete_ends(harness: "SessionsHarness", chats: Chats) -> None:
    """The delete is interrupted before it removes the name, and a chat uses the name before the delete is repeated."""
    session = await chat_in(chats, SECRET, "m-1")
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=2)), pytest.raises(Crash):
        await harness.sessions.delete(harness.scope(), AGENT, session)
    outcome = await chats.send("m-2", SECRET)
    assert outcome.session_id != session
    await harness.sessions.delete(harness.scope(), AGENT, session)
    assert (await chats.send("m-3", SECRET)).session_id == outcome.session_id


async def test_the_stream_of_a_turn_that_died_before_its_first_chunk_is_deleted(harness: "SessionsHarness", chats: Chats) -> None:
    session, other = [(await chats.send(message_id)).session_id for message_id in ("m-0", "m-1")]
    assert session is not None
    die = asyncio.Event()

    async def hang(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield InferenceStarted(1)
        await die.wait()
        raise LeaseLost("The worker died.")

    for message_id in ("m-2", "m-3"):
        turn = await chats.start(message_id, session, agent=hang)
        assert isinstance(turn, ScriptedTurn)
        chats.now += LEASE_SECONDS
        harness.now += LEASE_SECONDS
        if message_id == "m-3":  # after a day the name is free, and its next stream is in another session
            store = chats.scope.store
            await store.table.write(Delete(keys.stream_head(store.tenant, stream_digest(chats.user, AGENT, message_id))))
            await chats.send(message_id, other)
        await harness.sessions.delete(harness.scope(), AGENT, session)
        die.set()
        with suppress(SpassError):
            await turn.answer()
        session = (await chats.send(f"after-{message_id}")).session_id
        assert session is not None
        die.clear()
    assert await chats.head("m-2") is None
    assert await chats.head("m-3") is not None, "it belongs to another session"


async def test_the_end_of_a_delete_keeps_a_newer_stream_of_the_same_name(harness: "SessionsHarness", chats: Chats) -> None:
    """The delete is interrupted after it removed a head, and the message is sent again before the delete is repeated."""
    session = await chat_in(chats, SECRET, "m-1")
    with inject(FaultPlan()) as plan, suppress(Crash):
        plan.fault, plan.at = Fault.CRASH_BEFORE, 5
        await harness.sessions.delete(harness.scope(), AGENT, session)
    assert await chats.head("m-1") is None
    outcome = await chats.send("m-1", SECRET)
    assert outcome.session_id not in (None, session)
    newer = await chats.head("m-1")
    await harness.sessions.delete(harness.scope(), AGENT, session)
    assert await chats.head("m-1") == newer
