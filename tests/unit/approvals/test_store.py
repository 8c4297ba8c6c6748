"""Approvals as they are stored, read, listed and deleted with their session."""

import pytest

from spass.approvals.record import DECIDE_SECONDS, ApprovalStatus, encode_end
from spass.approvals.store import delete_approvals, list_approvals, read_approval, read_approvals, read_with_call
from spass.core.errors import ApprovalNotFound, InvalidRequest, SessionBusy
from spass.core.ids import SessionId, TenantId, UserId
from spass.core.time import timestamp
from spass.store import keys
from spass.store.writes import Update
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.approvals.waiting_calls import ANA, EFFECT, SESSION, WaitingCalls, some_approval

pytestmark = pytest.mark.anyio

OTHER_SESSION = SessionId("ses_" + "2" * 26)
LARGE = {"change": "x" * 360_000}


async def listed(calls: WaitingCalls, **wanted: object) -> list[str]:
    page = await list_approvals(calls.store, ANA, calls.now, limit=100, **wanted)  # type: ignore[arg-type]
    return [view.id for view in page.approvals]


async def test_an_approval_is_read_as_it_was_stored(calls: WaitingCalls) -> None:
    approval = await calls.put()
    found, call = await read_with_call(calls.store, ANA, approval.id)
    assert found == approval
    assert call is not None
    assert (call.arguments, call.effect) == ({"index_id": "notes"}, EFFECT)
    assert found.expires_at == timestamp(calls.now + DECIDE_SECONDS)


async def test_an_approval_of_another_user_or_tenant_is_not_found(calls: WaitingCalls) -> None:
    approval = await calls.put()
    for store, user in ((calls.store, UserId("bob")), (calls.aws.for_tenant(TenantId("other")), ANA)):
        with pytest.raises(ApprovalNotFound):
            await read_approval(store, user, approval.id)
    with pytest.raises(ApprovalNotFound):
        await read_approval(calls.store, ANA, some_approval())


async def test_a_large_call_is_an_object_and_people_still_see_its_arguments(calls: WaitingCalls) -> None:
    approval = await calls.put(effect=LARGE)
    assert calls.aws.bucket.keys == [f"T/demo/apr/{approval.id}"]
    found, call = await read_with_call(calls.store, ANA, approval.id)
    assert call is not None
    assert (found.arguments, call.effect) == ({"index_id": "notes"}, LARGE)


async def test_arguments_that_only_the_object_holds_are_null_when_it_is_gone(calls: WaitingCalls) -> None:
    approval = await calls.put(arguments={"text": "x" * 310_000})
    assert (await read_approval(calls.store, ANA, approval.id)).arguments == approval.arguments
    assert await listed(calls) == [approval.id]
    await calls.store.objects.delete([f"apr/{approval.id}"])
    assert (await read_approval(calls.store, ANA, approval.id)).arguments is None
    assert await listed(calls) == [approval.id]
    assert (await read_with_call(calls.store, ANA, approval.id)).call is None


async def test_a_large_approval_fits_in_an_item_with_the_largest_result(calls: WaitingCalls) -> None:
    block = {"kind": "diff", "unified": "x" * 128 * 1024}
    approval = await calls.put(arguments={"text": "y" * 160_000}, rich=[block])
    ended = approval.after(ApprovalStatus.EXECUTED, "r" * 4096, calls.now, result={"text": "z" * 65_000})
    key = keys.approval(calls.store.tenant, ANA, approval.id)
    await calls.store.table.write(Update(key, set=encode_end(ended), remove=("effect",)))
    assert (await read_approval(calls.store, ANA, approval.id)).result == ended.result


async def test_a_turn_that_lost_its_session_stores_nothing(calls: WaitingCalls) -> None:
    with pytest.raises(SessionBusy):
        await calls.put(turn="turn_2")
    assert calls.stored() == []


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED, Fault.THROTTLE])
@pytest.mark.parametrize("at", range(3))
async def test_an_approval_is_stored_once_although_a_call_failed(calls: WaitingCalls, fault: Fault, at: int) -> None:
    with inject(FaultPlan(fault, at)):
        approval = await calls.put(effect=LARGE)
    assert len(calls.stored()) == 1
    assert (await read_with_call(calls.store, ANA, approval.id)).call is not None


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("at", range(3))
async def test_after_a_crash_an_approval_is_whole_or_absent(calls: WaitingCalls, fault: Fault, at: int) -> None:
    with pytest.raises(Crash), inject(FaultPlan(fault, at)):
        await calls.put(effect=LARGE)
    approvals = await listed(calls)
    pointers = [item["sk"] for item in calls.aws.table.items() if str(item["sk"]).startswith("APR#")]
    assert pointers == [f"APR#{approval}" for approval in approvals]
    assert len(approvals) == (1 if (fault, at) == (Fault.CRASH_AFTER, 2) else 0)


async def test_a_list_shows_the_newest_first_and_only_what_was_asked_for(calls: WaitingCalls) -> None:
    one, two = [await calls.put() for _ in range(2)]
    other = await calls.put(session=OTHER_SESSION)
    await calls.put(user=UserId("bob"))
    assert await listed(calls) == [other.id, two.id, one.id]
    assert await listed(calls, session=SESSION) == [two.id, one.id]
    assert await listed(calls, status=ApprovalStatus.EXECUTED) == []
    calls.now += DECIDE_SECONDS - 3  # each call is a second younger than the one before
    assert await listed(calls, status=ApprovalStatus.EXPIRED) == [one.id]
    assert await listed(calls, status=ApprovalStatus.PENDING) == [other.id, two.id]


async def test_a_list_is_paged_and_its_cursor_belongs_to_it(calls: WaitingCalls) -> None:
    approvals = [await calls.put(session=(SESSION, OTHER_SESSION)[number % 2]) for number in range(60)]
    expected = [approval.id for approval in reversed(approvals) if approval.session == SESSION]
    found, cursor = list[str](), None
    while True:
        page = await list_approvals(calls.store, ANA, calls.now, session=SESSION, cursor=cursor, limit=7)
        found += [view.id for view in page.approvals]
        cursor = page.next_cursor
        if cursor is None:
            break
        assert len(page.approvals) == 7
    assert found == expected
    page = await list_approvals(calls.store, ANA, calls.now, limit=7)
    for user, session in ((UserId("bob"), None), (ANA, SESSION)):
        with pytest.raises(InvalidRequest):
            await list_approvals(calls.store, user, calls.now, session=session, cursor=page.next_cursor, limit=7)


async def test_a_page_ends_at_four_mebibytes(calls: WaitingCalls) -> None:
    approvals = [await calls.put(rich=[{"kind": "diff", "unified": "x" * 128_000}]) for _ in range(40)]
    page = await list_approvals(calls.store, ANA, calls.now, limit=100)
    assert 20 < len(page.approvals) < 40
    rest = await list_approvals(calls.store, ANA, calls.now, cursor=page.next_cursor, limit=100)
    assert [view.id for view in [*page.approvals, *rest.approvals]] == [approval.id for approval in reversed(approvals)]
    assert len(page.to_json()) < 4 * 1024 * 1024


async def test_a_batch_leaves_out_approvals_that_do_not_exist(calls: WaitingCalls) -> None:
    one, two = [await calls.put() for _ in range(2)]
    assert await read_approvals(calls.store, ANA, [two.id, some_approval(), one.id]) == {one.id: one, two.id: two}


async def test_the_items_of_a_session_name_the_approvals_to_delete(calls: WaitingCalls) -> None:
    small, large = await calls.put(), await calls.put(effect=LARGE)
    kept = await calls.put(session=OTHER_SESSION)
    items = await calls.store.table.query(keys.session_partition(calls.store.tenant, SESSION))
    await delete_approvals(calls.store, ANA, items)
    await delete_approvals(calls.store, ANA, items)
    assert await read_approvals(calls.store, ANA, [small.id, large.id, kept.id]) == {kept.id: kept}
    assert calls.aws.bucket.keys == []
