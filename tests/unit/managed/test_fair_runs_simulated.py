"""Two tenants share the workers of runs: one with many runs, one with a single run, under hundreds of schedules.

A third of the many come from ticks. In half of the schedules the tenant is at its rate limit besides, so that its runs are put
back and come again.

The many get half of the workers. The single run begins at once, and before a second round of the others
whatever fails in their processes. In the end all runs are over, and no place is taken.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from spass.core.ids import TenantId
from spass.managed.records import RunStatus
from spass.testing.faults import FaultPlan
from tests.simulated.fair_runs import LONGEST_RUN, FairRuns
from tests.simulated.fair_world import HEAVY, LIGHT
from tests.simulated.schedule import MANY_FAULTS, Schedule, run_schedule
from tests.simulated.seeds import Record, run_seeds, seeded

WORKERS: Final = 6
RUNS: Final = 9
TICKS: Final = 3
AT_ONCE: Final = 1.0
"""Seconds in which a free worker begins a run. A run takes more."""


async def race(schedule: Schedule) -> FairRuns:
    """Let the one tenant ask for all its runs, and then the other one for its run."""
    world = FairRuns(schedule, WORKERS)
    has_faults, is_limited = schedule.seed % 2 == 1, schedule.seed % 4 >= 2
    if is_limited:
        world.limited.add(HEAVY)

    def process(tenant: TenantId) -> FaultPlan:
        return schedule.process(without_faults=tenant == LIGHT)

    workers = [asyncio.create_task(world.work(process)) for _ in range(WORKERS + 1)]
    if has_faults:
        schedule.fault_rates = MANY_FAULTS
    ticks = [world.tick(HEAVY) for _ in range(TICKS)]
    await asyncio.gather(*ticks, *(world.ask(HEAVY, process(HEAVY)) for _ in range(RUNS - TICKS)))
    await asyncio.sleep(0.5 + LONGEST_RUN * schedule.rng.random())
    alone = world.most[HEAVY]
    asked_at = schedule.now()
    await world.ask(LIGHT, process(LIGHT))
    while world.begun_at(LIGHT) is None:
        await asyncio.sleep(0.1)
    begun_at = world.begun_at(LIGHT)
    assert begun_at is not None
    between = [run for run in world.begun if run.tenant == HEAVY and asked_at <= run.at < begun_at]
    assert len(between) <= world.share, "each worker begins at most one of the others' runs before"
    if not has_faults:
        assert is_limited or alone == world.share, "a tenant gets its share"
        assert begun_at - asked_at <= AT_ONCE < LONGEST_RUN / 2
    await finish(world, workers)
    if not has_faults:
        assert [run.status for run in world.stored_runs(HEAVY)] == [RunStatus.SUCCEEDED] * RUNS
        assert len(world.begun) == RUNS + 1, "no run is executed twice"
    return world


async def finish(world: FairRuns, workers: Sequence[asyncio.Task[None]]) -> None:
    """Let the workers, the queue and the sweep end all runs."""
    for _ in range(12):
        await asyncio.sleep(1300)
        if not world.queue:
            await world.schedule.calm()
        await world.sweep()
        if not (world.queue or world.left() or world.open_runs()):
            break
    world.is_over = True
    await asyncio.gather(*workers)
    assert world.trespasses == []
    assert world.left() == []
    assert world.open_runs() == []


def run_race(seed: int) -> dict[str, int]:
    schedule = Schedule(seed)
    world = run_schedule(schedule, lambda: race(schedule))
    faults = sum(schedule.fault_counts.values())
    return {"faults": faults, "runs": len(world.begun), "put_backs": world.put_backs}


@seeded(30, in_soak=3000)
def test_one_tenants_runs_do_not_stop_those_of_another(seeds: Sequence[int], record_property: Record) -> None:
    counts = run_seeds(seeds, run_race, record_property)
    assert len(seeds) == 1 or (counts["faults"] > len(seeds) / 2 and counts["put_backs"] > len(seeds))


def test_a_run_of_another_tenant_begins_at_once_beside_a_thousand() -> None:
    schedule, workers, runs = Schedule(1), 16, 1000

    async def story() -> None:
        world = FairRuns(schedule, workers)
        tasks = [asyncio.create_task(world.work(lambda _: schedule.process(without_faults=True))) for _ in range(workers + 1)]
        for _ in range(runs // 50):
            await asyncio.gather(*(world.ask(HEAVY, schedule.process()) for _ in range(50)))
        assert len(world.stored_runs(HEAVY)) == runs
        assert world.most[HEAVY] == world.share, "a tenant gets its share"
        asked_at = schedule.now()
        await world.ask(LIGHT, schedule.process())
        while (begun_at := world.begun_at(LIGHT)) is None:
            await asyncio.sleep(0.1)
        assert begun_at - asked_at <= AT_ONCE
        assert world.trespasses == []
        world.is_over = True
        await asyncio.gather(*tasks)

    run_schedule(schedule, story)
