"""The request of a turn: the user's message and its session."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spass.core.ids import AgentName, OperatorId, SessionId, UserId, WorkspaceId
from spass.core.run_result import AgentRun
from spass.store.idempotency import IdempotentRequest

if TYPE_CHECKING:
    from spass.journal.head import StreamClaim
    from spass.sessions.opening import Opening


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A user's message to a session. The hold checks ``user`` and the agent's name against the session. ``context_window`` is
    that of the agent's model, in tokens.

    ``stream`` is the claim of a streamed turn, which ``message_id`` names. A chat has an ``opening``, which chooses another
    session if ``session`` cannot be continued. ``workspace`` is that which the client names, if it names one.

    A run of ``operator`` continues its session, whichever agent that is filed under. ``stream_namespace`` takes the place of the
    agent's name in the name of the stream.
    """

    session: SessionId
    user: UserId
    message: str
    run: AgentRun
    context_window: int
    idempotency: IdempotentRequest | None = None
    stream: "StreamClaim | None" = None
    message_id: str | None = None
    opening: "Opening | None" = None
    workspace: WorkspaceId | None = None
    operator: OperatorId | None = None
    stream_namespace: AgentName | None = None

    @property
    def agent(self) -> AgentName:
        return AgentName(self.run.agent)

    def idempotency_at(self, session: SessionId) -> IdempotentRequest | None:
        """Return the request as a client repeats it to ``session``, the successor, after ``SessionArchived``. That of an operator
        is repeated as it was."""
        if self.idempotency is None or self.operator is not None:
            return self.idempotency
        return self.idempotency.at(messages_path(self.agent, session))


def messages_path(agent: AgentName, session: SessionId) -> str:
    """Return the path, from the API's root, to which the messages of a session are sent."""
    return f"/a1/agents/{agent}/sessions/{session}/messages"
