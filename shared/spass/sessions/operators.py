"""The one session of an operator. The item of the operator's state points to it.

The first run creates the session, and all further runs continue it or its newest successor. If it was deleted, the next run
creates another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from spass.core.ids import Operator, SessionId
from spass.core.memory import MemoryOfTurn
from spass.core.messages import FinishReason, Json
from spass.core.run_result import RunResult
from spass.memory.state import STATE_KEY, read_state, state_creation, state_update
from spass.sessions.hold import Opening
from spass.sessions.session import Session
from spass.store.tenant_store import TenantStore
from spass.store.writes import Write

_INPUT_CHARACTERS: Final = 4000
_ANSWER_CHARACTERS: Final = 1000
_STORE_TOOL: Final = "memory_store"
_CUT: Final = (FinishReason.CANCELLED, FinishReason.DEADLINE)


@dataclass(slots=True)
class OperatorPointer:
    """The stored item of an ``operator``, as a ``SessionPointer``."""

    store: TenantStore
    operator: Operator
    session: SessionId | None

    def point_to(self, session: Session) -> Write:
        if self.session is None:
            return state_creation(self.store, self.operator, session.id, session.agent, session.created_at)
        return state_update(self.store, self.operator, self.session, session.id, None, session.created_at, agent=session.agent)

    def update(self, outcome: RunResult, state: Json) -> Write:
        """Return the write for the commit of a turn: the operator points to the turn's session and has the next ``state``."""
        session = outcome.session_id
        if self.session is None or session is None:
            raise RuntimeError("an operator's turn has opened no session")
        return state_update(self.store, self.operator, self.session, session, state, outcome.created_at)


@dataclass(frozen=True, slots=True)
class OperatorCommit:
    """The session and the next state of an operator, which join the commit of its turn. Without a ``memory``, the state stays.
    ``message`` is the turn's."""

    pointer: OperatorPointer
    memory: MemoryOfTurn | None
    message: str

    async def writes(self, outcome: RunResult) -> Sequence[Write]:
        """Return the write of the operator's item."""
        state = _next_state(self.memory.next_state, self.message, outcome) if self.memory is not None else None
        return [self.pointer.update(outcome, state)]


class OperatorOpening(NamedTuple):
    """The opening of the session for a run of an operator, and the pointer that it uses."""

    opening: Opening
    pointer: OperatorPointer


async def read_pointer(store: TenantStore, operator: Operator) -> OperatorPointer:
    """Return the pointer to the session of ``operator``, which may have none."""
    stored = await read_state(store, operator)
    return OperatorPointer(store, operator, stored.session if stored is not None else None)


def _next_state(wanted: Json, message: str, outcome: RunResult) -> Json:
    """Return the state after a turn. ``wanted`` is what its kind has set: the text that the model stored, or an object. A turn
    that was cut may not have set any."""
    if wanted is None and outcome.finish_reason in _CUT:
        wanted = _stored_by_model(outcome)
    if wanted is None:
        wanted = {"input": message[:_INPUT_CHARACTERS], "answer": outcome.content[:_ANSWER_CHARACTERS]}
    return {**wanted, "at": outcome.created_at} if isinstance(wanted, Mapping) else wanted


def _stored_by_model(outcome: RunResult) -> Json:
    """Return the state that the model stored last, or None. The turn may be cut between this call and what the kind does with
    it."""
    for tool in reversed(outcome.tools):
        if tool.ok and tool.name == _STORE_TOOL and tool.result == {"key": STATE_KEY} and isinstance(tool.arguments, Mapping):
            return tool.arguments.get("content")
    return None
