"""Test a shared limit under every fault: no rate is exceeded, no capacity leaks, and the budget is exceeded at most once."""

from decimal import Decimal
from typing import NamedTuple

import anyio
from hypothesis import given, note
from hypothesis import strategies as st

from spass.limits.shard import Reservation
from spass.testing.faults import Fault
from tests.unit.limits.limit_harness import BUDGET, CONCURRENCY, TOKENS, WORKERS, LimitHarness


class Begin(NamedTuple):
    worker: int
    tokens: int
    cents: int
    share: float  # of the reserved amounts that the call uses


class End(NamedTuple):
    call: int


class Renew(NamedTuple):
    call: int


class Cancel(NamedTuple):
    task: int


class Release(NamedTuple):
    table_call: int
    fault: Fault | None


class Wait(NamedTuple):
    seconds: float


Step = Begin | End | Renew | Cancel | Release | Wait

ANY = st.integers(0, 7)
BEGINS = st.builds(
    Begin,
    st.integers(0, WORKERS - 1),
    st.sampled_from([0, 1, 100, 100, 250, 250, 400, 999, 3000]),
    st.sampled_from([0, 1, 10, 50, 100, 100, 300, 1500]),
    st.sampled_from([0.0, 0.5, 1.0, 1.5, 8.0]),
)
RELEASES = st.builds(Release, ANY, st.none())
FAULTS = st.builds(Release, ANY, st.sampled_from(Fault))
ENDS = st.builds(End, ANY)
OTHERS: list[st.SearchStrategy[Step]] = [
    st.builds(Renew, ANY),
    st.builds(Cancel, ANY),
    st.builds(Wait, st.sampled_from([0.3, 2.5, 5.0, 20.0, 57.6, 61.0, 130.0])),
]
STEPS: st.SearchStrategy[Step] = st.one_of(*[BEGINS] * 3, *[RELEASES] * 4, *[FAULTS] * 2, *[ENDS] * 2, *OTHERS)


@given(st.lists(STEPS, min_size=30, max_size=150))
def test_no_order_of_admissions_settlements_and_faults_exceeds_a_limit(steps: list[Step]) -> None:
    anyio.run(play, steps)


async def play(steps: list[Step]) -> None:
    harness = LimitHarness()
    try:
        await act(harness, steps)
        await harness.release_all()
        note(str(harness.item))
        await check_all_capacity_is_free(harness)
    finally:
        await harness.close()


async def act(harness: LimitHarness, steps: list[Step]) -> None:
    await harness.begin(harness.workers[0], 10, 10, 1.0)
    await harness.release_all()
    for step in steps:
        running = harness.running
        match step:
            case Begin():
                await harness.begin(harness.workers[step.worker], step.tokens, step.cents, step.share)
            case End() if running:
                await harness.end(running[step.call % len(running)])
            case Renew() if running:
                await harness.renew(running[step.call % len(running)])
            case Cancel():
                await harness.cancel(step.task)
            case Release():
                await harness.release(step.table_call, step.fault)
            case Wait():
                harness.time += step.seconds


async def check_all_capacity_is_free(harness: LimitHarness) -> None:
    """Check that all capacity is free when all leases and the window have ended, and that the item has the right cost."""
    assert Decimal(str(harness.item.get("spent", 0))) == harness.spent
    harness.time += 60 + 65
    remaining_usd = max(Decimal(0), BUDGET - harness.spent)
    answers = []
    for number in range(CONCURRENCY):
        before = len(harness.calls)
        await harness.begin(harness.workers[0], TOKENS if number == 0 else 0, int(remaining_usd * 100) if number == 0 else 0, 1.0)
        await harness.release_all()
        answers.append(harness.calls[f"c{before}"].reservation)
    if harness.spent <= BUDGET:
        assert all(isinstance(answer, Reservation) for answer in answers), "capacity has leaked"
