"""Start a turn of a session: one message to an agent and its recorded reply."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spass.agents.reply import compaction_headers, render_reply
from spass.agents.spec import AgentSpec
from spass.aws.idempotency import IdempotentRequest, StoredAnswer
from spass.calls.scope import Scope
from spass.core.events import Event
from spass.core.ids import AgentName, SessionId
from spass.core.messages import Message
from spass.sessions.turn import CommittedTurn, ShortenHistory, Turn

if TYPE_CHECKING:
    from spass.agents.engine import Engine  # imported when a function has started, not while its module is imported
    from spass.sessions.service import Sessions


def start_turn(  # one turn's parts, all named
    sessions: "Sessions",
    engine: "Engine",
    scope: Scope,
    agent: AgentSpec,
    session: SessionId,
    message: str,
    *,
    context_window: int,
    headers: Callable[[], Mapping[str, str]],
    idempotency: IdempotentRequest | None = None,
    successor_idempotency: Callable[[SessionId], IdempotentRequest | None] | None = None,
) -> Turn:
    """Start the turn in its own task. Its answer is the reply's JSON with the final ``headers`` and the headers that report a
    compaction. ``context_window`` is that of the agent's model, in tokens.

    Raises:
        ModelNotAllowed: the token may not use the agent's model.
    """
    name = AgentName(agent.name)
    engine.check(scope, agent)

    def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        async def load() -> Sequence[Message]:
            return history

        return engine.run(scope.for_agent(name, turn.session), agent, message, load, shorten_history)

    def render(committed: CommittedTurn) -> StoredAnswer:
        at = committed.turn.answer.created_at
        body = render_reply(scope.caller.request_id, agent, committed.outcome, at, committed)
        return StoredAnswer(body.to_dict(), {**headers(), **compaction_headers(committed.compaction, committed.compaction_error)})

    turn = sessions.turn(
        scope.for_agent(name, session),
        name,
        session,
        message,
        model=agent.model,
        context_window=context_window,
        respond=respond,
        render=render,
        idempotency=idempotency,
        successor_idempotency=successor_idempotency,
    )
    return turn
