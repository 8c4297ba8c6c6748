"""Run agents. One call starts any run: with or without a session, as a stream or not.

A request *claims* its run. If it may run, a ``Run`` is started. If another request runs or has run it, its stream is followed. If
only the result of an earlier request is left, that is replayed. A turn of a session is then: *session, hold, loop, commit*.

The response of the process that runs a turn reads the log of its ``Run``. All others follow the journal, also in this process.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spass.agents.engine import Engine
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.errors import SessionBusy, TurnLost
from spass.core.ids import AgentName, Operator, SessionId, UserId, new_id
from spass.core.run_result import RunResult, decode_run_result
from spass.core.tasks import EventTask
from spass.core.time import Clock
from spass.runs.run import ChatSession, Run, RunAnswer, RunRequest, StreamIdentity, Turn
from spass.store import idempotency
from spass.store.idempotency import StoredResponse
from spass.tenancy.config import GatewayConfig

if TYPE_CHECKING:  # a question needs neither sessions nor the journal
    from spass.core.memory import MemoryOfTurn
    from spass.journal.follower import FollowedStream
    from spass.journal.head import StreamClaim, StreamHead
    from spass.runs.commit import Participant
    from spass.runs.log import ReportError
    from spass.sessions.hold import Opening
    from spass.sessions.operators import OperatorPointer
    from spass.sessions.service import Sessions

Started: TypeAlias = Run
"""A run that this request has started. If it is a turn, its first frame is there."""

_CLAIMS: Final = 10
"""Times that a request claims its stream. Each time it met another request that was then refused or lost."""


class _Place(NamedTuple):
    """The session of a turn before it is held. An operator has a ``pointer`` to it."""

    session: SessionId
    user: UserId
    opening: "Opening | None" = None
    pointer: "OperatorPointer | None" = None


class _Stream(NamedTuple):
    """The right to run an attempt of the stream ``identity``. ``report`` renders the error of a run that fails."""

    claim: "StreamClaim"
    identity: StreamIdentity
    report: "ReportError"


class Runs:
    """The runs of all tenants. A process has one object of this class. ``sessions`` is called at the first turn of a session.
    ``clock`` returns seconds since the epoch."""

    def __init__(
        self, engine: Engine, sessions: "Callable[[], Sessions]", config: GatewayConfig, clock: Clock = time.time
    ) -> None:
        self._engine = engine
        self._create_sessions = sessions
        self._config = config
        self._clock = clock

    @cached_property
    def sessions(self) -> "Sessions":
        """The sessions of turns. A function that runs turns loads this while it starts, and with it what a stream needs."""
        import spass.journal.follower
        import spass.runs.log  # noqa: F401 (loaded here, so that the first turn need not wait for it)

        return self._create_sessions()

    async def answer(self, scope: Scope, agent: AgentSpec, request: RunRequest) -> RunAnswer:
        """Run to the end and return the result, or the one that an earlier attempt of the request recorded. A turn of a session
        continues if this is cancelled.

        Raises:
            IdempotencyInProgress: another attempt of the request is running.
            IdempotencyKeyReused: the key was used with another body.
            SpassError: the run was refused or failed, and nothing of it is recorded.
        """
        if request.session is not None:
            place = await self._find(scope, agent, request)
            return await self._turn(scope, agent, request, place).start().answer()
        run = await self._question(scope, agent, request)
        return await run.execute() if isinstance(run, Run) else RunAnswer(run, replayed=True)

    async def stream(
        self, scope: Scope, agent: AgentSpec, request: RunRequest, report: "ReportError"
    ) -> "Started | FollowedStream | RunResult":
        """Start a run with a log. ``report`` renders the error of a run that fails. If it is a turn, its first frame is there.

        If an earlier request with the same id runs or has run it, return its stream. If that is gone, but the result was
        recorded under the request's Idempotency-Key, return the result.

        Raises:
            SpassError: the run is refused. It leaves neither a new session nor a stream.
            IdempotencyKeyReused: the id or the key was used with another body.
        """
        if request.session is None:
            question = await self._question(scope, agent, request, report)
            return question.start() if isinstance(question, Run) else question
        from spass.journal.follower import StreamRestarted
        from spass.journal.head import StreamClaim, claim, stream_digest

        identity = request.stream or StreamIdentity.of(request.idempotency)
        for _ in range(_CLAIMS):
            place = await self._find(scope, agent, request)
            digest = stream_digest(place.user, identity.stream_namespace or AgentName(agent.name), identity.message_id)
            claimed = await claim(scope.store, digest, identity.body_hash, place.session, new_id("turn"), self._clock())
            if isinstance(claimed, StreamClaim):
                run = self._turn(scope, agent, request, place, _Stream(claimed, identity, report)).start()
                return await run.begin() or run
            with suppress(StreamRestarted, TurnLost):
                return await self._join(scope, claimed)
        raise SessionBusy("Other requests with this message_id were refused just now; try again.", retry_after=1)

    async def _question(
        self, scope: Scope, agent: AgentSpec, request: RunRequest, report: "ReportError | None" = None
    ) -> Run | RunResult:
        """Return a run without a session, or the result that an earlier attempt of the request recorded."""
        key, log = request.idempotency, None
        claimed = await idempotency.acquire(scope.store, key) if key is not None else None
        if isinstance(claimed, StoredResponse):
            return decode_run_result(claimed.body)
        if report is not None:
            from spass.runs.log import RunLog

            log = RunLog(scope, agent.run(scope.caller.request_id), request.form, report, self._clock)
        return Run(self._engine, scope, agent, request, claim=claimed, log=log)

    def _turn(self, scope: Scope, agent: AgentSpec, request: RunRequest, place: _Place, stream: _Stream | None = None) -> Run:
        """Return a turn in the session of ``place``: a ``stream``, or one that nobody follows."""
        from spass.sessions.hold import TurnRequest

        name, session, log = AgentName(agent.name), place.session, None
        if stream is not None and place.opening is not None:
            session = stream.claim.head.session  # that of a lost attempt, if there was one
        turn = TurnRequest(
            session,
            place.user,
            request.message,
            agent.run(scope.caller.request_id),
            self._config.model(agent.model).context_window,
            request.idempotency,
            opening=place.opening,
            workspace=request.workspace,
            operator=request.operator.id if request.operator is not None else None,
        )
        calls = scope.for_agent(name, session)
        if stream is not None:
            from spass.runs.log import RunLog

            claim, identity = stream.claim, stream.identity
            namespace = (identity.stream_namespace or name) if place.pointer is not None else None
            turn = replace(turn, id=claim.head.owner, stream=claim, message_id=identity.message_id, stream_namespace=namespace)
            calls = calls.with_time_for_cut
            log = RunLog(calls, turn.run, request.form, stream.report, self._clock, claim, identity.message_id)
        memory: MemoryOfTurn | None = None
        participants: tuple[Participant, ...] = ()
        if place.pointer is not None:
            from spass.sessions.operators import OperatorCommit

            memory = self._engine.open_memory(calls, place.pointer.operator) if agent.build().remembers else None
            participants = (OperatorCommit(place.pointer, memory, request.message),)
        held = Turn(self.sessions, turn, participants)
        return Run(self._engine, calls, agent, request, memory=memory, turn=held, log=log, deadline=scope.deadline)

    async def _find(self, scope: Scope, agent: AgentSpec, request: RunRequest) -> _Place:
        """Return the session that the request asks for."""
        name, session = AgentName(agent.name), request.session
        if isinstance(session, Operator):
            workspace = agent.session_workspace(request.workspace)
            opening, pointer = await self.sessions.open_operator(scope, name, session, workspace)
            return _Place(opening.session, session.user, opening, pointer)
        user = scope.caller.require_user()
        if isinstance(session, ChatSession):
            workspace = agent.session_workspace(request.workspace)
            opening = await self.sessions.open(scope, name, session.wanted, session.earlier, workspace, session.title)
            return _Place(opening.session, user, opening)
        return _Place(SessionId(session or ""), user)

    async def _join(self, scope: Scope, head: "StreamHead") -> "FollowedStream":
        """Follow the stream of an earlier request, once its first frame is there.

        Raises:
            StreamRestarted, TurnLost: that request was refused or lost. This one may claim the stream.
        """
        from spass.journal.follower import follow

        follower = await follow(scope.store, head.digest, clock=self._clock, head=head)
        stream: FollowedStream = EventTask(follower.frames(scope.deadline.remaining()))
        await stream.wait_for_event(0)
        if not stream.events:
            await stream.result()
        return stream
