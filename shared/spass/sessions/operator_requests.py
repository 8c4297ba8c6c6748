"""Read and delete an operator, for the routes of operators."""

import time
from typing import Final

from spass.core.errors import SessionBusy
from spass.core.ids import Operator, OperatorId, random_suffix
from spass.core.time import Clock
from spass.memory.state import OperatorState, read_state, remove_garbage
from spass.memory.views import count_notes, require_state
from spass.sessions.hold import hold_error, not_held_by_others
from spass.sessions.session import read_chain_end
from spass.store import keys
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Absent, Check, Delete, Equals, Write
from spass.tenancy.response_model import Count, DateTime, JsonValue, ResponseModel, SessionIdText

_ATTEMPTS: Final = 5


class OperatorView(ResponseModel):
    """An operator. `state` is what its last run left for the next one: the text that the model stored, or an object with the
    `input`, the `answer` and the time (`at`). It is null before the first run has ended. `notes` is their number. `session_id` is
    null if the session was deleted: the next run creates one."""

    operator_id: OperatorId
    session_id: SessionIdText | None
    state: JsonValue
    notes: Count
    updated_at: DateTime


async def view_operator(store: TenantStore, operator: Operator) -> OperatorView:
    """Return the operator with its session, which is the newest of its chain, and with the number of its notes.

    Raises:
        OperatorNotFound: it never ran, or was forgotten.
    """
    state = await require_state(store, operator)
    newest = await read_chain_end(store, state.session)
    is_deleted = newest.head is None or newest.head.deleted_at is not None
    return OperatorView(
        operator_id=operator.id,
        session_id=None if is_deleted else newest.id,
        state=state.state,
        notes=await count_notes(store, operator, state.generation),
        updated_at=state.updated_at,
    )


async def delete_operator(store: TenantStore, operator: Operator, clock: Clock = time.time) -> bool:
    """Forget the state and the notes of ``operator``. Return False if there was nothing. Its session stays, but its next run
    begins another one. One transaction ends the operator while its session is free, and then its notes are removed. A repeated
    call continues an interrupted one.

    Raises:
        SessionBusy, CompactionInProgress: the operator's session is held, for instance by a run.
        StorageUnavailable: the outcome is unknown; repeat the call to finish it.
    """
    for _ in range(_ATTEMPTS):
        state = await read_state(store, operator)
        if state is None:
            return await remove_garbage(store, operator)
        if await _end(store, operator, state, clock()):
            await remove_garbage(store, operator)
            return True
    raise SessionBusy("Other requests keep changing this operator; try again.", retry_after=1)


async def _end(store: TenantStore, operator: Operator, state: OperatorState, now: float) -> bool:
    """End the operator's present generation. Return False if the operator or its session has changed meanwhile."""
    newest = await read_chain_end(store, state.session)
    if newest.head is not None and newest.head.hold is not None and newest.head.hold.live(now):
        raise hold_error(newest.head, now)
    is_same = Equals("generation", state.generation) & Equals("session", state.session)
    writes: list[Write] = [
        Delete(keys.operator_state(store.tenant, operator.user, operator.id), is_same),
        Check(keys.session_head(store.tenant, newest.id), not_held_by_others(now) & Absent("successor_session_id")),
    ]
    try:
        await store.table.transact(writes, token=random_suffix())
    except TransactionFailed:
        return False
    return True
