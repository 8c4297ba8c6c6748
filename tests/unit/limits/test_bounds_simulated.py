"""Requests of 20 tenants begin, end and die at random, on workers whose clocks differ by up to 30 seconds, under many schedules.

No tenant ever has more requests in progress than its bound, and a minute after the last death each tenant has all its places.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from spass.core.errors import RateLimited
from spass.core.ids import TenantId
from spass.limits.places import Places
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject
from tests.simulated.schedule import NO_FAULTS, Schedule, run_schedule
from tests.simulated.seeds import Record, run_seeds, seeded

TENANTS: Final = tuple(TenantId(f"tenant-{number}") for number in range(20))
CLIENTS: Final = 5
REQUESTS: Final = 4
WORKERS: Final = 4
FASTEST: Final = 15.0
"""Seconds by which the clock of a worker is fast or slow at most."""
LEASE: Final = 60.0
LATENCY: Final = 1.0


class World:
    """The workers, and what each tenant has in progress."""

    def __init__(self, schedule: Schedule) -> None:
        schedule.fault_rates = NO_FAULTS
        self.schedule = schedule
        self.aws = MemoryAws(clock=schedule.now)
        self.allowed = {tenant: schedule.rng.randint(1, CLIENTS - 1) for tenant in TENANTS}
        self.workers = [self.worker(schedule.rng.uniform(-FASTEST, FASTEST)) for _ in range(WORKERS)]
        self.live: Counter[TenantId] = Counter()
        self.counts: Counter[str] = Counter()

    def worker(self, shift: float) -> Places:
        return Places(lambda tenant, _: self.allowed[tenant], clock=lambda: self.schedule.now() + shift)

    async def client(self, tenant: TenantId) -> None:
        """Send some requests one after the other. Some of them die: their processes do nothing more."""
        rng = self.schedule.rng
        for _ in range(REQUESTS):
            await asyncio.sleep(rng.uniform(0, 60))
            with inject(self.schedule.process(without_faults=True)) as plan:
                await self.request(tenant, plan, rng.choice(self.workers))

    async def request(self, tenant: TenantId, plan: FaultPlan, worker: Places) -> None:
        try:
            place = await worker.take(self.aws.for_tenant(tenant), "turns")
        except RateLimited:
            self.counts["refused"] += 1
            return
        self.counts["begun"] += 1
        self.live[tenant] += 1
        assert self.live[tenant] <= self.allowed[tenant], "more requests are in progress than the bound"
        await asyncio.sleep(self.schedule.rng.uniform(0, 150))
        self.live[tenant] -= 1
        if self.schedule.rng.random() < 0.3:
            self.counts["dead"] += 1
            plan.crashed = True
        else:
            await place.settle(tokens=0)

    async def check_nothing_is_lost(self) -> None:
        """Check with each worker that each tenant has all its places, a minute after the last death by any clock."""
        await asyncio.sleep(LEASE + 2 * FASTEST + LATENCY)
        for worker in self.workers:
            for tenant in TENANTS:
                places = [await worker.take(self.aws.for_tenant(tenant), "turns") for _ in range(self.allowed[tenant])]
                for place in places:
                    await place.settle(tokens=0)


async def story(schedule: Schedule) -> Counter[str]:
    world = World(schedule)
    await asyncio.gather(*(world.client(tenant) for tenant in TENANTS for _ in range(CLIENTS)))
    await world.check_nothing_is_lost()
    return world.counts


def run_world(seed: int) -> Counter[str]:
    schedule = Schedule(seed)
    return run_schedule(schedule, partial(story, schedule))


@seeded(6, in_soak=600)
def test_no_tenant_exceeds_its_bound_and_no_place_is_lost(seeds: Sequence[int], record_property: Record) -> None:
    counts = run_seeds(seeds, run_world, record_property)
    assert counts["refused"] > counts["dead"] > len(seeds) * 20
