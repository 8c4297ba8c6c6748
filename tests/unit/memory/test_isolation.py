"""No note, state or count of one operator appears at another: of two users, of two tenants, or with ids that begin alike."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pytest

from spass.core.effects import SearchNotes, StoreNote
from spass.core.errors import InvalidRequest, OperatorNotFound
from spass.core.ids import Operator, OperatorId, UserId
from spass.core.messages import Json
from spass.core.time import timestamp
from spass.memory.operator_memory import OperatorMemory
from spass.memory.state import read_state, state_update
from spass.memory.views import page_notes
from spass.sessions.operator_requests import delete_operator, view_operator
from tests.sampling import SOAK
from tests.unit.memory.operators import Operators

pytestmark = pytest.mark.anyio

OPERATIONS: Final = 20_000 if SOAK else 1000
OWNERS: Final = [
    *itertools.product(("demo", "demo-2", "dem"), ("ana", "an", "ana:news", "token/ana"), ("news", "new", "news:2", "ana"))
]
SEARCHES: Final = (
    SearchNotes("tea", "keyword", 2000),
    SearchNotes("tea", "semantic", 2000),
    SearchNotes("x", "ends", 2000),
    SearchNotes("plan", "key", 1),
)
WORDS: Final = ("tea", "coffee", "kraken")


@dataclass
class Expected:
    """What one operator holds: the notes by key, and the state."""

    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    state: Json = None


@dataclass
class World:
    """All operators, and what each should hold. A turn of an operator lasts for several operations."""

    random: Random
    operators: Operators = field(default_factory=Operators)
    expected: dict[int, Expected] = field(default_factory=dict)
    turns: dict[int, OperatorMemory] = field(default_factory=dict)
    cursors: list[tuple[int, str]] = field(default_factory=list)

    def operator(self, owner: int) -> tuple[str, Operator]:
        tenant, user, operator = OWNERS[owner]
        return tenant, Operator(UserId(user), OperatorId(operator))

    async def turn(self, owner: int) -> OperatorMemory:
        tenant, operator = self.operator(owner)
        self.expected.setdefault(owner, Expected())
        await self.operators.begin(operator, tenant=tenant)
        if owner not in self.turns or self.random.random() < 0.3:
            self.turns[owner] = self.operators.memory(operator, tenant=tenant)
        return self.turns[owner]

    async def keep(self, owner: int) -> None:
        turn = await self.turn(owner)
        word, end = self.random.choice(WORDS), self.random.choice("xyz")
        content = f"{word} of {OWNERS[owner]}, {self.random.randrange(9)}"
        key = await turn.keep(StoreNote(content, self.random.choice([None, "plan", "state of tea"]), (end,)))
        self.expected[owner].notes[key] = (content, end)

    async def search(self, owner: int) -> None:
        turn = await self.turn(owner)
        recall = self.random.choice(SEARCHES)
        found = await turn.recall(recall)
        notes = self.expected[owner].notes
        wanted = {
            "keyword": [content for content, *_ in notes.values() if "tea" in content],
            "semantic": [content for content, *_ in notes.values()],
            "ends": [content for content, end in notes.values() if end == "x"],
            "key": [notes["plan"][0]] if "plan" in notes else [],
        }
        assert found.error is None
        assert sorted(note.content for note in found.notes) == sorted(wanted[recall.by])

    async def commit(self, owner: int) -> None:
        await self.turn(owner)
        tenant, operator = self.operator(owner)
        store = self.operators.store(tenant)
        before = await read_state(store, operator)
        assert before is not None
        state: Json = {"input": f"{OWNERS[owner]}", "n": self.random.randrange(9)}
        at = timestamp(self.operators.clock())
        await store.table.write(state_update(store, operator, before.session, before.session, state, at))
        self.expected[owner].state = state
        del self.turns[owner]

    async def recall_state(self, owner: int) -> None:
        turn = await self.turn(owner)
        found = await turn.recall(SearchNotes("state", "key", 1))
        state = self.expected[owner].state
        assert [json.loads(note.content) for note in found.notes] == ([state] if state is not None else [])

    async def forget(self, owner: int) -> None:
        tenant, operator = self.operator(owner)
        forgotten = await delete_operator(self.operators.store(tenant), operator)
        assert forgotten is (self.expected.pop(owner, None) is not None)
        self.turns.pop(owner, None)

    async def view(self, owner: int) -> None:
        tenant, operator = self.operator(owner)
        store = self.operators.store(tenant)
        expected = self.expected.get(owner)
        if expected is None:
            for read in (view_operator(store, operator), page_notes(store, operator, None, 5)):
                with pytest.raises(OperatorNotFound):
                    await read
            return
        view = await view_operator(store, operator)
        assert (view.notes, view.state) == (len(expected.notes), expected.state)
        listed, cursor = dict[str, tuple[str, ...]](), None
        while True:
            page = await page_notes(store, operator, cursor, self.random.randrange(1, 5))
            listed |= {note.key: (note.content, *note.ends) for note in page.notes}
            cursor = page.next_cursor
            if cursor is None:
                break
            self.cursors.append((owner, cursor))
        assert listed == expected.notes

    async def use_a_foreign_cursor(self, owner: int) -> None:
        tenant, operator = self.operator(owner)
        foreign = [cursor for of, cursor in self.cursors if of != owner]
        if foreign and owner in self.expected:
            with pytest.raises(InvalidRequest):
                await page_notes(self.operators.store(tenant), operator, self.random.choice(foreign), 5)


@pytest.mark.parametrize("seed", range(2))
async def test_an_operator_holds_what_its_owner_stored_and_nothing_else(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    world = World(Random(seed))
    few = world.random.sample(range(len(OWNERS)), 16)
    operations: list[Any] = [world.keep, world.keep, world.keep, world.search, world.search, world.commit, world.recall_state]
    operations += [world.view, world.view, world.use_a_foreign_cursor, world.forget]
    for _ in range(OPERATIONS):
        await world.random.choice(operations)(world.random.choice(few))
    assert len(world.cursors) > 10
    record_property("operations", OPERATIONS)
