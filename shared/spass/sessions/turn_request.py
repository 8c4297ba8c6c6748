"""The request of a turn: the user's message, its session, and the function of the room above that runs the agent."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spass.core.events import Event
from spass.core.ids import AgentName, OperatorId, SessionId, UserId, WorkspaceId
from spass.core.messages import Message
from spass.core.outcome import AgentRun, TurnOutcome
from spass.store.idempotency import IdempotentRequest
from spass.store.writes import Write

if TYPE_CHECKING:
    from spass.journal.head import StreamClaim
    from spass.sessions.opening import Opening

ShortenHistory: TypeAlias = Callable[[], Awaitable[Sequence[Message] | None]]
"""Compact the session and return the shorter history, or None if it cannot be compacted. Call it when the provider rejects the
conversation as too long."""
LoadHistory: TypeAlias = Callable[[], Awaitable[Sequence[Message]]]
"""Return the messages before the new one. It may compact the session first, which takes seconds. Call it once, after the first
event."""


Renew: TypeAlias = Callable[[], Awaitable[Sequence[Write] | None]]
"""Return newer writes for another try, because a condition of the transaction did not hold. Return None if none can hold."""


@dataclass(frozen=True, slots=True)
class CommitWith:
    """Writes that join the transaction that records a turn.

    ``renew`` is called if the transaction failed while the turn still holds its session. Without it, the turn is then not
    recorded.
    """

    writes: Sequence[Write]
    renew: Renew | None = None


NOTHING_JOINED: Final = CommitWith(())
CommitParticipant: TypeAlias = Callable[[TurnOutcome], Awaitable[CommitWith]]
"""Return what joins the commit of the turn with this outcome. An error fails the turn."""
Respond: TypeAlias = Callable[[LoadHistory, ShortenHistory], AsyncGenerator[Event | CommitWith, Any]]
"""Return the events of a turn. After ``TurnFinished`` the generator receives the ``TurnOutcome`` (``asend``). Then it ends, or it
yields ``CommitWith`` as its last item. It is closed before the turn is recorded."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A user's message to a session. The hold checks ``user`` and the agent's name against the session. ``context_window`` is
    that of the agent's model, in tokens.

    ``stream`` is the claim of a streamed turn, which ``message_id`` names. A chat has an ``opening``, which chooses another
    session if ``session`` cannot be continued. ``workspace`` is that which the client names, if it names one.

    A run of ``operator`` continues its session, whichever agent that is filed under. ``filed_under`` takes the place of the
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
    filed_under: AgentName | None = None

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
