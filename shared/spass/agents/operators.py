"""Run agents as operators: in the operator's session, with its memory, and with its next state in the commit of the turn."""

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from spass.agents.engine import NOTHING_GIVEN, Engine
from spass.agents.kinds.base import AgentContext
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.events import Event
from spass.core.ids import AgentName
from spass.core.memory import MemoryOfTurn
from spass.core.messages import FinishReason, Json
from spass.core.outcome import TurnOutcome
from spass.memory.operator import Operator
from spass.memory.state import STATE_KEY, UNCHANGED
from spass.sessions.commit_participants import join_commit
from spass.sessions.operators import OperatorPointer
from spass.sessions.service import Sessions
from spass.sessions.turn import Turn
from spass.sessions.turn_request import CommitParticipant, CommitWith, LoadHistory, ShortenHistory, TurnRequest
from spass.store.idempotency import IdempotentRequest
from spass.tenancy.config import GatewayConfig

_INPUT_CHARACTERS: Final = 4000
_ANSWER_CHARACTERS: Final = 1000
_STORE_TOOL: Final = "memory_store"
_CUT: Final = (FinishReason.CANCELLED, FinishReason.DEADLINE)


class OperatorTurns:
    """The runs of operators that are not streams to follow. A process has one object of this class."""

    def __init__(self, engine: Engine, sessions: Sessions, config: GatewayConfig) -> None:
        self._engine = engine
        self._sessions = sessions
        self._config = config

    async def start(
        self,
        scope: Scope,
        agent: AgentSpec,
        operator: Operator,
        message: str,
        *,
        given: AgentContext = NOTHING_GIVEN,
        idempotency: IdempotentRequest | None = None,
    ) -> Turn:
        """Start a turn of ``operator`` in a new task: ``agent`` answers ``message``. ``scope`` is that of the operator's user.
        ``given`` is what the caller adds to the context; it is not stored.

        Raises:
            StorageUnavailable: AWS throttled all retries or was unreachable.
        """
        name = AgentName(agent.name)
        opening, pointer = await self._sessions.open_operator(scope, name, operator, agent.session_workspace(None))
        calls = scope.for_agent(name, opening.session)
        memory = open_memory(self._engine, calls, agent, operator)

        def respond(load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event, None]:
            return self._engine.run(calls, agent, message, load, shorten, given=given, memory=memory)

        run, window = agent.run(scope.caller.request_id), self._config.model(agent.model).context_window
        request = TurnRequest(
            opening.session, operator.user, message, run, window, idempotency, opening=opening, operator=operator.id
        )
        return self._sessions.turn(calls, request, join_commit(respond, commit_of_operator(pointer, memory, message)))


def open_memory(engine: Engine, scope: Scope, agent: AgentSpec, operator: Operator) -> MemoryOfTurn | None:
    """Return the memory of ``operator`` for one turn of ``agent``, or None if its kind does not remember."""
    return engine.open_memory(scope, operator) if agent.build().remembers else None


def commit_of_operator(pointer: OperatorPointer, memory: MemoryOfTurn | None, message: str) -> CommitParticipant:
    """Return the participant that writes the session and the next state of an operator. Without a ``memory``, the state stays."""

    async def join(outcome: TurnOutcome) -> CommitWith:
        state = _next_state(memory.next_state, message, outcome) if memory is not None else UNCHANGED
        return pointer.commit(outcome, state)

    return join


def _next_state(wanted: Json, message: str, outcome: TurnOutcome) -> Json:
    """Return the state after a turn. ``wanted`` is what its kind has set: the text that the model stored, or an object. A turn
    that was cut may not have set any."""
    if wanted is None and outcome.finish_reason in _CUT:
        wanted = _stored_by_model(outcome)
    if wanted is None:
        wanted = {"input": message[:_INPUT_CHARACTERS], "answer": outcome.content[:_ANSWER_CHARACTERS]}
    return {**wanted, "at": outcome.created_at} if isinstance(wanted, Mapping) else wanted


def _stored_by_model(outcome: TurnOutcome) -> Json:
    """Return the state that the model stored last, or None. The turn may be cut between this call and what the kind does with
    it."""
    for tool in reversed(outcome.tools):
        if tool.ok and tool.name == _STORE_TOOL and tool.result == {"key": STATE_KEY} and isinstance(tool.arguments, Mapping):
            return tool.arguments.get("content")
    return None
