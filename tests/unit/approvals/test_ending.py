"""The end of an approval: one conditional write, of which one counts."""

import asyncio

import pytest

from spass.approvals.ending import Ending
from spass.approvals.record import Approval, ApprovalStatus
from spass.approvals.store import read_approval, read_with_call
from spass.core.errors import ApprovalDecided, ApprovalNotFound, StorageUnavailable
from spass.store import keys
from spass.store.writes import Delete
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.approvals.waiting_calls import ANA, WaitingCalls

pytestmark = pytest.mark.anyio

ERROR = {"code": "workspace_conflict", "message": "src/main.py has changed."}


def ending(calls: WaitingCalls, approval: Approval, reason: str | None = None) -> Ending:
    return Ending(calls.store, approval, reason, lambda: calls.now)


async def test_a_denied_approval_has_its_reason_and_no_call_any_more(calls: WaitingCalls) -> None:
    approval = await calls.put()
    end = ending(calls, approval, "Not today.")
    await end.deny()
    found, call = await read_with_call(calls.store, ANA, approval.id)
    assert (found.status, found.reason, found.result, found.error) == (ApprovalStatus.DENIED, "Not today.", None, None)
    assert found == end.ended
    assert found.decided_at is not None
    assert call is None
    assert "effect" not in calls.stored()[0]


async def test_a_failed_approval_has_its_error(calls: WaitingCalls) -> None:
    approval = await calls.put()
    await ending(calls, approval).fail(ERROR)
    found = await read_approval(calls.store, ANA, approval.id)
    assert (found.status, found.error) == (ApprovalStatus.FAILED, ERROR)


async def test_an_executed_approval_ends_in_the_transaction_of_its_change(calls: WaitingCalls) -> None:
    approval = await calls.put()
    writes = await ending(calls, approval).execute({"deleted": True})
    assert (await read_approval(calls.store, ANA, approval.id)).status is ApprovalStatus.PENDING
    await calls.store.table.transact(writes, token="t")
    found = await read_approval(calls.store, ANA, approval.id)
    assert (found.status, found.result) == (ApprovalStatus.EXECUTED, {"deleted": True})


async def test_of_eight_decisions_one_counts(calls: WaitingCalls) -> None:
    approval = await calls.put()
    ends = [ending(calls, approval, f"reason {number}") for number in range(8)]
    outcomes = await asyncio.gather(*(end.deny() for end in ends), return_exceptions=True)
    (counted,) = [end for end, outcome in zip(ends, outcomes, strict=True) if outcome is None]
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [ApprovalDecided] * 7
    assert await read_approval(calls.store, ANA, approval.id) == counted.ended


async def test_a_decision_about_a_deleted_approval_is_not_found(calls: WaitingCalls) -> None:
    approval = await calls.put()
    await calls.store.table.write(Delete(keys.approval(calls.store.tenant, ANA, approval.id)))
    with pytest.raises(ApprovalNotFound):
        await ending(calls, approval).deny()
    assert calls.stored() == []


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED, Fault.THROTTLE, Fault.TIMEOUT])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("at", range(3))
async def test_a_decision_whose_reply_was_lost_is_settled(calls: WaitingCalls, fault: Fault, times: int, at: int) -> None:
    approval = await calls.put()
    end = ending(calls, approval)
    with inject(FaultPlan(fault, at, times)):
        await end.deny()
    assert await read_approval(calls.store, ANA, approval.id) == end.ended


async def test_a_table_that_never_answers_leaves_the_outcome_to_the_approval(calls: WaitingCalls) -> None:
    approval = await calls.put()
    with pytest.raises(StorageUnavailable), inject(FaultPlan(Fault.TIMEOUT, 0, 100)):
        await ending(calls, approval).deny()
    assert await read_approval(calls.store, ANA, approval.id) == approval


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
async def test_after_a_crash_the_approval_says_whether_the_decision_counts(calls: WaitingCalls, fault: Fault) -> None:
    approval = await calls.put()
    with pytest.raises(Crash), inject(FaultPlan(fault)):
        await ending(calls, approval).deny()
    status = (await read_approval(calls.store, ANA, approval.id)).status
    assert status is (ApprovalStatus.DENIED if fault is Fault.CRASH_AFTER else ApprovalStatus.PENDING)
