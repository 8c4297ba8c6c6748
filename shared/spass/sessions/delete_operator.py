"""Forget an operator: one transaction ends it while its session is free, and then its notes are removed. A repeated call
continues an interrupted one. The session stays, but no operator points to it any more."""

import time
from typing import Final

from spass.core.errors import SessionBusy
from spass.core.ids import random_suffix
from spass.core.time import Clock
from spass.memory.garbage import remove_garbage
from spass.memory.operator import Operator
from spass.memory.state import OperatorState, read_state
from spass.sessions.chain_end import read_chain_end
from spass.sessions.hold import hold_error, not_held_by_others
from spass.store import keys
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Absent, Check, Delete, Equals, Write

_ATTEMPTS: Final = 5


async def delete_operator(store: TenantStore, operator: Operator, clock: Clock = time.time) -> bool:
    """Forget the state and the notes of ``operator``. Its next run begins another session. Return False if there was nothing.

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
