"""Every AWS call of a turn that compacts its session is made to go wrong in every way; the client goes on, and nothing is lost,
doubled or left held."""

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from spass.aws.faults import Crash, Fault, FaultPlan, inject
from spass.aws.leases import LEASE_SECONDS
from spass.core.errors import Conflict, SessionArchived, StorageUnavailable
from spass.core.ids import SessionId
from spass.core.messages import Role
from spass.sessions import commit, record
from spass.sessions.turn import TurnAnswer
from tests.integration.sessions.chains import Client, chain, story, turn_said

if TYPE_CHECKING:
    from tests.integration.sessions.conftest import World

pytestmark = pytest.mark.anyio

SOAK = bool(os.environ.get("SPASS_SOAK"))
PAST = "x" * 100
ROLES = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_COMMIT_DELAY", 0.0)


@pytest.fixture
def small_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every body overflows to the bucket."""
    monkeypatch.setattr(record, "INLINE_BYTES", 10)


@dataclass(frozen=True, slots=True)
class Due:
    """The session is compacted before its turn: it fills the model's window."""

    def fill(self, world: "World") -> None:
        world.context_window = 80


@dataclass(frozen=True, slots=True)
class TooLong:
    """It is compacted within its turn, after a tool: the provider takes less than its window promised."""

    def fill(self, world: "World") -> None:
        world.takes = 200


CASES = [(occasion, overflow) for occasion in (Due(), TooLong()) for overflow in (False, True)]
if not SOAK:
    CASES = [(Due(), False), (TooLong(), True)]


async def full_session(world: "World", occasion: Due | TooLong) -> SessionId:
    """A session of two turns, the older of which is compacted as soon as there is a third."""
    world.context_window = world.takes = 1_000_000
    world.summarizer.text = "short"
    session = await world.session(keep=4)
    for message in (f"a {PAST}", "b"):
        await world.turn(session, message).answer()
    occasion.fill(world)
    return session


async def points_of(world: "World", occasion: Due | TooLong, key: str | None = "count") -> list[str]:
    session = await full_session(world, occasion)
    with inject(FaultPlan()) as plan:
        answer = await world.turn(session, "hello", key).answer()
    assert answer.answer.body["compacted"] is not None
    return [f"{call.service}:{call.operation}" for call in plan.calls]


@pytest.mark.parametrize(("occasion", "overflow"), CASES)
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_turn_that_compacts_is_recorded_once_whichever_call_goes_wrong(
    world: "World",
    fault: Fault,
    occasion: Due | TooLong,
    overflow: bool,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    if overflow:
        request.getfixturevalue("small_items")
    points = await points_of(world, occasion)
    assert len(points) >= 5, points
    for point, name in enumerate(points):
        where = f"{fault} at {point} ({name})"
        session = await full_session(world, occasion)
        client = Client(world, session, f"{session}")
        with inject(FaultPlan(fault, at=point)) as plan:
            try:
                first: TurnAnswer | None = await world.turn(session, "hello", client.key).answer()
            except (Crash, Conflict, StorageUnavailable):
                first = None
        if plan.crashed:
            world.now += LEASE_SECONDS - 3  # or a client would have to ask thirty times
        assert len(plan.calls) > point, "the fault was met"
        before = await story(world, await chain(world, session))
        assert before[:8] == turn_said(f"a {PAST}") + turn_said("b"), where
        assert before[8:] in ([], turn_said("hello")), where
        assert first is None or before[8:], where
        answer = await client.answer()
        assert first is None or first.answer == answer.answer, where
        members = await chain(world, session)
        assert len(members) == 2, where
        assert await story(world, members) == turn_said(f"a {PAST}") + turn_said("b") + turn_said("hello"), where
        assert (await world.history(members[-1].id))[-1].id == answer.answer.body["message"]["id"], where  # type: ignore[index,call-overload]
        assert [member.hold for member in members] == [None, None], where
        assert await client.answer() == TurnAnswer(answer.answer, replayed=True), where
    record_property("points_tried", len(points))


@pytest.mark.parametrize("fault", list(Fault) if SOAK else [Fault.CRASH_AFTER, Fault.LOST_REPLY])
async def test_the_next_try_may_go_wrong_as_well(world: "World", fault: Fault) -> None:
    """The first try and the next each meet a fault: at one of the two commits; in a soak, at every pair of calls."""
    points = range(len(await points_of(world, Due())))
    tried, others = (points, list(Fault)) if SOAK else (points[-2:], [Fault.CRASH_BEFORE, Fault.LOST_REPLY])
    for first, then, second in itertools.product(tried, others, tried):
        where = f"{fault} at {first}, then {then} at {second}"
        session = await full_session(world, Due())
        client = Client(world, session, f"{session}")
        answers = []
        for plan in (FaultPlan(fault, at=first), FaultPlan(then, at=second)):
            with inject(plan), suppress(Crash, Conflict, StorageUnavailable):
                answers.append((await client.follow()).answer)
            world.now += LEASE_SECONDS
        answers.append((await client.answer()).answer)
        members = await chain(world, session)
        assert await story(world, members) == turn_said(f"a {PAST}") + turn_said("b") + turn_said("hello"), where
        assert (len(members), members[-1].hold) == (2, None), where
        assert all(answer == answers[0] for answer in answers), where


@pytest.mark.parametrize("fault", list(Fault))
async def test_without_a_key_the_turn_is_there_whole_or_not_at_all_and_no_hold_stays(world: "World", fault: Fault) -> None:
    points = await points_of(world, Due(), None)
    for point, name in enumerate(points):
        where = f"{fault} at {point} ({name})"
        session = await full_session(world, Due())
        with inject(FaultPlan(fault, at=point)), suppress(Crash, Conflict, StorageUnavailable):
            await world.turn(session, "hello").answer()
        world.now += LEASE_SECONDS
        members = await chain(world, session)
        said = await story(world, members)
        assert said[:8] == turn_said(f"a {PAST}") + turn_said("b"), where
        assert said[8:] in ([], turn_said("hello")), where
        world.context_window = 1_000_000
        await world.turn(members[-1].id, "next").answer()
        members = await chain(world, session)
        assert await story(world, members) == [*said, *turn_said("next")], where
        assert members[-1].hold is None, where


async def test_a_crash_between_the_two_commits_leaves_a_whole_chain_whose_hold_expires(world: "World") -> None:
    points = await points_of(world, Due(), None)
    session = await full_session(world, Due())
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=len(points) - 1)), pytest.raises(Crash):
        await world.turn(session, "hello").answer()
    source, successor = await chain(world, session)
    assert source.hold is None
    assert successor.hold is not None
    assert await story(world, [source, successor]) == turn_said(f"a {PAST}") + turn_said("b")
    world.now += LEASE_SECONDS - 1
    with pytest.raises(Conflict) as refused:
        await world.turn(successor.id, "hello").answer()
    assert (refused.value.code, refused.value.retry_after) == ("session_busy", 1)
    world.now += 1
    await world.turn(successor.id, "hello").answer()
    assert (await story(world, await chain(world, session)))[8:] == turn_said("hello")


async def test_a_source_that_is_lost_while_its_summary_is_written_stays_as_its_new_holder_leaves_it(world: "World") -> None:
    session = await full_session(world, Due())

    async def meanwhile() -> None:
        world.summarizer.during = None
        world.now += LEASE_SECONDS
        world.context_window = 1_000_000
        await world.turn(session, "heir").answer()

    world.summarizer.during = meanwhile
    with pytest.raises(Conflict) as refused:
        await world.turn(session, "hello").answer()
    assert refused.value.code == "session_busy"
    (only,) = await chain(world, session)
    assert await story(world, [only]) == turn_said(f"a {PAST}") + turn_said("b") + turn_said("heir")


async def test_of_two_turns_that_both_compact_one_goes_on_and_the_other_is_sent_after_it(world: "World") -> None:
    session = await full_session(world, Due())

    async def meanwhile() -> None:
        world.summarizer.during = None
        world.now += LEASE_SECONDS
        await world.turn(session, "heir").answer()

    world.summarizer.during = meanwhile
    late = Client(world, session, "late", "late")
    with pytest.raises(SessionArchived):
        await world.turn(session, "late", late.key).answer()
    answer = await late.answer()
    assert not answer.replayed
    members = await chain(world, session)
    assert (await story(world, members))[8:] == turn_said("heir") + turn_said("late")
