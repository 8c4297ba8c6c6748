"""The clients of a tenant that follow streams: their bound over all workers, and when a place is free again."""

from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from spass.core.errors import RateLimited
from spass.core.ids import TenantId
from spass.limits.followers import Followers
from spass.store.leases import LEASE_SECONDS
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject

pytestmark = pytest.mark.anyio

ALLOWED = 3
ACME, OTHER = TenantId("acme"), TenantId("other")


@dataclass
class Workers:
    """Workers that share a table and a clock."""

    aws: MemoryAws
    now: float = 1_800_000_000.0

    def new_worker(self) -> Followers:
        return Followers(ALLOWED, clock=lambda: self.now)


@pytest.fixture
def workers() -> Workers:
    return Workers(MemoryAws())


async def test_the_places_of_a_tenant_are_bounded_over_all_workers(workers: Workers) -> None:
    store = workers.aws.for_tenant(ACME)
    async with AsyncExitStack() as places:
        for _ in range(ALLOWED):
            await places.enter_async_context(workers.new_worker().place(store))
        with pytest.raises(RateLimited) as refused:
            await places.enter_async_context(workers.new_worker().place(store))
        assert refused.value.details == {"of": "tenant", "limit": "followers", "in_use": ALLOWED, "allowed": ALLOWED}
        assert refused.value.retry_after is not None
        assert 0 < refused.value.retry_after <= 1
        await places.enter_async_context(workers.new_worker().place(workers.aws.for_tenant(OTHER)))
    async with workers.new_worker().place(store):
        pass


async def test_a_place_is_free_after_a_failure(workers: Workers) -> None:
    store, worker = workers.aws.for_tenant(ACME), workers.new_worker()
    for _ in range(ALLOWED + 1):
        with pytest.raises(ValueError, match="broken"):
            async with worker.place(store):
                raise ValueError("broken")


async def test_the_places_of_a_dead_worker_are_free_after_its_leases(workers: Workers) -> None:
    store = workers.aws.for_tenant(ACME)
    abandoned = [workers.new_worker().place(store) for _ in range(ALLOWED)]
    for place in abandoned:
        await place.__aenter__()
    workers.now += 10
    with pytest.raises(RateLimited):
        await workers.new_worker().place(store).__aenter__()
    workers.now += 2 * LEASE_SECONDS
    async with workers.new_worker().place(store):
        pass


async def test_a_place_needs_one_write_at_its_start_and_one_at_its_end(workers: Workers) -> None:
    store, worker = workers.aws.for_tenant(ACME), workers.new_worker()
    async with worker.place(store):  # a new worker does not know whether the item exists
        pass
    with inject(FaultPlan()) as plan:
        async with worker.place(store):
            pass
    assert [call.operation for call in plan.calls] == ["UpdateItem", "UpdateItem"]
