"""What an operator adds to a turn: its memory, and its next state in the commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spass.agents.engine import Engine
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.memory import MemoryOfTurn
from spass.core.messages import FinishReason, Json
from spass.core.run_result import RunResult
from spass.memory.operator import Operator
from spass.memory.state import STATE_KEY, UNCHANGED
from spass.sessions.operators import OperatorPointer
from spass.store.writes import Write

_INPUT_CHARACTERS: Final = 4000
_ANSWER_CHARACTERS: Final = 1000
_STORE_TOOL: Final = "memory_store"
_CUT: Final = (FinishReason.CANCELLED, FinishReason.DEADLINE)


@dataclass(frozen=True, slots=True)
class OperatorCommit:
    """The session and the next state of an operator, which join the commit of its turn. Without a ``memory``, the state stays.
    ``message`` is that of the turn."""

    pointer: OperatorPointer
    memory: MemoryOfTurn | None
    message: str

    async def writes(self, outcome: RunResult) -> Sequence[Write]:
        """Return the write of the operator's item."""
        state = _next_state(self.memory.next_state, self.message, outcome) if self.memory is not None else UNCHANGED
        return [self.pointer.update(outcome, state)]


def open_memory(engine: Engine, scope: Scope, agent: AgentSpec, operator: Operator) -> MemoryOfTurn | None:
    """Return the memory of ``operator`` for one turn of ``agent``, or None if its kind does not remember."""
    return engine.open_memory(scope, operator) if agent.build().remembers else None


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
