"""Test one limit with concurrent calls on an emulated table. The wall clock is simulated, so that the numbers are exact."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial

import pytest

from spass.aws.clients import Aws
from spass.core.errors import StorageUnavailable
from spass.limits.shard import Reservation
from spass.limits.shard_state import Caps, NoCapacity
from spass.limits.shared_limit import SharedLimit
from spass.store.keys import backend_limit
from spass.testing.faults import Crash, Fault, FaultPlan, inject

pytestmark = pytest.mark.anyio

WORKERS = 8
CALLS = 200


class LimitHarness:
    """Workers that share one limit. Each test has its own limit."""

    def __init__(self, aws: Aws, caps: Caps) -> None:
        self.time = 1_800_000_000.0
        self.aws = aws
        self.caps = caps
        self.backend = f"b-{secrets.token_hex(6)}"
        self.workers = [self.new_worker() for _ in range(WORKERS)]

    def new_worker(self) -> SharedLimit:
        return SharedLimit(self.aws.shared, partial(backend_limit, self.backend), self.caps, clock=lambda: self.time)

    async def reserve(self, number: int, tokens: int = 0, usd: Decimal = Decimal(0)) -> Reservation | NoCapacity:
        return await self.workers[number % WORKERS].reserve(f"call-{number}", tokens=tokens, usd=usd)


async def test_200_concurrent_calls_never_exceed_the_tokens_of_any_minute(aws: Aws) -> None:
    harness = LimitHarness(aws, Caps(tokens_per_minute=4000))
    tokens_at: Counter[float] = Counter()
    waiting = list(range(CALLS))
    while waiting:
        answers = await asyncio.gather(*[harness.reserve(number, 50) for number in waiting])
        admitted = [(number, answer) for number, answer in zip(waiting, answers, strict=True) if isinstance(answer, Reservation)]
        refusals = [answer for answer in answers if isinstance(answer, NoCapacity)]
        tokens_at[harness.time] += 50 * len(admitted)
        assert (
            tokens_at[harness.time] + sum(tokens_at[before] for before in tokens_at if harness.time - 60 < before < harness.time)
            <= 4000
        )
        await asyncio.gather(*[reservation.settle(tokens=30 + number % 21) for number, reservation in admitted])
        tokens_at[harness.time] += sum(number % 21 - 20 for number, _ in admitted)
        assert admitted, "every refusal must state a time at which there is capacity"
        waiting = [number for number in waiting if number not in dict(admitted)]
        if refusals:
            assert min(answer.retry_after for answer in refusals) > 0
            harness.time += 5
            if sum(tokens_at[before] for before in tokens_at if harness.time - 60 < before) > 3950:
                harness.time += min(answer.retry_after for answer in refusals)
    assert sum(tokens_at.values()) == sum(30 + number % 21 for number in range(CALLS))


async def test_concurrent_calls_and_cost_stay_within_their_limits(aws: Aws) -> None:
    harness = LimitHarness(aws, Caps(None, 7, Decimal("1.00")))
    running, max_running, spent = 0, 0, Decimal(0)

    async def call(number: int) -> None:
        nonlocal running, max_running, spent
        while True:
            answer = await harness.reserve(number, usd=Decimal("0.03"))
            if isinstance(answer, Reservation):
                break
            if answer.by == "budget":
                return
            await asyncio.sleep(0.05)
        running += 1
        max_running = max(max_running, running)
        await asyncio.sleep(0.01)
        running -= 1
        spent += Decimal("0.02")
        await answer.settle(tokens=0, usd=Decimal("0.02"))

    await asyncio.gather(*[call(number) for number in range(60)])
    assert max_running <= 7
    assert Decimal("0.8") < spent <= 1
    assert await harness.new_worker().count_in_flight() == 0


async def run_call(harness: LimitHarness, limit: SharedLimit) -> None:
    """Reserve, renew and settle one call."""
    reservation = await limit.reserve("one", tokens=600, usd=Decimal("0.6"))
    assert isinstance(reservation, Reservation)
    harness.time += 20
    await reservation.renew()
    await reservation.settle(tokens=500, usd=Decimal("0.5"))


async def outcome(work: Callable[[], Awaitable[None]]) -> type[BaseException] | None:
    """Await ``work``. Return the type of its injected failure, or None if it succeeded."""
    try:
        await work()
    except (Crash, StorageUnavailable) as failure:
        return type(failure)
    return None


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("at", range(4))
async def test_all_capacity_is_free_after_a_fault_of_any_table_call(aws: Aws, fault: Fault, at: int) -> None:
    harness = LimitHarness(aws, Caps(1000, 1, Decimal(1)))
    limit = harness.workers[0]
    with inject(FaultPlan(fault, at)):
        await outcome(partial(run_call, harness, limit))
    spent = Decimal(str((await aws.shared.get(backend_limit(harness.backend, 0)) or {}).get("spent", 0)))
    assert spent in (Decimal(0), Decimal("0.5"), Decimal("0.6")), "the call must not be counted twice"
    harness.time += 60 + 66
    assert isinstance(await harness.new_worker().reserve("two", tokens=1000, usd=1 - spent), Reservation)


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED, Fault.THROTTLE, Fault.TIMEOUT])
@pytest.mark.parametrize("at", range(4))
async def test_a_call_that_survives_a_fault_is_counted_once(aws: Aws, fault: Fault, at: int) -> None:
    harness = LimitHarness(aws, Caps(1000, 2, Decimal(1)))
    with inject(FaultPlan(fault, at)), suppress(StorageUnavailable):
        await run_call(harness, harness.workers[0])
    assert isinstance(await harness.new_worker().reserve("two", tokens=500, usd=Decimal("0.5")), Reservation)
    assert isinstance(await harness.new_worker().reserve("three", tokens=1, usd=Decimal("0.01")), NoCapacity)
