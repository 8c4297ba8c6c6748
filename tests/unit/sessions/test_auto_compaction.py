"""A turn compacts its session if it is full or the provider rejects it as too long. No failure loses a message."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from spass.agents.driver import ShortenHistory
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
from spass.runs import run as turn_module
from spass.runs.run import RunAnswer
from spass.sessions.record import INLINE_BYTES
from spass.sessions.session import CreateSession, Session
from spass.store import keys
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.leases import LeaseLost, renewing
from spass.store.writes import Update
from spass.tenancy.scalars import CompactStrategy
from spass.testing.faults import FaultPlan, inject
from tests.unit.idempotent_requests import idempotent_request
from tests.unit.sessions.conftest import ScriptedAgent, answer_events, redirect

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import SessionsHarness

T = TypeVar("T")

pytestmark = pytest.mark.anyio
AGENT = AgentName("librarian")
REQUEST = idempotent_request("d" * 64, "b" * 64)
THRESHOLD_CHARACTERS = 800
"""80 % of the harness's window of 250 tokens, in characters."""


async def quick(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
    for event in answer_events("yes"):
        yield event


async def create_session(
    harness: "SessionsHarness", *turns: tuple[str, str], keep: int = 2, strategy: CompactStrategy = "auto"
) -> SessionId:
    """Return a session with the messages ``turns`` of the user and the agent."""
    session = await harness.create_with(CreateSession(compact_strategy=strategy, compact_keep_last_n=keep))
    for message, answer in turns:
        await harness.say(session, message, answer)
    return session


async def create_full_session(harness: "SessionsHarness", *, strategy: CompactStrategy = "auto") -> SessionId:
    """Return a session that the next turn compacts, after which it fits the window."""
    harness.summarizer.text = "short"
    return await create_session(harness, ("old " * 100, "old " * 100), ("new", "newer"), strategy=strategy)


def session_of(answer: RunAnswer) -> SessionId:
    """Return the session in which a turn was recorded."""
    assert answer.outcome.session_id is not None
    return answer.outcome.session_id


async def head(harness: "SessionsHarness", session: SessionId) -> Session:
    return await harness.sessions.get(harness.scope(), AGENT, session)


async def read_texts(harness: "SessionsHarness", session: SessionId) -> list[str]:
    page = await harness.sessions.history(harness.scope(), AGENT, session, None, 100)
    assert [message.seq for message in page.messages] == list(range(1, len(page.messages) + 1))
    return [message.content for message in page.messages]


async def sessions(harness: "SessionsHarness") -> int:
    return len((await harness.sessions.page(harness.scope(), AGENT, None, 100)).sessions)


@pytest.mark.parametrize(("more", "compacts"), [(0, False), (1, True)])
async def test_a_session_is_compacted_above_80_percent_of_the_window(
    harness: "SessionsHarness", more: int, compacts: bool
) -> None:
    session = await create_session(harness, ("a" * 300, "b" * 300), ("c" * 50, "d" * 50))
    answer = await harness.turn(session, "e" * (THRESHOLD_CHARACTERS - 700 + more), quick).answer()
    assert (answer.outcome.compaction is not None) is compacts
    assert answer.outcome.compaction is None or answer.outcome.compaction.source == session
    assert answer.outcome.compaction_error is None


@pytest.mark.parametrize(("keep", "compacts"), [(3, True), (4, False), (5, False)])
async def test_a_session_is_compacted_if_it_has_more_messages_than_it_keeps(
    harness: "SessionsHarness", keep: int, compacts: bool
) -> None:
    session = await create_session(harness, ("a" * 300, "b" * 300), ("c" * 300, "d" * 300), keep=keep)
    harness.summarizer.failure = SummaryFailed("No.")
    answer = await harness.turn(session, "hello", quick).answer()
    assert bool(answer.outcome.compaction_error) is compacts


@pytest.mark.parametrize(("strategy", "compacts"), [("auto", True), ("manual", False), ("off", False)])
async def test_only_sessions_with_strategy_auto_are_compacted_before_a_turn(
    harness: "SessionsHarness", strategy: CompactStrategy, compacts: bool
) -> None:
    session = await create_full_session(harness, strategy=strategy)
    await harness.turn(session, "hello", quick).answer()
    assert len(harness.summarizer.asked) == compacts
    assert ((await head(harness, session)).archived_at is not None) is compacts


async def test_the_turn_runs_and_is_recorded_on_the_successor(harness: "SessionsHarness") -> None:
    session = await create_full_session(harness)
    shown: list[Message] = []

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        shown.extend(history)
        async for event in quick(history, shorten_history):
            yield event

    answer = await harness.turn(session, "hello", respond).answer()
    successor = session_of(answer)
    source = await head(harness, session)
    assert (source.successor_session_id, source.message_count, source.live_message_count) == (successor, 4, 2)
    summary = f"[compaction summary from session {session}] short"
    assert [message.content for message in shown] == [summary, "new", "newer"]
    assert await read_texts(harness, successor) == [summary, "new", "newer", "hello", "yes"]
    assert answer.outcome.seq == 5
    assert (source.hold, (await head(harness, successor)).hold) == (None, None)
    assert await sessions(harness) == 2


async def test_a_summary_covers_the_messages_not_kept_and_gets_half_of_the_time(harness: "SessionsHarness") -> None:
    session = await create_full_session(harness)
    scope = harness.scope()
    await harness.turn(session, "hello", quick, scope=scope).answer()
    (request,) = harness.summarizer.asked
    assert [message.content for message in request.messages] == ["old " * 100] * 2
    assert (request.earlier, request.mask_observations, request.fallback_model) == (None, False, "talker")
    assert 130 < request.seconds_left <= 135
    assert scope.tally.total.sub_calls == 1, "the turn pays for the summary"


async def test_an_earlier_summary_is_passed_separately_from_the_messages(harness: "SessionsHarness") -> None:
    session = await create_full_session(harness)
    second = session_of(await harness.turn(session, "hello", quick).answer())
    third = session_of(await harness.turn(second, "x" * 800, quick).answer())
    request = harness.summarizer.asked[-1]
    assert request.earlier == "short"
    assert [message.content for message in request.messages] == ["new", "newer"]
    summary = f"[compaction summary from session {second}] short"
    assert await read_texts(harness, third) == [summary, "hello", "yes", "x" * 800, "yes"]


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
async def test_after_a_failed_compaction_the_turn_runs_in_the_unchanged_session(
    harness: "SessionsHarness", failure: SpassError
) -> None:
    session = await create_full_session(harness)
    harness.summarizer.failure = failure
    before = await read_texts(harness, session)
    answer = await harness.turn(session, "hello", quick).answer()
    assert (answer.outcome.session_id, answer.outcome.compaction_error) == (session, failure.code)
    assert await read_texts(harness, session) == [*before, "hello", "yes"]
    assert (await head(harness, session)).archived_at is None
    assert await sessions(harness) == 1


async def test_a_turn_continues_when_there_is_nothing_to_compact(harness: "SessionsHarness") -> None:
    session = await create_session(harness, ("a" * 500, "b" * 500), keep=1)
    answer = await harness.turn(session, "hello", quick).answer()
    assert (answer.outcome.session_id, answer.outcome.compaction_error) == (session, "nothing_to_compact")
    assert harness.summarizer.asked == []


async def test_a_failed_upload_of_the_kept_messages_leaves_the_session_unchanged(harness: "SessionsHarness") -> None:
    session = await create_session(harness, ("old " * 100, "old " * 100), ("x" * INLINE_BYTES, "newer"))
    harness.summarizer.text = "short"

    class FullBucket(FaultPlan):
        async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
            if call.operation == "PutObject":
                raise StorageUnavailable("No answer.", retry_after=1)
            return await super().around(call, run)

    with inject(FullBucket()):
        answer = await harness.turn(session, "hello", quick).answer()
    assert (answer.outcome.session_id, answer.outcome.compaction_error) == (session, StorageUnavailable.code)
    assert (await read_texts(harness, session))[-2:] == ["hello", "yes"]
    source = await head(harness, session)
    assert (source.archived_at, source.hold) == (None, None)


async def test_an_unknown_outcome_of_the_compaction_fails_the_turn_before_its_agent_runs(harness: "SessionsHarness") -> None:
    session = await create_full_session(harness)

    class UnavailableTransactions(FaultPlan):
        async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
            if call.operation == "TransactWriteItems":
                raise StorageUnavailable("No answer.", retry_after=1)
            return await super().around(call, run)

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        raise AssertionError("the agent was called")
        yield TurnStarted()

    with inject(UnavailableTransactions()), pytest.raises(StorageUnavailable):
        await harness.turn(session, "hello", respond).answer()
    source = await head(harness, session)
    assert (source.hold, source.archived_at, source.message_count) == (None, None, 4)


async def test_an_unknown_outcome_of_the_compaction_leaves_no_hold_on_the_successor(harness: "SessionsHarness") -> None:
    session = await create_full_session(harness)

    class LostReplies(FaultPlan):
        async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
            result = await super().around(call, run)
            if call.operation in ("TransactWriteItems", "GetItem"):
                raise StorageUnavailable("No answer.", retry_after=1)
            return result

    with inject(LostReplies()), pytest.raises(StorageUnavailable):
        await harness.turn(session, "hello", quick).answer()
    successor = (await head(harness, session)).successor_session_id
    assert successor is not None, "the compaction was committed"
    assert (await head(harness, successor)).hold is None


async def run_too_long_turn(harness: "SessionsHarness", session: SessionId, tries: int = 1) -> list[Sequence[Message] | None]:
    """Run a turn that shortens its history ``tries`` times, and return the shorter histories."""
    histories: list[Sequence[Message] | None] = []

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        histories.extend([await shorten_history() for _ in range(tries)])
        if histories[-1] is None:
            raise ContextLengthExceeded("The prompt is too long.")
        for event in answer_events("yes")[1:]:
            yield event

    await harness.turn(session, "hello", respond).answer()
    return histories


async def test_a_session_too_long_for_the_provider_is_compacted_within_the_turn(harness: "SessionsHarness") -> None:
    session = await create_session(harness, ("old", "older"), ("new", "newer"))
    (shorter,) = await run_too_long_turn(harness, session)
    source = await head(harness, session)
    assert source.successor_session_id is not None
    summary = f"[compaction summary from session {session}] old / older"
    assert [message.content for message in shorter or ()] == [summary, "new", "newer"]
    assert await read_texts(harness, source.successor_session_id) == [summary, "new", "newer", "hello", "yes"]
    assert (await head(harness, source.successor_session_id)).hold is None


@pytest.mark.parametrize("strategy", ["manual", "off"])
async def test_a_too_long_session_without_strategy_auto_is_not_compacted(
    harness: "SessionsHarness", strategy: CompactStrategy
) -> None:
    session = await create_session(harness, ("old", "older"), ("new", "newer"), strategy=strategy)
    with pytest.raises(ContextLengthExceeded):
        await run_too_long_turn(harness, session)
    assert harness.summarizer.asked == []
    assert (await head(harness, session)).hold is None


async def test_a_too_long_session_that_keeps_all_messages_is_not_compacted(harness: "SessionsHarness") -> None:
    session = await create_session(harness, ("old", "older"))
    with pytest.raises(ContextLengthExceeded):
        await run_too_long_turn(harness, session)
    assert await read_texts(harness, session) == ["old", "older"]


@pytest.mark.parametrize("failure", [None, SummaryFailed("No.")])
async def test_a_turn_attempts_only_one_compaction(harness: "SessionsHarness", failure: SpassError | None) -> None:
    session = await create_full_session(harness)
    harness.summarizer.failure = failure
    with pytest.raises(ContextLengthExceeded):
        await run_too_long_turn(harness, session)
    assert len(harness.summarizer.asked) == 1
    assert ((await head(harness, session)).archived_at is None) is bool(failure)


async def test_the_history_is_shortened_once_per_turn(harness: "SessionsHarness") -> None:
    session = await create_session(harness, ("old", "older"), ("new", "newer"))
    with pytest.raises(ContextLengthExceeded):
        await run_too_long_turn(harness, session, tries=2)
    assert len(harness.summarizer.asked) == 1


async def test_a_turn_that_fails_after_its_compaction_leaves_the_successor_released(harness: "SessionsHarness") -> None:
    session = await create_full_session(harness)

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        raise UpstreamError("The model failed.")

    with pytest.raises(UpstreamError):
        await harness.turn(session, "hello", respond, idempotency=REQUEST).answer()
    with pytest.raises(SessionArchived) as archived:
        await harness.turn(session, "hello", quick, idempotency=REQUEST).answer()
    successor = SessionId(str(archived.value.details["successor_session_id"]))
    answer = await harness.turn(successor, "hello", quick, idempotency=redirect(REQUEST, successor)).answer()
    assert not answer.replayed
    assert (await read_texts(harness, successor))[1:] == ["new", "newer", "hello", "yes"]


async def test_source_and_successor_replay_the_same_answer(harness: "SessionsHarness") -> None:
    session = await create_full_session(harness)
    errors: list[SpassError] = []

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        with pytest.raises(SessionArchived) as archived:
            await harness.turn(session, "hello", quick, idempotency=REQUEST).answer()
        to = SessionId(str(archived.value.details["successor_session_id"]))
        with pytest.raises(IdempotencyInProgress):
            await harness.turn(to, "hello", quick, idempotency=redirect(REQUEST, to)).answer()
        errors.append(archived.value)
        async for event in quick(history, shorten_history):
            yield event

    first = await harness.turn(session, "hello", respond, idempotency=REQUEST).answer()
    successor = session_of(first)
    assert [error.details["successor_session_id"] for error in errors] == [successor]
    for target, request in ((session, REQUEST), (successor, redirect(REQUEST, successor))):
        replay = await harness.turn(target, "hello", quick, idempotency=request).answer()
        assert (replay.outcome, replay.replayed) == (first.outcome, True)
    assert (await read_texts(harness, successor))[3:] == ["hello", "yes"]


async def seconds_left(harness: "SessionsHarness", session: SessionId) -> int:
    hold = (await head(harness, session)).hold
    assert hold is not None
    return hold.expires_at - int(harness.now)


async def wait_for_renewal(harness: "SessionsHarness", session: SessionId) -> None:
    async with asyncio.timeout(10):
        while await seconds_left(harness, session) < 60:
            await asyncio.sleep(0.01)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew holds a hundred times a second."""
    monkeypatch.setattr(turn_module, "renewing", lambda renew: renewing(renew, every=0.01))


def answer_after_renewal(harness: "SessionsHarness", session: SessionId) -> ScriptedAgent:
    """Return an agent that answers after the hold on the successor was renewed."""

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        successor = (await head(harness, session)).successor_session_id
        assert successor is not None
        harness.now += 30
        await wait_for_renewal(harness, successor)
        async for event in quick(history, shorten_history):
            yield event

    return respond


async def test_the_hold_is_renewed_during_the_summary_and_then_on_the_successor(harness: "SessionsHarness", often: None) -> None:
    session = await create_full_session(harness)

    async def wait_for_renewals() -> None:
        for _ in range(3):
            harness.now += 30
            await wait_for_renewal(harness, session)

    harness.summarizer.during = wait_for_renewals
    answer = await harness.turn(session, "hello", answer_after_renewal(harness, session)).answer()
    assert answer.outcome.compaction is not None
    assert answer.outcome.compaction.source == session


async def test_an_archived_source_is_not_renewed(harness: "SessionsHarness", often: None) -> None:
    session = await create_full_session(harness)

    class SlowReplies(FaultPlan):
        async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
            result = await super().around(call, run)
            if call.operation == "TransactWriteItems":
                await asyncio.sleep(0.1)
            return result

    with inject(SlowReplies()) as plan:
        await harness.turn(session, "hello", answer_after_renewal(harness, session)).answer()
    commit_index = next(index for index, call in enumerate(plan.calls) if call.operation == "TransactWriteItems")
    later = [
        cast(Update, call.parameters["write"]).key.pk for call in plan.calls[commit_index:] if call.operation == "UpdateItem"
    ]
    assert later, "the hold was not renewed on the successor"
    assert not any(session in key for key in later)


async def test_losing_the_hold_during_the_summary_fails_the_turn(harness: "SessionsHarness", often: None) -> None:
    session = await create_full_session(harness)

    async def change_hold_owner() -> None:
        store = harness.scope().store
        write = Update(keys.session_head(store.tenant, session), set={"hold.owner": "turn_heir"})
        await store.table.write(write)
        await asyncio.sleep(60)

    harness.summarizer.during = change_hold_owner
    with pytest.raises(LeaseLost):
        await harness.turn(session, "hello", quick).answer()
    source = await head(harness, session)
    assert (source.archived_at, source.hold and source.hold.owner) == (None, "turn_heir")
    assert await sessions(harness) == 1


async def test_a_compaction_adds_one_transaction_to_a_turn(harness: "SessionsHarness") -> None:
    session = await create_full_session(harness)
    with inject(FaultPlan()) as plan:
        await harness.turn(session, "hello", quick).answer()
    operations = [call.operation for call in plan.calls]
    assert operations == ["UpdateItem", "Query", "TransactWriteItems", "TransactWriteItems"]
