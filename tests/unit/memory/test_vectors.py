"""The vectors of notes: computed when a note is written, and again when they are missing or of another model."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.calls.scope import Scope
from spass.core.effects import CallError, Recalled, SearchNotes, StoreNote
from spass.core.errors import UpstreamError
from spass.core.time import Timestamp
from spass.memory.notes import StoredNote, note_digest, rank_by_meaning
from spass.models.types import EmbeddingReply
from spass.store import keys
from spass.store.writes import Update
from spass.testing.faults import Fault, FaultPlan, inject
from tests.unit.memory.operators import NEWS, LetterCalls, Operators

pytestmark = pytest.mark.anyio

LISTEN = SearchNotes("listen", "semantic", 8)


async def found(operators: Operators) -> list[str]:
    recalled = await operators.memory().recall(LISTEN)
    assert recalled.error is None
    return [note.content for note in recalled.notes]


async def test_a_note_is_embedded_once_and_a_query_once(operators: Operators) -> None:
    memory = await operators.started()
    for content in ("silent", "zzz"):
        await memory.keep(StoreNote(content))
    for _ in range(2):
        assert await found(operators) == ["silent", "zzz"]
    assert operators.calls.texts == ["silent", "zzz", "listen", "listen"]


async def test_nothing_is_embedded_before_the_first_note(operators: Operators) -> None:
    await operators.begin()
    assert await found(operators) == []
    assert operators.calls.texts == []


async def test_only_the_beginning_of_a_long_query_is_embedded(operators: Operators) -> None:
    memory = await operators.started()
    await memory.keep(StoreNote("x"))
    await memory.recall(SearchNotes("q" * 300_000, "semantic", 8))
    assert [len(text) for text in operators.calls.texts] == [1, 2000]


async def test_a_note_that_could_not_be_embedded_is_stored_and_embedded_later(operators: Operators) -> None:
    memory = await operators.started()
    operators.calls.broken = True
    key = await memory.keep(StoreNote("silent"))
    assert [note.content for note in (await memory.recall(SearchNotes(key, "key", 1))).notes] == ["silent"]
    assert await memory.recall(LISTEN) == Recalled((), CallError("upstream_error", "The embedding model is down."))
    operators.calls.broken = False
    assert await found(operators) == ["silent"]
    assert await found(operators) == ["silent"]
    assert operators.calls.texts == ["listen", "silent", "listen"]


async def test_after_a_change_of_the_model_all_vectors_are_computed_again(operators: Operators) -> None:
    memory = await operators.started()
    contents = [f"silent {number}" for number in range(60)]
    for content in contents:
        await memory.keep(StoreNote(content))
    operators.calls.texts.clear()
    operators.model = "other letters"
    memory = operators.memory()
    for _ in range(2):
        assert len((await memory.recall(SearchNotes("listen", "semantic", 100))).notes) == 60
    assert operators.calls.texts[0] == "listen"
    assert sorted(operators.calls.texts[1:]) == sorted([*contents, "listen"])
    operators.calls.texts.clear()
    assert len(await found(operators)) == 8
    assert operators.calls.texts == ["listen"]


async def test_a_vector_of_another_size_is_computed_again(operators: Operators) -> None:
    memory = await operators.started()
    await memory.keep(StoreNote("silent", "k"))
    digest = note_digest((await operators.begin()).generation, "k")
    key = keys.operator_note(operators.store().tenant, NEWS.user, NEWS.id, digest)
    await operators.store().table.write(Update(key, set={"vector": b"\0" * 12}))
    assert await found(operators) == ["silent"]
    assert operators.calls.texts == ["silent", "listen", "silent"]


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.THROTTLE, Fault.TIMEOUT, Fault.REPEATED])
async def test_vectors_that_cannot_be_stored_do_not_fail_the_search(operators: Operators, fault: Fault) -> None:
    memory = await operators.started()
    operators.calls.broken = True
    for content in ("silent", "zzz"):
        await memory.keep(StoreNote(content))
    operators.calls.broken = False
    with inject(FaultPlan(fault, at=2, times=100)):  # after the state and the page of notes
        assert await found(operators) == ["silent", "zzz"]
    assert await found(operators) == ["silent", "zzz"]


async def test_a_vector_never_belongs_to_an_older_text_of_its_note(operators: Operators) -> None:
    memory = await operators.started()
    operators.calls.broken = True
    await memory.keep(StoreNote("zzz", "k"))
    operators.calls.broken = False
    stale = operators.memory()
    await stale.recall(SearchNotes("x", "keyword", 1))
    await operators.memory().keep(StoreNote("silent", "k"))
    await stale.recall(LISTEN)  # computes the vector of "zzz"
    (note,) = (await operators.memory().recall(LISTEN)).notes
    assert (note.content, note.score) == ("silent", 1.0)


FLOATS = st.floats(-1, 1, width=16)


@settings(max_examples=50)
@given(st.lists(st.lists(FLOATS, min_size=4, max_size=4), min_size=1, max_size=12), st.lists(FLOATS, min_size=4, max_size=4))
def test_the_ranking_is_that_of_the_exact_cosines(rows: list[list[float]], query: list[float]) -> None:
    def note(number: int, row: list[float]) -> StoredNote:
        vector = np.array(row, "<f4").tobytes()
        return StoredNote(f"k{number}", "x", Timestamp(f"{number:03d}"), "gen", (), "m", vector)

    ranked = rank_by_meaning([note(*one) for one in enumerate(rows)], np.array(query, "<f4").tobytes(), 5)
    exact = {f"k{n}": sum(a * b for a, b in zip(row, query, strict=True)) for n, row in enumerate(rows)}
    assert len(ranked) == min(5, len(rows))
    assert [note.score for note in ranked] == sorted((note.score for note in ranked), reverse=True)
    for note_found in ranked:
        assert note_found.score == pytest.approx(exact[note_found.key], abs=1e-5)
        better = [key for key, score in exact.items() if score > note_found.score + 1e-5]
        assert len(better) <= ranked.index(note_found)


class RefusingCalls(LetterCalls):
    """Embedding calls that fail if one of the texts is ``poison``. ``begun`` counts the texts that the model has read."""

    begun = 0

    async def embed(self, scope: Scope, texts: Sequence[str]) -> EmbeddingReply:
        self.begun += len(texts)
        if "poison" in texts:
            raise UpstreamError("The embedding model answered with numbers that are not finite.")
        return await super().embed(scope, texts)


async def test_a_note_that_the_model_refuses_does_not_make_the_others_cost_again() -> None:
    operators = Operators()
    memory = await operators.started()
    operators.calls.broken = True
    for content in ("poison", *(f"silent {number}" for number in range(300))):
        await memory.keep(StoreNote(content))
    calls = operators.calls = RefusingCalls()
    for _ in range(60):  # each turn halves what is left with a probability of a half
        memory = operators.memory()
        for _ in range(3):
            await memory.recall(LISTEN)
    assert len((await operators.memory().recall(SearchNotes("listen", "semantic", 1000))).notes) == 300
    assert calls.texts.count("silent 7") == 1
    calls.begun = 0
    memory = operators.memory()
    for _ in range(5):
        await memory.recall(LISTEN)
    assert calls.begun == 6  # the query each time, and the refused note once
