"""What an operator recalls and keeps during its turns."""

import asyncio

import pytest

from spass.core.effects import Note, SearchNotes, StoreNote
from spass.core.errors import OperatorNotFound
from spass.core.time import timestamp
from spass.memory.operator_memory import OperatorMemory
from spass.memory.state import state_update
from spass.testing.faults import FaultPlan, inject
from tests.unit.memory.operators import NEWS, Operators

pytestmark = pytest.mark.anyio

OPERATIONS = ("keyword", "semantic", "ends", "key")


async def contents(memory: OperatorMemory, query: str, by: str, limit: int = 8) -> list[str]:
    recalled = await memory.recall(SearchNotes(query, by, limit))  # type: ignore[arg-type]
    assert recalled.error is None
    return [note.content for note in recalled.notes]


async def test_a_note_is_found_in_its_own_turn_and_in_later_ones(operators: Operators) -> None:
    memory = await operators.started()
    assert await contents(memory, "kraken", "keyword") == []
    key = await memory.keep(StoreNote("The kraken sleeps."))
    for turn in (memory, operators.memory()):
        assert await contents(turn, "kraken", "keyword") == ["The kraken sleeps."]
        assert await contents(turn, "kraken", "semantic") == ["The kraken sleeps."]
        assert await contents(turn, key, "key") == ["The kraken sleeps."]


async def test_keywords_find_the_rare_word_and_meaning_the_paraphrase(operators: Operators) -> None:
    memory = await operators.started()
    for content in ("the the sea", "the kraken", "silent", "the end"):
        await memory.keep(StoreNote(content))
    assert (await contents(memory, "the kraken", "keyword"))[0] == "the kraken"
    assert await contents(memory, "listen", "keyword") == []
    assert (await contents(memory, "listen", "semantic"))[0] == "silent"


async def test_the_same_content_without_a_key_is_one_note(operators: Operators) -> None:
    memory = await operators.started()
    keys = {await turn.keep(StoreNote("once")) for turn in (memory, memory, operators.memory())}
    assert len(keys) == 1
    assert await contents(operators.memory(), "once", "keyword") == ["once"]
    assert await memory.keep(StoreNote("twice")) not in keys


async def test_a_note_takes_the_place_of_one_with_its_key(operators: Operators) -> None:
    memory = await operators.started()
    await contents(memory, "x", "keyword")
    for content in ("old", "new"):
        assert await memory.keep(StoreNote(content, "plan")) == "plan"
    for turn in (memory, operators.memory()):
        assert await contents(turn, "old new", "keyword") == ["new"]
        assert await contents(turn, "plan", "key") == ["new"]


async def test_equal_notes_are_found_newest_first_and_a_limit_cuts(operators: Operators) -> None:
    memory = await operators.started()
    for number in range(5):
        await memory.keep(StoreNote("tea time", f"note {number}"))
    for by in ("keyword", "semantic"):
        recalled = await operators.memory().recall(SearchNotes("tea", by, 3))
        assert [note.key for note in recalled.notes] == ["note 4", "note 3", "note 2"]
        assert len({note.score for note in recalled.notes}) == 1
        assert recalled.notes[0].score > 0
        assert recalled.notes[0].created_at > recalled.notes[1].created_at
    assert await contents(memory, "tea", "keyword", 0) == []


async def test_notes_are_filed_under_their_ends(operators: Operators) -> None:
    memory = await operators.started()
    await memory.keep(StoreNote("rain floods", ends=("Heavy  Rain", "flood")))
    await memory.keep(StoreNote("flood closes", ends=("flood", "closed road")))
    await memory.keep(StoreNote("rain, heavy rain, flood"))
    for turn in (memory, operators.memory()):
        assert await contents(turn, " heavy rain\n", "ends") == ["rain floods"]
        assert await contents(turn, "FLOOD", "ends") == ["flood closes", "rain floods"]
        assert await contents(turn, "flood", "ends", 1) == ["flood closes"]
        assert await contents(turn, "rain", "ends") == []
    (note,) = (await memory.recall(SearchNotes("closed road", "ends", 1))).notes
    assert note.ends == ("flood", "closed road")


async def test_the_state_is_recalled_under_its_key(operators: Operators) -> None:
    before = await operators.begin()
    assert await contents(operators.memory(), "state", "key") == []
    store, at = operators.store(), timestamp(operators.now)
    for state, text in (("as I wrote it", "as I wrote it"), ({"input": "1"}, '{"input":"1"}')):
        await store.table.write(state_update(store, NEWS, before.session, before.session, state, at))
        recalled = await operators.memory().recall(SearchNotes("state", "key", 1))
        assert recalled.notes == (Note("state", text, created_at=at),)
    assert await contents(operators.memory(), "state input", "keyword") == []


async def test_the_next_state_is_what_was_set_last_and_nothing_is_written(operators: Operators) -> None:
    memory = await operators.started()
    assert memory.next_state is None
    for state in ({"a": 1}, "last"):
        memory.set_state(state)
    assert memory.next_state == "last"
    assert await contents(memory, "state", "key") == ["last"]
    assert await contents(operators.memory(), "state", "key") == []


async def test_a_search_reads_the_notes_once_in_a_turn(operators: Operators) -> None:
    memory = await operators.started()
    for number in range(3):
        await memory.keep(StoreNote(f"tea {number}"))
    with inject(FaultPlan()) as plan:
        turn = operators.memory()
        searches = [turn.recall(SearchNotes("tea", by, 8)) for by in OPERATIONS for _ in range(2)]  # type: ignore[arg-type]
        await asyncio.gather(*searches)
        await turn.keep(StoreNote("tea 3"))
        await turn.recall(SearchNotes("tea", "keyword", 8))
    assert [call.operation for call in plan.calls] == ["GetItem", "Query", "PutItem"]


async def test_a_turn_that_only_keeps_reads_no_notes(operators: Operators) -> None:
    memory = await operators.started()
    with inject(FaultPlan()) as plan:
        await memory.keep(StoreNote("once", "plan"))
    assert [call.operation for call in plan.calls] == ["GetItem", "PutItem"]


async def test_concurrent_calls_of_one_turn_see_one_memory(operators: Operators) -> None:
    memory = await operators.started()
    await memory.keep(StoreNote("tea"))
    work = [memory.keep(StoreNote(f"tea {number}", f"k{number % 4}")) for number in range(12)]
    await asyncio.gather(*work, *(memory.recall(SearchNotes("tea", "semantic", 8)) for _ in range(6)))
    here = await contents(memory, "tea", "keyword", 20)
    assert len(here) == 5
    assert here == await contents(operators.memory(), "tea", "keyword", 20)


async def test_a_forgotten_operator_recalls_and_keeps_nothing(operators: Operators) -> None:
    memory = operators.memory()
    for by in OPERATIONS:
        assert await contents(memory, "state", by) == []
    with pytest.raises(OperatorNotFound):
        await memory.keep(StoreNote("late"))
    assert [*operators.aws.table.items()] == []


@pytest.mark.parametrize("length", [4095, 4096, 4097, 9000])
async def test_a_note_of_a_kind_that_is_too_long_is_cut(operators: Operators, length: int) -> None:
    memory = await operators.started()
    key = await memory.keep(StoreNote("ü" * (length // 2) + "x" * (length % 2), "k" * 200, ends=("e" * 9000,) * 20))
    assert key == "k" * 128
    (note,) = (await operators.memory().recall(SearchNotes(key, "key", 1))).notes
    assert len(note.content.encode()) == min(length, 4096)
    assert note.ends == ("e" * 500,) * 8


async def test_control_characters_and_half_characters_are_left_out(operators: Operators) -> None:
    memory = await operators.started()
    key = await memory.keep(StoreNote("a\0b\x1b[31m\tc\n\ud800", "k\n\x07ey\x85", ends=("\ud800",)))
    assert key == "key"
    (note,) = (await operators.memory().recall(SearchNotes(key, "key", 1))).notes
    assert (note.content, note.ends) == ("ab[31m\tc\n?", ("?",))
