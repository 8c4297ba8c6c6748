"""The sessions API, for the owner of a session and for others."""

import json
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from spass.core import paging as pages
from spass.core.errors import InvalidRequest, SessionAgentMismatch, SessionArchived, SessionNotFound, SpassError
from spass.core.ids import AgentName, SessionId
from spass.core.paging import encode_cursor
from spass.core.time import timestamp
from spass.sessions import history, record
from spass.sessions.history import read_history
from spass.sessions.session import CreateSession, Hold, HoldKind, SessionView
from spass.store import keys
from spass.store.codec import encode
from spass.store.idempotency import StoredResponse, acquire
from spass.store.leases import LeaseLost
from spass.store.overflow import Overflow
from spass.store.writes import Delete, Update
from spass.testing.faults import FaultPlan, inject
from tests.unit.idempotent_requests import idempotent_request

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import SessionsHarness

pytestmark = pytest.mark.anyio
AGENT = AgentName("librarian")
OTHER_AGENT = AgentName("researcher")


async def test_missing_options_come_from_the_tenants_settings_and_stay_fixed(harness: "SessionsHarness") -> None:
    session = await harness.sessions.create(harness.scope(), AGENT, CreateSession(compact_keep_last_n=0))
    assert SessionView.of(session).to_dict() == {
        "id": session.id,
        "agent": "librarian",
        "title": None,
        "created_at": timestamp(harness.now),
        "updated_at": timestamp(harness.now),
        "message_count": 0,
        "live_message_count": 0,
        "compact_strategy": "manual",
        "compact_keep_last_n": 0,
        "compact_observation_mask": False,
        "parent_session_id": None,
        "successor_session_id": None,
        "archived_at": None,
        "workspace": None,
        "active_turn": None,
    }
    assert await harness.sessions.get(harness.scope(), AGENT, session.id) == session


@pytest.mark.parametrize(
    "body",
    [
        {"user_id": "ana"},
        {"title": ""},
        {"title": "x" * 201},
        {"title": 7},
        {"compact_strategy": "never"},
        {"compact_keep_last_n": -1},
        {"compact_keep_last_n": 201},
        {"compact_keep_last_n": True},
        {"compact_keep_last_n": "5"},
        {"compact_observation_mask": "yes"},
    ],
)
def test_invalid_options_of_a_session_are_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CreateSession.model_validate(body)


async def test_other_users_and_tenants_do_not_find_the_session(harness: "SessionsHarness") -> None:
    session = await harness.create()
    await harness.say(session, "hello")
    for scope in (harness.scope(user="ben"), harness.scope(tenant="demo-2")):
        for request in (
            harness.sessions.get(scope, AGENT, session),
            harness.sessions.history(scope, AGENT, session, None, 100),
            harness.sessions.delete(scope, AGENT, session),
            harness.sessions.get(scope, OTHER_AGENT, session),
        ):
            with pytest.raises(SessionNotFound) as refusal:
                await request
            assert str(refusal.value) == str(SessionNotFound("You have no such session."))
        assert (await harness.sessions.page(scope, AGENT, None, 100)).sessions == []
    with pytest.raises(SessionNotFound):
        await harness.say(session, "hello", user="ben")
    assert len((await harness.sessions.history(harness.scope(), AGENT, session, None, 100)).messages) == 2


async def test_a_session_of_another_agent_raises_an_agent_mismatch(harness: "SessionsHarness") -> None:
    session = await harness.create()
    for request in (
        harness.sessions.get(harness.scope(), OTHER_AGENT, session),
        harness.sessions.history(harness.scope(), OTHER_AGENT, session, None, 100),
        harness.sessions.delete(harness.scope(), OTHER_AGENT, session),
    ):
        with pytest.raises(SessionAgentMismatch):
            await request
    assert (await harness.sessions.page(harness.scope(), OTHER_AGENT, None, 100)).sessions == []


async def test_a_claim_creates_one_session_and_stores_its_answer(harness: "SessionsHarness") -> None:
    scope = harness.scope()
    request = idempotent_request("d" * 64, "b" * 64)
    claim = await acquire(scope.store, request)
    assert not isinstance(claim, StoredResponse)
    session = await harness.sessions.create(scope, AGENT, CreateSession(title="Berlin"), claim)
    assert await acquire(scope.store, request) == StoredResponse(SessionView.of(session).to_dict(), {})
    with pytest.raises(LeaseLost):
        await harness.sessions.create(scope, AGENT, CreateSession(title="Berlin"), claim)
    assert [listed.id for listed in (await harness.sessions.page(scope, AGENT, None, 100)).sessions] == [session.id]


async def test_pages_of_the_list_are_newest_first_and_equal_the_sessions(harness: "SessionsHarness") -> None:
    created = [await harness.create(title=f"number {n}") for n in range(5)]
    await harness.create(user="ben")
    await harness.say(created[2], "hello")
    with inject(FaultPlan()) as plan:
        first = await harness.sessions.page(harness.scope(), AGENT, None, 3)
    assert [call.operation for call in plan.calls] == ["Query"]
    second = await harness.sessions.page(harness.scope(), AGENT, first.next_cursor, 3)
    listed = first.sessions + second.sessions
    assert [session.id for session in listed] == sorted(created, reverse=True)
    assert second.next_cursor is None
    assert [session.message_count for session in listed if session.id == created[2]] == [2]
    assert listed == [SessionView.of(await harness.sessions.get(harness.scope(), AGENT, session.id)) for session in listed]


async def test_a_cursor_is_refused_for_other_users_tenants_and_lists(harness: "SessionsHarness") -> None:
    await harness.create()
    session = await harness.create()
    await harness.say(session, "hello")
    sessions = (await harness.sessions.page(harness.scope(), AGENT, None, 1)).next_cursor
    messages = (await harness.sessions.history(harness.scope(), AGENT, session, None, 1)).next_cursor
    assert sessions is not None
    assert messages is not None
    for request in (
        harness.sessions.page(harness.scope(user="ben"), AGENT, sessions, 1),
        harness.sessions.page(harness.scope(tenant="demo-2"), AGENT, sessions, 1),
        harness.sessions.page(harness.scope(), OTHER_AGENT, sessions, 1),
        harness.sessions.page(harness.scope(), AGENT, messages, 1),
        harness.sessions.page(harness.scope(), AGENT, "", 1),
        harness.sessions.history(harness.scope(), AGENT, await harness.create(), messages, 1),
        harness.sessions.history(harness.scope(), AGENT, session, sessions, 1),
    ):
        with pytest.raises(InvalidRequest):
            await request


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_of_any_size_contain_the_whole_history_in_order(
    harness: "SessionsHarness", limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_TURNS_PER_READ", 2)
    session = await harness.create()
    for n in range(5):
        monkeypatch.setattr(record, "BODY", Overflow("body", 10 if n % 2 else 350_000))
        await harness.say(session, f"question {n}", f"answer {n}")
    messages, cursor = [], None
    while True:
        page = await harness.sessions.history(harness.scope(), AGENT, session, cursor, limit)
        assert len(page.messages) <= limit
        messages += page.messages
        if (cursor := page.next_cursor) is None:
            break
    assert [message.seq for message in messages] == list(range(1, 11))
    assert [message.content for message in messages[:4]] == ["question 0", "answer 0", "question 1", "answer 1"]
    assert set(messages[0].to_dict()) == {
        "id",
        "seq",
        "role",
        "content",
        "created_at",
        "compacted_at",
        "tool_calls",
        "tool_call_id",
        "rich",
        "usage",
        "cost_usd",
    }


async def test_a_page_of_history_is_limited_in_bytes_and_never_empty(
    harness: "SessionsHarness", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 500)
    session = await harness.create()
    await harness.say(session, "ü" * 1000, "short")
    first = await harness.sessions.history(harness.scope(), AGENT, session, None, 100)
    assert [message.seq for message in first.messages] == [1]
    second = await harness.sessions.history(harness.scope(), AGENT, session, first.next_cursor, 100)
    assert [message.seq for message in second.messages] == [2]
    assert second.next_cursor is None


async def test_a_page_of_history_with_many_quotes_fits_a_lambda_response(harness: "SessionsHarness") -> None:
    session = await harness.create()
    for _ in range(4):
        await harness.say(session, '"' * 400_000)
    read, cursor = [], None
    while True:
        page = await harness.sessions.history(harness.scope(), AGENT, session, cursor, 100)
        body = page.to_json().decode()
        assert len(body) < 4 * 1024 * 1024
        assert len(json.dumps(body, ensure_ascii=False)) < 6_000_000
        read += page.messages
        if (cursor := page.next_cursor) is None:
            break
    assert [message.seq for message in read] == list(range(1, 9))


@pytest.mark.parametrize(
    "position",
    ["", "x", "1", "1:x", "1:2:3", "0:1", "-1:1", "1:" + "9" * 5000, "2:2", "4:1", "1:1\n", "\N{ARABIC-INDIC DIGIT ONE}:1"],
)
async def test_a_forged_cursor_of_the_history_is_refused(harness: "SessionsHarness", position: str) -> None:
    session = await harness.create()
    for _ in range(2):
        await harness.say(session, "hello")
    forged = encode_cursor(f"messages|demo|ana|{session}", position)
    with pytest.raises(InvalidRequest) as refusal:
        await harness.sessions.history(harness.scope(), AGENT, session, forged, 100)
    assert refusal.value.param == "cursor"


@pytest.mark.parametrize("position", ["", "x", "ses_1", "SES_" + "0" * 26, "ses_" + "0" * 2000, "ses_" + "\0" * 26])
async def test_a_forged_cursor_of_the_list_is_refused(harness: "SessionsHarness", position: str) -> None:
    await harness.create()
    forged = encode_cursor(f"sessions|demo|ana|{AGENT}", position)
    with pytest.raises(InvalidRequest):
        await harness.sessions.page(harness.scope(), AGENT, forged, 100)


@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("left", [[], [1], [1, 5], [3, 5], [1, 3, 5]])
async def test_a_history_read_during_a_delete_is_whole_or_not_found(
    harness: "SessionsHarness", left: list[int], overflow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overflow:
        monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    session = await harness.create()
    for _ in range(3):
        await harness.say(session, "hello")
    store = harness.scope().store
    head = await harness.sessions.get(harness.scope(), AGENT, session)
    await store.table.write(Update(keys.session_head(store.tenant, session), set={"deleted_at": "now"}))
    for seq in {1, 3, 5} - set(left):
        await store.table.write(Delete(keys.session_turn(store.tenant, session, seq)))
    if overflow:
        await store.objects.delete((await store.objects.list_keys(f"sessions/{session}/"))[:1])
    if left == [1, 3, 5] and not overflow:
        assert len((await read_history(store, head, None, 100)).messages) == 6
    else:
        with pytest.raises(SessionNotFound):
            await read_history(store, head, None, 100)


async def test_an_agent_receives_all_earlier_turns(harness: "SessionsHarness", monkeypatch: pytest.MonkeyPatch) -> None:
    session = await harness.create()
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    assert await harness.say(session, "My name is Ana.", "Hello, Ana.") == []
    monkeypatch.undo()
    shown = await harness.say(session, "What is my name?", "Ana.")
    assert [message.content for message in shown] == ["My name is Ana.", "Hello, Ana."]
    assert len(await harness.say(session, "And now?")) == 4


async def test_half_of_a_surrogate_pair_in_an_answer_is_stored_as_a_question_mark(harness: "SessionsHarness") -> None:
    session = await harness.create()
    await harness.say(session, "hello", "broken \ud83d emoji")
    page = await harness.sessions.history(harness.scope(), AGENT, session, None, 100)
    assert page.messages[1].content == "broken ? emoji"


async def test_a_delete_removes_all_items_and_objects_of_a_session(
    harness: "SessionsHarness", monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await harness.create()
    await harness.say(session, "hello")
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))
    await harness.say(session, "hello")
    await harness.sessions.delete(harness.scope(), AGENT, session)
    for request in (
        harness.sessions.get(harness.scope(), AGENT, session),
        harness.sessions.history(harness.scope(), AGENT, session, None, 100),
        harness.sessions.delete(harness.scope(), AGENT, session),
    ):
        with pytest.raises(SessionNotFound):
            await request
    assert (await harness.sessions.page(harness.scope(), AGENT, None, 100)).sessions == []
    assert harness.stored_items() == []
    assert harness.stored_objects() == []


async def test_only_the_owner_can_continue_an_interrupted_delete(harness: "SessionsHarness") -> None:
    session = await harness.create()
    await harness.say(session, "hello")
    store = harness.scope().store
    await store.table.write(Update(keys.session_head(store.tenant, session), set={"deleted_at": "now"}))
    items = harness.stored_items()
    for scope, agent in ((harness.scope(user="ben"), AGENT), (harness.scope(), AgentName("other"))):
        with pytest.raises(SessionNotFound):
            await harness.sessions.delete(scope, agent, session)
        assert harness.stored_items() == items
    await harness.sessions.delete(harness.scope(), AGENT, session)
    assert not any(session in str(item) for item in harness.stored_items() if str(item["sk"]).startswith("TURN#"))


async def test_a_deleted_member_of_a_chain_keeps_its_links_and_no_text(harness: "SessionsHarness") -> None:
    session = await harness.create(title="a secret")
    store = harness.scope().store
    head = keys.session_head(store.tenant, session)
    await store.table.write(Update(head, set={"successor_session_id": "ses_next"}))
    await harness.say(session, "hello")
    await harness.sessions.delete(harness.scope(), AGENT, session)
    item = await store.table.get(head)
    assert item is not None
    assert item["successor_session_id"] == "ses_next"
    assert "title" not in item
    for _ in range(2):
        with pytest.raises(SessionNotFound):
            await harness.sessions.delete(harness.scope(), AGENT, session)


async def hold(harness: "SessionsHarness", session: SessionId, owner: str, kind: HoldKind, seconds: int) -> None:
    store = harness.scope().store
    value = encode(Hold(owner, kind, int(harness.now) + seconds))
    await store.table.write(Update(keys.session_head(store.tenant, session), set={"hold": value}))


@pytest.mark.parametrize(("kind", "code"), [(HoldKind.TURN, "session_busy"), (HoldKind.JOB, "compaction_in_progress")])
async def test_a_held_session_is_neither_deleted_nor_written_to_until_the_hold_expires(
    harness: "SessionsHarness", kind: HoldKind, code: str
) -> None:
    session = await harness.create()
    await hold(harness, session, "job_1", kind, 42)
    for request in (harness.sessions.delete(harness.scope(), AGENT, session), harness.say(session, "hello")):
        with pytest.raises(SpassError) as refusal:
            await request
        assert (refusal.value.code, refusal.value.retry_after) == (code, 2)
        assert kind is HoldKind.TURN or refusal.value.details == {"job_id": "job_1"}
    harness.now += 42
    await harness.say(session, "hello")
    await hold(harness, session, "turn_dead", HoldKind.TURN, 0)
    await harness.sessions.delete(harness.scope(), AGENT, session)


async def test_an_archived_session_names_its_successor_and_still_shows_its_history(harness: "SessionsHarness") -> None:
    session = await harness.create()
    await harness.say(session, "hello")
    await harness.say(session, "again")
    store = harness.scope().store
    await store.table.write(
        Update(
            keys.session_head(store.tenant, session),
            set={"archived_at": timestamp(harness.now), "successor_session_id": "ses_next", "compacted_before": 3},
        )
    )
    with pytest.raises(SessionArchived) as refusal:
        await harness.say(session, "more")
    assert refusal.value.details == {"successor_session_id": "ses_next"}
    messages = (await harness.sessions.history(harness.scope(), AGENT, session, None, 100)).messages
    assert [message.compacted_at for message in messages] == [timestamp(harness.now)] * 2 + [None] * 2
    assert (await harness.sessions.get(harness.scope(), AGENT, session)).live_message_count == 2
