"""The log of a run: its frames, in one list that only grows.

Each event is rendered once. The response of this process reads the list, and the journal's writer stores it for all other
readers. The transaction that records the turn also writes the last frames and ends the stream, so the stream says ``done`` if and
only if the turn is recorded.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from spass.agents.render.events import StreamName
from spass.agents.render.frames import RunFormat, StreamRenderer
from spass.calls.scope import Scope
from spass.core.errors import SpassError
from spass.core.events import Event
from spass.core.messages import Json
from spass.core.run_result import AgentRun, RunResult
from spass.core.tasks import EventList
from spass.core.time import Clock
from spass.journal.frames import EventId, Frame
from spass.journal.head import StreamClaim, StreamState
from spass.journal.writer import JournalWriter, remove_if_session_is_deleted
from spass.store.writes import Write

ReportError: TypeAlias = Callable[[SpassError], Mapping[str, Json]]
"""Return an error as clients see it. Log it if it is the gateway's own."""

_ERROR: Final = "error"
"""The name of the frame that ends a failed run, in the format of managed agents."""


class RunLog(EventList[Frame]):
    """The frames of ``run`` in ``form``. With a ``claim``, they are also written to the journal, as the stream ``message_id``.

    ``report`` renders the error of a run that fails. ``scope`` is the agent's: after a compaction, the stream names the
    successor and the journal continues there.
    """

    def __init__(
        self,
        scope: Scope,
        run: AgentRun,
        form: RunFormat,
        report: ReportError,
        clock: Clock,
        claim: StreamClaim | None = None,
        message_id: str = "",
    ) -> None:
        super().__init__()
        self.report = report
        self.writer = JournalWriter(claim, self, clock) if claim is not None else None
        self._scope = scope
        self._run = run
        self._format = form
        self._claim = claim
        self._message_id = message_id
        self._renderer: StreamRenderer | None = None
        self._session = scope.session
        self._last: Sequence[Frame] = ()
        self._stored: int | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether an event was added. From then on, a failure is part of the log."""
        return self._renderer is not None

    @property
    def has_only_failed(self) -> bool:
        """Return True if the run failed before it wrote any other frame than its error."""
        return [frame.event for frame in self.events[:1]] == [_ERROR]

    def event_id(self, index: int) -> EventId | None:
        """Return the id of the frame at ``index``, or None if the journal does not have it."""
        if self._claim is None or (self._stored is not None and index >= self._stored):
            return None
        return EventId(self._claim.head.attempt, index + 1)

    @property
    def text(self) -> str:
        """Return the text of all tokens, of all steps."""
        escaped = "".join(frame.text for frame in self.events if frame.is_token)
        return str(json.loads(f'"{escaped}"'))

    def add(self, event: Event) -> None:
        """Add an event of the run."""
        self._extend(self._current_renderer().write(event))

    async def writes(self, outcome: RunResult) -> Sequence[Write]:
        """Return the writes that end the stream, for the transaction that records the turn (``Participant``).

        Raises:
            StorageUnavailable: the frames cannot be flushed, or the lease has expired; the turn must not be committed.
        """
        self._last = self._current_renderer().end(outcome)
        return await self.writer.final_writes(self._last) if self.writer is not None else ()

    def finish(self, outcome: RunResult) -> None:
        """Add the end of a run that succeeded. If the end is in the journal, it is added as it was written there."""
        self._extend(self._last or self._current_renderer().end(outcome))

    async def fail(self, error: Mapping[str, Json]) -> bool:
        """End a log that has begun with ``error``, which is as clients see it. If the journal cannot be written, only the reader
        of this process learns of it. Return True if the commit had an unknown outcome and took effect: the stream has ended with
        it."""
        assert self._renderer is not None  # noqa: S101 (before it begins, a failure is a refusal)
        last, is_recorded = self._renderer.fail(error), False
        if self.writer is not None and self._claim is not None:
            state = await self.writer.fail(last)
            if state is None:
                self._stored = len(self.events)
            await remove_if_session_is_deleted(self._claim.store, self._claim.head)
            is_recorded = state is StreamState.DONE
        self._extend(self._last if is_recorded else last)
        return is_recorded

    def _current_renderer(self) -> StreamRenderer:
        session = self._scope.session
        if self._renderer is None:
            name = StreamName(self._message_id, self._claim.head.attempt) if self._claim is not None else None
            self._renderer = self._format.renderer(self._scope.caller.request_id, session, name, self._run)
        elif session is not None and session != self._session:
            if self.writer is not None:
                self.writer.continue_in(session)
            self._extend(self._renderer.move(session))
        self._session = session
        return self._renderer

    def _extend(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self.append(frame)
