"""What happens to calls in a simulated world happens as it is said to, and a seed tells the same story each time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import pytest

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.keys import Key
from spass.aws.writes import Put, Update
from spass.core.errors import StorageUnavailable
from spass.core.ids import AgentName, TenantId, UserId, new_id
from spass.core.time import now
from spass.sessions.session import CreateSession
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, inject
from tests.simulated.gateway import Gateway
from tests.simulated.schedule import MANY_FAULTS, NO_FAULTS, CallFault, FaultRates, Process, Schedule, run_schedule

TENANT: Final = TenantId("demo")
COUNTER: Final = Key(keys.user_sessions_partition(TENANT, UserId("ana"), AgentName("librarian")), "COUNTER")
COUNTED: Final = Update(COUNTER, add={"hits": 1})


class Counter:
    """A number in the table, and processes that add to it; ``certain`` happens to each of their calls."""

    def __init__(self, certain: CallFault | None = None) -> None:
        self.schedule = Schedule(1, FaultRates({certain: 1.0}) if certain else NO_FAULTS)
        self.store: TenantStore = MemoryAws(clock=self.schedule.now).for_tenant(TENANT)

    async def add(self, process: Process | None = None) -> None:
        with inject(process or self.schedule.process()):
            await self.store.table.write(COUNTED)

    async def hits(self) -> object:
        item = await self.store.table.get(COUNTER)
        return item["hits"] if item else 0

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def told() -> None:
            await story()

        run_schedule(self.schedule, told)


@pytest.mark.parametrize(
    ("fault", "heard", "at_once", "in_the_end"),
    [
        (None, None, 1, 1),
        (CallFault.CRASH_BEFORE, Crash, 0, 0),
        (CallFault.CRASH_AFTER, Crash, 1, 1),
        (CallFault.THROTTLE, StorageUnavailable, 0, 0),  # at the retry too, like every fault
        (CallFault.LOST_REPLY, StorageUnavailable, 2, 2),
        (CallFault.LATE, StorageUnavailable, 0, 2),
        (CallFault.REPEATED, None, 2, 2),
        (CallFault.GHOST, None, 1, 2),
        (CallFault.CONFLICT, StorageUnavailable, 0, 0),  # at each of eight tries
        (CallFault.PAUSE, None, 1, 1),
    ],
)
def test_each_mishap_has_its_effect(
    fault: CallFault | None, heard: type[BaseException] | None, at_once: int, in_the_end: int
) -> None:
    counter = Counter(fault)

    async def story() -> None:
        if heard is None:
            await counter.add()
        else:
            with pytest.raises(heard):
                await counter.add()
        assert await counter.hits() == at_once
        await counter.schedule.calm()
        assert await counter.hits() == in_the_end

    counter.play(story)


def test_a_process_that_has_crashed_has_no_effect_any_more() -> None:
    counter = Counter(CallFault.CRASH_AFTER)

    async def story() -> None:
        process = counter.schedule.process()
        for _ in range(3):
            with pytest.raises(Crash):
                await counter.add(process)
        assert await counter.hits() == 1

    counter.play(story)


def test_a_process_that_stands_still_begins_and_ends_no_call_while_another_goes_on() -> None:
    counter = Counter()

    async def story() -> None:
        still, began = counter.schedule.process(), counter.schedule.now()
        still.paused_until = asyncio.get_running_loop().time() + 100
        ended: list[float] = []

        async def add(process: Process) -> None:
            await counter.add(process)
            ended.append(counter.schedule.now() - began)

        await asyncio.gather(add(still), add(still), add(counter.schedule.process()))
        assert [moment >= 100 for moment in ended] == [False, True, True]

    counter.play(story)


def test_a_call_whose_caller_is_cancelled_is_seen_to_its_end() -> None:
    counter = Counter()

    async def story() -> None:
        call = asyncio.create_task(counter.add())
        await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        assert call.cancelled()
        assert await counter.hits() == 1

    counter.play(story)


def test_a_conflict_is_tried_again_and_nobody_hears_of_it() -> None:
    counter = Counter()
    counter.schedule.fault_rates = FaultRates({CallFault.CONFLICT: 0.5})

    async def story() -> None:
        process = counter.schedule.process()
        with inject(process):
            for number in range(20):
                item = Key(COUNTER.pk, f"{number}")
                await counter.store.table.transact([COUNTED, Put(item, {})], token=f"{number}")
        assert await counter.hits() == 20
        assert counter.schedule.fault_counts[CallFault.CONFLICT] > 5

    counter.play(story)


def test_tasks_that_wait_without_a_timer_raise_a_deadlock() -> None:
    counter = Counter()

    async def story() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="deadlock"):
        counter.play(story)


def test_the_library_sees_the_schedules_clock_and_chance() -> None:
    async def story() -> tuple[str, str]:
        await asyncio.sleep(90)
        return now(), new_id("ses")

    first, again = run_schedule(Schedule(1), story), run_schedule(Schedule(1), story)
    assert first == again
    assert first[0] == "2027-01-15T08:01:30.000Z"
    assert first[1] != run_schedule(Schedule(2), story)[1]


def told(seed: int) -> tuple[Any, ...]:
    """Everything that is left of some questions asked in a storm."""
    schedule = Schedule(seed, MANY_FAULTS)
    gateway = Gateway(schedule)

    async def story() -> None:
        session = await gateway.create(CreateSession(compact_strategy="auto", compact_keep_last_n=3))
        questions = (f"question {number}" for number in range(15))
        await asyncio.gather(*(gateway.send(session, question, question) for question in questions))
        await schedule.calm()

    run_schedule(schedule, story)
    items = sorted(gateway.aws.table.items(), key=lambda item: (str(item["pk"]), str(item["sk"])))
    return items, gateway.log, schedule.calls, schedule.fault_counts


def test_a_seed_tells_the_same_story_again() -> None:
    first = told(7)
    assert first == told(7)
    assert first[0] != told(8)[0]
    assert sum(first[3].values()) > 5
