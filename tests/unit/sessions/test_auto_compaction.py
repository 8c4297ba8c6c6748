"""A turn compacts its session when it is due, or when the provider finds it too long; whatever comes of that, nothing is lost."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import pytest

from spass.aws import keys
from spass.aws.faults import AwsCall, FaultPlan, inject
from spass.aws.idempotency import IdempotentRequest
from spass.aws.leases import LeaseLost, renewing
from spass.aws.table import Update
from spass.core.errors import (
    BudgetExceeded,
    ContextLengthExceeded,
    IdempotencyInProgress,
    RateLimited,
    RecursionDepthExceeded,
    SessionArchived,
    SpassError,
    StorageUnavailable,
    SummaryFailed,
    UpstreamError,
)
from spass.core.events import Event, TurnStarted
from spass.core.ids import AgentName, SessionId
from spass.core.messages import Message
from spass.sessions import turn as turn_module
from spass.sessions.record import INLINE_BYTES
from spass.sessions.session import CompactStrategy, CreateSession, Session
from spass.sessions.turn import Relief, Respond
from tests.unit.sessions.conftest import answering, redirected

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import House

T = TypeVar("T")

pytestmark = pytest.mark.anyio
AGENT = AgentName("librarian")
REQUEST = IdempotentRequest("d" * 64, "b" * 64)
ROOM = 800
"""Characters: 80 % of the house's window of 250 tokens."""


async def quick(history: Sequence[Message], relief: Relief) -> AsyncGenerator[Event, None]:
    for event in answering("yes"):
        yield event


async def session_of(house: "House", *turns: tuple[str, str], keep: int = 2, strategy: CompactStrategy = "auto") -> SessionId:
    """A session in which the user and the agent said ``turns``."""
    session = await house.create_with(CreateSession(compact_strategy=strategy, compact_keep_last_n=keep))
    for message, answer in turns:
        await house.say(session, message, answer)
    return session


async def full_session(house: "House", *, strategy: CompactStrategy = "auto") -> SessionId:
    """One whose first turn is summarised by the next one, which finds room on the successor."""
    house.summarizer.text = "short"
    return await session_of(house, ("old " * 100, "old " * 100), ("new", "newer"), strategy=strategy)


async def head(house: "House", session: SessionId) -> Session:
    return await house.sessions.get(house.scope(), AGENT, session)


async def said(house: "House", session: SessionId) -> list[str]:
    page = await house.sessions.history(house.scope(), AGENT, session, None, 100)
    assert [message["seq"] for message in page.messages] == list(range(1, len(page.messages) + 1))
    return [str(message["content"]) for message in page.messages]


async def sessions(house: "House") -> int:
    return len((await house.sessions.page(house.scope(), AGENT, None, 100)).sessions)


@pytest.mark.parametrize(("more", "compacts"), [(0, False), (1, True)])
async def test_it_takes_more_than_four_fifths_of_the_window(house: "House", more: int, compacts: bool) -> None:
    session = await session_of(house, ("a" * 300, "b" * 300), ("c" * 50, "d" * 50))
    answer = await house.turn(session, "e" * (ROOM - 700 + more), quick).answer()
    assert (answer.answer.body["compacted"] == session) is compacts
    assert answer.answer.body["error"] is None


@pytest.mark.parametrize(("keep", "compacts"), [(3, True), (4, False), (5, False)])
async def test_it_takes_more_live_messages_than_are_kept(house: "House", keep: int, compacts: bool) -> None:
    session = await session_of(house, ("a" * 300, "b" * 300), ("c" * 300, "d" * 300), keep=keep)
    house.summarizer.failure = SummaryFailed("No.")
    answer = await house.turn(session, "hello", quick).answer()
    assert bool(answer.answer.body["error"]) is compacts


@pytest.mark.parametrize(("strategy", "compacts"), [("auto", True), ("manual", False), ("off", False)])
async def test_it_takes_a_session_that_wants_it(house: "House", strategy: CompactStrategy, compacts: bool) -> None:
    session = await full_session(house, strategy=strategy)
    await house.turn(session, "hello", quick).answer()
    assert len(house.summarizer.asked) == compacts
    assert ((await head(house, session)).archived_at is not None) is compacts


async def test_the_turn_runs_and_is_recorded_on_the_successor(house: "House") -> None:
    session = await full_session(house)
    shown: list[Message] = []

    async def respond(history: Sequence[Message], relief: Relief) -> AsyncGenerator[Event, None]:
        shown.extend(history)
        async for event in quick(history, relief):
            yield event

    answer = await house.turn(session, "hello", respond).answer()
    successor = SessionId(str(answer.answer.body["session"]))
    source = await head(house, session)
    assert (source.successor_session_id, source.message_count, source.live_message_count) == (successor, 4, 2)
    summary = f"[compaction summary from session {session}] short"
    assert [message.content for message in shown] == [summary, "new", "newer"]
    assert await said(house, successor) == [summary, "new", "newer", "hello", "yes"]
    assert answer.answer.body["seq"] == 5
    assert (source.hold, (await head(house, successor)).hold) == (None, None)
    assert await sessions(house) == 2


async def test_a_summary_is_asked_of_what_is_not_kept_in_half_of_the_time_that_is_left(house: "House") -> None:
    session = await full_session(house)
    scope = house.scope()
    await house.turn(session, "hello", quick, scope=scope).answer()
    (asked,) = house.summarizer.asked
    assert [message.content for message in asked.messages] == ["old " * 100] * 2
    assert (asked.earlier, asked.masked, asked.otherwise) == (None, False, "talker")
    assert 130 < asked.seconds_left <= 135
    assert scope.tally.total.sub_calls == 1, "what it cost is on the turn's bill"


async def test_an_earlier_summary_goes_into_the_next_one_apart_from_what_was_said(house: "House") -> None:
    session = await full_session(house)
    second = SessionId(str((await house.turn(session, "hello", quick).answer()).answer.body["session"]))
    third = SessionId(str((await house.turn(second, "x" * 800, quick).answer()).answer.body["session"]))
    asked = house.summarizer.asked[-1]
    assert asked.earlier == "short"
    assert [message.content for message in asked.messages] == ["new", "newer"]
    summary = f"[compaction summary from session {second}] short"
    assert await said(house, third) == [summary, "hello", "yes", "x" * 800, "yes"]


@pytest.mark.parametrize(
    "failure",
    [
        SummaryFailed("The model said nothing."),
        RateLimited("No room.", retry_after=5),
        BudgetExceeded("No money."),
        RecursionDepthExceeded("Too deep."),
        StorageUnavailable("Who knows?"),
    ],
    ids=lambda failure: failure.code,
)
async def test_a_compaction_that_fails_leaves_the_turn_to_the_session_as_it_was(house: "House", failure: SpassError) -> None:
    session = await full_session(house)
    house.summarizer.failure = failure
    before = await said(house, session)
    answer = await house.turn(session, "hello", quick).answer()
    assert (answer.answer.body["session"], answer.answer.body["error"]) == (session, failure.code)
    assert await said(house, session) == [*before, "hello", "yes"]
    assert (await head(house, session)).archived_at is None
    assert await sessions(house) == 1


async def test_nothing_older_than_what_is_kept_is_said_and_hurts_nobody(house: "House") -> None:
    session = await session_of(house, ("a" * 500, "b" * 500), keep=1)
    answer = await house.turn(session, "hello", quick).answer()
    assert (answer.answer.body["session"], answer.answer.body["error"]) == (session, "nothing_to_compact")
    assert house.summarizer.asked == []


async def test_a_summary_too_large_to_be_kept_is_one_that_failed(house: "House") -> None:
    session = await full_session(house)
    house.summarizer.text = "x" * 400_000
    answer = await house.turn(session, "hello", quick).answer()
    assert (answer.answer.body["session"], answer.answer.body["error"]) == (session, "summary_failed")


async def test_a_bucket_that_does_not_take_what_is_kept_leaves_the_turn_to_the_session_as_it_was(house: "House") -> None:
    session = await session_of(house, ("old " * 100, "old " * 100), ("x" * INLINE_BYTES, "newer"))
    house.summarizer.text = "short"

    class FullBucket(FaultPlan):
        async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
            if call.operation == "PutObject":
                raise StorageUnavailable("No answer.", retry_after=1)
            return await super().around(call, run)

    with inject(FullBucket()):
        answer = await house.turn(session, "hello", quick).answer()
    assert (answer.answer.body["session"], answer.answer.body["error"]) == (session, StorageUnavailable.code)
    assert (await said(house, session))[-2:] == ["hello", "yes"]
    source = await head(house, session)
    assert (source.archived_at, source.hold) == (None, None)


async def test_a_commit_whose_end_nobody_knows_fails_the_turn_before_its_agent_is_asked(house: "House") -> None:
    session = await full_session(house)

    class Silent(FaultPlan):
        async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
            if call.operation == "TransactWriteItems":
                raise StorageUnavailable("No answer.", retry_after=1)
            return await super().around(call, run)

    async def respond(history: Sequence[Message], relief: Relief) -> AsyncGenerator[Event, None]:
        raise AssertionError("asked")
        yield TurnStarted()

    with inject(Silent()), pytest.raises(StorageUnavailable):
        await house.turn(session, "hello", respond).answer()
    source = await head(house, session)
    assert (source.hold, source.archived_at, source.message_count) == (None, None, 4)


async def test_a_commit_whose_end_nobody_knows_leaves_no_successor_held(house: "House") -> None:
    session = await full_session(house)

    class Deaf(FaultPlan):
        async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
            result = await super().around(call, run)
            if call.operation in ("TransactWriteItems", "GetItem"):
                raise StorageUnavailable("No answer.", retry_after=1)
            return result

    with inject(Deaf()), pytest.raises(StorageUnavailable):
        await house.turn(session, "hello", quick).answer()
    successor = (await head(house, session)).successor_session_id
    assert successor is not None, "it took place"
    assert (await head(house, successor)).hold is None


async def too_long(house: "House", session: SessionId, tries: int = 1) -> list[Sequence[Message] | None]:
    """What a turn is given whose provider finds the session too long, ``tries`` times."""
    given: list[Sequence[Message] | None] = []

    async def respond(history: Sequence[Message], relief: Relief) -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        given.extend([await relief() for _ in range(tries)])
        if given[-1] is None:
            raise ContextLengthExceeded("The prompt is too long.")
        for event in answering("yes")[1:]:
            yield event

    await house.turn(session, "hello", respond).answer()
    return given


async def test_a_session_too_long_for_the_provider_is_compacted_within_the_turn(house: "House") -> None:
    session = await session_of(house, ("old", "older"), ("new", "newer"))
    (shorter,) = await too_long(house, session)
    source = await head(house, session)
    assert source.successor_session_id is not None
    summary = f"[compaction summary from session {session}] old / older"
    assert [message.content for message in shorter or ()] == [summary, "new", "newer"]
    assert await said(house, source.successor_session_id) == [summary, "new", "newer", "hello", "yes"]
    assert (await head(house, source.successor_session_id)).hold is None


@pytest.mark.parametrize("strategy", ["manual", "off"])
async def test_one_that_nobody_shall_compact_stays_too_long(house: "House", strategy: CompactStrategy) -> None:
    session = await session_of(house, ("old", "older"), ("new", "newer"), strategy=strategy)
    with pytest.raises(ContextLengthExceeded):
        await too_long(house, session)
    assert house.summarizer.asked == []
    assert (await head(house, session)).hold is None


async def test_one_that_holds_no_more_than_it_keeps_stays_too_long(house: "House") -> None:
    session = await session_of(house, ("old", "older"))
    with pytest.raises(ContextLengthExceeded):
        await too_long(house, session)
    assert await said(house, session) == ["old", "older"]


@pytest.mark.parametrize("failure", [None, SummaryFailed("No.")])
async def test_a_turn_compacts_once_however_it_went(house: "House", failure: SpassError | None) -> None:
    session = await full_session(house)
    house.summarizer.failure = failure
    with pytest.raises(ContextLengthExceeded):
        await too_long(house, session)
    assert len(house.summarizer.asked) == 1
    assert ((await head(house, session)).archived_at is None) is bool(failure)


async def test_relief_is_given_once(house: "House") -> None:
    session = await session_of(house, ("old", "older"), ("new", "newer"))
    with pytest.raises(ContextLengthExceeded):
        await too_long(house, session, tries=2)
    assert len(house.summarizer.asked) == 1


async def test_a_turn_that_breaks_on_the_successor_leaves_it_free_and_the_chain_whole(house: "House") -> None:
    session = await full_session(house)

    async def respond(history: Sequence[Message], relief: Relief) -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        raise UpstreamError("The model failed.")

    with pytest.raises(UpstreamError):
        await house.turn(session, "hello", respond, idempotency=REQUEST).answer()
    with pytest.raises(SessionArchived) as archived:
        await house.turn(session, "hello", quick, idempotency=REQUEST).answer()
    successor = SessionId(str(archived.value.details["successor_session_id"]))
    answer = await house.turn(successor, "hello", quick, idempotency=redirected(REQUEST, successor)).answer()
    assert not answer.replayed
    assert (await said(house, successor))[1:] == ["new", "newer", "hello", "yes"]


async def test_a_request_is_answered_the_same_again_from_the_source_and_from_the_successor(house: "House") -> None:
    session = await full_session(house)
    meanwhile: list[SpassError] = []

    async def respond(history: Sequence[Message], relief: Relief) -> AsyncGenerator[Event, None]:
        with pytest.raises(SessionArchived) as archived:
            await house.turn(session, "hello", quick, idempotency=REQUEST).answer()
        to = SessionId(str(archived.value.details["successor_session_id"]))
        with pytest.raises(IdempotencyInProgress):
            await house.turn(to, "hello", quick, idempotency=redirected(REQUEST, to)).answer()
        meanwhile.append(archived.value)
        async for event in quick(history, relief):
            yield event

    first = await house.turn(session, "hello", respond, idempotency=REQUEST).answer()
    successor = SessionId(str(first.answer.body["session"]))
    assert [error.details["successor_session_id"] for error in meanwhile] == [successor]
    for where, request in ((session, REQUEST), (successor, redirected(REQUEST, successor))):
        again = await house.turn(where, "hello", quick, idempotency=request).answer()
        assert (again.answer, again.replayed) == (first.answer, True)
    assert (await said(house, successor))[3:] == ["hello", "yes"]


async def seconds_left(house: "House", session: SessionId) -> int:
    held = (await head(house, session)).hold
    assert held is not None
    return held.expires_at - int(house.now)


async def renewed(house: "House", session: SessionId) -> None:
    async with asyncio.timeout(10):
        while await seconds_left(house, session) < 60:
            await asyncio.sleep(0.01)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holds are renewed a hundred times a second."""
    monkeypatch.setattr(turn_module, "renewing", lambda renew: renewing(renew, every=0.01))


def thinking(house: "House", session: SessionId) -> Respond:
    """An agent that answers once its hold on the successor was renewed."""

    async def respond(history: Sequence[Message], relief: Relief) -> AsyncGenerator[Event, None]:
        successor = (await head(house, session)).successor_session_id
        assert successor is not None
        house.now += 30
        await renewed(house, successor)
        async for event in quick(history, relief):
            yield event

    return respond


async def test_the_hold_lives_through_a_long_summary_and_then_on_the_successor(house: "House", often: None) -> None:
    session = await full_session(house)

    async def slowly() -> None:
        for _ in range(3):
            house.now += 30
            await renewed(house, session)

    house.summarizer.during = slowly
    answer = await house.turn(session, "hello", thinking(house, session)).answer()
    assert answer.answer.body["compacted"] == session


async def test_no_renewal_meets_the_source_once_it_is_archived(house: "House", often: None) -> None:
    session = await full_session(house)

    class SlowReplies(FaultPlan):
        async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
            result = await super().around(call, run)
            if call.operation == "TransactWriteItems":
                await asyncio.sleep(0.1)
            return result

    with inject(SlowReplies()) as plan:
        await house.turn(session, "hello", thinking(house, session)).answer()
    archived = next(at for at, call in enumerate(plan.calls) if call.operation == "TransactWriteItems")
    later = [str(call.parameters["Key"]) for call in plan.calls[archived:] if call.operation == "UpdateItem"]
    assert later, "the hold was renewed on the successor"
    assert not any(session in key for key in later)


async def test_a_hold_lost_while_the_summary_is_written_ends_the_turn(house: "House", often: None) -> None:
    session = await full_session(house)

    async def overtaken() -> None:
        store = house.scope().store
        write = Update(
            keys.session_head(store.tenant, session),
            "SET #hold.#owner = :o",
            {"#hold": "hold", "#owner": "owner"},
            {":o": "turn_heir"},
        )
        await store.table.write(write)
        await asyncio.sleep(60)

    house.summarizer.during = overtaken
    with pytest.raises(LeaseLost):
        await house.turn(session, "hello", quick).answer()
    source = await head(house, session)
    assert (source.archived_at, source.hold and source.hold.owner) == (None, "turn_heir")
    assert await sessions(house) == 1


async def test_a_turn_that_compacts_costs_one_transaction_more(house: "House") -> None:
    session = await full_session(house)
    with inject(FaultPlan()) as plan:
        await house.turn(session, "hello", quick).answer()
    operations = [call.operation for call in plan.calls]
    assert operations == ["UpdateItem", "Query", "TransactWriteItems", "TransactWriteItems"]
