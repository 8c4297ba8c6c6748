"""Run concurrent turns, deletes and late owners on one session. Its history stays consistent."""

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spass.core.errors import Conflict, IdempotencyInProgress, SessionBusy, SessionNotFound, StorageUnavailable
from spass.core.ids import SessionId
from spass.core.messages import Role
from spass.runs.run import RunAnswer
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.integration.sessions.chain_client import Client, chain, turn_texts, visible_history
from tests.sampling import SOAK

if TYPE_CHECKING:
    from tests.integration.sessions.conftest import SessionHarness

pytestmark = pytest.mark.anyio

WRITERS = 8
ROUNDS = 40 if SOAK else 3
SCHEDULES = 400 if SOAK else 8


async def questions(harness: "SessionHarness", session: SessionId) -> list[str]:
    """Return the user's messages in order. Assert that each turn is complete."""
    history = await harness.history(session)
    turns = [history[start : start + 4] for start in range(0, len(history), 4)]
    for turn in turns:
        assert [stored.message.role for stored in turn] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
        assert turn[3].message.content == f"answer to {turn[0].message.content}"
    return [turn[0].message.content for turn in turns]


async def test_each_answered_turn_of_eight_concurrent_writers_is_stored_once(harness: "SessionHarness") -> None:
    session = await harness.session()
    answered: list[str] = []
    refusals = 0

    async def writer(name: str) -> None:
        nonlocal refusals
        for number in range(ROUNDS):
            while True:
                try:
                    await harness.turn(session, f"{name}.{number}").answer()
                except SessionBusy:
                    refusals += 1
                    await asyncio.sleep(0.005)
                else:
                    answered.append(f"{name}.{number}")
                    break

    await asyncio.gather(*(writer(f"w{n}") for n in range(WRITERS)))
    stored = await questions(harness, session)
    assert stored == answered, "every answered turn must be stored once, in the order of the answers"
    assert refusals > 0
    assert harness.model_calls == WRITERS * ROUNDS, "a refused turn must not call the model"
    for history in harness.histories:
        assert len(history) % 4 == 0


async def test_each_answered_turn_of_concurrent_writers_that_compact_is_stored_once(harness: "SessionHarness") -> None:
    """Each writer starts at the first session every time and follows the redirects to the newest successor."""
    session = await harness.session(keep=4)
    harness.context_window, harness.summarizer.text = 80, "short"
    answered: list[str] = []

    async def writer(name: str) -> None:
        for number in range(ROUNDS):
            message = f"{name}.{number} {'x' * 40}"
            client = Client(harness, session, message, message)
            answer: RunAnswer | None = None
            while answer is None:
                try:
                    answer = await client.follow()
                except (SessionBusy, IdempotencyInProgress):
                    await asyncio.sleep(0.005)
            assert not answer.replayed
            answered.append(message)

    await asyncio.gather(*(writer(f"w{n}") for n in range(4)))
    members = await chain(harness, session)
    assert len(members) > ROUNDS
    assert await visible_history(harness, members) == [text for message in answered for text in turn_texts(message)]
    assert harness.model_calls == len(answered)
    assert [member.hold for member in members] == [None] * len(members)


async def test_eight_concurrent_copies_of_one_request_are_one_turn_with_one_answer(harness: "SessionHarness") -> None:
    session = await harness.session()
    answers: list[RunAnswer] = []

    async def sender() -> None:
        while True:
            try:
                answers.append(await harness.turn(session, "hello", "the key").answer())
            except (IdempotencyInProgress, SessionBusy):
                await asyncio.sleep(0.005)
            else:
                return

    await asyncio.gather(*(sender() for _ in range(8)))
    assert await questions(harness, session) == ["hello"]
    assert len({str(answer.outcome) for answer in answers}) == 1
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 7


async def test_a_late_owner_whose_hold_was_taken_over_cannot_commit(harness: "SessionHarness") -> None:
    session = await harness.session()
    pause = harness.pause()
    late_turn = harness.turn(session, "late", "late key", pause=pause)
    await pause.reached.wait()
    harness.now += LEASE_SECONDS
    await harness.turn(session, "in time").answer()
    pause.go_on.set()
    with pytest.raises(SessionBusy):
        await late_turn.answer()
    assert await questions(harness, session) == ["in time"]
    answer = await harness.turn(session, "late", "late key").answer()
    assert not answer.replayed
    assert await questions(harness, session) == ["in time", "late"]


async def test_a_late_owner_does_not_release_the_hold_of_the_next_one(harness: "SessionHarness") -> None:
    session = await harness.session()
    late_pause, next_pause = harness.pause(), harness.pause()
    late_turn = harness.turn(session, "late", pause=late_pause)
    await late_pause.reached.wait()
    harness.now += LEASE_SECONDS
    next_turn = harness.turn(session, "heir", pause=next_pause)
    await next_pause.reached.wait()
    late_pause.go_on.set()
    with pytest.raises(SessionBusy):
        await late_turn.answer()
    with pytest.raises(SessionBusy):
        await harness.turn(session, "third").answer()
    next_pause.go_on.set()
    await next_turn.answer()
    assert await questions(harness, session) == ["heir"]


async def test_a_delete_and_concurrent_turns_exclude_each_other(harness: "SessionHarness") -> None:
    for _ in range(ROUNDS * 3):
        session = await harness.session()

        async def delete(session: SessionId = session) -> str:
            try:
                await harness.delete(session)
            except SessionBusy:
                return "busy"
            return "deleted"

        async def send_turn(session: SessionId = session) -> str:
            try:
                await harness.turn(session, "hello").answer()
            except (SessionNotFound, SessionBusy) as error:
                return error.code
            return "answered"

        delete_outcome, turn_outcome, _ = await asyncio.gather(delete(), send_turn(), send_turn())
        if delete_outcome == "deleted":
            assert await harness.store.table.query(f"T#{harness.store.tenant}#SES#{session}") == []
        else:
            assert turn_outcome in ("answered", "session_busy")
            assert set(await questions(harness, session)) <= {"hello"}
            assert len(await questions(harness, session)) >= 1


FAULTS = st.tuples(st.sampled_from(list(Fault)), st.integers(0, 8))
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.none(), FAULTS), st.integers(0, 70), st.integers(0, 3)), min_size=1, max_size=8
)


@settings(max_examples=SCHEDULES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_answered_requests_are_stored_once_under_any_interleaving(
    harness: "SessionHarness", steps: list[tuple[int, tuple[Fault, int] | None, int, int]]
) -> None:
    """Each step sends request ``n`` with its own key, with or without a fault, alone or concurrently with the next step."""
    session = await harness.session()
    answered: dict[str, RunAnswer] = {}
    running: list[asyncio.Task[None]] = []

    async def send(name: str, fault: tuple[Fault, int] | None) -> None:
        with inject(FaultPlan(fault[0], at=fault[1]) if fault else FaultPlan()):
            try:
                answer = await harness.turn(session, name, f"{session}-{name}").answer()
            except (Crash, Conflict, StorageUnavailable):
                return
        assert answered.setdefault(name, answer).outcome == answer.outcome, "one request has one answer"

    for number, fault, seconds, pauses in steps:
        running.append(asyncio.create_task(send(f"request {number}", fault)))
        for _ in range(pauses):
            await asyncio.sleep(0.002)
        harness.now += seconds
    await asyncio.gather(*running)
    harness.now += LEASE_SECONDS
    stored = await questions(harness, session)
    assert len(stored) == len(set(stored)), "a request must be stored at most once"
    assert set(answered) <= set(stored), "an answered request must be stored"
    for name in {f"request {number}" for number, *_ in steps}:
        final = await harness.turn(session, name, f"{session}-{name}").answer()
        assert answered.setdefault(name, final).outcome == final.outcome
    assert sorted(await questions(harness, session)) == sorted(answered)


@settings(max_examples=SCHEDULES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_answered_requests_that_compact_are_stored_once_under_any_interleaving(
    harness: "SessionHarness", steps: list[tuple[int, tuple[Fault, int] | None, int, int]]
) -> None:
    session = await harness.session(keep=4)
    harness.context_window, harness.summarizer.text = 80, "short"
    messages = [f"request {number} {'x' * 60}" for number in range(len(steps))]
    clients = {message: Client(harness, session, f"{session}-{message}", message) for message in messages}
    answered: dict[str, RunAnswer] = {}
    running: list[asyncio.Task[None]] = []

    async def send(client: Client, fault: tuple[Fault, int] | None) -> None:
        with inject(FaultPlan(fault[0], at=fault[1]) if fault else FaultPlan()):
            try:
                answer = await client.follow()
            except (Crash, Conflict, StorageUnavailable):
                return
        assert answered.setdefault(client.message, answer).outcome == answer.outcome, "one request has one answer"

    for message, (other, fault, seconds, pauses) in zip(messages, steps, strict=True):
        for sent in {message, messages[other % len(messages)]}:
            running.append(asyncio.create_task(send(clients[sent], fault)))
        for _ in range(pauses):
            await asyncio.sleep(0.002)
        harness.now += seconds
    await asyncio.gather(*running)
    harness.now += LEASE_SECONDS
    history = await visible_history(harness, await chain(harness, session))
    assert history == [text for question in history[::4] for text in turn_texts(question)]
    assert len(set(history[::4])) == len(history[::4]), "a request must be stored at most once"
    assert set(answered) <= set(history[::4]), "an answered request must be stored"
    for message, client in clients.items():
        final = await client.answer()
        assert answered.setdefault(message, final).outcome == final.outcome
    assert sorted((await visible_history(harness, await chain(harness, session)))[::4]) == sorted(clients)
