"""The places of a tenant's turns and followers: their bound over all workers, and when a place is free again."""

import asyncio
from dataclasses import dataclass

import pytest

from spass.core.errors import RateLimited
from spass.core.ids import TenantId
from spass.limits.places import PlaceKind, Places
from spass.store.leases import RENEW_SECONDS
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject

pytestmark = pytest.mark.anyio

ALLOWED = 3
ACME, OTHER = TenantId("acme"), TenantId("other")
KINDS: tuple[PlaceKind, ...] = ("turns", "followers")
SECONDS = range(6)
"""Moments of one step of leases, which all end at one of a few seconds."""


@dataclass
class Workers:
    """Workers that share a table and a clock. A tenant has ``allowed`` places of each kind."""

    aws: MemoryAws
    allowed: int = ALLOWED
    now: float = 1_800_000_000.0

    def new_worker(self) -> Places:
        return Places(lambda *_: self.allowed, clock=lambda: self.now)


@pytest.fixture
def workers() -> Workers:
    return Workers(MemoryAws())


@pytest.mark.parametrize("kind", KINDS)
async def test_the_places_of_a_tenant_are_bounded_over_all_workers(workers: Workers, kind: PlaceKind) -> None:
    store = workers.aws.for_tenant(ACME)
    places = [await workers.new_worker().take(store, kind) for _ in range(ALLOWED)]
    with pytest.raises(RateLimited) as refused:
        await workers.new_worker().take(store, kind)
    assert refused.value.details == {"of": "tenant", "limit": kind, "in_use": ALLOWED, "allowed": ALLOWED}
    assert refused.value.retry_after == 1
    await workers.new_worker().take(workers.aws.for_tenant(OTHER), kind)
    await workers.new_worker().take(store, "followers" if kind == "turns" else "turns")
    await places[0].settle(tokens=0)
    await workers.new_worker().take(store, kind)


@pytest.mark.parametrize("second", SECONDS)
async def test_the_place_of_a_dead_worker_is_free_within_a_minute(workers: Workers, second: int) -> None:
    workers.now += second
    store = workers.aws.for_tenant(ACME)
    for _ in range(ALLOWED):
        await workers.new_worker().take(store, "turns")
    workers.now += 10
    with pytest.raises(RateLimited):
        await workers.new_worker().take(store, "turns")
    workers.now += 50
    await workers.new_worker().take(store, "turns")


@pytest.mark.parametrize("second", SECONDS)
async def test_a_worker_whose_clock_is_ahead_takes_no_place_of_a_live_one(workers: Workers, second: int) -> None:
    workers.now += second
    store = workers.aws.for_tenant(ACME)
    for _ in range(ALLOWED):
        await workers.new_worker().take(store, "turns")
    workers.now += RENEW_SECONDS + 30  # the first renewal is due, and the clock is 30 seconds ahead
    with pytest.raises(RateLimited):
        await workers.new_worker().take(store, "turns")


async def test_a_place_needs_one_write_at_its_start_and_one_at_its_end(workers: Workers) -> None:
    store, worker = workers.aws.for_tenant(ACME), workers.new_worker()
    await (await worker.take(store, "turns")).settle(tokens=0)  # a new worker does not know whether the item exists
    with inject(FaultPlan()) as plan:
        await (await worker.take(store, "turns")).settle(tokens=0)
    assert [call.operation for call in plan.calls] == ["UpdateItem", "UpdateItem"]


@pytest.mark.parametrize("allowed", [1, 50, 1000])
async def test_a_refusal_needs_one_call_of_the_table(workers: Workers, allowed: int) -> None:
    workers.allowed = allowed
    store, worker = workers.aws.for_tenant(ACME), workers.new_worker()
    for _ in range(allowed):
        await worker.take(store, "turns")
    for place in (worker, workers.new_worker()):
        with inject(FaultPlan()) as plan, pytest.raises(RateLimited) as refused:
            await place.take(store, "turns")
        assert len(plan.calls) == 1
        assert refused.value.details["in_use"] == allowed


@pytest.mark.parametrize("steps", range(1, 12))
async def test_a_request_that_is_cancelled_at_any_moment_returns_its_place(workers: Workers, steps: int) -> None:
    store, worker = workers.aws.for_tenant(ACME), workers.new_worker()

    async def request() -> None:
        place = await worker.take(store, "turns")
        await place.settle(tokens=0)

    for _ in range(ALLOWED + 1):
        turn = asyncio.create_task(request())
        for _ in range(steps):
            await asyncio.sleep(0)
        turn.cancel()
        await asyncio.wait({turn})
    for _ in range(ALLOWED):
        await workers.new_worker().take(store, "turns")
