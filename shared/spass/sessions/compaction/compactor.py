"""Compaction in process, under the hold of the turn that needs it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spass.calls.scope import Scope
from spass.core.errors import SessionArchived, SessionBusy, SessionNotFound, SpassError, StorageUnavailable
from spass.core.ids import SessionId
from spass.core.messages import Message
from spass.core.time import Deadline
from spass.sessions.compaction import trigger
from spass.sessions.compaction.commit import CompactionNotStarted, commit_compaction
from spass.sessions.compaction.planning import plan_compaction
from spass.sessions.compaction.types import CompactionResult
from spass.sessions.held_session import Clock, HeldSession
from spass.sessions.record import TurnRecord
from spass.sessions.session import Hold, Session

if TYPE_CHECKING:
    from spass.sessions.compaction.summary import Summarizer  # its room is entered by the first compaction

_DEADLINE_SHARE: Final = 0.5
"""Of the time that a request has left: the turn is still to run."""

_HOLD_LOST_ERRORS: Final = (SessionArchived, SessionBusy, SessionNotFound, StorageUnavailable)
"""What a commit raises when the turn can no longer be sure of its session."""


class Compactor:
    """Compacts the session of one turn: once at most, before the turn runs or when the provider finds the session too long.

    ``model`` is the agent's, ``context_window`` the tokens it takes.
    """

    def __init__(
        self, summarizer: "Callable[[], Summarizer]", scope: Scope, *, model: str, context_window: int, clock: Clock
    ) -> None:
        self.compacted: CompactionResult | None = None
        self.error: SpassError | None = None
        self._summarizer = summarizer
        self._scope = scope
        self._model = model
        self._context_window = context_window
        self._clock = clock
        self._tried = False

    def due(self, session: Session, live: Sequence[Message], message: str) -> bool:
        """Whether ``session`` is to be compacted before a turn that begins with ``message``."""
        return trigger.should_compact(session, live, message, self._context_window)

    async def compact(
        self, held: HeldSession, live: Sequence[TurnRecord], hold: Callable[[SessionId], Hold]
    ) -> CompactionResult | None:
        """Let the session, whose turns are ``live``, go on as a shorter one, which begins under ``hold`` and is then the one that
        is held. None: it stays as it is, and ``error`` says why if there was a try.

        Raises:
            SessionArchived, SessionBusy, SessionNotFound: the session was lost to another request.
            StorageUnavailable: whether it was compacted cannot be known.
        """
        session = held.session
        if self._tried or session.compact_strategy != "auto":
            return None
        self._tried = True
        messages = [stored for turn in live for stored in turn.messages]
        try:
            plan = plan_compaction(session, messages)
            scope = replace(self._scope, deadline=Deadline.after(self._scope.deadline.remaining() * _DEADLINE_SHARE))
            summary = await self._summarizer().summarise_session(scope, session, live, plan, otherwise=self._model)
        except SpassError as error:
            self.error = error
            return None
        try:
            async with held.transfer_to(plan.successor):
                self.compacted = await commit_compaction(
                    held.store, session, live, plan, summary, owner=held.owner, at=self._clock(), hold=hold(plan.successor)
                )
                held.finish_transfer(self.compacted.session)
        except SpassError as error:
            if isinstance(error, _HOLD_LOST_ERRORS) and not isinstance(error, CompactionNotStarted):
                raise
            self.error = error
        return self.compacted
