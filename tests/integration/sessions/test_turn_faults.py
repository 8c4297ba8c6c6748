"""Inject each fault into each AWS call of a turn. After a retry the turn is recorded once."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from spass.aws.clients import Aws
from spass.aws.invocation import AwsCall
from spass.aws.leases import LEASE_SECONDS
from spass.aws.objects import ObjectMissing
from spass.aws.table import TransactionFailed
from spass.core.errors import Conflict, SessionNotFound, SpassError, StorageUnavailable, storage_timeout
from spass.core.ids import SessionId
from spass.core.messages import Role
from spass.sessions import commit, record
from spass.sessions.record import overflow_key
from spass.sessions.turn import TurnAnswer
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.sampling import SOAK
from tests.simulated.memory import aws_for_faults

if TYPE_CHECKING:
    from tests.integration.sessions.conftest import SessionHarness

T = TypeVar("T")
pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


ROLES = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


async def aws_calls_of_a_turn(harness: "SessionHarness", key: str | None) -> list[str]:
    """Return the AWS calls of a turn without faults."""
    session = await harness.session()
    with inject(FaultPlan()) as plan:
        await harness.turn(session, "hello", key).answer()
    return [f"{call.service}:{call.operation}" for call in plan.calls]


async def retry(harness: "SessionHarness", session: SessionId, message: str, key: str) -> TurnAnswer:
    """Send a request until it is answered, obeying ``Retry-After``, and return the answer."""
    for _ in range(LEASE_SECONDS):
        try:
            return await harness.turn(session, message, key).answer()
        except (Conflict, StorageUnavailable) as error:
            harness.now += retry_seconds(error)
    raise AssertionError(f"the request still fails after {LEASE_SECONDS} attempts")


def retry_seconds(error: SpassError) -> float:
    assert error.retry_after is not None, "the error must state a retry time"
    return error.retry_after


@pytest.fixture
def small_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every turn's body overflow to the bucket."""
    monkeypatch.setattr(record, "INLINE_BYTES", 10)


@pytest.fixture(autouse=True)
def no_commit_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_COMMIT_DELAY", 0.0)


@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_turn_is_recorded_once_if_any_call_fails(
    harness: "SessionHarness",
    fault: Fault,
    overflow: bool,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    if overflow:
        request.getfixturevalue("small_items")
    points = await aws_calls_of_a_turn(harness, "count")
    assert len(points) >= 4, points
    for point, name in enumerate(points):
        session = await harness.session()
        await harness.turn(session, "first", f"first-{session}").answer()
        key = f"{fault}-{overflow}-{point}"
        with inject(FaultPlan(fault, at=point)) as plan:
            try:
                first: TurnAnswer | None = await harness.turn(session, "hello", key).answer()
            except (Crash, Conflict, StorageUnavailable):
                first = None
        assert len(plan.calls) > point, "the turn made too few AWS calls, so no fault was injected"
        answer = await retry(harness, session, "hello", key)
        where = f"{fault} at {point} ({name})"
        history = await harness.history(session)
        assert [message.message.role for message in history] == ROLES * 2, where
        assert history[-1].id == answer.outcome.message_id, where
        assert first is None or first.outcome == answer.outcome, where
        assert (await harness.head(session)).hold is None, where
        assert (await retry(harness, session, "hello", key)) == TurnAnswer(answer.outcome, replayed=True), where
    record_property("points_tried", len(points))


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_turn_is_recorded_once_if_calls_of_its_retry_fail(harness: "SessionHarness", fault: Fault) -> None:
    """The first attempt and its retry each have a fault at the commit; in a soak, at every pair of calls."""
    points = range(len(await aws_calls_of_a_turn(harness, "count")))
    fault_points = list(points) if SOAK else [points[-1]]
    for first, then, second in itertools.product(fault_points, Fault, fault_points):
        session = await harness.session()
        key = f"{session}-{first}-{then}-{second}"
        answers = []
        for plan in (FaultPlan(fault, at=first), FaultPlan(then, at=second)):
            with inject(plan), suppress(Crash, Conflict, StorageUnavailable):
                answers.append((await harness.turn(session, "hello", key).answer()).outcome)
            harness.now += LEASE_SECONDS
        answers.append((await retry(harness, session, "hello", key)).outcome)
        where = f"{fault} at {first}, then {then} at {second}"
        assert [message.message.role for message in await harness.history(session)] == ROLES, where
        assert all(answer == answers[0] for answer in answers), where


@pytest.mark.parametrize("fault", list(Fault))
async def test_without_a_key_a_failed_turn_is_complete_or_absent(harness: "SessionHarness", fault: Fault) -> None:
    points = await aws_calls_of_a_turn(harness, None)
    assert len(points) >= 3, points
    for point, name in enumerate(points):
        session = await harness.session()
        with inject(FaultPlan(fault, at=point)):
            try:
                await harness.turn(session, "hello").answer()
                answered = True
            except (Crash, Conflict, StorageUnavailable):
                answered = False
        where = f"{fault} at {point} ({name})"
        roles = [message.message.role for message in await harness.history(session)]
        assert roles in ([], ROLES), where
        assert not answered or roles == ROLES, where
        harness.now += LEASE_SECONDS
        await harness.turn(session, "next").answer()
        assert len(await harness.history(session)) == len(roles) + len(ROLES), where
        assert (await harness.head(session)).hold is None


async def test_a_crash_before_the_commit_leaves_nothing_and_its_hold_expires(harness: "SessionHarness") -> None:
    session = await harness.session()
    commit = len(await aws_calls_of_a_turn(harness, None)) - 1
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=commit)), pytest.raises(Crash):
        await harness.turn(session, "hello").answer()
    assert await harness.history(session) == []
    harness.now += LEASE_SECONDS - 1
    with pytest.raises(Conflict) as failure:
        await harness.turn(session, "again").answer()
    assert (failure.value.code, failure.value.retry_after) == ("session_busy", 1)
    harness.now += 1
    await harness.turn(session, "again").answer()
    assert len(await harness.history(session)) == len(ROLES)


@dataclass(slots=True)
class UncertainCommits(FaultPlan):
    """Commits whose attempts get no reply.

    If ``immediate``, an attempt takes effect at once; otherwise it takes effect after the next read. If ``unknown_tokens``, the
    service does not recognise a repeated token, as after ten minutes. The attempt number ``replies_from`` and later ones get a
    reply.
    """

    immediate: bool = True
    unknown_tokens: bool = False
    attempts: list[Callable[[], object]] = field(default_factory=list)
    replies_from: int = 1_000

    async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
        if call.operation != "TransactWriteItems":
            result = await FaultPlan.around(self, call, run)
            if call.operation == "GetItem" and self.attempts and not self.immediate:
                with suppress(TransactionFailed):
                    self.attempts[-1]()
            return result
        self.attempts.append(run)
        if self.unknown_tokens:
            cast("dict[str, object]", call.parameters)["token"] = f"token-{id(self)}-{len(self.attempts)}"
        if len(self.attempts) >= self.replies_from:
            return await FaultPlan.around(self, call, run)
        if self.immediate:
            await FaultPlan.around(self, call, run)
        raise storage_timeout()


async def test_a_commit_without_a_reply_is_found_by_reading(harness: "SessionHarness") -> None:
    session = await harness.session()
    with inject(UncertainCommits()) as plan:
        answer = await harness.turn(session, "hello", "key").answer()
    assert isinstance(plan, UncertainCommits)
    assert len(plan.attempts) > 1
    assert (await harness.history(session))[-1].id == answer.outcome.message_id
    assert await harness.turn(session, "hello", "key").answer() == TurnAnswer(answer.outcome, replayed=True)


async def test_a_commit_whose_retry_is_refused_is_found_by_reading(harness: "SessionHarness") -> None:
    session = await harness.session()
    with inject(UncertainCommits(unknown_tokens=True, replies_from=2)) as plan:
        answer = await harness.turn(session, "hello").answer()
    assert isinstance(plan, UncertainCommits)
    assert len(plan.attempts) == 2
    assert (await harness.history(session))[-1].id == answer.outcome.message_id


async def test_an_abandoned_commit_cannot_take_effect_later(harness: "SessionHarness") -> None:
    session = await harness.session()
    with inject(UncertainCommits(immediate=False)) as plan, pytest.raises(StorageUnavailable):
        await harness.turn(session, "hello", "key").answer()
    assert isinstance(plan, UncertainCommits)
    assert (await harness.head(session)).hold is None
    for attempt in plan.attempts:
        with pytest.raises(TransactionFailed):
            attempt()
    assert await harness.history(session) == []
    assert not (await harness.turn(session, "hello", "key").answer()).replayed


async def test_an_abandoned_large_commit_leaves_no_body(harness: "SessionHarness", small_items: None) -> None:
    session = await harness.session()
    with inject(UncertainCommits(immediate=False)), pytest.raises(StorageUnavailable):
        await harness.turn(session, "hello", "key").answer()
    assert await harness.store.objects.list_keys(f"sessions/{session}/") == []


async def test_a_large_commit_with_an_unknown_outcome_keeps_its_body(harness: "SessionHarness", small_items: None) -> None:
    session = await harness.session()
    with inject(UncertainCommits()):
        await harness.turn(session, "hello", "key").answer()
    assert len(await harness.history(session)) == len(ROLES)


async def test_a_large_turn_that_lost_its_session_leaves_no_body(harness: "SessionHarness", small_items: None) -> None:
    session = await harness.session()
    late_turn = harness.turn(session, "late", pause=(pause := harness.pause()))
    await pause.reached.wait()
    harness.now += LEASE_SECONDS
    await harness.delete(session)
    pause.go_on.set()
    with pytest.raises(SessionNotFound):
        await late_turn.answer()
    with pytest.raises(ObjectMissing):
        await harness.store.objects.get(overflow_key(session, late_turn.id))
