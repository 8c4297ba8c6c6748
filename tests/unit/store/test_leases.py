import asyncio

import pytest

from spass.store.leases import LeaseLost, renewing
from spass.testing.faults import Crash

pytestmark = pytest.mark.anyio


async def test_a_lease_is_renewed_only_while_the_work_runs() -> None:
    renewals = 0

    async def renew() -> None:
        nonlocal renewals
        renewals += 1

    async with renewing(renew, every=0.005):
        while renewals < 3:
            await asyncio.sleep(0.001)
    renewals_at_end = renewals
    await asyncio.sleep(0.02)
    assert renewals == renewals_at_end


async def test_work_stops_when_a_renewal_fails() -> None:
    async def renew() -> None:
        raise ValueError("another owner has the lease")

    with pytest.raises(LeaseLost):
        async with renewing(renew, every=0.001):
            await asyncio.sleep(5)
    await asyncio.sleep(0)  # the task must not stay cancelled
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_cancelling_the_work_raises_only_cancelled_error() -> None:
    async def renew() -> None:
        return

    async def work() -> None:
        async with renewing(renew, every=0.001):
            await asyncio.sleep(5)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_work_is_raised_unchanged() -> None:
    async def renew() -> None:
        return

    with pytest.raises(KeyError):
        async with renewing(renew):
            raise KeyError


async def test_a_crash_in_a_renewal_is_raised_unchanged() -> None:
    async def renew() -> None:
        raise Crash

    with pytest.raises(Crash):
        async with renewing(renew, every=0.001):
            await asyncio.sleep(5)
