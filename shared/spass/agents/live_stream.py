"""One attempt of a streamed turn.

The work appends frames to one list. The response of this process reads that list, and the journal's writer stores it. The
transaction that records the turn also writes the last frames and ends the stream, so the stream says ``done`` if and only if the
turn is recorded.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

from spass.agents.interrupt import StopSignal, interruptible
from spass.agents.render.frames import StreamRenderer
from spass.calls.scope import Scope
from spass.core.errors import GATEWAY_STOPPED, SpassError, StorageUnavailable, internal_error
from spass.core.event_task import EventList
from spass.core.events import Event, TurnFinished
from spass.core.ids import SessionId
from spass.core.messages import Json
from spass.core.outcome import TurnOutcome
from spass.core.time import Clock
from spass.journal.deletion import remove_if_session_is_deleted
from spass.journal.frames import EventId, Frame
from spass.journal.head import StreamClaim, StreamState
from spass.journal.writer import JournalWriter
from spass.sessions.turn import Turn
from spass.sessions.turn_request import CommitWith, LoadHistory, Respond, ShortenHistory

ReportError: TypeAlias = Callable[[SpassError], Mapping[str, Json]]
"""Return an error as clients see it. Log it if it is the gateway's own."""
RunAgent: TypeAlias = Callable[[LoadHistory, ShortenHistory], AsyncGenerator[Event, None]]
"""Return the driver's events of one turn."""
HandleFailure: TypeAlias = Callable[[SpassError, Mapping[str, Json]], Awaitable[bool]]
"""Do what must be done before readers learn that the turn failed. The second argument is the error as clients see it. If a commit
with an unknown outcome took effect, this must have no effect. Return True if the turn will begin anew later: a stream without
frames is then undone, and its readers wait."""
RenderSession: TypeAlias = Callable[[SessionId | None], StreamRenderer]
"""Return the renderer of a turn that begins in this session."""

_STOP_POLL_SECONDS: Final = 1.0
_ERROR: Final = "error"
"""The name of the frame that ends a failed turn, in every rendering."""


class LiveStream:
    """One attempt of a streamed turn, in a task of its own, so that it continues when the client disconnects.

    ``run`` returns the driver's events, ``begin`` starts the turn, and ``render`` returns the renderer of a turn that begins in a
    session. ``on_failure`` is called if the turn fails after it has begun. ``frames`` ends with the work. Then ``error`` is the
    reason why the turn was not recorded, if it was not.
    """

    def __init__(
        self,
        scope: Scope,
        claimed: StreamClaim,
        run: RunAgent,
        begin: Callable[[Respond], Turn],
        render: RenderSession,
        report: ReportError,
        clock: Clock,
        on_failure: HandleFailure | None = None,
    ) -> None:
        self.frames: EventList[Frame] = EventList()
        self.error: SpassError | None = None
        self._scope = scope
        self._claim = claimed
        self._run = run
        self._render_session = render
        self._report = report
        self._on_failure = on_failure
        self._writer = JournalWriter(claimed, self.frames, clock)
        self._signal = StopSignal()
        self._begun = asyncio.Event()  # or refused
        self._renderer: StreamRenderer | None = None
        self._session: SessionId | None = None
        self._last: Sequence[Frame] = ()
        self._frames_in_journal: int | None = None
        self._task = asyncio.create_task(self._work(begin))
        self._task.add_done_callback(self._handle_end)

    async def start(self) -> TurnOutcome | None:
        """Wait until the turn has begun. Return the outcome if an earlier request with the same Idempotency-Key recorded one.

        Raises:
            SpassError: the turn is refused. The claim is undone.
            StorageUnavailable: whether the session was created or held is unknown. The next attempt takes it over.
        """
        await self._begun.wait()
        return None if self._renderer is not None else await asyncio.shield(self._task)

    async def wait(self) -> None:
        """Wait until the work has ended, whatever came of it."""
        await asyncio.wait({self._task})

    @property
    def has_only_failed(self) -> bool:
        """Return True if the turn failed before it wrote any other frame than its error."""
        return [frame.event for frame in self.frames.events[:1]] == [_ERROR]

    def event_id(self, index: int) -> EventId | None:
        """Return the id of the frame at ``index``, or None if the journal does not have it."""
        if self._frames_in_journal is not None and index >= self._frames_in_journal:
            return None
        return EventId(self._claim.head.attempt, index + 1)

    def _handle_end(self, _: asyncio.Task[TurnOutcome | None]) -> None:
        self.frames.end()
        self._begun.set()

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
            self.error = GATEWAY_STOPPED
            await (self._fail(self._renderer, GATEWAY_STOPPED) if self._renderer is not None else self._claim.abandon())
            raise
        except Exception as error:
            self.error = error if isinstance(error, SpassError) else internal_error(error)
            if self._renderer is None:
                await (self._claim.abandon() if isinstance(error, StorageUnavailable) else self._claim.undo())
                raise
            await self._fail(self._renderer, self.error)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
        return None

    async def _fail(self, renderer: StreamRenderer, error: SpassError) -> None:
        """End the stream with ``error``. If the journal cannot be written, only the reader of this process learns of it.

        If the commit had an unknown outcome and took effect, the stream has ended with the turn.
        """
        rendered = self._report(error)
        last = renderer.fail(rendered)
        if self._on_failure is not None and await self._on_failure(error, rendered) and not self.frames.events:
            await self._claim.undo()
            return
        state = await self._writer.fail(last)
        if state is None:
            self._frames_in_journal = len(self.frames.events)
        await remove_if_session_is_deleted(self._claim.store, self._claim.head)
        if state is StreamState.DONE:
            self.error, last = None, self._last
        self._append(last)

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
                self._begun.set()
                yield event

    def _render(self) -> StreamRenderer:
        """Return the renderer. After a compaction, name the successor in the stream and continue the journal there."""
        session = self._scope.session
        if self._renderer is None:
            self._renderer = self._render_session(session)
        elif session is not None and session != self._session:
            self._writer.continue_in(session)
            self._append(self._renderer.move(session))
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
