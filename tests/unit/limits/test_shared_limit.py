"""What one limit lets through, whom it tells to come back when, and what it gives back. Time here is simulated."""

import asyncio
from decimal import Decimal
from functools import partial

import pytest

import spass.testing.table
from bench.meter import bytes_of_item
from spass.aws.attributes import Item, attribute_of
from spass.aws.keys import BACKEND_PREFIX, Key, backend_limit
from spass.aws.table import ConditionFailed, GuardedTable
from spass.aws.writes import Update
from spass.core.errors import StorageUnavailable
from spass.core.time import now_s
from spass.limits.shard import LimitTable, Reservation, renew_while_running
from spass.limits.shard_state import MAX_CALLS_PER_SHARD, Caps, NoCapacity
from spass.limits.shared_limit import SharedLimit, forget_spending, new_call_id
from tests.unit.aws.memory_table import MemoryTable

pytestmark = pytest.mark.anyio
KEY = backend_limit("b", 0)


@pytest.fixture
def table() -> LimitTable:
    return GuardedTable(spass.testing.table.MemoryTable(now_s), BACKEND_PREFIX)


class LimitHarness:
    """Workers that share a table and a clock."""

    def __init__(self, table: LimitTable, caps: Caps, spent: str | None = None) -> None:
        self.table = table
        self.caps = caps
        self.time = 1_800_000_000.0  # begins a bucket of five seconds
        self.spent = spent
        self.summed_up: list[str] = []
        self.calls = 0
        self.worker = self.new_worker()

    def new_worker(self, caps: Caps | None = None) -> SharedLimit:
        async def spent_before(month: str) -> Decimal:
            self.summed_up.append(month)
            return Decimal(self.spent or 0)

        before = spent_before if self.spent is not None else None
        return SharedLimit(
            self.table, partial(backend_limit, "b"), caps or self.caps, clock=lambda: self.time, spent_before=before
        )

    async def ask(self, tokens: int = 0, usd: str = "0", worker: SharedLimit | None = None) -> Reservation | NoCapacity:
        self.calls += 1
        return await (worker or self.worker).reserve(f"call{self.calls}", tokens=tokens, usd=Decimal(usd))

    async def let_in(self, tokens: int = 0, usd: str = "0", worker: SharedLimit | None = None) -> Reservation:
        answer = await self.ask(tokens, usd, worker)
        assert isinstance(answer, Reservation), answer
        return answer

    async def refused(self, tokens: int = 0, usd: str = "0", worker: SharedLimit | None = None) -> NoCapacity:
        answer = await self.ask(tokens, usd, worker)
        assert isinstance(answer, NoCapacity)
        return answer


class LostReplyTable:
    """A table whose writes take effect; while ``losing``, the first reply to each is lost."""

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
            raise StorageUnavailable("not heard")
        self._lost = False
        return item


class RacingTable:
    """A table where another worker reserves after the first write that is refused."""

    def __init__(self, table: LimitTable, other: SharedLimit) -> None:
        self._table = table
        self._other = other
        self._overtaken = False

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        return await self._table.get(key, consistent=consistent)

    async def write(self, write: Update) -> Item | None:
        try:
            return await self._table.write(write)
        except ConditionFailed:
            if not self._overtaken:
                self._overtaken = True
                assert isinstance(await self._other.reserve("other", tokens=0), Reservation)
            raise


async def test_tokens_are_let_through_up_to_the_limit_whichever_worker_asks(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    await world.let_in(600)
    await world.let_in(400, worker=world.new_worker())
    assert (await world.refused(1, worker=world.new_worker())).by == "tokens"


async def test_whoever_is_refused_hears_when_enough_tokens_will_have_passed(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    begun = world.time
    await world.let_in(300)
    world.time += 20
    await world.let_in(700)
    assert await world.refused(301) == NoCapacity(65.0, "tokens")
    assert await world.refused(300) == NoCapacity(45.0, "tokens")
    world.time = begun + 64.9
    assert (await world.refused(300)).retry_after == pytest.approx(0.1)
    world.time = begun + 65
    await world.let_in(300)


@pytest.mark.parametrize("offset", [0.0, 0.1, 2.5, 4.9])
async def test_no_sixty_seconds_see_more_than_the_limit(table: LimitTable, offset: float) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    world.time += offset
    await world.let_in(1000)
    world.time += 59.99
    await world.refused(1)
    world.time += 6.01
    await world.let_in(1000)


async def test_what_a_call_really_took_takes_the_place_of_what_was_reserved(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    hold = await world.let_in(1000)
    await hold.settle(tokens=100)
    hold = await world.let_in(900)
    await hold.settle(tokens=950)
    assert (await world.refused(1)).retry_after == 65.0


async def test_a_call_that_took_nothing_gives_all_back(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(1000, 1, Decimal(1)))
    hold = await world.let_in(1000, "1")
    await hold.settle(tokens=0)
    await world.let_in(1000, "1")


async def test_a_call_is_settled_once(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(1000, 1, Decimal(1)))
    hold = await world.let_in(500, "0.5")
    await world.let_in(500, "0.5", worker=world.new_worker(Caps(1000, 2, Decimal(1))))
    for _ in range(3):
        await hold.settle(tokens=0)
    assert (await world.refused(501)).by == "tokens"


async def run_for(world: LimitHarness, hold: Reservation, seconds: int) -> None:
    """Let a call take ``seconds``, and renew its lease meanwhile."""
    for _ in range(seconds // 20):
        world.time += 20
        await hold.renew()
    world.time += seconds % 20


@pytest.mark.parametrize("seconds", [64, 65, 120, 800])
@pytest.mark.parametrize("others_call", [False, True])
async def test_tokens_beyond_the_reservation_count_for_a_minute_from_a_long_calls_end(
    table: LimitTable, seconds: int, *, others_call: bool
) -> None:
    world = LimitHarness(table, Caps(1000, None, Decimal(1)))
    hold = await world.let_in(30, "0.6")
    await run_for(world, hold, seconds)
    if others_call:
        await world.let_in(1, worker=world.new_worker())
    await hold.settle(tokens=33_000, usd=Decimal("0.4"))
    assert (await world.refused(1, worker=world.new_worker())).retry_after > 60
    world.time += 60
    await world.refused(1)
    world.time += 6
    await world.let_in(1000, "0.6")


async def test_a_surplus_is_booked_once_though_the_reply_is_lost(table: LimitTable) -> None:
    forgetful = LostReplyTable(table)
    world = LimitHarness(forgetful, Caps(tokens_per_minute=1000))
    hold = await world.let_in(100)
    await run_for(world, hold, 70)
    forgetful.losing = True
    await hold.settle(tokens=500)
    forgetful.losing = False
    assert (await world.refused(601)).by == "tokens"
    await world.let_in(500)


async def test_many_long_calls_that_took_more_than_they_reserved_are_all_counted(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    holds = [await world.let_in(100, worker=world.new_worker()) for _ in range(10)]
    for hold in holds:
        await run_for(world, hold, 80)
    for number, hold in enumerate(holds):
        world.time += 2 * (number % 2)  # the bucket changes between two settlements
        await hold.settle(tokens=190)
    assert (await world.refused(101)).by == "tokens"
    await world.let_in(100)


async def test_a_long_call_that_reserved_too_much_frees_no_room_that_others_have_taken(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    hold = await world.let_in(1000)
    await run_for(world, hold, 80)
    await world.let_in(1000)
    await hold.settle(tokens=1)
    assert (await world.refused(1)).retry_after == 65.0


async def test_a_call_that_asks_for_more_than_the_limit_counts_as_the_limit(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    await world.let_in(5000)
    await world.refused(1)
    world.time += 65
    await world.let_in(5000)


async def test_only_so_many_calls_are_under_way_at_once(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(concurrent=2))
    first, _ = await world.let_in(), await world.let_in(worker=world.new_worker())
    assert await world.refused() == NoCapacity(1.0, "concurrent")
    assert await world.worker.count_in_flight() == 2
    await first.settle(tokens=0)
    await world.let_in()


async def test_the_place_of_a_dead_worker_falls_free_with_its_lease(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(concurrent=1))
    await world.let_in()
    world.time += 59.5
    assert await world.refused() == NoCapacity(0.5, "concurrent")
    world.time += 0.5
    assert await world.worker.count_in_flight(max_age=0) == 0
    await world.let_in()


async def test_a_place_is_kept_as_long_as_it_is_renewed(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(concurrent=1))
    hold = await world.let_in()
    for _ in range(10):
        world.time += 20
        await hold.renew()
        await world.refused(worker=world.new_worker())


async def test_who_comes_back_after_the_lease_has_run_out_takes_nobodys_place(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(concurrent=1))
    late = await world.let_in()
    world.time += 60
    await world.let_in()
    await late.renew()
    await late.settle(tokens=0)
    await world.refused()


async def test_a_month_takes_no_more_than_its_budget(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal("1.00")), spent="0.5")
    hold = await world.let_in(usd="0.4")
    await world.refused(usd="0.11")
    await hold.settle(tokens=0, usd=Decimal("0.1"))
    await (await world.let_in(usd="0.4")).settle(tokens=0, usd=Decimal("0.4"))
    refused = await world.refused(usd="0.01", worker=world.new_worker())
    assert (refused.by, world.time + refused.retry_after) == ("budget", 1_801_440_000)  # 2027-02-01


async def test_money_that_running_calls_may_return_is_worth_a_wait_and_spent_money_is_not(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(200)), spent="0")
    hold = await world.let_in(usd="199")
    other = await world.let_in(usd="0")
    refused = await world.refused(usd="2", worker=world.new_worker())
    assert refused.by == "reserved"
    assert 1 <= refused.retry_after <= 5
    await hold.settle(tokens=0, usd=Decimal("198.5"))
    assert (await world.refused(usd="2")).by == "budget"
    await other.settle(tokens=0)
    await world.let_in(usd="1.5")


async def test_two_workers_that_reclaim_the_same_dead_calls_count_them_once(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(concurrent=3))
    for _ in range(3):
        await world.let_in()
    world.time += 80
    other = world.new_worker()
    overtaken = SharedLimit(RacingTable(table, other), partial(backend_limit, "b"), world.caps, clock=lambda: world.time)
    await world.let_in(worker=overtaken)
    await world.let_in()
    assert (await world.refused()).by == "concurrent"
    assert await world.worker.count_in_flight(max_age=0) == 3


async def test_money_of_a_dead_worker_is_waited_for_until_its_lease_has_run_out(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(200)), spent="0")
    await world.let_in(usd="199")
    world.time += 58
    assert 0 < (await world.refused(usd="2")).retry_after <= 3
    world.time += 3
    assert (await world.refused(usd="2")).by == "budget"
    await world.let_in(usd="1")


async def test_money_of_a_call_that_goes_on_is_waited_for_past_its_first_lease(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(200)), spent="0")
    hold = await world.let_in(usd="199")
    for _ in range(5):
        world.time += 20
        await hold.renew()
    assert (await world.refused(usd="2")).by == "reserved"
    await hold.settle(tokens=0, usd=Decimal(1))
    await world.let_in(usd="199")


async def test_a_call_that_fits_beside_no_other_hears_of_a_wait_only_if_it_fits_alone(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(10)), spent="6")
    await world.let_in(usd="1")
    assert (await world.refused(usd="4")).by == "reserved"
    assert (await world.refused(usd="5")).by == "budget"


async def test_a_reservation_survives_a_new_budget_and_is_forgotten_with_its_month(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(10)), spent="0")
    world.time = 1_801_440_000 - 30
    await world.let_in(usd="9")
    smaller = world.new_worker(Caps(usd_per_month=Decimal(8)))
    assert (await world.refused(usd="2", worker=smaller)).by == "reserved"
    world.time += 31
    hold = await world.let_in(usd="1", worker=smaller)
    await hold.settle(tokens=0, usd=Decimal(7))
    assert (await world.refused(usd="2", worker=smaller)).by == "budget"


async def test_a_call_dearer_than_the_whole_budget_is_let_in_while_nothing_is_spent(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal("0.10")))
    hold = await world.let_in(usd="3")
    await world.refused(usd="0.01")
    await hold.settle(tokens=0, usd=Decimal("0.02"))
    await world.refused(usd="3")
    await world.let_in(usd="0.08")


async def test_a_budget_of_nothing_lets_only_in_what_costs_nothing(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(0)), spent="0")
    for _ in range(2):
        await world.refused(usd="0.01")
        await world.let_in(usd="0")


@pytest.mark.parametrize("budget", ["0", "1"])
@pytest.mark.parametrize("known", [True, False])
async def test_a_call_without_a_price_passes_an_overspent_budget(table: LimitTable, budget: str, known: bool) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=100, usd_per_month=Decimal(budget)), spent="1.5")
    if known:
        assert (await world.refused(usd="0.01")).by == "budget"
    hold = await world.let_in(tokens=60)
    assert (await world.refused(tokens=60)).by == "tokens", "its tokens are limited all the same"
    await hold.settle(tokens=10)
    await world.let_in(tokens=60, worker=world.new_worker())
    assert (await world.refused(usd="0.01")).by == "budget"


async def test_a_call_without_a_price_that_cost_something_all_the_same_is_counted(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(2)), spent="0")
    await (await world.let_in()).settle(tokens=0, usd=Decimal("1.9"))
    await world.refused(usd="0.2")
    await (await world.let_in()).settle(tokens=0, usd=Decimal(7))
    assert world.worker.spent == Decimal("8.9")


async def test_a_new_month_begins_with_nothing_spent(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(1)), spent="0")
    world.time = 1_801_440_000 - 30
    late = await world.let_in(usd="1")
    world.time += 31
    await world.let_in(usd="0.5")
    assert await world.worker.count_in_flight() == 2
    await late.settle(tokens=0, usd=Decimal(0))  # of a month that is over
    assert await world.worker.count_in_flight() == 1
    await world.refused(usd="0.6")


async def test_a_budget_set_in_the_middle_of_a_month_knows_what_was_spent_before(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    await world.let_in(1)
    world.spent = "7"
    await world.refused(usd="3.5", worker=world.new_worker(Caps(usd_per_month=Decimal(10))))
    await world.let_in(usd="3", worker=world.new_worker(Caps(usd_per_month=Decimal(10))))
    await world.refused(usd="0.5", worker=world.new_worker(Caps(usd_per_month=Decimal(10))))
    await world.let_in(usd="0.5", worker=world.new_worker(Caps(usd_per_month=Decimal(11))))
    await world.refused(usd="0.5", worker=world.new_worker(Caps(usd_per_month=Decimal("10.5"))))


async def test_a_budget_below_the_spending_refuses_a_workers_first_call(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(10)), spent="0")
    await world.let_in(usd="7")
    world.spent = "7"
    lower = world.new_worker(Caps(usd_per_month=Decimal(5)))
    for _ in range(3):  # the second knows what the item says, and that it counts another budget
        await world.refused(usd="0.5", worker=lower)


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_months_cost_is_summed_up_for_its_first_refusals_and_not_for_each(table: LimitTable, shards: int) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(500 * shards)), spent="3000")
    for _ in range(8):
        refused = await world.refused(usd="1", worker=world.new_worker())
        assert refused.by == "budget"
    before = len(world.summed_up)
    for _ in range(8):
        await world.refused(usd="1", worker=world.new_worker())
    assert len(world.summed_up) == before <= 2 * shards


async def test_who_is_refused_can_be_told_what_is_spent(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(2000)), spent="1990")
    await world.refused(usd="9")
    await world.let_in(usd="2")
    await world.refused(usd="9")
    assert world.worker.spent == 1992


async def test_a_month_that_ends_while_it_is_summed_up_costs_the_next_one_nothing(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(10)), spent="0")
    world.time = 1_801_440_000 - 3
    await world.let_in(usd="1")

    async def spent_before(month: str) -> Decimal:
        world.time += 5
        return {"2027-01": Decimal(9), "2027-02": Decimal(0)}[month]

    other = Caps(usd_per_month=Decimal(11))
    worker = SharedLimit(table, partial(backend_limit, "b"), other, clock=lambda: world.time, spent_before=spent_before)
    await world.let_in(usd="2", worker=worker)
    await world.let_in(usd="9", worker=worker)


async def test_money_spent_before_is_counted_once_however_many_shards_there_are(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(1000)), spent="600")
    spent = Decimal(600)
    while isinstance(await world.ask(usd="20", worker=world.new_worker()), Reservation):
        spent += 20
        world.spent = str(spent)  # as the usage rows say it a moment later
    assert spent == 1000


async def test_a_larger_budget_with_more_shards_forgets_nothing_and_counts_nothing_twice(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(600)), spent="0")
    await world.let_in(usd="580")
    world.spent = "580"
    larger = [world.new_worker(Caps(usd_per_month=Decimal(1200))) for _ in range(8)]
    spent = Decimal(580)
    for worker in larger * 8:
        if isinstance(await world.ask(usd="20", worker=worker), Reservation):
            spent += 20
            world.spent = str(spent)
    assert spent == 1200


@pytest.mark.parametrize(("budget", "shards"), [(1400, 2), (1900, 3), (1500, 3)])
async def test_money_that_one_shard_cannot_hold_takes_the_room_of_the_others(table: LimitTable, budget: int, shards: int) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(1500)), spent="0")
    for _ in range(6):
        await world.let_in(usd="200", worker=world.new_worker())
    world.spent = "1300"  # the rest was spent while there was no budget
    await forget_spending(table, partial(backend_limit, "b"))
    workers = [world.new_worker(Caps(usd_per_month=Decimal(budget))) for _ in range(8)]
    spent = Decimal(1300)
    for worker in workers * 12:
        if isinstance(await world.ask(usd="10", worker=worker), Reservation):
            spent += 10
            world.spent = str(spent)
    assert budget - 10 * shards < spent <= budget


async def test_a_limit_that_is_new_to_an_item_is_counted_from_then_on(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(concurrent=3))
    await world.let_in()
    stricter = world.new_worker(Caps(1000, 3, Decimal(1)))
    await world.let_in(1000, "1", stricter)
    await world.refused(1, worker=stricter)
    world.time += 70
    await world.refused(0, "0.1", stricter)


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
async def test_what_is_hot_is_spread_over_shards_that_together_let_through_the_limit(caps: Caps, shards: int) -> None:
    table = MemoryTable()
    world = LimitHarness(table, caps)
    tokens, let_in = (caps.tokens_per_minute or 0) // 20, 0
    usd = str((caps.usd_per_month or Decimal(0)) / 20)
    while isinstance(await world.ask(tokens, usd, world.new_worker()), Reservation):
        let_in += 1
    assert set(table.items) == {backend_limit("b", number) for number in range(shards)}
    places = caps.concurrent or 10**6
    assert min(16, places) <= let_in <= min(20, places)


async def test_places_are_all_used_though_they_are_spread(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(concurrent=65))
    for _ in range(65):
        await world.let_in(worker=world.new_worker())
    assert (await world.refused()).by == "concurrent"
    assert await world.worker.count_in_flight() == 65


async def test_a_worker_with_memory_reserves_and_settles_in_one_call_even_at_a_rollover() -> None:
    table = MemoryTable()
    world = LimitHarness(table, Caps(1000, 5, Decimal(10)))
    await (await world.let_in(100, "0.1")).settle(tokens=50, usd=Decimal("0.1"))
    for seconds in (0.0, 1.0, 5.0, 30.0, 3600.0):
        world.time += seconds
        before = table.calls
        hold = await world.let_in(100, "0.1")
        assert table.calls == before + 1
        await hold.settle(tokens=120, usd=Decimal("0.2"))
        assert table.calls == before + 2


async def test_a_worker_that_knows_nothing_needs_two_calls_at_most_to_reserve() -> None:
    table = MemoryTable()
    world = LimitHarness(table, Caps(1000, 5, Decimal(10)))
    for seconds in (0.0, 1.0, 5.0, 30.0, 3600.0):
        world.time += seconds
        before = table.calls
        hold = await world.let_in(100, "0.1", world.new_worker())
        assert table.calls <= before + 2
        await hold.settle(tokens=120, usd=Decimal("0.2"))


async def test_items_do_not_grow_with_calls_whose_workers_died() -> None:
    table = MemoryTable()
    world = LimitHarness(table, Caps(tokens_per_minute=1000, usd_per_month=Decimal(1)))
    for _ in range(300):
        await world.let_in(1, "0.001")
        world.time += 5
    item = table.items[KEY]
    assert len(str(item)) < 2000
    assert len(item) < 20


async def test_an_item_takes_a_thousand_calls_at_once_and_stays_small() -> None:
    table = MemoryTable()
    world = LimitHarness(table, Caps(tokens_per_minute=10_000, usd_per_month=Decimal(100)), spent="0")
    for _ in range(MAX_CALLS_PER_SHARD):
        assert isinstance(await world.worker.reserve(new_call_id(), tokens=1, usd=Decimal("0.001")), Reservation)
    item = table.items[KEY]
    assert bytes_of_item({name: attribute_of(value) for name, value in item.items()}) < 8 * 1024
    assert await world.refused(1, "0.001") == NoCapacity(1.0, "concurrent")
    world.time += 80
    await world.let_in(1, "0.001")
    assert await world.worker.count_in_flight(max_age=0) == 1


async def test_the_names_of_calls_under_way_are_told_apart() -> None:
    names = [new_call_id() for _ in range(MAX_CALLS_PER_SHARD)]
    assert {len(name) for name in names} == {6}
    assert len(set(names)) >= MAX_CALLS_PER_SHARD - 1


async def test_a_renewal_whose_reply_is_lost_keeps_the_place_and_settles_it(table: LimitTable) -> None:
    forgetful = LostReplyTable(table)
    world = LimitHarness(forgetful, Caps(1000, 1, Decimal(1)), spent="0")
    hold = await world.let_in(1000, "1")
    forgetful.losing = True
    for _ in range(5):
        world.time += 20
        await hold.renew()
        assert (await world.refused(worker=world.new_worker())).by == "concurrent"
    await hold.settle(tokens=0, usd=Decimal("0.4"))
    forgetful.losing = False
    assert await world.worker.count_in_flight(max_age=0) == 0
    await world.let_in(1000, "0.6")


async def test_a_worker_whose_clock_is_behind_turns_nothing_back(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    behind = SharedLimit(table, partial(backend_limit, "b"), world.caps, clock=lambda: world.time - 3)
    await world.let_in(500)
    await world.let_in(500, worker=behind)
    world.time += 64
    await world.refused(1, worker=behind)
    world.time += 1
    await world.let_in(1000)
    await world.refused(1, worker=behind)


async def test_a_worker_whose_clock_is_behind_does_not_bring_the_last_month_back(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(1)))
    behind = SharedLimit(table, partial(backend_limit, "b"), world.caps, clock=lambda: world.time - 3)
    world.time = 1_801_440_000 - 10
    await world.let_in(usd="0.2", worker=behind)
    world.time = 1_801_440_000 + 1
    hold = await world.let_in(usd="0.9")
    await hold.settle(tokens=0, usd=Decimal("0.9"))
    refused = await world.refused(usd="0.2", worker=behind)
    assert refused.retry_after > 27 * 86400
    await world.refused(usd="0.2")


async def test_what_calls_of_the_last_month_reserved_is_not_waited_for_in_the_new_one(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(usd_per_month=Decimal(10)), spent="0")
    world.time = 1_801_440_000 - 5
    await world.let_in(usd="9")
    world.time += 5  # the month ends, and leases taken now run out together with that one
    hold = await world.let_in(usd="1")
    await hold.settle(tokens=0, usd=Decimal(1))
    assert (await world.refused(usd="9.5")).by == "budget"


class UnavailableTable(MemoryTable):
    """A table that does not answer while ``down``."""

    down = False

    async def write(self, write: Update) -> Item | None:
        if self.down:
            raise StorageUnavailable("not now")
        return await super().write(write)


async def test_a_settlement_that_the_table_does_not_take_is_one_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    table = UnavailableTable()
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    hold = await world.let_in(1000)
    table.down = True
    world.time += 20
    await hold.renew()
    await hold.settle(tokens=1)
    assert [line.split('"event":"')[1] for line in capsys.readouterr().out.splitlines()] == [
        'limit_not_renewed"}',
        'limit_not_settled"}',
    ]
    with pytest.raises(StorageUnavailable):
        await world.ask(1)
    table.down = False
    world.time += 65
    await world.let_in(1000)


class EveryOtherReplyLostTable(MemoryTable):
    """A table whose every other reply is lost."""

    async def write(self, write: Update) -> Item | None:
        item = await super().write(write)
        if self.calls % 2:
            raise StorageUnavailable("not heard")
        return item


async def test_a_reply_that_is_lost_once_is_asked_for_again_and_nothing_is_counted_twice() -> None:
    table = EveryOtherReplyLostTable()
    world = LimitHarness(table, Caps(1000, 2, Decimal(1)))
    table.items[KEY] = {"pk": KEY.pk, "sk": KEY.sk}
    for _ in range(2):
        hold = await world.let_in(500, "0.5")
        await hold.settle(tokens=400, usd=Decimal("0.4"))
    item = table.items[KEY]
    assert (item["used"], item["spent"], item["active"]) == (800, Decimal("0.8"), 0)


class BlockedReplyTable(MemoryTable):
    """A table whose replies to reservations wait for ``going_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.going_on = asyncio.Event()

    async def write(self, write: Update) -> Item | None:
        item = await super().write(write)
        if not self.going_on.is_set():
            await self.going_on.wait()
        return item


async def test_whoever_is_cancelled_while_reserving_gives_it_back() -> None:
    table = BlockedReplyTable()
    world = LimitHarness(table, Caps(1000, 1, Decimal(1)))
    table.going_on.set()
    await (await world.let_in(1000, "1")).settle(tokens=0)
    table.going_on.clear()
    asking = asyncio.create_task(world.ask(1000, "1"))
    await asyncio.sleep(0)
    asking.cancel()
    table.going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await world.let_in(1000, "1")


async def test_a_caller_cancelled_while_it_settles_still_ends_its_lease() -> None:
    class TwoStepTable(MemoryTable):
        async def write(self, write: Update) -> Item | None:
            await asyncio.sleep(0)
            return await super().write(write)

    table = TwoStepTable()
    world = LimitHarness(table, Caps(1000, 1, Decimal(1)))
    settling = asyncio.create_task((await world.let_in(1000, "1")).settle(tokens=0))
    await asyncio.sleep(0)
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert table.items[KEY]["active"] == 0


async def test_nobody_waits_past_the_deadline_and_a_late_reservation_is_given_back() -> None:
    table = BlockedReplyTable()
    world = LimitHarness(table, Caps(1000, 1, Decimal(1)))
    table.going_on.set()
    await (await world.let_in(1000, "1")).settle(tokens=0)
    table.going_on.clear()
    with pytest.raises(StorageUnavailable):
        await world.worker.reserve("late", tokens=1000, usd=Decimal(1), seconds=0.01)
    table.going_on.set()
    while table.items[KEY]["active"]:
        await asyncio.sleep(0)
    await world.let_in(1000, "1")


async def test_tokens_of_a_slow_reservation_count_for_a_minute_from_its_return() -> None:
    class Slow(MemoryTable):
        async def write(self, write: Update) -> Item | None:
            item = await super().write(write)
            if self.calls == 2:  # the first that takes effect
                world.time += 6
            return item

    table = Slow()
    world = LimitHarness(table, Caps(tokens_per_minute=1000))
    await world.let_in(1000)
    world.time += 59.5
    await world.refused(1)


async def test_a_slow_reservation_that_cannot_be_settled_is_not_made_twice() -> None:
    class Slow(MemoryTable):
        writes_begun = 0

        async def write(self, write: Update) -> Item | None:
            self.writes_begun += 1
            if self.writes_begun == 3:  # the settlement
                raise StorageUnavailable("not now")
            item = await super().write(write)
            world.time += 6
            return item

    table = Slow()
    world = LimitHarness(table, Caps(1000, 2, Decimal(10)))
    with pytest.raises(StorageUnavailable):
        await world.ask(100, "3")
    item = table.items[KEY]
    assert (item["active"], item["used"], item["spent"]) == (1, 100, 3)


async def test_a_hold_is_renewed_while_its_call_runs_and_not_longer() -> None:
    renewed = 0

    class Counting(MemoryTable):
        async def write(self, write: Update) -> Item | None:
            nonlocal renewed
            renewed += 1
            return await super().write(write)

    world = LimitHarness(Counting(), Caps(concurrent=1))
    hold = await world.let_in()
    renewed = 0
    async with renew_while_running(hold, every=0.001):
        while renewed < 3:
            world.time += 20
            await asyncio.sleep(0.001)
    then = renewed
    await asyncio.sleep(0.005)
    assert renewed == then


def test_no_limit_reaches_beyond_its_part_of_the_table(table: LimitTable) -> None:
    with pytest.raises(PermissionError):
        asyncio.run(table.get(Key("T#demo#RAG", "LIMIT")))


class SlowReplyTable(MemoryTable):
    """Delivers its first reply when ``first`` is set, and begins its fourth write when ``fourth`` is."""

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


async def test_a_refusal_that_arrives_late_leaves_no_money_reserved() -> None:
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


async def test_a_call_that_goes_on_into_a_new_month_keeps_its_place(table: LimitTable) -> None:
    world = LimitHarness(table, Caps(concurrent=1, usd_per_month=Decimal(1)))
    world.time = float(1_798_761_600 - 30)  # half a minute before 2027 begins
    hold = await world.worker.reserve("one", tokens=0, usd=Decimal("0.6"))
    assert isinstance(hold, Reservation)
    world.time += 50
    assert isinstance(
        await world.new_worker(Caps(concurrent=2, usd_per_month=Decimal(1))).reserve("two", tokens=0, usd=Decimal("0.1")),
        Reservation,
    )
    await hold.renew()
    world.time += 45
    assert await world.new_worker().count_in_flight() == 2
