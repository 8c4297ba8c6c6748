"""Runs that are turns of a session: *claim, session, hold, loop, commit*."""

from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from spass.agents.engine import Engine
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.errors import SessionBusy, TurnLost
from spass.core.event_task import EventTask
from spass.core.ids import AgentName, SessionId, UserId, new_id
from spass.core.memory import MemoryOfTurn
from spass.core.run_result import RunResult
from spass.core.time import Clock
from spass.journal.follower import FollowedStream, StreamRestarted, follow
from spass.journal.head import StreamClaim, StreamHead, claim, stream_digest
from spass.memory.operator import Operator
from spass.runs.log import ReportError, RunLog
from spass.runs.operators import OperatorCommit, open_memory
from spass.runs.request import ChatSession, RunRequest, StreamIdentity
from spass.runs.run import Run, Turn, Work
from spass.sessions.commit import Participant
from spass.sessions.hold import TurnRequest
from spass.sessions.opening import Opening
from spass.sessions.operators import OperatorPointer
from spass.sessions.service import Sessions
from spass.tenancy.config import GatewayConfig

_CLAIMS: Final = 10
"""Times that a request claims its stream. Each time it met another request that was then refused or lost."""


class _Place(NamedTuple):
    """The session of a turn before it is held. ``pointer`` is that of an operator."""

    session: SessionId
    user: UserId
    opening: Opening | None = None
    pointer: OperatorPointer | None = None


class Turns:
    """The turns of all sessions. ``clock`` returns seconds since the epoch."""

    def __init__(self, engine: Engine, sessions: Sessions, config: GatewayConfig, clock: Clock) -> None:
        self._engine = engine
        self._sessions = sessions
        self._config = config
        self._clock = clock

    async def stream(
        self, scope: Scope, agent: AgentSpec, request: RunRequest, report: ReportError
    ) -> Run | FollowedStream | RunResult:
        """Start a turn as a stream, or follow or replay that of an earlier request. The first frame is there.

        Raises:
            SpassError: the turn is refused. It leaves neither a new session nor a stream.
            IdempotencyKeyReused: the id was used with another body.
        """
        identity = request.stream or StreamIdentity.of(request.idempotency)
        for _ in range(_CLAIMS):
            place = await self._find(scope, agent, request)
            name = identity.stream_namespace or AgentName(agent.name)
            digest = stream_digest(place.user, name, identity.message_id)
            claimed = await claim(scope.store, digest, identity.body_hash, place.session, new_id("turn"), self._clock())
            if isinstance(claimed, StreamClaim):
                run = self._stream(scope, agent, request, identity, place, claimed, report).start()
                return await run.begin() or run
            with suppress(StreamRestarted, TurnLost):
                return await self._join(scope, claimed)
        raise SessionBusy("Other requests with this message_id were refused just now; try again.", retry_after=1)

    async def prepare(self, scope: Scope, agent: AgentSpec, request: RunRequest) -> Run:
        """Return a turn that nobody follows.

        Raises:
            StorageUnavailable: AWS throttled all retries or was unreachable.
        """
        place = await self._find(scope, agent, request)
        turn = self._turn_request(scope, agent, request, place)
        calls = scope.for_agent(AgentName(agent.name), place.session)
        work, participants = self._work(calls, agent, request, place)
        return Run(self._engine, calls, work, turn=Turn(self._sessions, turn, new_id("turn"), participants))

    def _stream(
        self,
        scope: Scope,
        agent: AgentSpec,
        request: RunRequest,
        identity: StreamIdentity,
        place: _Place,
        claimed: StreamClaim,
        report: ReportError,
    ) -> Run:
        """Return the attempt of a stream that ``claimed`` gives the right to."""
        if place.opening is not None:
            place = place._replace(session=claimed.head.session)  # that of a lost attempt, if there was one
        name = identity.stream_namespace or AgentName(agent.name)
        turn = replace(
            self._turn_request(scope, agent, request, place),
            stream=claimed,
            message_id=identity.message_id,
            stream_namespace=name if place.pointer is not None else None,
        )
        calls = scope.for_agent(AgentName(agent.name), place.session).with_time_for_cut
        log = RunLog(calls, turn.run, request.form, report, self._clock, claimed, identity.message_id)
        work, participants = self._work(calls, agent, request, place, log)
        return Run(
            self._engine,
            calls,
            work,
            turn=Turn(self._sessions, turn, claimed.head.owner, participants),
            log=log,
            deadline=scope.deadline,
            execution=request.managed.execution if request.managed is not None else None,
        )

    async def _find(self, scope: Scope, agent: AgentSpec, request: RunRequest) -> _Place:
        """Return the session that the request asks for."""
        name, session = AgentName(agent.name), request.session
        if isinstance(session, Operator):
            workspace = agent.session_workspace(request.workspace)
            opening, pointer = await self._sessions.open_operator(scope, name, session, workspace)
            return _Place(opening.session, session.user, opening, pointer)
        user = scope.caller.require_user()
        if isinstance(session, ChatSession):
            workspace = agent.session_workspace(request.workspace)
            opening = await self._sessions.open(scope, name, session.wanted, session.earlier, workspace, session.title)
            return _Place(opening.session, user, opening)
        return _Place(SessionId(session or ""), user)

    def _turn_request(self, scope: Scope, agent: AgentSpec, request: RunRequest, place: _Place) -> TurnRequest:
        return TurnRequest(
            place.session,
            place.user,
            request.message,
            agent.run(scope.caller.request_id),
            self._config.model(agent.model).context_window,
            request.idempotency,
            opening=place.opening,
            workspace=request.workspace,
            operator=request.operator.id if request.operator is not None else None,
        )

    def _work(
        self, calls: Scope, agent: AgentSpec, request: RunRequest, place: _Place, log: RunLog | None = None
    ) -> tuple[Work, tuple[Participant, ...]]:
        """Return the work of a turn, and what joins its commit: the end of its stream, that of a managed agent's run, and the
        next state of an operator. The work and the operator share a memory."""
        memory: MemoryOfTurn | None = None
        participants: list[Participant] = [log] if log is not None else []
        if log is not None and request.managed is not None:
            from spass.managed.run_end import RunSuccess

            execution = request.managed.execution
            participants.append(RunSuccess(execution.store, execution.run, request.managed.delivered, log, execution.clock))
        if place.pointer is not None:
            memory = open_memory(self._engine, calls, agent, place.pointer.operator)
            participants.append(OperatorCommit(place.pointer, memory, request.message))
        return Work(agent=agent, message=request.message, given=request.given, memory=memory), tuple(participants)

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
