"""A turn dies before its commit, or its commits get no reply: the turn is recorded once or not at all."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from spass.aws.clients import Aws
from spass.core.errors import Conflict, SessionNotFound, StorageUnavailable, storage_timeout
from spass.core.messages import Role
from spass.runs.run import RunAnswer
from spass.sessions import record
from spass.sessions.record import overflow_key
from spass.store.bucket import ObjectMissing
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.leases import LEASE_SECONDS
from spass.store.overflow import Overflow
from spass.store.table import TransactionFailed
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.simulated.memory import aws_for_faults

if TYPE_CHECKING:
    from tests.integration.sessions.conftest import SessionHarness

T = TypeVar("T")
pytestmark = pytest.mark.anyio


@pytest.fixture
def aws(request: pytest.FixtureRequest) -> Aws:
    return aws_for_faults(request)


ROLES = [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


@pytest.fixture
def small_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every turn's body overflow to the bucket."""
    monkeypatch.setattr(record, "BODY", Overflow("body", 10))


async def test_a_crash_before_the_commit_leaves_nothing_and_its_hold_expires(harness: "SessionHarness") -> None:
    sample, session = await harness.session(), await harness.session()
    with inject(FaultPlan()) as plan:
        await harness.turn(sample, "hello").answer()
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=len(plan.calls) - 1)), pytest.raises(Crash):
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
    attempts: list[PendingCall[object]] = field(default_factory=list)
    replies_from: int = 1_000

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation != "TransactWriteItems":
            result = await FaultPlan.around(self, call, run)
            if call.operation == "GetItem" and self.attempts and not self.immediate:
                with suppress(TransactionFailed):
                    await self.attempts[-1]()
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
    assert await harness.turn(session, "hello", "key").answer() == RunAnswer(answer.outcome, replayed=True)


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
            await attempt()
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
