"""Test work in a separate task, and the readers of its events."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from spass.core.tasks import EventTask

pytestmark = pytest.mark.anyio


async def count(to: int, *, fail: bool = False) -> AsyncIterator[int]:
    for number in range(to):
        await asyncio.sleep(0)
        yield number
    if fail:
        raise ValueError("broken")


async def test_every_reader_sees_every_event_even_if_it_starts_late() -> None:
    running = EventTask(count(50))
    early = [event async for event in running.follow()]
    late = [event async for event in running.follow()]
    from_the_middle = [event async for event in running.follow(25)]
    assert early == late == list(range(50))
    assert from_the_middle == list(range(25, 50))


async def test_a_reader_that_stops_does_not_affect_the_work() -> None:
    running = EventTask(count(50))
    reader = running.follow()
    assert await anext(reader) == 0
    await reader.aclose()
    assert await running.result() == list(range(50))


async def test_cancelling_a_reader_does_not_cancel_the_work() -> None:
    running = EventTask(count(50))
    waiting = asyncio.create_task(running.result())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await running.result() == list(range(50))


async def test_a_failure_reaches_each_reader_after_the_last_event() -> None:
    running = EventTask(count(3, fail=True))
    for _ in range(2):
        seen = []
        with pytest.raises(ValueError, match="broken"):
            async for event in running.follow():
                seen.append(event)
        assert seen == [0, 1, 2]


async def test_a_failure_that_is_not_read_is_not_logged() -> None:
    running = EventTask(count(1, fail=True))
    await asyncio.sleep(0.01)
    assert running.events == [0]
