"""What a user can do with sessions, and what another one cannot."""

import json
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from spass.aws import keys
from spass.aws.faults import FaultPlan, inject
from spass.aws.idempotency import IdempotentRequest, StoredAnswer, acquire
from spass.aws.leases import LeaseLost
from spass.aws.table import Delete, Update
from spass.core import pages
from spass.core.cursors import encode_cursor
from spass.core.errors import InvalidRequest, SessionAgentMismatch, SessionArchived, SessionNotFound, SpassError
from spass.core.ids import AgentName, SessionId
from spass.core.time import timestamp
from spass.sessions import history, record
from spass.sessions.history import read_history
from spass.sessions.session import CreateSession, Hold, HoldKind

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import House

pytestmark = pytest.mark.anyio
AGENT = AgentName("librarian")
OTHER_AGENT = AgentName("researcher")


async def test_what_a_client_leaves_out_comes_from_its_tenant_and_is_fixed(house: "House") -> None:
    session = await house.sessions.create(house.scope(), AGENT, CreateSession(compact_keep_last_n=0))
    assert session.wire() == {
        "id": session.id,
        "agent": "librarian",
        "title": None,
        "created_at": timestamp(house.now),
        "updated_at": timestamp(house.now),
        "message_count": 0,
        "live_message_count": 0,
        "compact_strategy": "manual",
        "compact_keep_last_n": 0,
        "compact_observation_mask": False,
        "parent_session_id": None,
        "successor_session_id": None,
        "archived_at": None,
    }
    assert await house.sessions.get(house.scope(), AGENT, session.id) == session


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
def test_what_a_session_cannot_be_created_with_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CreateSession.model_validate(body)


async def test_another_user_or_tenant_finds_nothing_whatever_it_asks(house: "House") -> None:
    session = await house.create()
    await house.say(session, "hello")
    for scope in (house.scope(user="ben"), house.scope(tenant="demo-2")):
        for ask in (
            house.sessions.get(scope, AGENT, session),
            house.sessions.history(scope, AGENT, session, None, 100),
            house.sessions.delete(scope, AGENT, session),
            house.sessions.get(scope, OTHER_AGENT, session),
        ):
            with pytest.raises(SessionNotFound) as refused:
                await ask
            assert str(refused.value) == str(SessionNotFound("You have no such session."))
        assert (await house.sessions.page(scope, AGENT, None, 100)).sessions == []
    with pytest.raises(SessionNotFound):
        await house.say(session, "hello", user="ben")
    assert len((await house.sessions.history(house.scope(), AGENT, session, None, 100)).messages) == 2


async def test_through_another_agent_the_user_is_told_that_the_session_is_not_its(house: "House") -> None:
    session = await house.create()
    for ask in (
        house.sessions.get(house.scope(), OTHER_AGENT, session),
        house.sessions.history(house.scope(), OTHER_AGENT, session, None, 100),
        house.sessions.delete(house.scope(), OTHER_AGENT, session),
    ):
        with pytest.raises(SessionAgentMismatch):
            await ask
    assert (await house.sessions.page(house.scope(), OTHER_AGENT, None, 100)).sessions == []


async def test_a_session_is_created_once_with_its_kept_answer(house: "House") -> None:
    scope = house.scope()
    request = IdempotentRequest("d" * 64, "b" * 64)
    claim = await acquire(scope.store, request)
    assert not isinstance(claim, StoredAnswer)
    session = await house.sessions.create(scope, AGENT, CreateSession(title="Berlin"), claim)
    assert await acquire(scope.store, request) == StoredAnswer(session.wire(), {})
    with pytest.raises(LeaseLost):
        await house.sessions.create(scope, AGENT, CreateSession(title="Berlin"), claim)
    assert [found.id for found in (await house.sessions.page(scope, AGENT, None, 100)).sessions] == [session.id]


async def test_a_list_is_newest_first_in_pages_and_as_true_as_the_sessions(house: "House") -> None:
    made = [await house.create(title=f"number {n}") for n in range(5)]
    await house.create(user="ben")
    await house.say(made[2], "hello")
    with inject(FaultPlan()) as plan:
        first = await house.sessions.page(house.scope(), AGENT, None, 3)
    assert [call.operation for call in plan.calls] == ["Query"]
    second = await house.sessions.page(house.scope(), AGENT, first.next_cursor, 3)
    listed = first.sessions + second.sessions
    assert [session.id for session in listed] == sorted(made, reverse=True)
    assert second.next_cursor is None
    assert [session.message_count for session in listed if session.id == made[2]] == [2]
    assert listed == [await house.sessions.get(house.scope(), AGENT, session.id) for session in listed]


async def test_a_cursor_is_worth_nothing_to_anybody_else(house: "House") -> None:
    await house.create()
    session = await house.create()
    await house.say(session, "hello")
    sessions = (await house.sessions.page(house.scope(), AGENT, None, 1)).next_cursor
    messages = (await house.sessions.history(house.scope(), AGENT, session, None, 1)).next_cursor
    assert sessions is not None
    assert messages is not None
    for ask in (
        house.sessions.page(house.scope(user="ben"), AGENT, sessions, 1),
        house.sessions.page(house.scope(tenant="demo-2"), AGENT, sessions, 1),
        house.sessions.page(house.scope(), OTHER_AGENT, sessions, 1),
        house.sessions.page(house.scope(), AGENT, messages, 1),
        house.sessions.page(house.scope(), AGENT, "", 1),
        house.sessions.history(house.scope(), AGENT, await house.create(), messages, 1),
        house.sessions.history(house.scope(), AGENT, session, sessions, 1),
    ):
        with pytest.raises(InvalidRequest):
            await ask


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_the_history_is_whole_and_in_order_whatever_the_page(
    house: "House", limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_TURNS_AT_ONCE", 2)
    session = await house.create()
    for n in range(5):
        monkeypatch.setattr(record, "INLINE_BYTES", 10 if n % 2 else 350_000)
        await house.say(session, f"question {n}", f"answer {n}")
    messages, cursor = [], None
    while True:
        page = await house.sessions.history(house.scope(), AGENT, session, cursor, limit)
        assert len(page.messages) <= limit
        messages += page.messages
        if (cursor := page.next_cursor) is None:
            break
    assert [message["seq"] for message in messages] == list(range(1, 11))
    assert [message["content"] for message in messages[:4]] == ["question 0", "answer 0", "question 1", "answer 1"]
    assert set(messages[0]) == {"id", "seq", "role", "content", "created_at", "compacted_at", "tool_calls", "tool_call_id"}


async def test_a_page_of_history_ends_at_its_weight_but_never_empty(house: "House", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 500)
    session = await house.create()
    await house.say(session, "ü" * 1000, "short")
    first = await house.sessions.history(house.scope(), AGENT, session, None, 100)
    assert [message["seq"] for message in first.messages] == [1]
    second = await house.sessions.history(house.scope(), AGENT, session, first.next_cursor, 100)
    assert [message["seq"] for message in second.messages] == [2]
    assert second.next_cursor is None


async def test_a_page_of_history_ends_where_quotes_make_it_too_large_for_a_lambda(house: "House") -> None:
    session = await house.create()
    for _ in range(4):
        await house.say(session, '"' * 400_000)
    read, cursor = [], None
    while True:
        page = await house.sessions.history(house.scope(), AGENT, session, cursor, 100)
        body = json.dumps(page.messages, ensure_ascii=False)
        assert len(body) < 4 * 1024 * 1024
        assert len(json.dumps(body, ensure_ascii=False)) < 6_000_000
        read += page.messages
        if (cursor := page.next_cursor) is None:
            break
    assert [message["seq"] for message in read] == list(range(1, 9))


@pytest.mark.parametrize(
    "position",
    ["", "x", "1", "1:x", "1:2:3", "0:1", "-1:1", "1:" + "9" * 5000, "2:2", "4:1", "1:1\n", "\N{ARABIC-INDIC DIGIT ONE}:1"],
)
async def test_a_forged_position_is_no_position_of_the_history(house: "House", position: str) -> None:
    session = await house.create()
    for _ in range(2):
        await house.say(session, "hello")
    forged = encode_cursor(f"messages|demo|ana|{session}", position)
    with pytest.raises(InvalidRequest) as refused:
        await house.sessions.history(house.scope(), AGENT, session, forged, 100)
    assert refused.value.param == "cursor"


@pytest.mark.parametrize("position", ["", "x", "ses_1", "SES_" + "0" * 26, "ses_" + "0" * 2000, "ses_" + "\0" * 26])
async def test_a_forged_position_is_no_position_of_the_list(house: "House", position: str) -> None:
    await house.create()
    forged = encode_cursor(f"sessions|demo|ana|{AGENT}", position)
    with pytest.raises(InvalidRequest):
        await house.sessions.page(house.scope(), AGENT, forged, 100)


@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("left", [[], [1], [1, 5], [3, 5], [1, 3, 5]])
async def test_a_history_read_while_it_is_deleted_is_whole_or_not_there(
    house: "House", left: list[int], overflow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if overflow:
        monkeypatch.setattr(record, "INLINE_BYTES", 10)
    session = await house.create()
    for _ in range(3):
        await house.say(session, "hello")
    store = house.scope().store
    seen = await house.sessions.get(house.scope(), AGENT, session)
    await store.table.write(Update(keys.session_head(store.tenant, session), "SET deleted_at = :at", values={":at": "now"}))
    for seq in {1, 3, 5} - set(left):
        await store.table.write(Delete(keys.session_turn(store.tenant, session, seq)))
    if overflow:
        await store.objects.delete((await store.objects.keys_under(f"sessions/{session}/"))[:1])
    if left == [1, 3, 5] and not overflow:
        assert len((await read_history(store, seen, None, 100)).messages) == 6
    else:
        with pytest.raises(SessionNotFound):
            await read_history(store, seen, None, 100)


async def test_an_agent_is_shown_all_earlier_turns(house: "House", monkeypatch: pytest.MonkeyPatch) -> None:
    session = await house.create()
    monkeypatch.setattr(record, "INLINE_BYTES", 10)
    assert await house.say(session, "My name is Ana.", "Hello, Ana.") == []
    monkeypatch.undo()
    shown = await house.say(session, "What is my name?", "Ana.")
    assert [message.content for message in shown] == ["My name is Ana.", "Hello, Ana."]
    assert len(await house.say(session, "And now?")) == 4


async def test_half_a_surrogate_pair_from_a_model_does_not_cost_the_turn(house: "House") -> None:
    session = await house.create()
    await house.say(session, "hello", "broken \ud83d emoji")
    page = await house.sessions.history(house.scope(), AGENT, session, None, 100)
    assert page.messages[1]["content"] == "broken ? emoji"


async def test_a_deleted_session_leaves_nothing_behind(house: "House", monkeypatch: pytest.MonkeyPatch) -> None:
    session = await house.create()
    await house.say(session, "hello")
    monkeypatch.setattr(record, "INLINE_BYTES", 10)
    await house.say(session, "hello")
    await house.sessions.delete(house.scope(), AGENT, session)
    for ask in (
        house.sessions.get(house.scope(), AGENT, session),
        house.sessions.history(house.scope(), AGENT, session, None, 100),
        house.sessions.delete(house.scope(), AGENT, session),
    ):
        with pytest.raises(SessionNotFound):
            await ask
    assert (await house.sessions.page(house.scope(), AGENT, None, 100)).sessions == []
    assert house.stored_items() == []
    assert house.stored_objects() == []


async def test_only_its_user_takes_up_a_delete_that_broke_off(house: "House") -> None:
    session = await house.create()
    await house.say(session, "hello")
    store = house.scope().store
    await store.table.write(Update(keys.session_head(store.tenant, session), "SET deleted_at = :at", values={":at": "now"}))
    left = house.stored_items()
    for scope, agent in ((house.scope(user="ben"), AGENT), (house.scope(), AgentName("other"))):
        with pytest.raises(SessionNotFound):
            await house.sessions.delete(scope, agent, session)
        assert house.stored_items() == left
    await house.sessions.delete(house.scope(), AGENT, session)
    assert not any(session in str(item) for item in house.stored_items() if item["sk"]["S"].startswith("TURN#"))


async def test_a_member_of_a_chain_leaves_its_links_and_no_word_when_deleted(house: "House") -> None:
    session = await house.create(title="a secret")
    store = house.scope().store
    head = keys.session_head(store.tenant, session)
    await store.table.write(Update(head, "SET successor_session_id = :next", values={":next": "ses_next"}))
    await house.say(session, "hello")
    await house.sessions.delete(house.scope(), AGENT, session)
    item = await store.table.get(head)
    assert item is not None
    assert item["successor_session_id"] == "ses_next"
    assert "title" not in item
    for _ in range(2):
        with pytest.raises(SessionNotFound):
            await house.sessions.delete(house.scope(), AGENT, session)


async def hold(house: "House", session: SessionId, owner: str, kind: HoldKind, seconds: int) -> None:
    store = house.scope().store
    held = Hold(owner, kind, int(house.now) + seconds).attributes()
    await store.table.write(
        Update(keys.session_head(store.tenant, session), "SET #hold = :hold", {"#hold": "hold"}, {":hold": held})
    )


@pytest.mark.parametrize(("kind", "code"), [(HoldKind.TURN, "session_busy"), (HoldKind.JOB, "compaction_in_progress")])
async def test_a_held_session_is_neither_deleted_nor_written_to_until_the_hold_expires(
    house: "House", kind: HoldKind, code: str
) -> None:
    session = await house.create()
    await hold(house, session, "job_1", kind, 42)
    for ask in (house.sessions.delete(house.scope(), AGENT, session), house.say(session, "hello")):
        with pytest.raises(SpassError) as refused:
            await ask
        assert (refused.value.code, refused.value.retry_after) == (code, 2)
        assert kind is HoldKind.TURN or refused.value.details == {"job_id": "job_1"}
    house.now += 42
    await house.say(session, "hello")
    await hold(house, session, "turn_dead", HoldKind.TURN, 0)
    await house.sessions.delete(house.scope(), AGENT, session)


async def test_an_archived_session_names_its_successor_and_still_shows_its_history(house: "House") -> None:
    session = await house.create()
    await house.say(session, "hello")
    await house.say(session, "again")
    store = house.scope().store
    await store.table.write(
        Update(
            keys.session_head(store.tenant, session),
            "SET archived_at = :at, successor_session_id = :next, compacted_before = :cut",
            values={":at": timestamp(house.now), ":next": "ses_next", ":cut": 3},
        )
    )
    with pytest.raises(SessionArchived) as refused:
        await house.say(session, "more")
    assert refused.value.details == {"successor_session_id": "ses_next"}
    messages = (await house.sessions.history(house.scope(), AGENT, session, None, 100)).messages
    assert [message["compacted_at"] for message in messages] == [timestamp(house.now)] * 2 + [None] * 2
    assert (await house.sessions.get(house.scope(), AGENT, session)).live_message_count == 2
