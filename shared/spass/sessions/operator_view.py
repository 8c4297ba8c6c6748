"""An operator as a client sees it."""

from spass.core.ids import OperatorId
from spass.memory.operator import Operator
from spass.memory.views import count_notes, require_state
from spass.sessions.chain_end import read_chain_end
from spass.store.tenant_store import TenantStore
from spass.tenancy.response_model import Count, DateTime, JsonValue, ResponseModel, SessionIdText


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
        StorageUnavailable: AWS throttled all retries or was unreachable.
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
