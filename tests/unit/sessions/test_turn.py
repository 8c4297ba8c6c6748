"""A turn: its events, its answer, and the session after a failure."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from spass.agents.driver import ShortenHistory
from spass.core.effects import ToolOutcome
from spass.core.errors import (
    IdempotencyInProgress,
    IdempotencyKeyReused,
    InternalError,
    RateLimited,
    SessionBusy,
    SessionNotFound,
    SpassError,
    UpstreamError,
)
from spass.core.events import Event, Failed, InferenceFinished, InferenceStarted, ToolCallFinished, TurnFinished, TurnStarted
from spass.core.ids import AgentName, SessionId
from spass.core.messages import FinishReason, Message, Role, TokenUsage, ToolCall
from spass.core.time import timestamp
from spass.redaction.log import failure_line
from spass.runs import run as turn_module
from spass.sessions.record import load_turns
from spass.store import keys
from spass.store.idempotency import IdempotentRequest
from spass.store.leases import LeaseLost, renewing
from spass.store.writes import Update
from spass.testing.faults import FaultPlan, inject
from tests.unit.idempotent_requests import idempotent_request

if TYPE_CHECKING:
    from tests.unit.sessions.conftest import ScriptedAgent, SessionsHarness

pytestmark = pytest.mark.anyio
AGENT = AgentName("librarian")
REQUEST = idempotent_request("d" * 64, "b" * 64)
ANSWER = InferenceFinished(Message(Role.ASSISTANT, "yes"), FinishReason.STOP)
FINISHED = TurnFinished(FinishReason.STOP)


async def quick(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
    for event in (TurnStarted(), InferenceStarted(1), ANSWER, FINISHED):
        yield event


async def is_unchanged(harness: "SessionsHarness", session: SessionId) -> bool:
    view = await harness.sessions.get(harness.scope(), AGENT, session)
    return view.message_count == 0 and view.hold is None


async def test_the_last_event_follows_the_commit(harness: "SessionsHarness") -> None:
    session = await harness.create()
    turn = harness.turn(session, "hello", quick)
    async for event in turn.events.follow():
        if event == FINISHED:
            assert (await harness.sessions.get(harness.scope(), AGENT, session)).message_count == 2
    assert turn.events.events == [TurnStarted(), InferenceStarted(1), ANSWER, FINISHED]


async def test_a_failed_commit_withholds_the_last_event(harness: "SessionsHarness") -> None:
    session = await harness.create()

    async def change_hold_owner(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        store = harness.scope().store
        head = keys.session_head(store.tenant, session)
        await store.table.write(Update(head, set={"hold.owner": "turn_late"}))
        async for event in quick(history, shorten_history):
            yield event

    turn = harness.turn(session, "hello", change_hold_owner)
    with pytest.raises(SessionBusy):
        await turn.answer()
    assert FINISHED not in turn.events.events
    assert isinstance(turn.events.events[-1], Failed)
    stored = await harness.sessions.get(harness.scope(), AGENT, session)
    assert stored.message_count == 0
    assert stored.hold is not None
    assert stored.hold.owner == "turn_late"


async def test_a_turn_cannot_commit_to_a_session_deleted_after_its_hold_expired(harness: "SessionsHarness") -> None:
    session = await harness.create()

    async def slow(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        harness.now += 61
        await harness.sessions.delete(harness.scope(), AGENT, session)
        async for event in quick(history, shorten_history):
            yield event

    with pytest.raises(SessionNotFound):
        await harness.turn(session, "hello", slow).answer()
    assert await load_turns(harness.scope().store, session, 1) == []
    assert (await harness.sessions.page(harness.scope(), AGENT, None, 100)).sessions == []


async def test_a_refused_turn_does_not_run_its_agent(harness: "SessionsHarness") -> None:
    session = await harness.create()
    histories = []

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        histories.append(history)
        yield TurnStarted()

    with pytest.raises(SessionNotFound):
        await harness.turn(session, "hello", respond, user="ben").answer()
    with pytest.raises(SessionNotFound):
        await harness.turn(SessionId("ses_none"), "hello", respond).answer()
    assert histories == []


async def raise_an_error(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
    yield TurnStarted()
    raise UpstreamError("The model failed.")


async def yield_a_failure(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
    yield TurnStarted()
    yield Failed(RateLimited("The model is busy.", details={"backend": "all"}, retry_after=7))


async def end_without_finish(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
    yield TurnStarted()
    yield ANSWER


async def finish_without_answer(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
    yield FINISHED


async def raise_a_bug(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
    yield TurnStarted()
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("respond", "error"),
    [
        (raise_an_error, UpstreamError),
        (yield_a_failure, RateLimited),
        (end_without_finish, InternalError),
        (finish_without_answer, InternalError),
        (raise_a_bug, InternalError),
    ],
)
async def test_a_failed_turn_leaves_the_session_unchanged_and_released(
    harness: "SessionsHarness", respond: "ScriptedAgent", error: type[Exception]
) -> None:
    session = await harness.create()
    with pytest.raises(error):
        await harness.turn(session, "hello", respond, idempotency=REQUEST).answer()
    assert await is_unchanged(harness, session)
    assert not (await harness.turn(session, "hello", quick, idempotency=REQUEST).answer()).replayed


@pytest.mark.parametrize("agent", [raise_an_error, yield_a_failure, end_without_finish, raise_a_bug])
async def test_the_event_list_of_a_failed_turn_ends_with_its_only_failure(
    harness: "SessionsHarness", agent: "ScriptedAgent"
) -> None:
    turn = harness.turn(await harness.create(), "hello", agent)
    events = await turn.events.result()
    assert [type(event) for event in events if isinstance(event, TurnStarted | TurnFinished | Failed)] == [TurnStarted, Failed]
    assert isinstance(events[0], TurnStarted)
    assert isinstance(events[-1], Failed)


async def test_a_bug_in_a_turn_is_logged_with_its_place_and_answered_as_an_internal_error(harness: "SessionsHarness") -> None:
    with pytest.raises(InternalError) as failure:
        await harness.turn(await harness.create(), "hello", raise_a_bug).answer()
    line = failure_line(failure.value, "req_1")
    assert (line["cause"], line["exception"]) == ("ZeroDivisionError", "InternalError")
    assert str(line["where"]).startswith("spass.runs.run:_follow:")


async def test_a_turn_that_the_server_stops_ends_its_event_list(harness: "SessionsHarness") -> None:
    session = await harness.create()

    async def never_ends(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield InferenceStarted(1)
        await asyncio.Event().wait()

    turn = harness.turn(session, "hello", never_ends)
    assert await turn.events.wait_for_event(1)
    turn.run.cancel()
    with pytest.raises(InternalError, match="stopped"):
        await turn.answer()
    assert await is_unchanged(harness, session)


async def test_a_failed_turn_raises_the_error_of_its_event(harness: "SessionsHarness") -> None:
    with pytest.raises(RateLimited) as refusal:
        await harness.turn(await harness.create(), "hello", yield_a_failure).answer()
    assert (refusal.value.details, refusal.value.retry_after) == ({"backend": "all"}, 7)


async def test_a_turn_continues_when_its_client_disconnects(harness: "SessionsHarness") -> None:
    session = await harness.create()
    resume = asyncio.Event()

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        await resume.wait()
        async for event in quick(history, shorten_history):
            yield event

    turn = harness.turn(session, "hello", respond)
    client = asyncio.create_task(turn.answer())
    async for _ in turn.events.follow():
        break
    client.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client
    resume.set()
    await turn.events.result()
    assert (await harness.sessions.get(harness.scope(), AGENT, session)).message_count == 2


async def test_during_a_turn_its_retry_gets_in_progress_and_others_get_session_busy(harness: "SessionsHarness") -> None:
    session = await harness.create()
    errors: list[SpassError] = []

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        for request in (REQUEST, replace(REQUEST, body_hash="another"), idempotent_request("e" * 64, "b" * 64), None):
            with pytest.raises(SpassError) as refusal:
                await harness.turn(session, "hello", quick, idempotency=request).answer()
            errors.append(refusal.value)
        async for event in quick(history, shorten_history):
            yield event

    await harness.turn(session, "hello", respond, idempotency=REQUEST).answer()
    assert [type(error) for error in errors] == [IdempotencyInProgress, IdempotencyKeyReused, SessionBusy, SessionBusy]
    assert [error.retry_after for error in errors] == [2, None, 2, 2]


async def test_a_stored_answer_is_replayed_even_if_the_session_is_busy_or_archived(harness: "SessionsHarness") -> None:
    session = await harness.create()
    first = await harness.turn(session, "hello", quick, idempotency=REQUEST).answer()
    replays = [await harness.turn(session, "hello", quick, idempotency=REQUEST).answer()]

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        replays.append(await harness.turn(session, "hello", quick, idempotency=REQUEST).answer())
        async for event in quick(history, shorten_history):
            yield event

    await harness.turn(session, "more", respond).answer()
    store = harness.scope().store
    archive = Update(keys.session_head(store.tenant, session), set={"archived_at": timestamp(harness.now)})
    await store.table.write(archive)
    replays.append(await harness.turn(session, "hello", quick, idempotency=REQUEST).answer())
    assert [(answer.outcome, answer.replayed) for answer in replays] == [(first.outcome, True)] * 3
    with pytest.raises(IdempotencyKeyReused):
        await harness.turn(session, "hello", quick, idempotency=replace(REQUEST, body_hash="another")).answer()
    assert (await harness.sessions.get(harness.scope(), AGENT, session)).message_count == 4


async def test_a_key_reused_with_another_body_releases_the_session(harness: "SessionsHarness") -> None:
    session = await harness.create()
    await harness.turn(session, "hello", quick, idempotency=REQUEST).answer()
    with pytest.raises(IdempotencyKeyReused):
        await harness.turn(session, "hello", quick, idempotency=replace(REQUEST, body_hash="another")).answer()
    assert (await harness.sessions.get(harness.scope(), AGENT, session)).hold is None


async def test_a_long_turn_renews_its_hold_and_stops_if_the_hold_is_lost(
    harness: "SessionsHarness", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "renewing", lambda renew: renewing(renew, every=0.01))
    session = await harness.create()
    store = harness.scope().store
    head = keys.session_head(store.tenant, session)
    stopped = asyncio.Event()

    async def seconds_left() -> int:
        hold = (await harness.sessions.get(harness.scope(), AGENT, session)).hold
        assert hold is not None
        return hold.expires_at - int(harness.now)

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        try:
            for _ in range(3):
                harness.now += 30
                async with asyncio.timeout(10):
                    while await seconds_left() < 60:
                        await asyncio.sleep(0.01)
            await store.table.write(Update(head, set={"hold.owner": "turn_late"}))
            await asyncio.sleep(60)
        finally:
            stopped.set()

    with pytest.raises(LeaseLost):
        await harness.turn(session, "hello", respond).answer()
    assert stopped.is_set()
    stored = await harness.sessions.get(harness.scope(), AGENT, session)
    assert stored.hold is not None
    assert stored.hold.owner == "turn_late"


@pytest.mark.parametrize(
    ("request_", "before_model", "all_calls"),
    [
        (None, ["UpdateItem", "Query"], ["UpdateItem", "Query", "TransactWriteItems"]),
        (REQUEST, ["GetItem", "Query", "UpdateItem"], ["UpdateItem", "Query", "GetItem", "TransactWriteItems"]),
    ],
)
async def test_a_turn_makes_four_calls_with_two_in_sequence_before_the_model(
    harness: "SessionsHarness", request_: IdempotentRequest | None, before_model: list[str], all_calls: list[str]
) -> None:
    session = await harness.create()
    operations: list[str] = []

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        operations.extend(call.operation for call in plan.calls)
        async for event in quick(history, shorten_history):
            yield event

    with inject(FaultPlan()) as plan:
        await harness.turn(session, "hello", respond, idempotency=request_).answer()
    assert sorted(operations) == sorted(before_model)
    assert sorted(call.operation for call in plan.calls) == sorted(all_calls)


async def test_the_record_contains_the_messages_the_tool_runs_and_the_usage(harness: "SessionsHarness") -> None:
    session = await harness.create()
    call = ToolCall("call_1", "calculator", '{"expression": "6*7"}')

    async def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        yield TurnStarted()
        yield InferenceStarted(1)
        yield InferenceFinished(Message(Role.ASSISTANT, "", (call,)), FinishReason.TOOL_CALLS)
        harness.now += 1
        result = Message(Role.TOOL, "42", (), "call_1")
        yield ToolCallFinished(ToolOutcome(call, {"expression": "6*7"}, 42, result, duration_ms=7))
        yield InferenceStarted(2)
        yield ANSWER
        yield TurnFinished(FinishReason.LENGTH, TokenUsage(40, 6))

    start = harness.now
    await harness.turn(session, "What is 6*7?", respond).answer()
    (turn,) = await load_turns(harness.scope().store, session, 1)
    assert (turn.usage, turn.turns, turn.finish_reason) == (TokenUsage(40, 6), 2, FinishReason.LENGTH)
    assert [(run.call_id, run.name, run.duration_ms) for run in turn.tools] == [("call_1", "calculator", 7)]
    page = await harness.sessions.history(harness.scope(), AGENT, session, None, 100)
    assert [message.role for message in page.messages] == ["user", "assistant", "tool", "assistant"]
    assert page.messages[1].to_dict()["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'}}
    ]
    assert page.messages[2].tool_call_id == "call_1"
    assert [message.created_at for message in page.messages] == [timestamp(start)] * 2 + [timestamp(start + 1)] * 2
