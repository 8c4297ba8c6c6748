"""Run turns as streams that can be followed, resumed and stopped: *claim, session, hold, run, commit*.

The response of the process that runs the turn reads the frames of its ``LiveStream``. All others follow the journal, also in this
process.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from spass.agents.engine import Engine
from spass.agents.following import FollowedStream
from spass.agents.live_stream import HandleFailure, LiveStream, ReportError
from spass.agents.operators import commit_of_operator, open_memory
from spass.agents.render.events import StreamName
from spass.agents.render.frames import StreamRenderer, StreamRendering, render_events
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.errors import SessionBusy, TurnLost
from spass.core.event_task import EventTask
from spass.core.events import Event
from spass.core.ids import AgentName, SessionId, WorkspaceId, new_id, random_suffix
from spass.core.messages import Message
from spass.core.outcome import TurnOutcome
from spass.core.time import Clock
from spass.journal.follower import StreamRestarted, follow
from spass.journal.head import StreamClaim, StreamHead, claim, stream_digest
from spass.memory.operator import Operator
from spass.sessions.commit_participants import join_commit
from spass.sessions.opening import Opening
from spass.sessions.operators import OperatorPointer
from spass.sessions.service import Sessions
from spass.sessions.turn import Turn
from spass.sessions.turn_request import CommitParticipant, LoadHistory, Respond, ShortenHistory, TurnRequest
from spass.store.idempotency import IdempotentRequest
from spass.tenancy.config import GatewayConfig

_CLAIMS: Final = 10
"""Times that a request claims its stream. Each time it met another request that was then refused or lost."""


@dataclass(frozen=True, slots=True)
class StreamedMessage:
    """A message whose turn is the stream ``message_id``. ``body_hash`` identifies the body of the request.

    ``session`` is what the client sent. With ``opens_session`` it may also be None or the client's own name. Then the session is
    created if it is new and begins with the messages ``earlier``, and an archived one continues as its newest successor.
    ``workspace`` is that which the client names for the session, if it names one.

    A run of ``operator`` continues its session. Then ``session`` and ``earlier`` have no effect.

    ``render`` makes the frames of the stream. ``filed_under`` takes the place of the agent's name in the stream's identity.
    ``participant`` joins the commit of the turn. ``on_failure`` is called if the turn fails after it has begun.
    """

    message_id: str
    body_hash: str
    content: str
    session: str | None
    opens_session: bool = False
    earlier: tuple[Message, ...] = ()
    workspace: WorkspaceId | None = None
    title: str | None = None
    idempotency: IdempotentRequest | None = None
    render: StreamRendering = render_events
    filed_under: str | None = None
    participant: CommitParticipant | None = None
    on_failure: HandleFailure | None = None
    operator: Operator | None = None

    @classmethod
    def of(cls, content: str, session: SessionId, request: IdempotentRequest | None) -> Self:
        """Return a message to an existing session. The Idempotency-Key names its stream; without a key, the name is random."""
        if request is None:
            return cls(random_suffix(), "", content, session)
        return cls(request.digest, request.body_hash, content, session, idempotency=request)


class Streams:
    """The streams of all tenants. A process has one object of this class. ``clock`` returns seconds since the epoch."""

    def __init__(self, engine: Engine, sessions: Sessions, config: GatewayConfig, clock: Clock = time.time) -> None:
        self._engine = engine
        self._sessions = sessions
        self._config = config
        self._clock = clock

    async def open(
        self, scope: Scope, agent: AgentSpec, message: StreamedMessage, report: ReportError
    ) -> LiveStream | FollowedStream | TurnOutcome:
        """Run the turn of ``message``, or follow the stream of an earlier request with its id. The first frame is there.

        Return an outcome if an earlier request with the same Idempotency-Key recorded one and its stream is gone.

        Raises:
            SpassError: the turn is refused. It leaves neither a new session nor a stream.
            IdempotencyKeyReused: the id was used with another body.
        """
        store, user = scope.store, message.operator.user if message.operator is not None else scope.caller.require_user()
        digest = stream_digest(user, AgentName(message.filed_under or agent.name), message.message_id)
        for _ in range(_CLAIMS):
            opening, pointer = await self._opening(scope, agent, message)
            session = opening.session if opening is not None else SessionId(message.session or "")
            claimed = await claim(store, digest, message.body_hash, session, new_id("turn"), self._clock())
            if isinstance(claimed, StreamClaim):
                request = self._request(scope, agent, message, claimed, opening)
                live = self._begin(
                    scope.for_agent(request.agent, request.session), agent, request, claimed, message, pointer, report
                )
                return await live.start() or live
            with suppress(StreamRestarted, TurnLost):
                return await self._join(scope, claimed)
        raise SessionBusy("Other requests with this message_id were refused just now; try again.", retry_after=1)

    async def _opening(
        self, scope: Scope, agent: AgentSpec, message: StreamedMessage
    ) -> tuple[Opening | None, OperatorPointer | None]:
        name = AgentName(agent.name)
        if message.operator is not None:
            return await self._sessions.open_operator(scope, name, message.operator, agent.session_workspace(message.workspace))
        if not message.opens_session:
            return None, None
        workspace = agent.session_workspace(message.workspace)
        return await self._sessions.open(scope, name, message.session, message.earlier, workspace, message.title), None

    def _request(
        self, scope: Scope, agent: AgentSpec, message: StreamedMessage, claimed: StreamClaim, opening: Opening | None
    ) -> TurnRequest:
        operator, session = message.operator, SessionId(message.session or "")
        return TurnRequest(
            claimed.head.session if opening is not None else session,  # that of a lost attempt, if there was one
            operator.user if operator is not None else scope.caller.require_user(),
            message.content,
            agent.run(scope.caller.request_id),
            self._config.model(agent.model).context_window,
            message.idempotency,
            stream=claimed,
            message_id=message.message_id,
            opening=opening,
            workspace=message.workspace,
            operator=operator.id if operator is not None else None,
            filed_under=AgentName(message.filed_under or agent.name) if operator is not None else None,
        )

    async def _join(self, scope: Scope, head: StreamHead) -> FollowedStream:
        """Follow the stream of an earlier request, once its first frame is there.

        Raises:
            StreamRestarted, TurnLost: that request was refused or lost. This one may claim the stream.
        """
        follower = await follow(scope.store, head.digest, clock=self._clock, head=head)
        stream: FollowedStream = EventTask(follower.frames(scope.deadline.remaining()))
        await stream.wait_for_event(0)
        if not stream.events:
            await stream.result()
        return stream

    def _begin(
        self,
        scope: Scope,
        agent: AgentSpec,
        request: TurnRequest,
        claimed: StreamClaim,
        message: StreamedMessage,
        pointer: OperatorPointer | None,
        report: ReportError,
    ) -> LiveStream:
        calls = scope.with_time_for_cut
        memory = open_memory(self._engine, calls, agent, pointer.operator) if pointer is not None else None

        def run(load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event, None]:
            return self._engine.run(calls, agent, request.message, load, shorten, memory=memory)

        def begin(respond: Respond) -> Turn:
            if message.participant is not None:
                respond = join_commit(respond, message.participant)
            if pointer is not None:
                respond = join_commit(respond, commit_of_operator(pointer, memory, message.content))
            return self._sessions.turn(calls, request, respond)

        def render(session: SessionId | None) -> StreamRenderer:
            name = StreamName(message.message_id, claimed.head.attempt)
            return message.render(scope.caller.request_id, session, name, request.run)

        return LiveStream(scope, claimed, run, begin, render, report, self._clock, message.on_failure)
