"""Inject each fault into each AWS call of a turn, which compacts its session or not.

After a retry no message is lost or duplicated, and no hold remains.
"""

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from spass.aws.clients import Aws
from spass.core.errors import Conflict, SessionArchived, StorageUnavailable
from spass.core.ids import SessionId
from spass.runs.run import RunAnswer
from spass.sessions import record
from spass.store.leases import LEASE_SECONDS
from spass.store.overflow import Overflow
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.integration.sessions.chain_client import Client, chain, turn_texts, visible_history
from tests.sampling import SOAK, sampled
from tests.simulated.memory import aws_for_faults

if TYPE_CHECKING:
    from tests.integration.sessions.conftest import SessionHarness

pytestmark = pytest.mark.anyio

FIRST = f"a {'x' * 100}"


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


@pytest.fixture
def small_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every body overflow to the bucket."""
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))


@dataclass(frozen=True, slots=True)
class Occasion:
    """A turn, and whether it compacts its session: because the session fills the model's window of ``window`` tokens, or because
    the provider rejects the prompt after a tool call, when it takes ``takes`` characters."""

    name: str
    window: int = 1_000_000
    takes: int = 1_000_000

    @property
    def compacts(self) -> bool:
        return self.name != "plain"


PLAIN, BEFORE, WITHIN = Occasion("plain"), Occasion("before the turn", window=80), Occasion("within the turn", takes=200)
CASES = list(itertools.product((PLAIN, BEFORE, WITHIN), (False, True)))
if not SOAK:
    CASES = [(PLAIN, False), (PLAIN, True), (BEFORE, False), (WITHIN, True)]
KEPT = turn_texts(FIRST) + turn_texts("b")


async def create_session(harness: "SessionHarness", occasion: Occasion) -> SessionId:
    """Create a session of two turns. The third turn may compact the older one."""
    harness.context_window = harness.takes = 1_000_000
    harness.summarizer.text = "short"
    session = await harness.session(keep=4)
    for message in (FIRST, "b"):
        await harness.turn(session, message).answer()
    harness.context_window, harness.takes = occasion.window, occasion.takes
    return session


async def aws_calls(harness: "SessionHarness", occasion: Occasion, key: str | None = "count") -> list[str]:
    """Return the AWS calls of a turn without faults."""
    session = await create_session(harness, occasion)
    with inject(FaultPlan()) as plan:
        answer = await harness.turn(session, "hello", key).answer()
    assert (answer.outcome.compaction is not None) is occasion.compacts
    return [f"{call.service}:{call.operation}" for call in plan.calls]


async def outcome_under(plan: FaultPlan, turn: Callable[[], Awaitable[RunAnswer]]) -> RunAnswer | None:
    """Return the answer of a turn under faults, or None if it fails or its process dies."""
    with inject(plan), suppress(Crash, Conflict, StorageUnavailable):
        return await turn()
    return None


@pytest.mark.parametrize(("occasion", "overflow"), CASES)
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_turn_is_recorded_once_if_any_call_fails(
    harness: "SessionHarness",
    fault: Fault,
    occasion: Occasion,
    overflow: bool,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    if overflow:
        request.getfixturevalue("small_items")
    points = await aws_calls(harness, occasion)
    assert len(points) >= 4, points
    for point, name in sampled([*enumerate(points)], 4, f"{fault} {occasion} {overflow}"):
        where = f"{fault} at {point} ({name})"
        session = await create_session(harness, occasion)
        client, plan = Client(harness, session, f"{session}"), FaultPlan(fault, at=point)
        first = await outcome_under(plan, lambda: harness.turn(session, "hello", client.key).answer())  # noqa: B023
        if plan.crashed:
            harness.now += LEASE_SECONDS - 3  # avoids about thirty attempts of the client
        assert len(plan.calls) > point, "the turn made too few AWS calls, so no fault was injected"
        before = await visible_history(harness, await chain(harness, session))
        assert before in (KEPT, KEPT + turn_texts("hello")), where
        assert first is None or before[8:], where
        answer = await client.answer()
        assert first is None or first.outcome == answer.outcome, where
        members = await chain(harness, session)
        assert len(members) == 1 + occasion.compacts, where
        assert await visible_history(harness, members) == KEPT + turn_texts("hello"), where
        assert (await harness.history(members[-1].id))[-1].id == answer.outcome.message_id, where
        assert {member.hold for member in members} == {None}, where
        assert await client.answer() == RunAnswer(answer.outcome, replayed=True), where
    record_property("points_tried", len(points))


@pytest.mark.parametrize("occasion", [PLAIN, BEFORE])
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_turn_is_recorded_once_if_its_retry_fails_too(
    harness: "SessionHarness", fault: Fault, occasion: Occasion
) -> None:
    """The first attempt and its retry each have a fault at a commit; in a soak, at every pair of calls."""
    points = range(len(await aws_calls(harness, occasion)))
    fault_points = points if SOAK else points[-1 - occasion.compacts :]
    pairs = [*itertools.product(fault_points, Fault, fault_points)]
    for first, then, second in sampled(pairs, 6, f"{fault} {occasion}"):
        where = f"{fault} at {first}, then {then} at {second}"
        session = await create_session(harness, occasion)
        client = Client(harness, session, f"{session}")
        answers = []
        for plan in (FaultPlan(fault, at=first), FaultPlan(then, at=second)):
            answers.append(await outcome_under(plan, client.follow))
            harness.now += LEASE_SECONDS
        answers.append(await client.answer())
        members = await chain(harness, session)
        assert await visible_history(harness, members) == KEPT + turn_texts("hello"), where
        assert (len(members), members[-1].hold) == (1 + occasion.compacts, None), where
        assert len({str(answer.outcome) for answer in answers if answer is not None}) == 1, where


@pytest.mark.parametrize("occasion", [PLAIN, BEFORE])
@pytest.mark.parametrize("fault", list(Fault))
async def test_without_a_key_the_turn_is_complete_or_absent_and_no_hold_remains(
    harness: "SessionHarness", fault: Fault, occasion: Occasion
) -> None:
    points = await aws_calls(harness, occasion, None)
    assert len(points) >= 3, points
    for point, name in sampled([*enumerate(points)], 4, f"{fault} {occasion}"):
        where = f"{fault} at {point} ({name})"
        session = await create_session(harness, occasion)
        answer = await outcome_under(FaultPlan(fault, at=point), lambda: harness.turn(session, "hello").answer())  # noqa: B023
        harness.now += LEASE_SECONDS
        members = await chain(harness, session)
        history = await visible_history(harness, members)
        assert history in (KEPT, KEPT + turn_texts("hello")), where
        assert answer is None or history[8:], where
        harness.context_window = 1_000_000
        await harness.turn(members[-1].id, "next").answer()
        members = await chain(harness, session)
        assert await visible_history(harness, members) == [*history, *turn_texts("next")], where
        assert members[-1].hold is None, where


async def test_a_crash_between_the_two_commits_leaves_a_consistent_chain(harness: "SessionHarness") -> None:
    points = await aws_calls(harness, BEFORE, None)
    session = await create_session(harness, BEFORE)
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=len(points) - 1)), pytest.raises(Crash):
        await harness.turn(session, "hello").answer()
    source, successor = await chain(harness, session)
    assert source.hold is None
    assert successor.hold is not None
    assert await visible_history(harness, [source, successor]) == KEPT
    harness.now += LEASE_SECONDS - 1
    with pytest.raises(Conflict) as failure:
        await harness.turn(successor.id, "hello").answer()
    assert (failure.value.code, failure.value.retry_after) == ("session_busy", 1)
    harness.now += 1
    await harness.turn(successor.id, "hello").answer()
    assert (await visible_history(harness, await chain(harness, session)))[8:] == turn_texts("hello")


async def test_a_turn_that_loses_its_hold_during_the_summary_does_not_change_the_session(harness: "SessionHarness") -> None:
    session = await create_session(harness, BEFORE)

    async def run_second_turn() -> None:
        harness.summarizer.during = None
        harness.now += LEASE_SECONDS
        harness.context_window = 1_000_000
        await harness.turn(session, "heir").answer()

    harness.summarizer.during = run_second_turn
    with pytest.raises(Conflict) as failure:
        await harness.turn(session, "hello").answer()
    assert failure.value.code == "session_busy"
    (only,) = await chain(harness, session)
    assert await visible_history(harness, [only]) == KEPT + turn_texts("heir")


async def test_the_later_of_two_compacting_turns_is_redirected_to_the_successor(harness: "SessionHarness") -> None:
    session = await create_session(harness, BEFORE)

    async def run_second_turn() -> None:
        harness.summarizer.during = None
        harness.now += LEASE_SECONDS
        await harness.turn(session, "heir").answer()

    harness.summarizer.during = run_second_turn
    late_client = Client(harness, session, "late", "late")
    with pytest.raises(SessionArchived):
        await harness.turn(session, "late", late_client.key).answer()
    answer = await late_client.answer()
    assert not answer.replayed
    members = await chain(harness, session)
    assert (await visible_history(harness, members))[8:] == turn_texts("heir") + turn_texts("late")
