"""Slots are shared by tenants in turn, and neither a cancelled task nor an ended loop loses or gains one."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.slots import NoFreeSlot, Slots

pytestmark = pytest.mark.anyio


class Arrive(NamedTuple):
    tenant: str


class Release(NamedTuple):
    holder: int


class Cancel(NamedTuple):
    task: int


Step = Arrive | Release | Cancel

ANY = st.integers(0, 30)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Arrive, st.sampled_from("aaab")),
    st.builds(Arrive, st.sampled_from("abcd")),
    st.builds(Release, ANY),
    st.builds(Cancel, ANY),
)
BATCHES = st.lists(st.lists(STEPS, min_size=1, max_size=3), max_size=40)
"""The event loop runs after each batch, not within it: so tasks are cancelled also between their turn and their next step."""


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@dataclass(eq=False)
class World:
    """Tasks that take slots. ``served`` are the tenants of those that got one, in order."""

    number: int
    slots: Slots = field(init=False)
    waiting: "list[tuple[str, asyncio.Task[None]]]" = field(default_factory=list)
    holders: list[str] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    since: dict[str, Counter[str]] = field(default_factory=dict)
    """The turns of others while a tenant without a slot waits."""

    def __post_init__(self) -> None:
        self.slots = Slots(self.number)

    def do(self, step: Step) -> None:
        match step:
            case Arrive(tenant):
                self.waiting.append((tenant, asyncio.create_task(self._take(tenant))))
            case Release(holder) if self.holders:
                self.slots.release(self.holders.pop(holder % len(self.holders)))
            case Cancel(task) if self.waiting:
                self.waiting[task % len(self.waiting)][1].cancel()

    async def _take(self, tenant: str) -> None:
        await self.slots.acquire(tenant)
        self.holders.append(tenant)
        self.served.append(tenant)

    async def run(self, batch: Iterable[Step]) -> None:
        before, had_waited = len(self.served), self.without_a_slot()
        for step in batch:
            self.do(step)
        await settle()
        self.waiting = [(tenant, task) for tenant, task in self.waiting if not task.done()]
        self.since = {tenant: self.since.get(tenant, Counter()) for tenant in self.without_a_slot() & had_waited}
        for turns in self.since.values():
            turns.update(self.served[before:])

    def without_a_slot(self) -> set[str]:
        return {tenant for tenant, _ in self.waiting} - set(self.holders)

    def check(self) -> None:
        assert len(self.holders) <= self.number + 1
        assert all(count <= self.number for count in Counter(self.holders).values())
        if len(self.holders) < self.number:
            assert not self.waiting
        if len(self.holders) == self.number:
            assert not self.without_a_slot()
        assert all(max(turns.values(), default=0) <= 1 for turns in self.since.values())

    async def drain(self) -> None:
        """Release all slots until no task waits."""
        while self.holders:
            await self.run([Release(0)])
            self.check()


@given(st.integers(1, 4), BATCHES)
def test_each_tenant_has_its_share_and_no_slot_is_lost(number: int, batches: Sequence[Sequence[Step]]) -> None:
    async def run() -> None:
        world = World(number)
        for batch in batches:
            await world.run(batch)
            world.check()
        await world.drain()
        assert not world.waiting
        for _ in range(number):
            await asyncio.wait_for(world.slots.acquire("a"), 1)
        assert not world.slots.has_free("a")
        assert world.slots.has_free("b")

    asyncio.run(run())


async def test_a_tenant_alone_has_all_slots_and_the_next_one_starts_at_once() -> None:
    slots = Slots(2)
    await slots.acquire("busy")
    await slots.acquire("busy")
    with pytest.raises(NoFreeSlot):
        await slots.acquire("busy", 0.01)
    await slots.acquire("other", 0.01)
    with pytest.raises(NoFreeSlot):
        await slots.acquire("third", 0.01)


async def test_tenants_that_wait_are_served_in_turn() -> None:
    world = World(1)
    await world.run(map(Arrive, ("a", "b")))
    await world.run(map(Arrive, "aaaabbcc"))
    assert world.served == ["a", "b"]
    await world.drain()
    assert world.served == [*"ab", *"abcabcaa"]


async def test_a_slot_given_to_a_cancelled_task_goes_to_the_next_one() -> None:
    world = World(1)
    await world.run([Arrive("a")])
    await world.run([Arrive("a"), Arrive("a")])
    await world.run([Release(0), Cancel(0)])
    assert (world.served, len(world.waiting)) == (["a", "a"], 0)


def test_a_slot_is_not_given_to_a_task_of_an_ended_loop() -> None:
    slots = Slots(1)
    asyncio.run(slots.acquire("a"))
    ended = asyncio.new_event_loop()
    ended.set_exception_handler(lambda *_: None)  # it would tell of the task that it leaves
    tasks = [ended.create_task(slots.acquire("a"))]
    ended.run_until_complete(settle())
    ended.close()
    slots.release("a")
    assert slots.has_free("a")
    assert not tasks[0].done()
