"""The laws of a shared limit, whatever happens to its workers: never over the limit, never leaking capacity, the budget never
overshot by more than one reservation."""

from decimal import Decimal
from typing import NamedTuple

import anyio
from hypothesis import given, note
from hypothesis import strategies as st

from spass.aws.faults import Fault
from spass.aws.limits import Hold
from tests.unit.aws.limit_world import BUDGET, PLACES, TOKENS, WORKERS, World


class Begin(NamedTuple):
    worker: int
    tokens: int
    cents: int
    share: float  # of what was reserved, that the call really takes


class End(NamedTuple):
    call: int


class Renew(NamedTuple):
    call: int


class Cancel(NamedTuple):
    task: int


class Let(NamedTuple):
    call: int
    fault: Fault | None


class Pass(NamedTuple):
    seconds: float


Step = Begin | End | Renew | Cancel | Let | Pass

ANY = st.integers(0, 7)
BEGINS = st.builds(
    Begin,
    st.integers(0, WORKERS - 1),
    st.sampled_from([0, 1, 100, 100, 250, 250, 400, 999, 3000]),
    st.sampled_from([0, 1, 10, 50, 100, 100, 300, 1500]),
    st.sampled_from([0.0, 0.5, 1.0, 1.5, 8.0]),
)
LETS = st.builds(Let, ANY, st.none())
FAULTS = st.builds(Let, ANY, st.sampled_from(Fault))
ENDS = st.builds(End, ANY)
OTHERS: list[st.SearchStrategy[Step]] = [
    st.builds(Renew, ANY),
    st.builds(Cancel, ANY),
    st.builds(Pass, st.sampled_from([0.3, 2.5, 5.0, 20.0, 57.6, 61.0, 130.0])),
]
STEPS: st.SearchStrategy[Step] = st.one_of(*[BEGINS] * 3, *[LETS] * 4, *[FAULTS] * 2, *[ENDS] * 2, *OTHERS)


@given(st.lists(STEPS, min_size=30, max_size=150))
def test_no_order_of_admissions_settlements_faults_and_deaths_breaks_a_limit(steps: list[Step]) -> None:
    anyio.run(play, steps)


async def play(steps: list[Step]) -> None:
    world = World()
    try:
        await act(world, steps)
        await world.let_all()
        note(str(world.item))
        await everything_comes_back(world)
    finally:
        await world.close()


async def act(world: World, steps: list[Step]) -> None:
    await world.begin(world.workers[0], 10, 10, 1.0)
    await world.let_all()
    for step in steps:
        running = world.running
        match step:
            case Begin():
                await world.begin(world.workers[step.worker], step.tokens, step.cents, step.share)
            case End() if running:
                await world.end(running[step.call % len(running)])
            case Renew() if running:
                await world.renew(running[step.call % len(running)])
            case Cancel():
                await world.cancel(step.task)
            case Let():
                await world.let(step.call, step.fault)
            case Pass():
                world.time += step.seconds


async def everything_comes_back(world: World) -> None:
    """When all leases have run out and the window has passed, all is free; and of the money just what was counted is gone."""
    assert Decimal(str(world.item.get("spent", 0))) == world.spent
    world.time += 60 + 65
    left = max(Decimal(0), BUDGET - world.spent)
    answers = []
    for number in range(PLACES):
        before = len(world.calls)
        await world.begin(world.workers[0], TOKENS if number == 0 else 0, int(left * 100) if number == 0 else 0, 1.0)
        await world.let_all()
        answers.append(world.calls[f"c{before}"].hold)
    if world.spent <= BUDGET:
        assert all(isinstance(answer, Hold) for answer in answers), "capacity has leaked"
