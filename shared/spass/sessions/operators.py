"""The one session of an operator. The item of the operator's state points to it.

The first run creates the session, and all further runs continue it or its newest successor. If it was deleted, the next run
creates another one.
"""

from dataclasses import dataclass
from typing import NamedTuple

from spass.core.ids import SessionId
from spass.core.messages import Json
from spass.core.run_result import RunResult
from spass.memory.operator import Operator
from spass.memory.state import UNCHANGED, Unchanged, read_state, state_creation, state_update
from spass.sessions.opening import Opening
from spass.sessions.session import Session
from spass.store.tenant_store import TenantStore
from spass.store.writes import Write


@dataclass(slots=True)
class OperatorPointer:
    """The stored item of an ``operator``, as a ``SessionPointer``."""

    store: TenantStore
    operator: Operator
    session: SessionId | None

    def point_to(self, session: Session) -> Write:
        if self.session is None:
            return state_creation(self.store, self.operator, session.id, session.agent, session.created_at)
        return state_update(
            self.store, self.operator, self.session, session.id, UNCHANGED, session.created_at, agent=session.agent
        )

    def update(self, outcome: RunResult, state: Json | Unchanged) -> Write:
        """Return the write for the commit of a turn: the operator points to the turn's session and has the next ``state``."""
        session = outcome.session_id
        if self.session is None or session is None:
            raise RuntimeError("an operator's turn has opened no session")
        return state_update(self.store, self.operator, self.session, session, state, outcome.created_at)


class OperatorOpening(NamedTuple):
    """The opening of the session for a run of an operator, and the pointer that it uses."""

    opening: Opening
    pointer: OperatorPointer


async def read_pointer(store: TenantStore, operator: Operator) -> OperatorPointer:
    """Return the pointer to the session of ``operator``, which may have none.

    Raises:
        StorageUnavailable: AWS throttled all retries or was unreachable.
    """
    stored = await read_state(store, operator)
    return OperatorPointer(store, operator, stored.session if stored is not None else None)
