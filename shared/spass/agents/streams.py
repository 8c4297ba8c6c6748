"""Run turns as streams that can be followed, resumed and stopped: *claim, session, hold, run, commit*.

The work of an attempt appends frames to one list. The response of this process reads that list, and the journal's writer stores
it. All others follow the journal, also in this process. The transaction that records the turn also writes the last frames and
ends the stream, so the stream says ``done`` if and only if the turn is recorded.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from spass.agents.engine import Engine
from spass.agents.following import FollowedStream
from spass.agents.interrupt import StopSignal, interruptible
from spass.agents.render.events import EventWriter, StreamName
from spass.agents.render.frames import FrameWriter, failure_frames
from spass.agents.spec import AgentSpec
from spass.aws.idempotency import IdempotentRequest
from spass.calls.scope import Scope
from spass.core.errors import GATEWAY_STOPPED, SessionBusy, SpassError, StorageUnavailable, TurnLost, internal_error
from spass.core.event_task import EventList, EventTask
from spass.core.events import Event, TurnFinished
from spass.core.ids import AgentName, SessionId, WorkspaceId, new_id, random_suffix
from spass.core.messages import Json, Message
from spass.core.outcome import TurnOutcome
from spass.core.time import Clock
from spass.journal.deletion import remove_if_session_is_deleted
from spass.journal.follower import StreamRestarted, follow
from spass.journal.frames import EventId, Frame
from spass.journal.head import StreamClaim, StreamHead, StreamState, claim, stream_digest
from spass.journal.writer import JournalWriter
from spass.sessions.opening import Opening
from spass.sessions.service import Sessions
from spass.sessions.turn import Turn
from spass.sessions.turn_request import CommitWith, LoadHistory, Respond, ShortenHistory, TurnRequest
from spass.tenancy.config import GatewayConfig

ReportError: TypeAlias = Callable[[SpassError], Mapping[str, Json]]
"""Return an error as clients see it. Log it if it is the gateway's own."""

_STOP_POLL_SECONDS: Final = 1.0
_CLAIMS: Final = 10
"""Times that a request claims its stream. Each time it met another request that was then refused or lost."""


@dataclass(frozen=True, slots=True)
class StreamedMessage:
    """A message whose turn is the stream ``message_id``. ``body_hash`` identifies the body of the request.

    ``session`` is what the client sent. With ``opens_session`` it may also be None or the client's own name. Then the session is
    created if it is new and begins with the messages ``earlier``, and an archived one continues as its newest successor.
    ``workspace`` is that which the client names for the session, if it names one.
    """

    message_id: str
    body_hash: str
    content: str
    session: str | None
    opens_session: bool = False
    earlier: tuple[Message, ...] = ()
    workspace: WorkspaceId | None = None
    idempotency: IdempotentRequest | None = None

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
    ) -> "LiveStream | FollowedStream | TurnOutcome":
        """Run the turn of ``message``, or follow the stream of an earlier request with its id. The first frame is there.

        Return an outcome if an earlier request with the same Idempotency-Key recorded one and its stream is gone.

        Raises:
            SpassError: the turn is refused. It leaves neither a new session nor a stream.
            IdempotencyKeyReused: the id was used with another body.
        """
        name, store = AgentName(agent.name), scope.store
        digest = stream_digest(scope.caller.require_user(), name, message.message_id)
        for _ in range(_CLAIMS):
            opening = await self._opening(scope, agent, message)
            session = opening.session if opening is not None else SessionId(message.session or "")
            claimed = await claim(store, digest, message.body_hash, session, new_id("turn"), self._clock())
            if isinstance(claimed, StreamClaim):
                session = claimed.head.session if opening is not None else session  # that of a lost attempt, if there was one
                run, window = agent.run(scope.caller.request_id), self._config.model(agent.model).context_window
                request = TurnRequest(
                    session,
                    scope.caller.require_user(),
                    message.content,
                    run,
                    window,
                    message.idempotency,
                    stream=claimed,
                    message_id=message.message_id,
                    opening=opening,
                    workspace=message.workspace,
                )
                live = self._begin(scope.for_agent(name, session), agent, request, claimed, report)
                return await live.start() or live
            with suppress(StreamRestarted, TurnLost):
                return await self._join(scope, claimed)
        raise SessionBusy("Other requests with this message_id were refused just now; try again.", retry_after=1)

    async def _opening(self, scope: Scope, agent: AgentSpec, message: StreamedMessage) -> Opening | None:
        if not message.opens_session:
            return None
        workspace = agent.session_workspace(message.workspace)
        return await self._sessions.open(scope, AgentName(agent.name), message.session, message.earlier, workspace)

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
        self, scope: Scope, agent: AgentSpec, request: TurnRequest, claimed: StreamClaim, report: ReportError
    ) -> "LiveStream":
        calls = scope.with_time_for_cut

        def run(load: LoadHistory, shorten: ShortenHistory) -> AsyncGenerator[Event, None]:
            return self._engine.run(calls, agent, request.message, load, shorten)

        def begin(respond: Respond) -> Turn:
            return self._sessions.turn(calls, request, respond)

        return LiveStream(scope, claimed, request.message_id or "", run, begin, report, self._clock)


class LiveStream:
    """One attempt of a streamed turn, in a task of its own, so that it continues when the client disconnects.

    ``run`` returns the driver's events, and ``begin`` starts the turn. ``frames`` ends with the work.
    """

    def __init__(
        self,
        scope: Scope,
        claimed: StreamClaim,
        message_id: str,
        run: Callable[[LoadHistory, ShortenHistory], AsyncGenerator[Event, None]],
        begin: Callable[[Respond], Turn],
        report: ReportError,
        clock: Clock,
    ) -> None:
        self.frames: EventList[Frame] = EventList()
        self._scope = scope
        self._claim = claimed
        self._message_id = message_id
        self._run = run
        self._report = report
        self._writer = JournalWriter(claimed, self.frames, clock)
        self._signal = StopSignal()
        self._renderer: FrameWriter | None = None
        self._session: SessionId | None = None
        self._last: Sequence[Frame] = ()
        self._frames_in_journal: int | None = None
        self._task = asyncio.create_task(self._work(begin))
        self._task.add_done_callback(lambda _: self.frames.end())

    async def start(self) -> TurnOutcome | None:
        """Wait for the first frame. Return the outcome if an earlier request with the same Idempotency-Key recorded one.

        Raises:
            SpassError: the turn is refused. The claim is undone.
            StorageUnavailable: whether the session was created or held is unknown. The next attempt takes it over.
        """
        await self.frames.wait_for_event(0)
        return None if self.frames.events else await asyncio.shield(self._task)

    async def wait(self) -> None:
        """Wait until the work has ended, whatever came of it."""
        await asyncio.wait({self._task})

    def event_id(self, index: int) -> EventId | None:
        """Return the id of the frame at ``index``, or None if the journal does not have it."""
        if self._frames_in_journal is not None and index >= self._frames_in_journal:
            return None
        return EventId(self._claim.head.attempt, index + 1)

    async def _work(self, begin: Callable[[Respond], Turn]) -> TurnOutcome | None:
        """Run the turn. Return its outcome if it was recorded before."""
        beside = [asyncio.create_task(self._writer.run()), asyncio.create_task(self._watch_for_stop())]
        try:
            answer = await begin(self._respond).answer()
            if answer.replayed:
                await self._claim.undo()
                return answer.outcome
            self._append(self._last)
        except asyncio.CancelledError:
            await (self._fail(GATEWAY_STOPPED) if self.frames.events else self._claim.abandon())
            raise
        except Exception as error:
            if not self.frames.events:
                await (self._claim.abandon() if isinstance(error, StorageUnavailable) else self._claim.undo())
                raise
            await self._fail(error if isinstance(error, SpassError) else internal_error(error))
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
        return None

    async def _fail(self, error: SpassError) -> None:
        """End the stream with ``error``. If the journal cannot be written, only the reader of this process learns of it.

        If the commit had an unknown outcome and took effect, the stream has ended with the turn.
        """
        last = failure_frames(self._report(error), self._scope.caller.request_id)
        state = await self._writer.fail(last)
        if state is None:
            self._frames_in_journal = len(self.frames.events)
        await remove_if_session_is_deleted(self._claim.store, self._claim.head)
        self._append(last if state is not StreamState.DONE else self._last)

    async def _respond(
        self, load: LoadHistory, shorten: ShortenHistory
    ) -> AsyncGenerator[Event | CommitWith, TurnOutcome | None]:
        """Yield the events of the turn as far as it gets, and render them. Join the end of the stream to the commit."""
        events = interruptible(
            self._run(load, shorten),
            signal=self._signal,
            deadline=self._scope.deadline,
            tally=self._scope.tally,
        )
        async with aclosing(events):
            async for event in events:
                if isinstance(event, TurnFinished):
                    outcome = yield event
                    if outcome is not None:
                        self._last = self._render().end(outcome)
                        yield CommitWith(await self._writer.final_writes(self._last))
                    return
                self._append(self._render().write(event))
                yield event

    def _render(self) -> FrameWriter:
        """Return the renderer. After a compaction, name the successor in the stream and continue the journal there."""
        session = self._scope.session
        if self._renderer is None:
            name = StreamName(self._message_id, self._claim.head.attempt)
            self._renderer = FrameWriter(EventWriter(self._scope.caller.request_id, session, stream=name))
        elif session is not None and session != self._session:
            self._writer.continue_in(session)
            self._append([self._renderer.move(session)])
        self._session = session
        return self._renderer

    def _append(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self.frames.append(frame)

    async def _watch_for_stop(self) -> None:
        """Read once a second whether a client has asked to stop the turn."""
        while True:
            await asyncio.sleep(_STOP_POLL_SECONDS)
            if await self._claim.is_stop_requested():
                self._signal.stop()
                return
