"""A turn of a session: one message to an agent, and its reply, which is recorded with it."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spass.agents import reply
from spass.agents.spec import AgentSpec
from spass.aws.idempotency import IdempotentRequest, StoredAnswer
from spass.calls.scope import Scope
from spass.core.events import Event
from spass.core.ids import AgentName, SessionId
from spass.core.messages import Message
from spass.sessions.turn import CommittedTurn, ShortenHistory, Turn

if TYPE_CHECKING:
    from spass.agents.engine import Engine  # its rooms are entered when a function has started, not while it is imported
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
    redirected: Callable[[SessionId], IdempotentRequest | None] | None = None,
) -> Turn:
    """Start the turn in a task of its own. Its answer is the reply's JSON with the ``headers`` that it has in the end and those
    that tell of a compaction. ``context_window`` is what the agent's model takes, in tokens.

    Raises:
        ModelNotAllowed: the token may not use the agent's model.
    """
    name = AgentName(agent.name)
    engine.check(scope, agent)

    def respond(history: Sequence[Message], shorten_history: ShortenHistory) -> AsyncGenerator[Event, None]:
        return engine.run(scope.for_agent(name, turn.session), agent, history, message, shorten_history=shorten_history)

    def render(made: CommittedTurn) -> StoredAnswer:
        last = made.turn.answer
        at = reply.MessageLocation(made.session.id, last.id, last.seq, made.compacted)
        body = reply.render_reply(scope.caller.request_id, agent, made.outcome, last.created_at, at)
        return StoredAnswer(body.to_dict(), {**headers(), **reply.compaction_headers(made.compacted, made.compaction_error)})

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
        redirected=redirected,
    )
    return turn
