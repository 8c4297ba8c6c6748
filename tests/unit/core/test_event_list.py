"""Test a list of events whose writer ends it."""

import asyncio

import pytest

from spass.core.tasks import EventList

pytestmark = pytest.mark.anyio


async def read(events: EventList[int], start: int = 0) -> list[int]:
    return [event async for event in events.follow(start)]


async def test_readers_see_events_as_they_arrive_until_the_list_ends() -> None:
    events = EventList[int]()
    early = asyncio.create_task(read(events))
    for number in range(3):
        events.append(number)
        await asyncio.sleep(0)
    events.end()
    assert await early == await read(events) == [0, 1, 2]
    assert await read(events, 2) == [2]
    assert await events.result() == [0, 1, 2]


async def test_the_error_of_the_end_follows_the_last_event() -> None:
    events = EventList[int]()
    events.append(1)
    events.end(ValueError("broken"))
    events.end()
    reader = events.follow()
    assert await anext(reader) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(reader)
    with pytest.raises(RuntimeError, match="ended"):
        events.append(2)


async def test_a_wait_returns_at_the_event_at_the_end_or_after_its_time() -> None:
    events = EventList[int]()
    assert not await events.wait_for_event(1, 0.01)
    second = asyncio.create_task(events.wait_for_event(1))
    events.append(0)
    await asyncio.sleep(0.01)
    assert not second.done()
    events.append(1)
    assert await second
    third = asyncio.create_task(events.wait_for_event(2, 5))
    await asyncio.sleep(0)
    assert not events.has_ended
    events.end()
    assert await third
    assert events.has_ended


async def test_a_condition_is_checked_after_each_event_until_the_list_ends() -> None:
    events = EventList[int]()
    large = asyncio.create_task(events.wait_until(lambda: sum(events.events) > 5))
    never = asyncio.create_task(events.wait_until(lambda: False))
    for number in (2, 3):
        events.append(number)
        await asyncio.sleep(0)
        assert not large.done()
    events.append(4)
    assert await large
    assert not await events.wait_until(lambda: False, 0.01)
    events.end()
    assert await never
