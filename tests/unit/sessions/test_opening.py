"""Which session a chat continues: a new one, one by its id, or one by the client's own name."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pytest

from spass.agents.driver import ShortenHistory
from spass.calls.recorder import Recorder
from spass.core.cost import Cost
from spass.core.errors import (
    InvalidRequest,
    RateLimited,
    SessionAgentMismatch,
    SessionBusy,
    SessionNotFound,
    SpassError,
    UpstreamError,
)
from spass.core.events import Event, InferenceStarted
from spass.core.ids import AgentName, SessionId
from spass.core.messages import Message, Role
from spass.metering.audit import CallKind
from spass.sessions import opening as opening_module
from spass.sessions import record
from spass.sessions.session import CreateSession
from spass.store import keys
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.leases import LEASE_SECONDS
from spass.store.overflow import Overflow
from spass.store.writes import Put
from spass.testing.faults import FaultPlan, inject
from tests.unit.sessions.chats import Chats, say_yes
from tests.unit.sessions.session_chains import ChainBuilder
from tests.unit.sessions.turns import ScriptedTurn

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import SessionsHarness

T = TypeVar("T")

pytestmark = pytest.mark.anyio
AGENT = AgentName("librarian")
ENTRIES = (Message(Role.USER, "before"), Message(Role.ASSISTANT, "indeed"))


@pytest.fixture
def chats(harness: "SessionsHarness") -> Chats:
    return chats_of(harness)


@pytest.fixture
def chains(harness: "SessionsHarness") -> ChainBuilder:
    return ChainBuilder(harness.scope().store, now=harness.now)


def chats_of(harness: "SessionsHarness", user: str = "ana") -> Chats:
    return Chats(harness.sessions, harness.scope(user), harness.now)


async def fail(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
    yield InferenceStarted(1)
    raise UpstreamError("The model failed.")


async def named_session(chats: Chats, name: str) -> SessionId | None:
    """Return the session in the item of the name."""
    store = chats.scope.store
    item = await store.table.get(keys.session_name(store.tenant, chats.user, AGENT, name))
    return SessionId(str(item["session"])) if item is not None else None


async def test_a_chat_without_a_session_creates_one_with_the_id_in_its_stream(chats: Chats) -> None:
    outcome = await chats.send("m-1")
    head = await chats.head("m-1")
    assert head is not None
    assert outcome.session_id == head.session
    session = await chats.sessions.get(chats.scope, AGENT, head.session)
    assert (session.title, session.message_count, session.hold) == (None, 2, None)
    assert (session.compact_strategy, session.compact_observation_mask) == ("manual", False), "the tenant's settings"
    assert await chats.list_sessions() == [head.session]


async def test_entries_before_the_message_open_the_history_of_a_new_session(chats: Chats) -> None:
    outcome = await chats.send("m-1", entries=ENTRIES)
    assert await chats.texts(outcome.session_id) == ["before", "indeed", "hello", "yes"]
    assert outcome.seq == 4
    assert chats.histories == [list(ENTRIES)]
    await chats.send("m-2", outcome.session_id, entries=[Message(Role.USER, "ignored")])
    assert await chats.texts(outcome.session_id) == ["before", "indeed", "hello", "yes", "hello", "yes"]
    assert [message.content for message in chats.histories[1]] == ["before", "indeed", "hello", "yes"]


async def test_an_imported_tool_result_is_a_users_message_marked_as_data(chats: Chats) -> None:
    entries = [
        *ENTRIES,
        Message(Role.TOOL, "42", tool_call_id="call_7"),
        Message(Role.TOOL, "43"),
        Message(Role.ASSISTANT, "It is 42."),
    ]
    outcome = await chats.send("m-1", entries=entries)
    await chats.send("m-2", outcome.session_id)
    results = [
        Message(Role.USER, "Result of the call call_7: 42", data=True),
        Message(Role.USER, "Result of a call: 43", data=True),
    ]
    for history in chats.histories:
        assert history[:5] == [*ENTRIES, *results, Message(Role.ASSISTANT, "It is 42.")]
    assert outcome.session_id is not None
    page = await chats.sessions.history(chats.scope, AGENT, outcome.session_id, None, 100)
    assert [message.role for message in page.messages[:5]] == ["user", "assistant", "user", "user", "assistant"]


async def test_entries_without_a_visible_character_are_not_imported(chats: Chats) -> None:
    blank = [Message(role, text) for role in (Role.USER, Role.ASSISTANT, Role.TOOL) for text in ("", " \n", "\u200b")]
    outcome = await chats.send("m-1", entries=[*blank, *ENTRIES])
    assert await chats.texts(outcome.session_id) == ["before", "indeed", "hello", "yes"]
    outcome = await chats.send("m-2", entries=blank)
    assert await chats.texts(outcome.session_id) == ["hello", "yes"]


@pytest.mark.parametrize("entry", [Message(Role.SYSTEM, "Obey."), Message(Role.USER, "x" * 1_000_001)])
async def test_entries_that_cannot_be_imported_are_refused_before_the_claim(chats: Chats, entry: Message) -> None:
    with pytest.raises(SpassError) as refusal:
        await chats.send("m-1", entries=[entry])
    assert refusal.value.param == "messages"
    assert (await chats.head("m-1"), await chats.list_sessions()) == (None, [])


async def test_the_imported_history_stays_when_the_turn_fails(chats: Chats) -> None:
    with pytest.raises(UpstreamError):
        await chats.send("m-1", "notes", ENTRIES, fail)
    (session,) = await chats.list_sessions()
    assert await chats.texts(session) == ["before", "indeed"]
    assert (await chats.sessions.get(chats.scope, AGENT, session)).hold is None
    await chats.send("m-2", "notes", ENTRIES)
    assert await chats.texts(session) == ["before", "indeed", "hello", "yes"]


async def test_a_large_imported_history_is_stored_in_the_bucket(harness: "SessionsHarness", chats: Chats) -> None:
    outcome = await chats.send("m-1", entries=[Message(Role.USER, "x" * 400_000)])
    assert [len(text) for text in await chats.texts(outcome.session_id)] == [400_000, 5, 3]
    assert len(harness.stored_objects()) == 1


async def test_an_imported_history_is_compacted_like_any_other(harness: "SessionsHarness", chains: ChainBuilder) -> None:
    chats = chats_of(harness)
    entries = [*ENTRIES, Message(Role.TOOL, "42", tool_call_id="call_7"), Message(Role.ASSISTANT, "It is 42.")]
    outcome = await chats.send("m-1", entries=entries)
    assert outcome.session_id is not None
    successor = await chains.compact(outcome.session_id, keep=4)
    assert await chats.texts(successor) == [
        f"[compaction summary from session {outcome.session_id}] what was said",
        "Result of the call call_7: 42",
        "It is 42.",
        "hello",
        "yes",
    ]
    await chats.send("m-2", successor)
    assert [message.data for message in chats.histories[1]] == [False, True, False, False, False]


async def test_an_archived_session_continues_as_its_newest_successor(harness: "SessionsHarness", chains: ChainBuilder) -> None:
    chats, members = chats_of(harness), await chains.chain(4)
    outcome = await chats.send("m-1", members[0])
    assert outcome.session_id == members[3]
    head = await chats.head("m-1")
    assert head is not None
    assert head.session == members[3], "the stream names the session that the turn ran in"
    await chains.delete(members[1])
    assert (await chats.send("m-2", members[0])).session_id == members[3]
    await chains.delete(members[3])
    for wanted in members:
        with pytest.raises(SessionNotFound):
            await chats.send("m-3", wanted)
    assert await chats.head("m-3") is None


async def test_scope_and_outcome_name_the_session_that_was_opened(harness: "SessionsHarness", chains: ChainBuilder) -> None:
    chats, (source, successor) = chats_of(harness), await chains.chain(2)
    turn = await chats.start("m-1", source)
    assert isinstance(turn, ScriptedTurn)
    assert (await turn.answer()).outcome.session_id == successor
    assert chats.sessions_of_runs == [successor]


@pytest.mark.parametrize("wanted", ["ses_" + "0" * 26, "ses_1", "ses_", "ses_" + "A" * 26, "ses_" + "0" * 27])
async def test_an_unknown_id_is_not_found_and_leaves_nothing_behind(chats: Chats, wanted: str) -> None:
    with pytest.raises(SessionNotFound):
        await chats.send("m-1", wanted)
    assert (await chats.head("m-1"), await chats.list_sessions()) == (None, [])


@pytest.mark.parametrize("wanted", ["", "a b", "x" * 129, "né", "a/b", "a#b", "a\n"])
async def test_a_text_that_is_neither_id_nor_name_is_refused(chats: Chats, wanted: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await chats.send("m-1", wanted)
    assert refusal.value.param == "session_id"


async def test_sessions_of_other_users_and_agents_are_refused(harness: "SessionsHarness", chats: Chats) -> None:
    with pytest.raises(SessionNotFound):
        await chats.send("m-1", await harness.create(user="ben"))
    other = await harness.sessions.create(harness.scope(), AgentName("researcher"), CreateSession())
    with pytest.raises(SessionAgentMismatch):
        await chats.send("m-1", other.id)
    assert await chats.head("m-1") is None


async def test_a_name_creates_a_session_with_that_title_once(harness: "SessionsHarness", chats: Chats) -> None:
    first = await chats.send("m-1", "notes", ENTRIES)
    second = await chats.send("m-2", "notes", ENTRIES)
    assert first.session_id == second.session_id
    assert await chats.texts(first.session_id) == ["before", "indeed", "hello", "yes", "hello", "yes"]
    (view,) = (await chats.sessions.page(chats.scope, AGENT, None, 100)).sessions
    assert view.title == "notes"
    assert "name" not in view.to_dict()
    others = [chats_of(harness, "ben"), Chats(harness.sessions, harness.scope(tenant="demo-2"), harness.now)]
    for other in others:
        assert (await other.send("m-1", "notes")).session_id != first.session_id


async def test_a_name_follows_the_compactions_of_its_session(harness: "SessionsHarness", chains: ChainBuilder) -> None:
    chats = chats_of(harness)
    session = (await chats.send("m-1", "notes")).session_id
    assert session is not None
    successor = await chains.compact(session)
    assert await named_session(chats, "notes") == successor
    assert (await chats.send("m-2", "notes")).session_id == successor
    await chains.delete(session)
    assert (await chats.send("m-3", "notes")).session_id == successor, "a deleted ancestor does not have the name"
    newest = await chains.compact(successor)
    assert (await chats.send("m-4", "notes")).session_id == newest


async def test_a_name_of_an_archived_session_continues_as_its_successor(harness: "SessionsHarness", chains: ChainBuilder) -> None:
    chats, (source, middle, newest) = chats_of(harness), await chains.chain(3)
    store = chats.scope.store
    name = keys.session_name(store.tenant, chats.user, AGENT, "notes")
    for number, deleted in enumerate((None, middle, source)):
        await store.table.write(Put(name, {"session": source}))
        if deleted is not None:
            await chains.delete(deleted)
        assert (await chats.send(f"m-{number}", "notes")).session_id == newest


async def test_a_name_whose_session_was_deleted_creates_another(harness: "SessionsHarness", chains: ChainBuilder) -> None:
    chats = chats_of(harness)
    first = (await chats.send("m-1", "notes")).session_id
    assert first is not None
    await chains.delete(first)
    assert await named_session(chats, "notes") is None
    second = (await chats.send("m-2", "notes", ENTRIES)).session_id
    assert second is not None
    assert await chats.texts(second) == ["before", "indeed", "hello", "yes"]
    successor = await chains.compact(second)
    await chains.delete(successor)
    third = (await chats.send("m-3", "notes")).session_id
    assert third not in (first, second, successor)
    assert await named_session(chats, "notes") == third


@dataclass(slots=True)
class BeforeClaim(FaultPlan):
    """Make one change when a chat has read the name and is about to claim its stream."""

    change: Callable[[], Awaitable[SessionId | None]] | None = None
    changed: SessionId | None = None

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation == "PutItem" and (change := self.change) is not None:
            self.change = None
            with inject(FaultPlan()):
                self.changed = await change()
        return await FaultPlan.around(self, call, run)


@pytest.mark.parametrize("change", ["compact", "delete", "compact and delete", "delete and create"])
async def test_the_session_of_a_name_may_change_while_a_chat_opens_it(
    harness: "SessionsHarness", chains: ChainBuilder, change: str
) -> None:
    chats = chats_of(harness)
    before = (await chats.send("m-1", "notes")).session_id
    assert before is not None

    async def make_change() -> SessionId | None:
        last = await chains.compact(before) if "compact" in change else before
        if "delete" not in change:
            return last
        await chains.delete(last)
        return (await chats.send("m-2", "notes")).session_id if "create" in change else None

    with inject(BeforeClaim(change=make_change)) as plan:
        outcome = await chats.send("m-3", "notes")
    assert isinstance(plan, BeforeClaim)
    assert outcome.session_id != before
    assert plan.changed in (outcome.session_id, None)
    assert await named_session(chats, "notes") == outcome.session_id
    head = await chats.head("m-3")
    assert head is not None
    assert head.session == outcome.session_id


@pytest.mark.parametrize("overflow", [False, True])
async def test_five_first_uses_of_a_name_at_once_create_one_session(
    harness: "SessionsHarness", chats: Chats, overflow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but one meet the session of the first, which runs."""
    monkeypatch.setattr(record, "BODY", Overflow("body", 20 if overflow else record.INLINE_BYTES))
    resume = asyncio.Event()

    async def wait(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        await resume.wait()
        async for event in say_yes(history, shorten_history):
            yield event

    starts = [chats.start(f"m-{number}", "notes", ENTRIES, wait) for number in range(5)]
    results = await asyncio.gather(*starts, return_exceptions=True)
    (running,) = (result for result in results if isinstance(result, ScriptedTurn))
    winner = f"m-{results.index(running)}"
    refusals = [result for result in results if isinstance(result, SessionBusy)]
    assert [refusal.details for refusal in refusals] == [{"message_id": winner}] * 4
    resume.set()
    outcome = (await running.answer()).outcome
    assert await chats.list_sessions() == [outcome.session_id]
    assert await chats.texts(outcome.session_id) == ["before", "indeed", "hello", "yes"]
    assert len(harness.stored_objects()) == (2 if overflow else 0), "the import and the turn; no body of the others"


@pytest.mark.parametrize("wanted", [None, "notes"])
async def test_a_new_attempt_creates_the_session_that_the_attempt_before_did_not(chats: Chats, wanted: str | None) -> None:
    """The first attempt died between its claim and its session. Without a name, only the id prevents a second session."""
    chosen = (await chats.sessions.open(chats.scope, AGENT, wanted, ENTRIES)).session
    await chats.claim("m-1", chosen)
    chats.now += LEASE_SECONDS
    outcome = await chats.send("m-1", wanted, ENTRIES)
    assert (outcome.session_id == chosen) is (wanted is None)
    assert await chats.list_sessions() == [outcome.session_id]
    assert await chats.texts(outcome.session_id) == ["before", "indeed", "hello", "yes"]


async def test_a_new_attempt_never_creates_a_deleted_session_again(chats: Chats) -> None:
    """A late write of the deletion would reach the new session."""
    first = (await chats.send("m-1", "notes")).session_id
    assert first is not None
    await chats.claim("m-2", first)
    await chats.sessions.delete(chats.scope, AGENT, first)
    chats.now += LEASE_SECONDS
    outcome = await chats.send("m-2", "notes")
    assert outcome.session_id != first
    assert await chats.list_sessions() == [outcome.session_id]


@pytest.mark.parametrize("wanted", [None, "notes"])
async def test_a_new_attempt_continues_the_session_that_the_attempt_before_created(
    harness: "SessionsHarness", chats: Chats, chains: ChainBuilder, wanted: str | None
) -> None:
    with pytest.raises(UpstreamError):
        await chats.send("m-1", wanted, ENTRIES, fail)
    (session,) = await chats.list_sessions()
    chats.now += LEASE_SECONDS
    outcome = await chats.send("m-1", wanted, ENTRIES)
    assert outcome.session_id == session
    assert await chats.texts(session) == ["before", "indeed", "hello", "yes"]


@pytest.mark.parametrize("wanted", [None, "notes"])
async def test_a_new_attempt_follows_the_session_of_the_attempt_before(
    harness: "SessionsHarness", chains: ChainBuilder, wanted: str | None
) -> None:
    """After the first attempt, its session was compacted, or deleted, or compacted and deleted with its successor."""
    for number, (compacts, deletes) in enumerate([(True, False), (False, True), (True, True)]):
        chats = chats_of(harness)
        with pytest.raises(UpstreamError):
            await chats.send(f"m-{number}", wanted, ENTRIES, fail)
        head = await chats.head(f"m-{number}")
        assert head is not None
        last = session = head.session
        if compacts:
            last = await chains.compact(session)
        if deletes:
            await chains.delete(last)
        chats.now += LEASE_SECONDS
        outcome = await chats.send(f"m-{number}", wanted, ENTRIES)
        texts = await chats.texts(outcome.session_id)
        if deletes:
            assert texts == ["before", "indeed", "hello", "yes"]
        else:
            assert outcome.session_id == last
            assert texts[1:] == ["hello", "yes"]
        assert outcome.session_id is not None
        await chains.delete(outcome.session_id)


async def test_a_session_that_changes_again_and_again_is_reported_as_busy(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_module, "_ATTEMPTS", 0)
    for wanted in (None, "notes"):
        with pytest.raises(SessionBusy):
            await chats.send("m-1", wanted)


@pytest.mark.parametrize(
    ("kind", "before_model"),
    [
        ("new", ["PutItem", "TransactWriteItems"]),
        ("id", ["PutItem", "UpdateItem", "Query"]),
        ("new name", ["GetItem", "PutItem", "TransactWriteItems"]),
        ("name", ["GetItem", "PutItem", "UpdateItem", "Query"]),
    ],
)
async def test_a_chat_makes_few_calls_before_the_model(chats: Chats, kind: str, before_model: list[str]) -> None:
    """The tenant's settings are in the cache."""
    session = (await chats.send("m-0", "notes")).session_id
    wanted = {"new": None, "id": session, "new name": "others", "name": "notes"}[kind]
    operations: list[str] = []

    async def count(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        operations.extend(call.operation for call in plan.calls)
        async for event in say_yes(history, shorten_history):
            yield event

    with inject(FaultPlan()) as plan:
        await chats.send("m-1", wanted, ENTRIES, count)
    assert operations == before_model
    assert [call.operation for call in plan.calls] == [*before_model, "TransactWriteItems"]


@pytest.mark.parametrize(("kind", "stays"), [(CallKind.TOOL, True), (CallKind.CHAT, True), (CallKind.EMBEDDING, False)])
async def test_a_refused_first_message_leaves_its_session_only_if_it_has_acted(chats: Chats, kind: CallKind, stays: bool) -> None:
    async def call_once(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield InferenceStarted(1)
        await Recorder(chats.scope, kind).finish("ok", cost=Cost(sub_calls=0 if kind is CallKind.TOOL else 1))
        raise RateLimited("Try again later.")

    with pytest.raises(RateLimited):
        await chats.send("m1", agent=call_once)
    assert bool(await chats.list_sessions()) is stays
