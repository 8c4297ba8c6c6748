"""Test one shared limit: what it admits, the wait that a refusal names, and what a settlement gives back. Time is simulated."""

import asyncio
from decimal import Decimal
from functools import partial

import pytest

import spass.testing.table
from bench.meter import bytes_of_item
from spass.aws.dynamodb import attribute_of
from spass.core.errors import StorageUnavailable
from spass.core.time import now_s
from spass.limits.shard import LimitTable, Reservation
from spass.limits.shard_state import MAX_CALLS_PER_SHARD, Caps, NoCapacity, new_call_id
from spass.limits.shared_limit import SharedLimit, forget_spending
from spass.store.keys import BACKEND_PREFIX, Key, backend_limit
from spass.store.table import ConditionFailed, GuardedTable
from spass.store.writes import Item, Update
from tests.unit.store.memory_table import MemoryTable

pytestmark = pytest.mark.anyio
KEY = backend_limit("b", 0)


@pytest.fixture
def table() -> LimitTable:
    return GuardedTable(spass.testing.table.MemoryTableClient(spass.testing.table.MemoryTable(now_s)), BACKEND_PREFIX)


class SimulatedLimit:
    """Workers that share a table and a clock."""

    def __init__(self, table: LimitTable, caps: Caps, spent: str | None = None) -> None:
        self.table = table
        self.caps = caps
        self.time = 1_800_000_000.0  # begins a bucket of five seconds
        self.spent = spent
        self.months_summed: list[str] = []
        self.calls = 0
        self.worker = self.new_worker()

    def new_worker(self, caps: Caps | None = None) -> SharedLimit:
        async def spent_before(month: str) -> Decimal:
            self.months_summed.append(month)
            return Decimal(self.spent or 0)

        before = spent_before if self.spent is not None else None
        return SharedLimit(
            self.table, partial(backend_limit, "b"), caps or self.caps, clock=lambda: self.time, spent_before=before
        )

    async def try_reserve(self, tokens: int = 0, usd: str = "0", worker: SharedLimit | None = None) -> Reservation | NoCapacity:
        self.calls += 1
        return await (worker or self.worker).reserve(f"call{self.calls}", tokens=tokens, usd=Decimal(usd))

    async def reserve(self, tokens: int = 0, usd: str = "0", worker: SharedLimit | None = None) -> Reservation:
        answer = await self.try_reserve(tokens, usd, worker)
        assert isinstance(answer, Reservation), answer
        return answer

    async def expect_refusal(self, tokens: int = 0, usd: str = "0", worker: SharedLimit | None = None) -> NoCapacity:
        answer = await self.try_reserve(tokens, usd, worker)
        assert isinstance(answer, NoCapacity)
        return answer


class LostReplyTable:
    """A table whose writes take effect. While ``losing``, the first reply to each write is lost."""

    def __init__(self, table: LimitTable) -> None:
        self._table = table
        self._lost = False
        self.losing = False

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._table.get(key, consistent=consistent)

    async def write(self, write: Update) -> Item | None:
        item = await self._table.write(write)
        if self.losing and not self._lost:
            self._lost = True
            raise StorageUnavailable("lost reply")
        self._lost = False
        return item


class RacingTable:
    """A table in which another worker reserves just after the first write whose condition fails."""

    def __init__(self, table: LimitTable, other: SharedLimit) -> None:
        self._table = table
        self._other = other
        self._raced = False

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._table.get(key, consistent=consistent)

    async def write(self, write: Update) -> Item | None:
        try:
            return await self._table.write(write)
        except ConditionFailed:
            if not self._raced:
                self._raced = True
                assert isinstance(await self._other.reserve("other", tokens=0), Reservation)
            raise


async def test_all_workers_share_one_token_limit(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    await limit.reserve(600)
    await limit.reserve(400, worker=limit.new_worker())
    assert (await limit.expect_refusal(1, worker=limit.new_worker())).by == "tokens"


async def test_a_refusal_says_when_enough_tokens_will_leave_the_window(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    begun = limit.time
    await limit.reserve(300)
    limit.time += 20
    await limit.reserve(700)
    assert await limit.expect_refusal(301) == NoCapacity(65.0, "tokens")
    assert await limit.expect_refusal(300) == NoCapacity(45.0, "tokens")
    limit.time = begun + 64.9
    assert (await limit.expect_refusal(300)).retry_after == pytest.approx(0.1)
    limit.time = begun + 65
    await limit.reserve(300)


@pytest.mark.parametrize("offset", [0.0, 0.1, 2.5, 4.9])
async def test_no_sixty_seconds_contain_more_tokens_than_the_limit(table: LimitTable, offset: float) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    limit.time += offset
    await limit.reserve(1000)
    limit.time += 59.99
    await limit.expect_refusal(1)
    limit.time += 6.01
    await limit.reserve(1000)


async def test_a_settlement_replaces_the_reserved_tokens_by_the_used_ones(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    reservation = await limit.reserve(1000)
    await reservation.settle(tokens=100)
    reservation = await limit.reserve(900)
    await reservation.settle(tokens=950)
    assert (await limit.expect_refusal(1)).retry_after == 65.0


async def test_a_settlement_of_zero_gives_everything_back(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(1000, 1, Decimal(1)))
    reservation = await limit.reserve(1000, "1")
    await reservation.settle(tokens=0)
    await limit.reserve(1000, "1")


async def test_only_the_first_settlement_of_a_call_counts(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(1000, 1, Decimal(1)))
    reservation = await limit.reserve(500, "0.5")
    await limit.reserve(500, "0.5", worker=limit.new_worker(Caps(1000, 2, Decimal(1))))
    for _ in range(3):
        await reservation.settle(tokens=0)
    assert (await limit.expect_refusal(501)).by == "tokens"


async def run_for(limit: SimulatedLimit, reservation: Reservation, seconds: int) -> None:
    """Advance the clock by ``seconds`` and renew the reservation every 20 seconds."""
    for _ in range(seconds // 20):
        limit.time += 20
        await reservation.renew()
    limit.time += seconds % 20


@pytest.mark.parametrize("seconds", [64, 65, 120, 800])
@pytest.mark.parametrize("another_call", [False, True])
async def test_extra_tokens_of_a_long_call_count_for_a_minute_after_its_end(
    table: LimitTable, seconds: int, *, another_call: bool
) -> None:
    limit = SimulatedLimit(table, Caps(1000, None, Decimal(1)))
    reservation = await limit.reserve(30, "0.6")
    await run_for(limit, reservation, seconds)
    if another_call:
        await limit.reserve(1, worker=limit.new_worker())
    await reservation.settle(tokens=33_000, usd=Decimal("0.4"))
    assert (await limit.expect_refusal(1, worker=limit.new_worker())).retry_after > 60
    limit.time += 60
    await limit.expect_refusal(1)
    limit.time += 6
    await limit.reserve(1000, "0.6")


async def test_extra_tokens_count_once_if_the_reply_to_the_settlement_is_lost(table: LimitTable) -> None:
    lossy = LostReplyTable(table)
    limit = SimulatedLimit(lossy, Caps(tokens_per_minute=1000))
    reservation = await limit.reserve(100)
    await run_for(limit, reservation, 70)
    lossy.losing = True
    await reservation.settle(tokens=500)
    lossy.losing = False
    assert (await limit.expect_refusal(601)).by == "tokens"
    await limit.reserve(500)


async def test_extra_tokens_of_many_long_calls_are_all_counted(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    reservations = [await limit.reserve(100, worker=limit.new_worker()) for _ in range(10)]
    for reservation in reservations:
        await run_for(limit, reservation, 80)
    for number, reservation in enumerate(reservations):
        limit.time += 2 * (number % 2)  # the bucket changes between two settlements
        await reservation.settle(tokens=190)
    assert (await limit.expect_refusal(101)).by == "tokens"
    await limit.reserve(100)


async def test_unused_tokens_of_a_long_call_do_not_free_room_in_the_current_window(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    reservation = await limit.reserve(1000)
    await run_for(limit, reservation, 80)
    await limit.reserve(1000)
    await reservation.settle(tokens=1)
    assert (await limit.expect_refusal(1)).retry_after == 65.0


async def test_a_call_larger_than_the_limit_counts_as_the_limit(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    await limit.reserve(5000)
    await limit.expect_refusal(1)
    limit.time += 65
    await limit.reserve(5000)


async def test_the_concurrency_limit_bounds_the_calls_in_flight(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(concurrent=2))
    first, _ = await limit.reserve(), await limit.reserve(worker=limit.new_worker())
    assert await limit.expect_refusal() == NoCapacity(1.0, "concurrent")
    assert await limit.worker.count_in_flight() == 2
    await first.settle(tokens=0)
    await limit.reserve()


async def test_the_call_of_a_dead_worker_ends_with_its_lease(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(concurrent=1))
    await limit.reserve()
    limit.time += 59.5
    assert await limit.expect_refusal() == NoCapacity(0.5, "concurrent")
    limit.time += 0.5
    assert await limit.worker.count_in_flight(max_age=0) == 0
    await limit.reserve()


async def test_a_renewed_call_stays_in_flight(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(concurrent=1))
    reservation = await limit.reserve()
    for _ in range(10):
        limit.time += 20
        await reservation.renew()
        await limit.expect_refusal(worker=limit.new_worker())


async def test_a_worker_that_returns_after_its_lease_ended_does_not_end_another_call(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(concurrent=1))
    late = await limit.reserve()
    limit.time += 60
    await limit.reserve()
    await late.renew()
    await late.settle(tokens=0)
    await limit.expect_refusal()


async def test_the_cost_of_a_month_stays_within_the_budget(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal("1.00")), spent="0.5")
    reservation = await limit.reserve(usd="0.4")
    await limit.expect_refusal(usd="0.11")
    await reservation.settle(tokens=0, usd=Decimal("0.1"))
    await (await limit.reserve(usd="0.4")).settle(tokens=0, usd=Decimal("0.4"))
    refusal = await limit.expect_refusal(usd="0.01", worker=limit.new_worker())
    assert (refusal.by, limit.time + refusal.retry_after) == ("budget", 1_801_440_000)  # 2027-02-01


async def test_a_refusal_is_short_only_if_calls_in_flight_may_give_money_back(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(200)), spent="0")
    reservation = await limit.reserve(usd="199")
    other = await limit.reserve(usd="0")
    refusal = await limit.expect_refusal(usd="2", worker=limit.new_worker())
    assert refusal.by == "reserved"
    assert 1 <= refusal.retry_after <= 5
    await reservation.settle(tokens=0, usd=Decimal("198.5"))
    assert (await limit.expect_refusal(usd="2")).by == "budget"
    await other.settle(tokens=0)
    await limit.reserve(usd="1.5")


async def test_two_workers_that_remove_the_same_expired_calls_count_them_once(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(concurrent=3))
    for _ in range(3):
        await limit.reserve()
    limit.time += 80
    other = limit.new_worker()
    racing = SharedLimit(RacingTable(table, other), partial(backend_limit, "b"), limit.caps, clock=lambda: limit.time)
    await limit.reserve(worker=racing)
    await limit.reserve()
    assert (await limit.expect_refusal()).by == "concurrent"
    assert await limit.worker.count_in_flight(max_age=0) == 3


async def test_money_of_a_dead_worker_counts_as_reserved_until_its_lease_ends(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(200)), spent="0")
    await limit.reserve(usd="199")
    limit.time += 58
    assert 0 < (await limit.expect_refusal(usd="2")).retry_after <= 3
    limit.time += 3
    assert (await limit.expect_refusal(usd="2")).by == "budget"
    await limit.reserve(usd="1")


async def test_money_of_a_renewed_call_counts_as_reserved_after_its_first_lease(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(200)), spent="0")
    reservation = await limit.reserve(usd="199")
    for _ in range(5):
        limit.time += 20
        await reservation.renew()
    assert (await limit.expect_refusal(usd="2")).by == "reserved"
    await reservation.settle(tokens=0, usd=Decimal(1))
    await limit.reserve(usd="199")


async def test_a_call_is_told_to_wait_only_if_it_would_fit_alone(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(10)), spent="6")
    await limit.reserve(usd="1")
    assert (await limit.expect_refusal(usd="4")).by == "reserved"
    assert (await limit.expect_refusal(usd="5")).by == "budget"


async def test_reserved_money_survives_a_new_budget_but_not_a_new_month(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(10)), spent="0")
    limit.time = 1_801_440_000 - 30
    await limit.reserve(usd="9")
    smaller = limit.new_worker(Caps(usd_per_month=Decimal(8)))
    assert (await limit.expect_refusal(usd="2", worker=smaller)).by == "reserved"
    limit.time += 31
    reservation = await limit.reserve(usd="1", worker=smaller)
    await reservation.settle(tokens=0, usd=Decimal(7))
    assert (await limit.expect_refusal(usd="2", worker=smaller)).by == "budget"


async def test_a_call_that_costs_more_than_the_budget_fits_while_nothing_is_spent(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal("0.10")))
    reservation = await limit.reserve(usd="3")
    await limit.expect_refusal(usd="0.01")
    await reservation.settle(tokens=0, usd=Decimal("0.02"))
    await limit.expect_refusal(usd="3")
    await limit.reserve(usd="0.08")


async def test_a_budget_of_zero_admits_only_calls_without_a_cost(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(0)), spent="0")
    for _ in range(2):
        await limit.expect_refusal(usd="0.01")
        await limit.reserve(usd="0")


@pytest.mark.parametrize("budget", ["0", "1"])
@pytest.mark.parametrize("known", [True, False])
async def test_a_call_without_a_price_passes_a_spent_budget(table: LimitTable, budget: str, known: bool) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=100, usd_per_month=Decimal(budget)), spent="1.5")
    if known:
        assert (await limit.expect_refusal(usd="0.01")).by == "budget"
    reservation = await limit.reserve(tokens=60)
    assert (await limit.expect_refusal(tokens=60)).by == "tokens", "a call without a price still needs tokens"
    await reservation.settle(tokens=10)
    await limit.reserve(tokens=60, worker=limit.new_worker())
    assert (await limit.expect_refusal(usd="0.01")).by == "budget"


async def test_the_cost_of_a_call_without_a_known_price_is_counted(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(2)), spent="0")
    await (await limit.reserve()).settle(tokens=0, usd=Decimal("1.9"))
    await limit.expect_refusal(usd="0.2")
    await (await limit.reserve()).settle(tokens=0, usd=Decimal(7))
    assert limit.worker.spent == Decimal("8.9")


async def test_a_new_month_begins_with_nothing_spent(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(1)), spent="0")
    limit.time = 1_801_440_000 - 30
    late = await limit.reserve(usd="1")
    limit.time += 31
    await limit.reserve(usd="0.5")
    assert await limit.worker.count_in_flight() == 2
    await late.settle(tokens=0, usd=Decimal(0))  # a reservation of the last month
    assert await limit.worker.count_in_flight() == 1
    await limit.expect_refusal(usd="0.6")


async def test_a_budget_set_within_a_month_counts_the_cost_so_far(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    await limit.reserve(1)
    limit.spent = "7"
    await limit.expect_refusal(usd="3.5", worker=limit.new_worker(Caps(usd_per_month=Decimal(10))))
    await limit.reserve(usd="3", worker=limit.new_worker(Caps(usd_per_month=Decimal(10))))
    await limit.expect_refusal(usd="0.5", worker=limit.new_worker(Caps(usd_per_month=Decimal(10))))
    await limit.reserve(usd="0.5", worker=limit.new_worker(Caps(usd_per_month=Decimal(11))))
    await limit.expect_refusal(usd="0.5", worker=limit.new_worker(Caps(usd_per_month=Decimal("10.5"))))


async def test_a_budget_below_the_cost_so_far_refuses_the_first_call_of_a_worker(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(10)), spent="0")
    await limit.reserve(usd="7")
    limit.spent = "7"
    lower = limit.new_worker(Caps(usd_per_month=Decimal(5)))
    for _ in range(3):  # after the first call, the worker knows that the item counts another budget
        await limit.expect_refusal(usd="0.5", worker=lower)


@pytest.mark.parametrize("shards", [1, 4])
async def test_only_the_first_refusals_compute_the_opening_balance(table: LimitTable, shards: int) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(500 * shards)), spent="3000")
    for _ in range(8):
        refusal = await limit.expect_refusal(usd="1", worker=limit.new_worker())
        assert refusal.by == "budget"
    before = len(limit.months_summed)
    for _ in range(8):
        await limit.expect_refusal(usd="1", worker=limit.new_worker())
    assert len(limit.months_summed) == before <= 2 * shards


async def test_the_limit_knows_the_cost_of_the_month_after_a_refusal(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(2000)), spent="1990")
    await limit.expect_refusal(usd="9")
    await limit.reserve(usd="2")
    await limit.expect_refusal(usd="9")
    assert limit.worker.spent == 1992


async def test_an_opening_balance_of_the_last_month_is_not_used_for_the_new_one(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(10)), spent="0")
    limit.time = 1_801_440_000 - 3
    await limit.reserve(usd="1")

    async def spent_before(month: str) -> Decimal:
        limit.time += 5
        return {"2027-01": Decimal(9), "2027-02": Decimal(0)}[month]

    other = Caps(usd_per_month=Decimal(11))
    worker = SharedLimit(table, partial(backend_limit, "b"), other, clock=lambda: limit.time, spent_before=spent_before)
    await limit.reserve(usd="2", worker=worker)
    await limit.reserve(usd="9", worker=worker)


async def test_the_opening_balance_is_counted_once_over_all_shards(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(1000)), spent="600")
    spent = Decimal(600)
    while isinstance(await limit.try_reserve(usd="20", worker=limit.new_worker()), Reservation):
        spent += 20
        limit.spent = str(spent)  # as the usage rows report it a moment later
    assert spent == 1000


async def test_a_larger_budget_with_more_shards_keeps_the_cost_so_far(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(600)), spent="0")
    await limit.reserve(usd="580")
    limit.spent = "580"
    larger = [limit.new_worker(Caps(usd_per_month=Decimal(1200))) for _ in range(8)]
    spent = Decimal(580)
    for worker in larger * 8:
        if isinstance(await limit.try_reserve(usd="20", worker=worker), Reservation):
            spent += 20
            limit.spent = str(spent)
    assert spent == 1200


@pytest.mark.parametrize(("budget", "shards"), [(1400, 2), (1900, 3), (1500, 3)])
async def test_cost_that_exceeds_one_shard_uses_the_budget_of_the_others(table: LimitTable, budget: int, shards: int) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(1500)), spent="0")
    for _ in range(6):
        await limit.reserve(usd="200", worker=limit.new_worker())
    limit.spent = "1300"  # 100 more were spent while there was no budget
    await forget_spending(table, partial(backend_limit, "b"))
    workers = [limit.new_worker(Caps(usd_per_month=Decimal(budget))) for _ in range(8)]
    spent = Decimal(1300)
    for worker in workers * 12:
        if isinstance(await limit.try_reserve(usd="10", worker=worker), Reservation):
            spent += 10
            limit.spent = str(spent)
    assert budget - 10 * shards < spent <= budget


async def test_a_new_cap_is_enforced_on_an_existing_item(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(concurrent=3))
    await limit.reserve()
    stricter = limit.new_worker(Caps(1000, 3, Decimal(1)))
    await limit.reserve(1000, "1", stricter)
    await limit.expect_refusal(1, worker=stricter)
    limit.time += 70
    await limit.expect_refusal(0, "0.1", stricter)


@pytest.mark.parametrize(
    ("caps", "shards"),
    [
        (Caps(tokens_per_minute=999_999), 1),
        (Caps(tokens_per_minute=2_000_001), 2),
        (Caps(tokens_per_minute=10_000_000, concurrent=64), 2),
        (Caps(10_000_000, 1000, Decimal(100)), 1),
        (Caps(tokens_per_minute=10**12), 16),
        (Caps(usd_per_month=Decimal(1500)), 3),
    ],
)
async def test_large_limits_have_shards_that_together_admit_the_limit(caps: Caps, shards: int) -> None:
    table = MemoryTable()
    limit = SimulatedLimit(table, caps)
    tokens, admitted = (caps.tokens_per_minute or 0) // 20, 0
    usd = str((caps.usd_per_month or Decimal(0)) / 20)
    while isinstance(await limit.try_reserve(tokens, usd, limit.new_worker()), Reservation):
        admitted += 1
    assert set(table.items) == {backend_limit("b", number) for number in range(shards)}
    places = caps.concurrent or 10**6
    assert min(16, places) <= admitted <= min(20, places)


async def test_the_shards_together_admit_all_concurrent_calls(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(concurrent=65))
    for _ in range(65):
        await limit.reserve(worker=limit.new_worker())
    assert (await limit.expect_refusal()).by == "concurrent"
    assert await limit.worker.count_in_flight() == 65


async def test_a_worker_with_a_cached_state_reserves_and_settles_with_one_call_each() -> None:
    table = MemoryTable()
    limit = SimulatedLimit(table, Caps(1000, 5, Decimal(10)))
    await (await limit.reserve(100, "0.1")).settle(tokens=50, usd=Decimal("0.1"))
    for seconds in (0.0, 1.0, 5.0, 30.0, 3600.0):
        limit.time += seconds
        before = table.calls
        reservation = await limit.reserve(100, "0.1")
        assert table.calls == before + 1
        await reservation.settle(tokens=120, usd=Decimal("0.2"))
        assert table.calls == before + 2


async def test_a_new_worker_reserves_with_at_most_two_calls() -> None:
    table = MemoryTable()
    limit = SimulatedLimit(table, Caps(1000, 5, Decimal(10)))
    for seconds in (0.0, 1.0, 5.0, 30.0, 3600.0):
        limit.time += seconds
        before = table.calls
        reservation = await limit.reserve(100, "0.1", limit.new_worker())
        assert table.calls <= before + 2
        await reservation.settle(tokens=120, usd=Decimal("0.2"))


async def test_items_do_not_grow_with_calls_whose_workers_died() -> None:
    table = MemoryTable()
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000, usd_per_month=Decimal(1)))
    for _ in range(300):
        await limit.reserve(1, "0.001")
        limit.time += 5
    item = table.items[KEY]
    assert len(str(item)) < 2000
    assert len(item) < 40


async def test_an_item_holds_a_thousand_calls_in_flight_and_stays_small() -> None:
    table = MemoryTable()
    limit = SimulatedLimit(table, Caps(tokens_per_minute=10_000, usd_per_month=Decimal(100)), spent="0")
    for _ in range(MAX_CALLS_PER_SHARD):
        assert isinstance(await limit.worker.reserve(new_call_id(), tokens=1, usd=Decimal("0.001")), Reservation)
    item = table.items[KEY]
    assert bytes_of_item({name: attribute_of(value) for name, value in item.items()}) < 8 * 1024
    assert await limit.expect_refusal(1, "0.001") == NoCapacity(1.0, "concurrent")
    limit.time += 80
    await limit.reserve(1, "0.001")
    assert await limit.worker.count_in_flight(max_age=0) == 1


async def test_ids_of_calls_in_flight_are_unique() -> None:
    names = [new_call_id() for _ in range(MAX_CALLS_PER_SHARD)]
    assert {len(name) for name in names} == {6}
    assert len(set(names)) >= MAX_CALLS_PER_SHARD - 1


async def test_a_call_settles_after_renewals_with_lost_replies(table: LimitTable) -> None:
    lossy = LostReplyTable(table)
    limit = SimulatedLimit(lossy, Caps(1000, 1, Decimal(1)), spent="0")
    reservation = await limit.reserve(1000, "1")
    lossy.losing = True
    for _ in range(5):
        limit.time += 20
        await reservation.renew()
        assert (await limit.expect_refusal(worker=limit.new_worker())).by == "concurrent"
    await reservation.settle(tokens=0, usd=Decimal("0.4"))
    lossy.losing = False
    assert await limit.worker.count_in_flight(max_age=0) == 0
    await limit.reserve(1000, "0.6")


async def test_a_worker_with_a_slow_clock_does_not_move_the_window_back(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    behind = SharedLimit(table, partial(backend_limit, "b"), limit.caps, clock=lambda: limit.time - 3)
    await limit.reserve(500)
    await limit.reserve(500, worker=behind)
    limit.time += 64
    await limit.expect_refusal(1, worker=behind)
    limit.time += 1
    await limit.reserve(1000)
    await limit.expect_refusal(1, worker=behind)


async def test_a_worker_with_a_slow_clock_does_not_reopen_the_last_month(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(1)))
    behind = SharedLimit(table, partial(backend_limit, "b"), limit.caps, clock=lambda: limit.time - 3)
    limit.time = 1_801_440_000 - 10
    await limit.reserve(usd="0.2", worker=behind)
    limit.time = 1_801_440_000 + 1
    reservation = await limit.reserve(usd="0.9")
    await reservation.settle(tokens=0, usd=Decimal("0.9"))
    refusal = await limit.expect_refusal(usd="0.2", worker=behind)
    assert refusal.retry_after > 27 * 86400
    await limit.expect_refusal(usd="0.2")


async def test_money_reserved_last_month_does_not_count_as_reserved_this_month(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(usd_per_month=Decimal(10)), spent="0")
    limit.time = 1_801_440_000 - 5
    await limit.reserve(usd="9")
    limit.time += 5  # the month ends; a lease that begins now ends at the same second as the first
    reservation = await limit.reserve(usd="1")
    await reservation.settle(tokens=0, usd=Decimal(1))
    assert (await limit.expect_refusal(usd="9.5")).by == "budget"


class UnavailableTable(MemoryTable):
    """A table that does not answer while ``down``."""

    down = False

    async def write(self, write: Update) -> Item | None:
        if self.down:
            raise StorageUnavailable("throttled")
        return await super().write(write)


async def test_a_renewal_and_a_settlement_that_fail_are_each_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    table = UnavailableTable()
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    reservation = await limit.reserve(1000)
    table.down = True
    limit.time += 20
    await reservation.renew()
    await reservation.settle(tokens=1)
    assert [line.split('"event":"')[1] for line in capsys.readouterr().out.splitlines()] == [
        'limit_not_renewed"}',
        'limit_not_settled"}',
    ]
    with pytest.raises(StorageUnavailable):
        await limit.try_reserve(1)
    table.down = False
    limit.time += 65
    await limit.reserve(1000)


class EveryOtherReplyLostTable(MemoryTable):
    """A table whose every other reply is lost."""

    async def write(self, write: Update) -> Item | None:
        item = await super().write(write)
        if self.calls % 2:
            raise StorageUnavailable("lost reply")
        return item


async def test_nothing_is_counted_twice_if_every_second_reply_is_lost() -> None:
    table = EveryOtherReplyLostTable()
    limit = SimulatedLimit(table, Caps(1000, 2, Decimal(1)))
    table.items[KEY] = {"pk": KEY.pk, "sk": KEY.sk}
    for _ in range(2):
        reservation = await limit.reserve(500, "0.5")
        await reservation.settle(tokens=400, usd=Decimal("0.4"))
    item = table.items[KEY]
    assert (item["used"], item["spent"], item["active"]) == (800, Decimal("0.8"), 0)


class BlockedReplyTable(MemoryTable):
    """A table whose replies wait until ``replies`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.replies = asyncio.Event()

    async def write(self, write: Update) -> Item | None:
        item = await super().write(write)
        if not self.replies.is_set():
            await self.replies.wait()
        return item


async def test_a_caller_cancelled_while_it_reserves_gives_its_reservation_back() -> None:
    table = BlockedReplyTable()
    limit = SimulatedLimit(table, Caps(1000, 1, Decimal(1)))
    table.replies.set()
    await (await limit.reserve(1000, "1")).settle(tokens=0)
    table.replies.clear()
    reserving = asyncio.create_task(limit.try_reserve(1000, "1"))
    await asyncio.sleep(0)
    reserving.cancel()
    table.replies.set()
    with pytest.raises(asyncio.CancelledError):
        await reserving
    await limit.reserve(1000, "1")


async def test_a_caller_cancelled_while_it_settles_still_ends_its_lease() -> None:
    class TwoStepTable(MemoryTable):
        async def write(self, write: Update) -> Item | None:
            await asyncio.sleep(0)
            return await super().write(write)

    table = TwoStepTable()
    limit = SimulatedLimit(table, Caps(1000, 1, Decimal(1)))
    settling = asyncio.create_task((await limit.reserve(1000, "1")).settle(tokens=0))
    await asyncio.sleep(0)
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert table.items[KEY]["active"] == 0


async def test_a_reservation_that_takes_too_long_fails_and_is_given_back() -> None:
    table = BlockedReplyTable()
    limit = SimulatedLimit(table, Caps(1000, 1, Decimal(1)))
    table.replies.set()
    await (await limit.reserve(1000, "1")).settle(tokens=0)
    table.replies.clear()
    with pytest.raises(StorageUnavailable):
        await limit.worker.reserve("late", tokens=1000, usd=Decimal(1), seconds=0.01)
    table.replies.set()
    while table.items[KEY]["active"]:
        await asyncio.sleep(0)
    await limit.reserve(1000, "1")


async def test_tokens_of_a_slow_reservation_count_for_a_minute_from_its_return() -> None:
    class Slow(MemoryTable):
        async def write(self, write: Update) -> Item | None:
            item = await super().write(write)
            if self.calls == 2:  # the first write that takes effect
                limit.time += 6
            return item

    table = Slow()
    limit = SimulatedLimit(table, Caps(tokens_per_minute=1000))
    await limit.reserve(1000)
    limit.time += 59.5
    await limit.expect_refusal(1)


async def test_a_slow_reservation_that_cannot_be_settled_is_not_repeated() -> None:
    class Slow(MemoryTable):
        writes_begun = 0

        async def write(self, write: Update) -> Item | None:
            self.writes_begun += 1
            if self.writes_begun == 3:  # the settlement
                raise StorageUnavailable("throttled")
            item = await super().write(write)
            limit.time += 6
            return item

    table = Slow()
    limit = SimulatedLimit(table, Caps(1000, 2, Decimal(10)))
    with pytest.raises(StorageUnavailable):
        await limit.try_reserve(100, "3")
    item = table.items[KEY]
    assert (item["active"], item["used"], item["spent"]) == (1, 100, 3)


async def test_a_reservation_is_renewed_only_while_its_call_runs() -> None:
    renewed = 0

    class Counting(MemoryTable):
        async def write(self, write: Update) -> Item | None:
            nonlocal renewed
            renewed += 1
            return await super().write(write)

    limit = SimulatedLimit(Counting(), Caps(concurrent=1))
    reservation = await limit.reserve()
    renewed = 0
    reservation.renew_until_settled(every=0.001)
    while renewed < 3:
        limit.time += 20
        await asyncio.sleep(0.001)
    await reservation.settle(tokens=0)
    renewals = renewed
    await asyncio.sleep(0.005)
    assert renewed == renewals


def test_the_table_of_a_limit_rejects_keys_outside_its_prefix(table: LimitTable) -> None:
    with pytest.raises(PermissionError):
        asyncio.run(table.get(Key("T#demo#RAG", "LIMIT")))


class SlowReplyTable(MemoryTable):
    """A table that sends its first reply when ``first`` is set and begins its fourth write when ``fourth`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fourth = asyncio.Event(), asyncio.Event()
        self.writes = 0

    async def write(self, write: Update) -> Item | None:
        self.writes += 1
        number = self.writes
        if number == 4:
            await self.fourth.wait()
        try:
            return await super().write(write)
        finally:
            if number == 1:
                await self.first.wait()


async def test_a_reply_that_arrives_late_leaves_no_money_reserved() -> None:
    table = SlowReplyTable()
    limit = SharedLimit(table, partial(backend_limit, "b"), Caps(usd_per_month=Decimal(1)), clock=lambda: 1_800_000_000.0)
    waiting = asyncio.create_task(limit.reserve("one", tokens=0, usd=Decimal("0.6")))
    await asyncio.sleep(0.01)
    two = await limit.reserve("two", tokens=0, usd=Decimal("0.3"))
    assert isinstance(two, Reservation)
    table.first.set()  # replies that the item is absent
    await asyncio.sleep(0.01)
    await two.settle(tokens=0, usd=Decimal("0.3"))
    table.fourth.set()
    one = await waiting
    assert isinstance(one, Reservation)
    await one.settle(tokens=0, usd=Decimal("0.6"))
    full = await limit.reserve("three", tokens=0, usd=Decimal("0.2"))
    assert isinstance(full, NoCapacity)
    assert full.by == "budget"


async def test_a_call_that_runs_into_a_new_month_stays_in_flight(table: LimitTable) -> None:
    limit = SimulatedLimit(table, Caps(concurrent=1, usd_per_month=Decimal(1)))
    limit.time = float(1_798_761_600 - 30)  # half a minute before 2027 begins
    reservation = await limit.worker.reserve("one", tokens=0, usd=Decimal("0.6"))
    assert isinstance(reservation, Reservation)
    limit.time += 50
    assert isinstance(
        await limit.new_worker(Caps(concurrent=2, usd_per_month=Decimal(1))).reserve("two", tokens=0, usd=Decimal("0.1")),
        Reservation,
    )
    await reservation.renew()
    limit.time += 45
    assert await limit.new_worker().count_in_flight() == 2
