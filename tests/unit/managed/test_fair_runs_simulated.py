"""Two tenants share the workers of runs: one with many runs, one with a single run, under hundreds of schedules.

A third of the many come from ticks. In half of the schedules the tenant is at its rate limit besides, so that its runs are put
back and come again.

The many get all workers but one while they are alone. The single run begins at once, and before a second round of the others
whatever fails in their processes. In the end all runs are over, and no place is taken.
``SPASS_SEED=7 pytest …`` runs one schedule only.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from spass.core.ids import TenantId
from spass.managed.records import RunStatus
from spass.testing.faults import FaultPlan
from tests.simulated.fair_runs import HEAVY, LIGHT, LONGEST_RUN, FairRuns
from tests.simulated.schedule import MANY_FAULTS, Schedule, run_schedule

SCHEDULES: Final = 3000 if os.environ.get("SPASS_SOAK") else 300
SEEDS_PER_TEST: Final = 100
SEEDS: Final = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else []
SEED_RANGES: Final = [SEEDS] if SEEDS else [range(start, start + SEEDS_PER_TEST) for start in range(0, SCHEDULES, SEEDS_PER_TEST)]
WORKERS: Final = 3
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
    assert len(between) <= WORKERS, "each worker begins at most one of the others' runs before"
    if not has_faults:
        assert is_limited or alone == WORKERS, "a tenant alone gets all its workers"
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


@pytest.mark.parametrize("seeds", SEED_RANGES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_one_tenants_runs_do_not_stop_those_of_another(
    seeds: Sequence[int], record_property: Callable[[str, object], None]
) -> None:
    faults = runs = put_backs = 0
    for seed in seeds:
        schedule = Schedule(seed)
        try:
            world = run_schedule(schedule, lambda schedule=schedule: race(schedule))  # type: ignore[misc]
        except BaseException as error:
            error.add_note(f"SPASS_SEED={seed}")
            raise
        faults += sum(schedule.fault_counts.values())
        runs += len(world.begun)
        put_backs += world.put_backs
    assert len(seeds) < SEEDS_PER_TEST or (faults > len(seeds) / 2 and put_backs > len(seeds))
    record_property("schedules", len(seeds))
    record_property("runs", runs)
    record_property("put_backs", put_backs)


def test_a_run_of_another_tenant_begins_at_once_beside_a_thousand() -> None:
    schedule, workers, runs = Schedule(1), 8, 1000

    async def story() -> None:
        world = FairRuns(schedule, workers)
        tasks = [asyncio.create_task(world.work(lambda _: schedule.process(without_faults=True))) for _ in range(workers + 1)]
        for _ in range(runs // 50):
            await asyncio.gather(*(world.ask(HEAVY, schedule.process()) for _ in range(50)))
        assert len(world.stored_runs(HEAVY)) == runs
        assert world.most[HEAVY] == workers, "a tenant alone gets all workers"
        asked_at = schedule.now()
        await world.ask(LIGHT, schedule.process())
        while (begun_at := world.begun_at(LIGHT)) is None:
            await asyncio.sleep(0.1)
        assert begun_at - asked_at <= AT_ONCE
        assert world.trespasses == []
        world.is_over = True
        await asyncio.gather(*tasks)

    run_schedule(schedule, story)
