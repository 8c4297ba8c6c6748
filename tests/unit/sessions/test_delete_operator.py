"""An operator is forgotten with its notes, but not while it runs, and nothing late brings it back."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from spass.core.effects import SearchNotes, StoreNote
from spass.core.errors import CompactionInProgress, OperatorNotFound, SessionBusy, StorageUnavailable
from spass.core.ids import AgentName, Operator, OperatorId, SessionId, UserId
from spass.core.time import Timestamp
from spass.memory.state import read_state, state_update
from spass.memory.views import page_notes
from spass.sessions.hold import new_hold
from spass.sessions.operator_requests import delete_operator, view_operator
from spass.sessions.session import Hold, HoldKind, Session
from spass.store import keys
from spass.store.codec import encode
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Item, Put, Update
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.memory.operators import ANA, NEWS, Operators
from tests.unit.rag.conftest import RacingWriters

pytestmark = pytest.mark.anyio

AT = Timestamp("2026-11-23T09:00:00.000Z")
READER = AgentName("reader")
NOTES = 60
"""More than one batch."""
FEW = 4


@dataclass
class Forgetting:
    """The operator ``NEWS`` with a session, a state and notes."""

    operators: Operators = field(default_factory=Operators)

    @property
    def store(self) -> TenantStore:
        return self.operators.store()

    async def forget(self, operator: Operator = NEWS) -> bool:
        return await delete_operator(self.store, operator, lambda: self.operators.now)

    async def begin(self, notes: int = 3) -> SessionId:
        state = await self.operators.begin()
        await self.put_session(state.session)
        memory = self.operators.memory()
        for number in range(notes):
            await memory.keep(StoreNote(f"tea {number}"))
        return state.session

    async def put_session(self, session: SessionId, **fields: object) -> None:
        head = Session(session, READER, ANA, None, AT, AT, "auto", 4, False)
        attributes = replace(head, **fields).attributes()  # type: ignore[arg-type]
        await self.store.table.write(Put(keys.session_head(self.store.tenant, session), attributes))

    async def hold(self, session: SessionId, hold: Hold) -> None:
        await self.store.table.write(Update(keys.session_head(self.store.tenant, session), set={"hold": encode(hold)}))

    def left(self) -> list[Item]:
        """Return all items of operators."""
        return [item for item in self.operators.aws.table.items() if "OPER#" in str(item["pk"])]


@pytest.fixture
def forgetting() -> Forgetting:
    return Forgetting()


async def test_state_and_notes_go_and_the_session_stays(forgetting: Forgetting) -> None:
    session = await forgetting.begin(NOTES)
    assert (await view_operator(forgetting.store, NEWS)).notes == NOTES
    assert await forgetting.forget() is True
    assert forgetting.left() == []
    assert await forgetting.store.table.get(keys.session_head(forgetting.store.tenant, session)) is not None
    for read in (view_operator(forgetting.store, NEWS), page_notes(forgetting.store, NEWS, None, 100)):
        with pytest.raises(OperatorNotFound):
            await read
    assert await forgetting.forget() is False


async def test_only_the_named_operator_of_the_owner_is_forgotten(forgetting: Forgetting) -> None:
    await forgetting.begin()
    for other in (
        Operator(UserId("an"), NEWS.id),
        Operator(UserId("ana"), OperatorId("new")),
        Operator(ANA, OperatorId("news:2")),
    ):
        assert await forgetting.forget(other) is False
    assert (await view_operator(forgetting.store, NEWS)).notes == 3


async def test_an_operator_is_not_forgotten_while_it_runs(forgetting: Forgetting) -> None:
    session = await forgetting.begin()
    now = forgetting.operators.now
    await forgetting.hold(session, new_hold("turn_1", HoldKind.TURN, None, now, message_id="m1"))
    with pytest.raises(SessionBusy) as busy:
        await forgetting.forget()
    assert busy.value.details == {"message_id": "m1"}
    await forgetting.hold(session, new_hold("job_1", HoldKind.JOB, None, now))
    with pytest.raises(CompactionInProgress):
        await forgetting.forget()
    assert (await view_operator(forgetting.store, NEWS)).notes == 3
    forgetting.operators.now += 61
    assert await forgetting.forget() is True


async def test_a_run_that_compacted_the_session_holds_its_successor(forgetting: Forgetting) -> None:
    session = await forgetting.begin()
    middle, newest = SessionId("ses_middle"), SessionId("ses_newest")
    await forgetting.put_session(session, successor_session_id=middle, archived_at=AT)
    await forgetting.put_session(middle, successor_session_id=newest, archived_at=AT, deleted_at=AT)
    await forgetting.put_session(newest, hold=new_hold("turn_1", HoldKind.TURN, None, forgetting.operators.now))
    with pytest.raises(SessionBusy):
        await forgetting.forget()
    await forgetting.put_session(newest)
    assert await forgetting.forget() is True


async def test_an_operator_whose_session_was_deleted_is_forgotten(forgetting: Forgetting) -> None:
    await forgetting.operators.begin()
    assert await forgetting.forget() is True
    assert forgetting.left() == []


async def test_a_run_that_begins_at_the_same_moment_is_not_forgotten(forgetting: Forgetting) -> None:
    session = await forgetting.begin()

    async def begin_turn() -> None:
        await forgetting.hold(session, new_hold("turn_1", HoldKind.TURN, None, forgetting.operators.now))

    with inject(RacingWriters(begin_turn)), pytest.raises(SessionBusy):
        await forgetting.forget()
    assert (await view_operator(forgetting.store, NEWS)).notes == 3


async def test_a_session_that_is_replaced_at_the_same_moment_is_looked_up_again(forgetting: Forgetting) -> None:
    session = await forgetting.begin()
    other = SessionId("ses_other")

    async def move() -> None:
        await forgetting.put_session(other)
        await forgetting.store.table.write(state_update(forgetting.store, NEWS, session, other, "moved", AT))

    with inject(RacingWriters(move)):
        assert await forgetting.forget() is True
    assert forgetting.left() == []


async def test_a_turn_of_a_forgotten_operator_keeps_and_finds_nothing_in_the_next(forgetting: Forgetting) -> None:
    session = await forgetting.begin()
    late = forgetting.operators.memory()
    await late.recall(SearchNotes("tea", "keyword", 8))
    await forgetting.forget()
    await late.keep(StoreNote("tea, late"))
    with pytest.raises(ConditionFailed):
        await forgetting.store.table.write(state_update(forgetting.store, NEWS, session, session, "late", AT))
    assert await read_state(forgetting.store, NEWS) is None

    await forgetting.begin(0)
    memory = forgetting.operators.memory()
    await memory.keep(StoreNote("tea, new", "k"))
    await late.keep(StoreNote("tea, later", "k"))
    for turn in (memory, forgetting.operators.memory()):
        assert [note.content for note in (await turn.recall(SearchNotes("tea", "keyword", 8))).notes] == ["tea, new"]
    assert (await view_operator(forgetting.store, NEWS)).notes == 1
    assert [note.content for note in (await page_notes(forgetting.store, NEWS, None, 100)).notes] == ["tea, new"]
    assert len(forgetting.left()) == 2, "the search has removed what was written late"


async def test_notes_of_a_new_beginning_survive_the_removal_of_the_old_ones(forgetting: Forgetting) -> None:
    await forgetting.begin(NOTES)

    async def begin_again() -> None:
        await forgetting.operators.begin()
        await forgetting.operators.memory().keep(StoreNote("tea, new"))

    with inject(RacingWriters(begin_again, operation="Query")):
        assert await forgetting.forget() is True
    assert [note.content for note in (await page_notes(forgetting.store, NEWS, None, 100)).notes] == ["tea, new"]
    assert len(forgetting.left()) == 2


async def calls_of_forget() -> int:
    forgetting = Forgetting()
    await forgetting.begin(FEW)
    with inject(FaultPlan()) as plan:
        await forgetting.forget()
    return len(plan.calls)


@pytest.mark.parametrize("fault", [*Fault])
async def test_an_interrupted_forgetting_is_finished_by_the_next_call(
    fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    points = await calls_of_forget()
    for at in range(points):
        forgetting = Forgetting()
        await forgetting.begin(FEW)
        try:
            with inject(FaultPlan(fault, at, times=2)):
                assert await forgetting.forget() is True
        except (Crash, StorageUnavailable):
            before = await read_state(forgetting.store, NEWS)
            await forgetting.begin(0)
            found = await forgetting.operators.memory().recall(SearchNotes("tea", "keyword", 100))
            assert len(found.notes) == (FEW if before is not None else 0), "all of it, or nothing"
            await forgetting.forget()
        assert forgetting.left() == []
        await asyncio.sleep(0)
    record_property("failed_calls", points)
