"""Two tenants share the workers of files: one puts many files, one a single file, under hundreds of schedules.

The single file begins at once, and before a second round of the others whatever fails in their processes. In the end all files
are ingested, each once, and no place is taken. ``SPASS_SEED=7 pytest …`` runs one schedule only.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from spass.core.ids import TenantId
from spass.rag.ingest.upload_record import Status
from spass.testing.faults import FaultPlan
from tests.simulated.fair_files import LONGEST_FILE, FairFiles
from tests.simulated.fair_world import HEAVY, LIGHT, TENANTS
from tests.simulated.schedule import MANY_FAULTS, Schedule, run_schedule

SCHEDULES: Final = 1000 if os.environ.get("SPASS_SOAK") else 100
SEEDS_PER_TEST: Final = 50
SEEDS: Final = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else []
SEED_RANGES: Final = [SEEDS] if SEEDS else [range(start, start + SEEDS_PER_TEST) for start in range(0, SCHEDULES, SEEDS_PER_TEST)]
WORKERS: Final = 3
FILES: Final = 12
AT_ONCE: Final = 3.0
"""Seconds in which a free worker moves the messages before a file into the line, and begins the file. A file takes more."""


async def race(schedule: Schedule) -> FairFiles:
    """Let the one tenant put all its files, and then the other one its file."""
    world = FairFiles(schedule, WORKERS)
    has_faults = schedule.seed % 2 == 1

    def process(tenant: TenantId) -> FaultPlan:
        return schedule.process(without_faults=tenant == LIGHT)

    workers = [asyncio.create_task(world.work(process)) for _ in range(WORKERS + 1)]
    if has_faults:
        schedule.fault_rates = MANY_FAULTS
    for number in range(FILES):
        world.put(HEAVY, f"books-{number}")
    await asyncio.sleep(1.0 + LONGEST_FILE * schedule.rng.random())
    alone, asked_at = world.most[HEAVY], schedule.now()
    world.put(LIGHT, "books")
    while (begun_at := world.begun_at(LIGHT)) is None:
        await asyncio.sleep(0.1)
    between = [file for file in world.begun if file.tenant == HEAVY and asked_at <= file.at < begun_at]
    assert len(between) <= WORKERS, "each worker begins at most one of the others' files before"
    if not has_faults:
        assert alone == WORKERS, "a tenant alone gets all workers"
        assert begun_at - asked_at <= AT_ONCE < LONGEST_FILE / 2
    await finish(world, workers)
    return world


async def finish(world: FairFiles, workers: Sequence[asyncio.Task[None]]) -> None:
    """Let the workers, the queue and the sweep ingest all files."""
    for _ in range(20):
        await asyncio.sleep(1300)
        if not world.queue:
            await world.schedule.calm()
        await world.sweep()
        if not (world.queue or world.left()):
            break
    world.is_over = True
    await asyncio.gather(*workers)
    assert world.trespasses == []
    assert world.left() == []
    assert world.dead == []
    for tenant, files in zip(TENANTS, (FILES, 1), strict=True):
        ends = [(upload.status, upload.ingested) for upload in world.uploads(tenant)]
        assert ends == [(Status.SUCCEEDED, 1)] * files


@pytest.mark.parametrize("seeds", SEED_RANGES, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_one_tenants_files_do_not_stop_those_of_another(
    seeds: Sequence[int], record_property: Callable[[str, object], None]
) -> None:
    faults = 0
    for seed in seeds:
        schedule = Schedule(seed)
        try:
            run_schedule(schedule, lambda schedule=schedule: race(schedule))  # type: ignore[misc]
        except BaseException as error:
            error.add_note(f"SPASS_SEED={seed}")
            raise
        faults += sum(schedule.fault_counts.values())
    assert len(seeds) < SEEDS_PER_TEST or faults > len(seeds) / 2
    record_property("schedules", len(seeds))


def test_a_file_of_another_tenant_begins_at_once_beside_hundreds() -> None:
    schedule, workers, files = Schedule(1), 8, 400

    async def story() -> None:
        world = FairFiles(schedule, workers)
        tasks = [asyncio.create_task(world.work(lambda _: schedule.process(without_faults=True))) for _ in range(workers + 1)]
        for number in range(files):
            world.put(HEAVY, f"books-{number}")
        await asyncio.sleep(60.0)
        assert world.most[HEAVY] == workers, "a tenant alone gets all workers"
        asked_at = schedule.now()
        world.put(LIGHT, "books")
        while (begun_at := world.begun_at(LIGHT)) is None:
            await asyncio.sleep(0.1)
        assert begun_at - asked_at <= AT_ONCE
        assert world.trespasses == []
        world.is_over = True
        await asyncio.gather(*tasks)

    run_schedule(schedule, story)


def test_files_that_wait_for_a_rate_limit_hold_no_worker_and_end_later() -> None:
    schedule = Schedule(2)

    async def story() -> None:
        world = FairFiles(schedule, WORKERS)
        world.limited.add(HEAVY)
        workers = [asyncio.create_task(world.work(lambda _: schedule.process(without_faults=True))) for _ in range(WORKERS + 1)]
        for number in range(FILES):
            world.put(HEAVY, f"books-{number}")
        busy = 0
        for _ in range(1000):  # longer than five deliveries of a message take
            await asyncio.sleep(10.0)
            busy += world.busy
        assert busy < 50, "the workers were free nearly always"
        assert world.begun == []
        world.put(LIGHT, "books")
        await asyncio.sleep(2.0)
        assert world.begun_at(LIGHT) is not None, "a worker was free"
        world.limited.clear()
        await finish(world, workers)

    run_schedule(schedule, story)
