"""One limit under calls that are really made at once, on an emulated table. The wall clock is the test's own, so that the numbers
are exact."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial

import pytest

from spass.aws.clients import Aws
from spass.aws.keys import backend_limit
from spass.core.errors import StorageUnavailable
from spass.limits.shard import Reservation
from spass.limits.shard_state import Caps, NoCapacity
from spass.limits.shared_limit import SharedLimit
from spass.testing.faults import Crash, Fault, FaultPlan, inject

pytestmark = pytest.mark.anyio

WORKERS = 8
CALLS = 200


class LimitHarness:
    """Workers on one limit that no other test has."""

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


async def test_200_parallel_calls_never_take_more_than_the_limit_in_any_minute(aws: Aws) -> None:
    harness = LimitHarness(aws, Caps(tokens_per_minute=4000))
    took: Counter[float] = Counter()
    left = list(range(CALLS))
    while left:
        answers = await asyncio.gather(*[harness.reserve(number, 50) for number in left])
        let_in = [(number, answer) for number, answer in zip(left, answers, strict=True) if isinstance(answer, Reservation)]
        full = [answer for answer in answers if isinstance(answer, NoCapacity)]
        took[harness.time] += 50 * len(let_in)
        assert took[harness.time] + sum(took[before] for before in took if harness.time - 60 < before < harness.time) <= 4000
        await asyncio.gather(*[hold.settle(tokens=30 + number % 21) for number, hold in let_in])
        took[harness.time] += sum(number % 21 - 20 for number, _ in let_in)
        assert let_in, "a moment at which there was to be room"
        left = [number for number in left if number not in dict(let_in)]
        if full:
            assert min(answer.retry_after for answer in full) > 0
            harness.time += 5
            if sum(took[before] for before in took if harness.time - 60 < before) > 3950:
                harness.time += min(answer.retry_after for answer in full)
    assert sum(took.values()) == sum(30 + number % 21 for number in range(CALLS))


async def test_calls_at_once_and_money_stay_within_their_limits_too(aws: Aws) -> None:
    harness = LimitHarness(aws, Caps(None, 7, Decimal("1.00")))
    running, most, spent = 0, 0, Decimal(0)

    async def call(number: int) -> None:
        nonlocal running, most, spent
        while True:
            answer = await harness.reserve(number, usd=Decimal("0.03"))
            if isinstance(answer, Reservation):
                break
            if answer.by == "budget":
                return
            await asyncio.sleep(0.05)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        spent += Decimal("0.02")
        await answer.settle(tokens=0, usd=Decimal("0.02"))

    await asyncio.gather(*[call(number) for number in range(60)])
    assert most <= 7
    assert Decimal("0.8") < spent <= 1
    assert await harness.new_worker().count_in_flight() == 0


async def life(harness: LimitHarness, limit: SharedLimit) -> None:
    """One call from its reservation to its settlement."""
    hold = await limit.reserve("one", tokens=600, usd=Decimal("0.6"))
    assert isinstance(hold, Reservation)
    harness.time += 20
    await hold.renew()
    await hold.settle(tokens=500, usd=Decimal("0.5"))


async def outcome(work: Callable[[], Awaitable[None]]) -> type[BaseException] | None:
    try:
        await work()
    except (Crash, StorageUnavailable) as failure:
        return type(failure)
    return None


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("at", range(4))
async def test_whatever_goes_wrong_with_any_table_call_all_comes_back(aws: Aws, fault: Fault, at: int) -> None:
    harness = LimitHarness(aws, Caps(1000, 1, Decimal(1)))
    limit = harness.workers[0]
    with inject(FaultPlan(fault, at)):
        await outcome(partial(life, harness, limit))
    spent = Decimal(str((await aws.shared.get(backend_limit(harness.backend, 0)) or {}).get("spent", 0)))
    assert spent in (Decimal(0), Decimal("0.5"), Decimal("0.6")), "nothing is counted twice"
    harness.time += 60 + 66
    assert isinstance(await harness.new_worker().reserve("two", tokens=1000, usd=1 - spent), Reservation)


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED, Fault.THROTTLE, Fault.TIMEOUT])
@pytest.mark.parametrize("at", range(4))
async def test_a_call_that_lives_on_through_a_fault_is_counted_once(aws: Aws, fault: Fault, at: int) -> None:
    harness = LimitHarness(aws, Caps(1000, 2, Decimal(1)))
    with inject(FaultPlan(fault, at)), suppress(StorageUnavailable):
        await life(harness, harness.workers[0])
    assert isinstance(await harness.new_worker().reserve("two", tokens=500, usd=Decimal("0.5")), Reservation)
    assert isinstance(await harness.new_worker().reserve("three", tokens=1, usd=Decimal("0.01")), NoCapacity)
