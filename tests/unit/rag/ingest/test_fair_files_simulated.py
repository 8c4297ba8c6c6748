"""Two tenants share the workers of files: one puts many files, one a single file, under hundreds of schedules.

The single file begins at once, and before a second round of the others whatever fails in their processes. In the end all files
are ingested, each once, and no place is taken. ``SPASS_SEED=7 pytest …`` runs one schedule only.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from spass.core.ids import TenantId
from spass.rag.ingest.upload_record import Status
from spass.testing.faults import FaultPlan
from tests.simulated.fair_files import LONGEST_FILE, FairFiles
from tests.simulated.fair_world import HEAVY, LIGHT, TENANTS
from tests.simulated.schedule import MANY_FAULTS, Schedule, run_schedule
from tests.simulated.seeds import Record, run_seeds, seeded

WORKERS: Final = 6
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
    assert len(between) <= world.share, "each worker begins at most one of the others' files before"
    if not has_faults:
        assert alone == world.share, "a tenant gets its share"
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


@seeded(40, in_soak=1000)
def test_one_tenants_files_do_not_stop_those_of_another(seeds: Sequence[int], record_property: Record) -> None:
    def race_of(seed: int) -> dict[str, int]:
        schedule = Schedule(seed)
        run_schedule(schedule, lambda: race(schedule))
        return {"faults": sum(schedule.fault_counts.values())}

    counts = run_seeds(seeds, race_of, record_property)
    assert len(seeds) == 1 or counts["faults"] > len(seeds) / 2


def test_a_file_of_another_tenant_begins_at_once_beside_hundreds() -> None:
    schedule, workers, files = Schedule(1), 16, 400

    async def story() -> None:
        world = FairFiles(schedule, workers)
        tasks = [asyncio.create_task(world.work(lambda _: schedule.process(without_faults=True))) for _ in range(workers + 1)]
        for number in range(files):
            world.put(HEAVY, f"books-{number}")
        await asyncio.sleep(60.0)
        assert world.most[HEAVY] == world.share, "a tenant gets its share"
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
