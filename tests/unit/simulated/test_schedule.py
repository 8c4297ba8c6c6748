"""The simulated schedule: each fault has its documented effect, and a seed always gives the same run."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import pytest

from spass.core.errors import StorageUnavailable
from spass.core.ids import AgentName, TenantId, UserId, new_id
from spass.core.time import now
from spass.sessions.session import CreateSession
from spass.store import keys
from spass.store.keys import Key
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put, Update
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, inject
from tests.simulated.gateway import Gateway
from tests.simulated.schedule import MANY_FAULTS, NO_FAULTS, CallFault, FaultRates, Process, Schedule, run_schedule

TENANT: Final = TenantId("demo")
COUNTER: Final = Key(keys.user_sessions_partition(TENANT, UserId("ana"), AgentName("librarian")), "COUNTER")
COUNTED: Final = Update(COUNTER, add={"hits": 1})


class Counter:
    """A number in the table, and processes that add to it. Each of their calls has the fault ``certain``."""

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
        async def run_story() -> None:
            await story()

        run_schedule(self.schedule, run_story)


@pytest.mark.parametrize(
    ("fault", "error", "hits_after_call", "hits_at_end"),
    [
        (None, None, 1, 1),
        (CallFault.CRASH_BEFORE, Crash, 0, 0),
        (CallFault.CRASH_AFTER, Crash, 1, 1),
        (CallFault.THROTTLE, StorageUnavailable, 0, 0),  # the retry has the fault, too
        (CallFault.LOST_REPLY, StorageUnavailable, 2, 2),
        (CallFault.LATE, StorageUnavailable, 0, 2),
        (CallFault.REPEATED, None, 2, 2),
        (CallFault.GHOST, None, 1, 2),
        (CallFault.CONFLICT, StorageUnavailable, 0, 0),  # at each of eight attempts
        (CallFault.PAUSE, None, 1, 1),
    ],
)
def test_each_fault_has_its_effect(
    fault: CallFault | None, error: type[BaseException] | None, hits_after_call: int, hits_at_end: int
) -> None:
    counter = Counter(fault)

    async def story() -> None:
        if error is None:
            await counter.add()
        else:
            with pytest.raises(error):
                await counter.add()
        assert await counter.hits() == hits_after_call
        await counter.schedule.calm()
        assert await counter.hits() == hits_at_end

    counter.play(story)


def test_a_crashed_process_has_no_further_effect() -> None:
    counter = Counter(CallFault.CRASH_AFTER)

    async def story() -> None:
        process = counter.schedule.process()
        for _ in range(3):
            with pytest.raises(Crash):
                await counter.add(process)
        assert await counter.hits() == 1

    counter.play(story)


def test_calls_of_a_paused_process_wait_while_another_process_continues() -> None:
    counter = Counter()

    async def story() -> None:
        paused, start = counter.schedule.process(), counter.schedule.now()
        paused.paused_until = asyncio.get_running_loop().time() + 100
        durations: list[float] = []

        async def add(process: Process) -> None:
            await counter.add(process)
            durations.append(counter.schedule.now() - start)

        await asyncio.gather(add(paused), add(paused), add(counter.schedule.process()))
        assert [duration >= 100 for duration in durations] == [False, True, True]

    counter.play(story)


def test_a_call_continues_after_its_caller_is_cancelled() -> None:
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


def test_conflicts_are_retried_without_an_error() -> None:
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


def test_the_library_uses_the_clock_and_randomness_of_the_schedule() -> None:
    async def story() -> tuple[str, str]:
        await asyncio.sleep(90)
        return now(), new_id("ses")

    first, second = run_schedule(Schedule(1), story), run_schedule(Schedule(1), story)
    assert first == second
    assert first[0] == "2027-01-15T08:01:30.000Z"
    assert first[1] != run_schedule(Schedule(2), story)[1]


def run_questions(seed: int) -> tuple[Any, ...]:
    """Send questions under many faults. Return the stored items, the log, and the counts of calls and faults."""
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


def test_a_seed_always_gives_the_same_run() -> None:
    first = run_questions(4)
    assert first == run_questions(4)
    assert first[0] != run_questions(8)[0]
    assert sum(first[3].values()) > 5
