"""An operator, and its state: one item, which also points to the operator's session.

An operator begins with a new ``generation``. Notes belong to a generation, so those of a forgotten operator are never found
again, even if they were written late, or are removed late.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from spass.core.codec import AsJson
from spass.core.ids import AgentName, Operator, SessionId, new_id
from spass.core.json import dump, replace_surrogates
from spass.core.messages import Json
from spass.core.time import Timestamp
from spass.store import keys
from spass.store.codec import decode
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Equals, Put, Update, Value

_NOTES_PER_BATCH: Final = 50
STATE_KEY: Final = "state"
"""The key under which a model stores the operator's state, and under which the state is recalled."""


@dataclass(frozen=True, slots=True)
class OperatorState:
    """An operator as the table stores it.

    ``session`` is its session or an ancestor of it: its chain leads to the live one. The session is filed under ``agent``.
    ``state`` is None before the first commit. ``version`` counts the updates.
    """

    session: SessionId
    agent: AgentName
    generation: str
    state: Annotated[Json, AsJson()]
    version: int
    created_at: Timestamp
    updated_at: Timestamp


def state_text(state: Json) -> str:
    """Return a state as text: the text that the model stored, or the JSON value."""
    return state if isinstance(state, str) else dump(state)


async def read_state(store: TenantStore, operator: Operator) -> OperatorState | None:
    """Return what is stored of the operator, or None if it never ran or was forgotten."""
    item = await store.table.get(keys.operator_state(store.tenant, operator.user, operator.id))
    return decode(OperatorState, item) if item is not None else None


def state_creation(store: TenantStore, operator: Operator, session: SessionId, agent: AgentName, at: Timestamp) -> Put:
    """Return the write that begins the operator with ``session``, which is filed under ``agent``. Its condition fails if the
    operator exists."""
    attributes: dict[str, Value] = {
        "session": session,
        "agent": agent,
        "generation": new_id("gen"),
        "version": 0,
        "created_at": at,
        "updated_at": at,
    }
    return Put(keys.operator_state(store.tenant, operator.user, operator.id), attributes, ITEM_ABSENT)


def state_update(
    store: TenantStore,
    operator: Operator,
    session_before: SessionId,
    session: SessionId,
    state: Json,
    at: Timestamp,
    *,
    agent: AgentName | None = None,
) -> Update:
    """Return the write of the next ``session`` and ``state``. None leaves the state as it is. With ``agent``, the session is
    filed under it.

    The condition fails if the operator was forgotten, or does not point to ``session_before`` any more. So a late commit never
    brings a forgotten operator back.
    """
    changed: dict[str, Value] = {"session": session, "updated_at": at}
    if state is not None:
        changed["state"] = replace_surrogates(dump(state))
    if agent is not None:
        changed["agent"] = agent
    key = keys.operator_state(store.tenant, operator.user, operator.id)
    return Update(key, set=changed, add={"version": 1}, when=Equals("session", session_before))


async def remove_garbage(store: TenantStore, operator: Operator) -> bool:
    """Remove the notes that are not of the operator's present generation. Return whether there were any.

    An operator begins before its first note is written. So a note that was read before the state, and is of another generation
    than the state, is of a forgotten one, even if the operator begins again at this moment.

    Raises:
        StorageUnavailable: some notes may stay; repeat the call.
    """
    partition = keys.operator_partition(store.tenant, operator.user, operator.id)
    found = False
    async for items in store.table.pages(partition, prefix=keys.NOTE_PREFIX, size=_NOTES_PER_BATCH):
        state = await read_state(store, operator)
        present = state.generation if state is not None else None
        garbage = [item for item in items if item["generation"] != present]
        await store.table.delete(garbage)
        found |= bool(garbage)
    return found
