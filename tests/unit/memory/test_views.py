"""An operator and its notes as a client sees them."""

import subprocess
import sys

import pytest

from spass.core.effects import StoreNote
from spass.core.errors import InvalidRequest, OperatorNotFound
from spass.core.ids import AgentName
from spass.core.messages import Json
from spass.core.time import timestamp
from spass.memory.state import state_update
from spass.memory.views import page_notes
from spass.sessions.operator_requests import view_operator
from spass.sessions.session import Session
from spass.store import keys
from spass.store.writes import Put
from tests.unit.memory.operators import ANA, NEWS, Operators

pytestmark = pytest.mark.anyio


async def test_an_operator_is_shown_with_its_session_state_and_number_of_notes(operators: Operators) -> None:
    with pytest.raises(OperatorNotFound):
        await view_operator(operators.store(), NEWS)
    state = await operators.begin()
    assert (await view_operator(operators.store(), NEWS)).session_id is None, "its session was deleted"
    times = (state.updated_at, state.updated_at)
    session = Session(state.session, AgentName("reader"), ANA, None, *times, "auto", 10, compact_observation_mask=True)
    store = operators.store()
    await store.table.write(Put(keys.session_head(store.tenant, session.id), session.attributes()))
    view = await view_operator(store, NEWS)
    assert view.to_dict() == {
        "operator_id": "news",
        "session_id": state.session,
        "state": None,
        "notes": 0,
        "updated_at": state.updated_at,
    }
    for number in range(3):
        await operators.memory().keep(StoreNote(f"tea {number}"))
    assert (await view_operator(operators.store(), NEWS)).notes == 3


@pytest.mark.parametrize("state", ["text", '{"a": 1}', {"input": "1", "answer": "2", "at": "3"}, [1], False])
async def test_the_state_is_shown_as_it_was_stored(operators: Operators, state: Json) -> None:
    before, later = await operators.begin(), timestamp(operators.now + 60)
    store = operators.store()
    await store.table.write(state_update(store, NEWS, before.session, before.session, state, later))
    view = await view_operator(store, NEWS)
    assert (view.state, view.updated_at) == (state, later)


async def test_a_note_is_shown_with_its_key_content_ends_and_time(operators: Operators) -> None:
    memory = await operators.started()
    await memory.keep(StoreNote("rain causes floods", "edge", ("rain", "floods")))
    (note,) = (await page_notes(operators.store(), NEWS, None, 10)).notes
    assert note.to_dict() == {
        "key": "edge",
        "content": "rain causes floods",
        "ends": ["rain", "floods"],
        "created_at": timestamp(operators.now),
    }


@pytest.mark.parametrize("limit", [1, 7, 100, 249, 250, 1000])
async def test_pages_hold_every_note_once_and_the_oldest_first(operators: Operators, limit: int) -> None:
    memory = await operators.started()
    for number in range(250):
        await memory.keep(StoreNote(f"tea {number}"))
    found, cursor, pages = list[str](), None, 0
    while True:
        page = await page_notes(operators.store(), NEWS, cursor, limit)
        found += [note.content for note in page.notes]
        cursor, pages = page.next_cursor, pages + 1
        if cursor is None:
            break
        assert len(page.notes) == limit
    assert found == [f"tea {number}" for number in range(250)]
    assert pages == -(-250 // limit)


async def test_a_note_that_is_stored_again_between_two_pages_is_not_missed(operators: Operators) -> None:
    memory = await operators.started()
    for number in range(6):
        await memory.keep(StoreNote(f"tea {number}", f"k{number}"))
    first = await page_notes(operators.store(), NEWS, None, 3)
    await memory.keep(StoreNote("tea, hot", "k4"))
    await memory.keep(StoreNote("tea, new", "k6"))
    rest = await page_notes(operators.store(), NEWS, first.next_cursor, 9)
    assert [note.key for note in (*first.notes, *rest.notes)] == ["k0", "k1", "k2", "k3", "k5", "k4", "k6"]


async def test_notes_of_the_same_moment_are_paged_one_by_one(operators: Operators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operators, "clock", lambda self: self.now)
    memory = await operators.started()
    for number in range(5):
        await memory.keep(StoreNote(f"tea {number}", f"k{number}"))
    found, cursor = list[str](), None
    for _ in range(5):
        page = await page_notes(operators.store(), NEWS, cursor, 1)
        found, cursor = [*found, *(note.key for note in page.notes)], page.next_cursor
    assert (sorted(found), cursor) == ([f"k{number}" for number in range(5)], None)


async def test_a_page_of_the_longest_notes_ends_at_four_mebibytes(operators: Operators) -> None:
    memory = await operators.started()
    for number in range(400):
        await memory.keep(StoreNote('"' * 4000, f"k{number}"))
    page = await page_notes(operators.store(), NEWS, None, 1000)
    assert 300 < len(page.notes) < 400
    assert len(page.to_json()) < 4 * 1024 * 1024
    rest = await page_notes(operators.store(), NEWS, page.next_cursor, 1000)
    assert len({note.key for note in (*page.notes, *rest.notes)}) == 400


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "../..", "=" * 40])
async def test_a_cursor_of_another_list_is_refused(operators: Operators, cursor: str) -> None:
    await operators.begin()
    with pytest.raises(InvalidRequest):
        await page_notes(operators.store(), NEWS, cursor, 10)


def test_lists_and_tools_are_imported_without_numpy() -> None:
    modules = "spass.memory.views, spass.sessions.operator_requests, spass.tools.builtin.notes"
    program = f"import sys, {modules}, spass.memory.operator_memory; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
