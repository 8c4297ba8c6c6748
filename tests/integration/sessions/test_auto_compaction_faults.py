"""Inject each fault into each AWS call of a turn that compacts its session.

After a retry no message is lost or duplicated, and no hold remains.
"""

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from spass.aws.clients import Aws
from spass.aws.leases import LEASE_SECONDS
from spass.core.errors import Conflict, SessionArchived, StorageUnavailable
from spass.core.ids import SessionId
from spass.core.messages import Role
from spass.sessions import commit, record
from spass.sessions.turn import TurnAnswer
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.integration.sessions.chain_client import Client, chain, turn_texts, visible_history
from tests.sampling import SOAK
from tests.simulated.memory import aws_for_faults

if TYPE_CHECKING:
    from tests.integration.sessions.conftest import SessionHarness

pytestmark = pytest.mark.anyio

FIRST = f"a {'x' * 100}"
ROLES = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


@pytest.fixture(autouse=True)
def no_commit_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_COMMIT_DELAY", 0.0)


@pytest.fixture
def small_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every body overflow to the bucket."""
    monkeypatch.setattr(record, "INLINE_BYTES", 10)


@dataclass(frozen=True, slots=True)
class CompactionBeforeTurn:
    """The session fills the model's window, so it is compacted before its turn."""

    def fill(self, harness: "SessionHarness") -> None:
        harness.context_window = 80


@dataclass(frozen=True, slots=True)
class CompactionWithinTurn:
    """The provider rejects the prompt after a tool call, so the session is compacted during its turn."""

    def fill(self, harness: "SessionHarness") -> None:
        harness.takes = 200


CASES = [(occasion, overflow) for occasion in (CompactionBeforeTurn(), CompactionWithinTurn()) for overflow in (False, True)]
if not SOAK:
    CASES = [(CompactionBeforeTurn(), False), (CompactionWithinTurn(), True)]


async def create_full_session(harness: "SessionHarness", occasion: CompactionBeforeTurn | CompactionWithinTurn) -> SessionId:
    """Create a session of two turns. The third turn will compact the older one."""
    harness.context_window = harness.takes = 1_000_000
    harness.summarizer.text = "short"
    session = await harness.session(keep=4)
    for message in (FIRST, "b"):
        await harness.turn(session, message).answer()
    occasion.fill(harness)
    return session


async def aws_calls(
    harness: "SessionHarness", occasion: CompactionBeforeTurn | CompactionWithinTurn, key: str | None = "count"
) -> list[str]:
    """Return the AWS calls of a turn that compacts, without faults."""
    session = await create_full_session(harness, occasion)
    with inject(FaultPlan()) as plan:
        answer = await harness.turn(session, "hello", key).answer()
    assert answer.outcome.compaction is not None
    return [f"{call.service}:{call.operation}" for call in plan.calls]


@pytest.mark.parametrize(("occasion", "overflow"), CASES)
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_turn_that_compacts_is_recorded_once_if_any_call_fails(
    harness: "SessionHarness",
    fault: Fault,
    occasion: CompactionBeforeTurn | CompactionWithinTurn,
    overflow: bool,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    if overflow:
        request.getfixturevalue("small_items")
    points = await aws_calls(harness, occasion)
    assert len(points) >= 5, points
    for point, name in enumerate(points):
        where = f"{fault} at {point} ({name})"
        session = await create_full_session(harness, occasion)
        client = Client(harness, session, f"{session}")
        with inject(FaultPlan(fault, at=point)) as plan:
            try:
                first: TurnAnswer | None = await harness.turn(session, "hello", client.key).answer()
            except (Crash, Conflict, StorageUnavailable):
                first = None
        if plan.crashed:
            harness.now += LEASE_SECONDS - 3  # avoids about thirty attempts of the client
        assert len(plan.calls) > point, "the turn made too few AWS calls, so no fault was injected"
        before = await visible_history(harness, await chain(harness, session))
        assert before[:8] == turn_texts(FIRST) + turn_texts("b"), where
        assert before[8:] in ([], turn_texts("hello")), where
        assert first is None or before[8:], where
        answer = await client.answer()
        assert first is None or first.outcome == answer.outcome, where
        members = await chain(harness, session)
        assert len(members) == 2, where
        assert await visible_history(harness, members) == turn_texts(FIRST) + turn_texts("b") + turn_texts("hello"), where
        assert (await harness.history(members[-1].id))[-1].id == answer.outcome.message_id, where
        assert [member.hold for member in members] == [None, None], where
        assert await client.answer() == TurnAnswer(answer.outcome, replayed=True), where
    record_property("points_tried", len(points))


@pytest.mark.parametrize("fault", list(Fault) if SOAK else [Fault.CRASH_AFTER, Fault.LOST_REPLY])
async def test_a_turn_that_compacts_is_recorded_once_if_its_retry_fails_too(harness: "SessionHarness", fault: Fault) -> None:
    """The first attempt and its retry each have a fault at one of the two commits; in a soak, at every pair of calls."""
    points = range(len(await aws_calls(harness, CompactionBeforeTurn())))
    fault_points, others = (points, list(Fault)) if SOAK else (points[-2:], [Fault.CRASH_BEFORE, Fault.LOST_REPLY])
    for first, then, second in itertools.product(fault_points, others, fault_points):
        where = f"{fault} at {first}, then {then} at {second}"
        session = await create_full_session(harness, CompactionBeforeTurn())
        client = Client(harness, session, f"{session}")
        answers = []
        for plan in (FaultPlan(fault, at=first), FaultPlan(then, at=second)):
            with inject(plan), suppress(Crash, Conflict, StorageUnavailable):
                answers.append((await client.follow()).outcome)
            harness.now += LEASE_SECONDS
        answers.append((await client.answer()).outcome)
        members = await chain(harness, session)
        assert await visible_history(harness, members) == turn_texts(FIRST) + turn_texts("b") + turn_texts("hello"), where
        assert (len(members), members[-1].hold) == (2, None), where
        assert all(answer == answers[0] for answer in answers), where


@pytest.mark.parametrize("fault", list(Fault))
async def test_without_a_key_the_turn_is_complete_or_absent_and_no_hold_remains(harness: "SessionHarness", fault: Fault) -> None:
    points = await aws_calls(harness, CompactionBeforeTurn(), None)
    for point, name in enumerate(points):
        where = f"{fault} at {point} ({name})"
        session = await create_full_session(harness, CompactionBeforeTurn())
        with inject(FaultPlan(fault, at=point)), suppress(Crash, Conflict, StorageUnavailable):
            await harness.turn(session, "hello").answer()
        harness.now += LEASE_SECONDS
        members = await chain(harness, session)
        history = await visible_history(harness, members)
        assert history[:8] == turn_texts(FIRST) + turn_texts("b"), where
        assert history[8:] in ([], turn_texts("hello")), where
        harness.context_window = 1_000_000
        await harness.turn(members[-1].id, "next").answer()
        members = await chain(harness, session)
        assert await visible_history(harness, members) == [*history, *turn_texts("next")], where
        assert members[-1].hold is None, where


async def test_a_crash_between_the_two_commits_leaves_a_consistent_chain(harness: "SessionHarness") -> None:
    points = await aws_calls(harness, CompactionBeforeTurn(), None)
    session = await create_full_session(harness, CompactionBeforeTurn())
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=len(points) - 1)), pytest.raises(Crash):
        await harness.turn(session, "hello").answer()
    source, successor = await chain(harness, session)
    assert source.hold is None
    assert successor.hold is not None
    assert await visible_history(harness, [source, successor]) == turn_texts(FIRST) + turn_texts("b")
    harness.now += LEASE_SECONDS - 1
    with pytest.raises(Conflict) as failure:
        await harness.turn(successor.id, "hello").answer()
    assert (failure.value.code, failure.value.retry_after) == ("session_busy", 1)
    harness.now += 1
    await harness.turn(successor.id, "hello").answer()
    assert (await visible_history(harness, await chain(harness, session)))[8:] == turn_texts("hello")


async def test_a_turn_that_loses_its_hold_during_the_summary_does_not_change_the_session(
    harness: "SessionHarness",
) -> None:
    session = await create_full_session(harness, CompactionBeforeTurn())

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
    assert await visible_history(harness, [only]) == turn_texts(FIRST) + turn_texts("b") + turn_texts("heir")


async def test_the_later_of_two_compacting_turns_is_redirected_to_the_successor(harness: "SessionHarness") -> None:
    session = await create_full_session(harness, CompactionBeforeTurn())

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
