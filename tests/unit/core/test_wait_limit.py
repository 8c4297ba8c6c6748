"""Limit the time of waits, without a timer for each."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from spass.core.wait_limit import WaitLimit

pytestmark = pytest.mark.anyio

LONG = 60.0
SHORT = 0.02


@pytest.fixture
async def limit() -> AsyncGenerator[WaitLimit, None]:
    limit = WaitLimit()
    yield limit
    limit.close()


async def never() -> None:
    await asyncio.Event().wait()


async def at_once(value: int) -> int:
    return value


async def test_a_wait_that_ends_in_time_returns_its_result(limit: WaitLimit) -> None:
    assert [await limit.wait(at_once(number), LONG) for number in range(3)] == [0, 1, 2]


async def test_a_wait_ends_at_its_limit_also_after_others_that_ended_early(limit: WaitLimit) -> None:
    for _ in range(3):
        await limit.wait(at_once(1), SHORT)
        await asyncio.sleep(SHORT)  # no limit applies between two waits
        with pytest.raises(TimeoutError):
            await limit.wait(never(), SHORT)


async def test_a_wait_that_began_later_has_all_of_its_time(limit: WaitLimit) -> None:
    await limit.wait(at_once(1), SHORT)
    await asyncio.sleep(SHORT / 2)
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await limit.wait(never(), SHORT)
    assert asyncio.get_running_loop().time() - began >= SHORT * 0.9


async def test_a_cancellation_is_not_taken_for_the_limit(limit: WaitLimit) -> None:
    waiting = asyncio.ensure_future(limit.wait(never(), LONG))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_task_is_not_cancelled_after_its_limit_expired(limit: WaitLimit) -> None:
    with pytest.raises(TimeoutError):
        await limit.wait(never(), SHORT)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert await limit.wait(at_once(1), LONG) == 1


async def test_an_outer_limit_applies_first(limit: WaitLimit) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SHORT):
            await limit.wait(never(), LONG)


async def test_a_wait_that_ignores_its_cancellation_leaves_the_task_uncancelled(limit: WaitLimit) -> None:
    async def stubborn() -> int:
        try:
            await never()
        except asyncio.CancelledError:
            return 1
        return 0

    assert await limit.wait(stubborn(), SHORT) == 1
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_wait_after_the_end_has_a_limit_too(limit: WaitLimit) -> None:
    await limit.wait(at_once(1), SHORT)
    limit.close()
    waiting = asyncio.ensure_future(limit.wait(never(), SHORT))
    ended, _ = await asyncio.wait({waiting}, timeout=5)
    waiting.cancel()
    assert ended
    assert isinstance(waiting.exception(), TimeoutError)
