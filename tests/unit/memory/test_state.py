"""The state of an operator as it is stored and changed."""

import pytest

from spass.core.ids import AgentName, Operator, OperatorId, SessionId, TenantId, UserId
from spass.core.messages import Json
from spass.core.time import Timestamp
from spass.memory.state import read_state, state_creation, state_text, state_update
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from tests.unit.calls.scripted_provider import memory_store

pytestmark = pytest.mark.anyio

ONE, TWO, THREE = (SessionId(f"ses_{number}") for number in (1, 2, 3))
READER, WRITER = AgentName("reader"), AgentName("writer")
AT, LATER = Timestamp("2026-11-23T09:00:00.000Z"), Timestamp("2026-11-23T10:00:00.000Z")
NEWS = Operator(UserId("ana"), OperatorId("news"))


@pytest.fixture
def store() -> TenantStore:
    return memory_store(TenantId("demo"))


async def test_an_operator_that_never_ran_has_no_state(store: TenantStore) -> None:
    assert await read_state(store, NEWS) is None


async def test_an_operator_begins_once_and_without_a_state(store: TenantStore) -> None:
    await store.table.write(state_creation(store, NEWS, ONE, READER, AT))
    with pytest.raises(ConditionFailed):
        await store.table.write(state_creation(store, NEWS, TWO, WRITER, LATER))
    stored = await read_state(store, NEWS)
    assert stored is not None
    assert (stored.session, stored.agent, stored.state, stored.version) == (ONE, READER, None, 0)
    assert (stored.created_at, stored.updated_at) == (AT, AT)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("watch Kowalski", "watch Kowalski"),
        ('{"a": 1}', '{"a": 1}'),
        ("", ""),
        ({"input": "1", "answer": "2", "n": 0.5}, '{"input":"1","answer":"2","n":0.5}'),
        ([1, None, True], "[1,null,true]"),
        ("half \ud800", "half ?"),
    ],
)
async def test_a_state_is_read_as_it_was_written(store: TenantStore, state: Json, text: str) -> None:
    await store.table.write(state_creation(store, NEWS, ONE, READER, AT))
    await store.table.write(state_update(store, NEWS, ONE, TWO, state, LATER))
    stored = await read_state(store, NEWS)
    assert stored is not None
    assert (stored.session, state_text(stored.state), stored.version) == (TWO, text, 1)
    assert (stored.created_at, stored.updated_at) == (AT, LATER)
    assert type(stored.state) is type(state)


async def test_a_move_to_another_session_keeps_the_state(store: TenantStore) -> None:
    await store.table.write(state_creation(store, NEWS, ONE, READER, AT))
    await store.table.write(state_update(store, NEWS, ONE, ONE, "kept", AT))
    await store.table.write(state_update(store, NEWS, ONE, TWO, None, LATER, agent=WRITER))
    stored = await read_state(store, NEWS)
    assert stored is not None
    assert (stored.session, stored.agent, stored.state) == (TWO, WRITER, "kept")


async def test_a_late_commit_changes_neither_a_new_nor_a_forgotten_operator(store: TenantStore) -> None:
    late = state_update(store, NEWS, ONE, ONE, "late", LATER)
    with pytest.raises(ConditionFailed):
        await store.table.write(late)
    assert await read_state(store, NEWS) is None
    await store.table.write(state_creation(store, NEWS, TWO, READER, AT))
    with pytest.raises(ConditionFailed):
        await store.table.write(late)
    stored = await read_state(store, NEWS)
    assert stored is not None
    assert (stored.session, stored.state) == (TWO, None)


async def test_each_beginning_of_an_operator_is_another_generation(store: TenantStore) -> None:
    writes = [state_creation(store, NEWS, ONE, READER, AT) for _ in range(3)]
    assert len({write.attributes["generation"] for write in writes}) == 3
