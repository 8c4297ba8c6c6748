"""Compact a session in process, under the hold of the turn that needs it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spass.calls.scope import Scope
from spass.core.errors import SessionArchived, SessionBusy, SessionNotFound, SpassError, StorageUnavailable
from spass.core.ids import SessionId
from spass.core.messages import CHARACTERS_PER_TOKEN, Message
from spass.core.time import Clock, Deadline
from spass.sessions.compaction.commit import CompactionNotStarted, CompactionResult, commit_compaction
from spass.sessions.compaction.plan import CompactionPlan, plan_compaction
from spass.sessions.compaction.summary_record import Summary
from spass.sessions.held_session import HeldSession
from spass.sessions.record import TurnRecord
from spass.sessions.session import Hold, Session
from spass.store.shielded import run_shielded

if TYPE_CHECKING:
    from spass.sessions.compaction.summary import Summarizer  # imported by the first compaction: most requests need none

_DEADLINE_SHARE: Final = 0.5
"""Share of the request's remaining time. The turn needs the rest."""

_FULL_PERCENT: Final = 80

_HOLD_LOST_ERRORS: Final = (SessionArchived, SessionBusy, SessionNotFound, StorageUnavailable)
"""Errors of a commit after which the turn may have lost its session."""


class Compactor:
    """Compact the session of one turn at most once: before the turn runs, or when the provider reports that it is too long.

    ``model`` is the agent's model and ``context_window`` its context window in tokens.
    """

    def __init__(
        self, summarizer: "Callable[[], Summarizer]", scope: Scope, *, model: str, context_window: int, clock: Clock
    ) -> None:
        self.result: CompactionResult | None = None
        self.error: SpassError | None = None
        self._summarizer = summarizer
        self._scope = scope
        self._model = model
        self._context_window = context_window
        self._clock = clock
        self._attempted = False

    def should_compact(self, session: Session, live: Sequence[Message], new_characters: int) -> bool:
        """Return whether to compact ``session`` before a turn that starts with a message of ``new_characters``.

        That is the case if its strategy is ``auto``, it has more ``live`` messages than it keeps, and these and the new message
        fill more than 80 % of the model's context window by an estimate.
        """
        if session.compact_strategy != "auto" or len(live) <= session.compact_keep_last_n:
            return False
        characters = sum(message.count_characters() for message in live) + new_characters
        return 100 * characters > _FULL_PERCENT * CHARACTERS_PER_TOKEN * self._context_window

    async def compact(
        self, held: HeldSession, live: Sequence[TurnRecord], hold: Callable[[SessionId], Hold]
    ) -> CompactionResult | None:
        """Continue the held session, whose turns are ``live``, as a shorter successor that starts under ``hold``.

        Afterwards ``held`` is the successor. Return None if the session stays as it is; ``error`` then has the reason if a
        compaction was attempted. Cancelling this interrupts the summary but not the commit: ``held`` is then the session that the
        turn really holds, and the turn can be committed there.

        Raises:
            SessionArchived, SessionBusy, SessionNotFound: another request has taken the session.
            StorageUnavailable: the outcome of the compaction is unknown.
        """
        session = held.session
        if self._attempted or session.compact_strategy != "auto":
            return None
        self._attempted = True
        messages = [stored for turn in live for stored in turn.messages]
        try:
            plan = plan_compaction(session, messages)
            scope = self._scope.for_agent(session.agent, session.id)
            scope = replace(scope, deadline=Deadline.after(scope.deadline.remaining() * _DEADLINE_SHARE))
            summary = await self._summarizer().summarise_session(scope, session, live, plan, fallback_model=self._model)
        except SpassError as error:
            self.error = error
            return None
        await run_shielded(self._commit(held, live, plan, summary, hold(plan.successor)))
        return self.result

    async def _commit(
        self, held: HeldSession, live: Sequence[TurnRecord], plan: CompactionPlan, summary: Summary, hold: Hold
    ) -> None:
        try:
            async with held.transfer_to(plan.successor):
                self.result = await commit_compaction(
                    held.store, held.session, live, plan, summary, owner=held.owner, at=self._clock(), hold=hold
                )
                held.finish_transfer(self.result.session)
        except SpassError as error:
            if isinstance(error, _HOLD_LOST_ERRORS) and not isinstance(error, CompactionNotStarted):
                raise
            self.error = error
