"""Every call of a turn's memory may fail: afterwards each note is there once, and a repeated turn finds what it kept."""

from collections.abc import Callable

import pytest

from spass.core.effects import Note, SearchNotes, StoreNote
from spass.core.errors import StorageUnavailable
from spass.memory.views import page_notes
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.memory.operators import NEWS, Operators

pytestmark = pytest.mark.anyio


async def take_a_turn(operators: Operators) -> list[Note]:
    """Recall, keep, and recall what was kept."""
    memory = operators.memory()
    await memory.recall(SearchNotes("state", "key", 1))
    await memory.keep(StoreNote("offer one", "offer", ("offer", "price")))
    await memory.recall(SearchNotes("offer", "semantic", 8))
    await memory.keep(StoreNote("offer two"))
    await memory.keep(StoreNote("offer three", "offer", ("offer", "price")))
    return [*(await memory.recall(SearchNotes("offer", "keyword", 8))).notes]


async def prepared() -> Operators:
    """Return an operator with a note whose vector is missing, and with one of a forgotten generation."""
    operators = Operators()
    memory = await operators.started()
    operators.calls.broken = True
    await memory.keep(StoreNote("offer zero"))
    operators.calls.broken = False
    return operators


async def kept(operators: Operators) -> list[str]:
    page = await page_notes(operators.store(), NEWS, None, 100)
    return sorted(note.content for note in page.notes)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fault", [*Fault])
async def test_a_turn_that_failed_anywhere_can_be_repeated(
    fault: Fault, times: int, record_property: Callable[[str, object], None]
) -> None:
    whole = await prepared()
    with inject(FaultPlan()) as plan:
        await take_a_turn(whole)
    wanted = ["offer three", "offer two", "offer zero"]
    assert await kept(whole) == wanted
    for at in range(len(plan.calls)):
        operators = await prepared()
        failed = False
        try:
            with inject(FaultPlan(fault, at, times)):
                found = await take_a_turn(operators)
        except (Crash, StorageUnavailable):
            failed = True
            assert set(await kept(operators)) <= {"offer one", *wanted}
            found = await take_a_turn(operators)
        assert failed is (fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)) or times == 2
        assert sorted(note.content for note in found) == await kept(operators) == wanted
        later = await operators.memory().recall(SearchNotes("offer", "semantic", 8))
        assert sorted(note.content for note in later.notes) == wanted
    record_property("failed_calls", len(plan.calls))
