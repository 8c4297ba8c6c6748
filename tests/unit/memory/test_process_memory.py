"""The memory of an operator in a process without a gateway."""

import asyncio

from spass.core.effects import SearchNotes, StoreNote
from spass.core.messages import Message, Role
from spass.memory.notes import MAX_NOTES
from spass.memory.process_memory import ProcessMemory


def recall(memory: ProcessMemory, effect: SearchNotes) -> list[str]:
    return [note.content for note in asyncio.run(memory.recall(effect)).notes]


def test_notes_are_found_by_key_by_words_by_meaning_and_by_end() -> None:
    memory = ProcessMemory()
    for note in (StoreNote("The mill burned.", "mill", ("Fire",)), StoreNote("The boiler failed.", ends=("fire", "valve"))):
        asyncio.run(memory.keep(note))
    assert recall(memory, SearchNotes("mill", "key", 1)) == ["The mill burned."]
    assert recall(memory, SearchNotes("boiler", "keyword", 5)) == recall(memory, SearchNotes("boiler", "semantic", 5))
    assert recall(memory, SearchNotes("boiler", "keyword", 5)) == ["The boiler failed."]
    assert recall(memory, SearchNotes("FIRE", "ends", 5)) == ["The boiler failed.", "The mill burned."]
    assert recall(memory, SearchNotes("FIRE", "ends", 1)) == ["The boiler failed."]


def test_a_note_replaces_that_of_its_key_and_the_oldest_is_dropped() -> None:
    memory = ProcessMemory()
    for number in range(MAX_NOTES + 1):
        assert asyncio.run(memory.keep(StoreNote(f"Note {number}.", f"n{number}"))) == f"n{number}"
    asyncio.run(memory.keep(StoreNote("Another.", "n1")))
    assert [recall(memory, SearchNotes(key, "key", 1)) for key in ("n0", "n1", "n2")] == [[], ["Another."], ["Note 2."]]


def test_a_state_counts_from_the_end_of_its_run() -> None:
    memory = ProcessMemory()
    memory.begin()
    memory.set_state("lost")
    memory.begin()
    assert recall(memory, SearchNotes("state", "key", 1)) == []
    memory.set_state({"answer": "Hi"})
    memory.commit((Message(Role.USER, "Hello"),))
    memory.begin()
    assert recall(memory, SearchNotes("state", "key", 1)) == ['{"answer":"Hi"}']
    assert memory.conversation == (Message(Role.USER, "Hello"),)
