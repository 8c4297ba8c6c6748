"""The oldest notes beyond a thousand are evicted by whoever sees them."""

import pytest

from spass.core.effects import SearchNotes, StoreNote
from spass.core.time import timestamp
from spass.memory.notes import MAX_NOTES, make_note
from spass.sessions.operator_requests import view_operator
from spass.store import keys
from spass.store.codec import encode
from spass.store.writes import Put
from spass.testing.faults import Fault, FaultPlan, inject
from tests.unit.memory.operators import NEWS, Operators

pytestmark = pytest.mark.anyio


async def fill(operators: Operators, count: int) -> None:
    """Store notes ``tea 0``, ``tea 1``, … with keys of the same names."""
    generation = (await operators.begin()).generation
    for number in range(count):
        note = make_note(f"tea {number}", f"tea {number}", (), generation, timestamp(operators.clock()))
        operators.aws.table.write(
            write=Put(keys.operator_note(operators.store().tenant, NEWS.user, NEWS.id, note.digest), encode(note))
        )


async def stored(operators: Operators) -> set[str]:
    """Return the keys of all stored notes."""
    return {str(item["key"]) for item in operators.aws.table.items() if str(item["sk"]).startswith("NOTE#")}


def numbered(first: int, end: int) -> set[str]:
    return {f"tea {number}" for number in range(first, end)}


async def test_a_thousand_notes_stay(operators: Operators) -> None:
    await fill(operators, MAX_NOTES)
    memory = operators.memory()
    assert len((await memory.recall(SearchNotes("tea", "keyword", 2000))).notes) == MAX_NOTES
    await memory.keep(StoreNote("tea 7, more", "tea 7"))
    assert len(await stored(operators)) == MAX_NOTES


async def test_the_note_after_the_thousandth_evicts_the_oldest(operators: Operators) -> None:
    await fill(operators, MAX_NOTES)
    memory = operators.memory()
    await memory.recall(SearchNotes("tea", "keyword", 1))
    assert await memory.keep(StoreNote("the newest")) in await stored(operators)
    assert len(await stored(operators)) == MAX_NOTES
    assert "tea 0" not in await stored(operators)
    assert (await memory.recall(SearchNotes("tea 0", "key", 1))).notes == ()
    assert (await view_operator(operators.store(), NEWS)).notes == MAX_NOTES


async def test_a_search_evicts_all_beyond_a_thousand(operators: Operators) -> None:
    await fill(operators, MAX_NOTES + 60)
    found = await operators.memory().recall(SearchNotes("tea", "keyword", 2000))
    assert {note.key for note in found.notes} == await stored(operators) == numbered(60, MAX_NOTES + 60)


async def test_a_newer_note_with_the_key_of_an_old_one_is_not_evicted(operators: Operators) -> None:
    await fill(operators, MAX_NOTES + 1)
    await operators.memory().keep(StoreNote("renewed", "tea 0"))
    await operators.memory().recall(SearchNotes("tea", "keyword", 1))
    assert await stored(operators) == numbered(0, MAX_NOTES + 1) - {"tea 1"}


async def test_the_note_of_a_slow_clock_is_not_evicted_by_its_own_write(operators: Operators) -> None:
    await fill(operators, MAX_NOTES)
    operators.now -= 100_000
    memory = operators.memory()
    await memory.recall(SearchNotes("tea", "keyword", 1))
    assert await memory.keep(StoreNote("of a slow clock", "slow")) == "slow"
    assert await stored(operators) == {"slow", *numbered(1, MAX_NOTES)}


async def test_an_operator_that_never_searches_does_not_grow_for_ever(operators: Operators) -> None:
    await fill(operators, MAX_NOTES + 500)
    for number in range(300):
        await operators.memory().keep(StoreNote(f"coffee {number}", f"coffee {number}"))
    assert len(await stored(operators)) < MAX_NOTES + 200


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.THROTTLE, Fault.REPEATED])
async def test_a_failed_eviction_fails_no_search_and_is_made_up_for(operators: Operators, fault: Fault) -> None:
    await fill(operators, MAX_NOTES + 3)
    with inject(FaultPlan(fault, at=2, times=100)):  # after the state and the only page of notes
        found = await operators.memory().recall(SearchNotes("tea", "keyword", 2000))
    assert {note.key for note in found.notes} == numbered(3, MAX_NOTES + 3)
    await operators.memory().recall(SearchNotes("tea", "keyword", 1))
    assert await stored(operators) == numbered(3, MAX_NOTES + 3)
