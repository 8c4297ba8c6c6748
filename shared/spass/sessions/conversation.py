"""The conversation of a turn: the session that the turn holds, its history, and the commit that records the turn.

*Opening* takes the session's hold under the turn's id. The *commit* is one transaction, conditional on that hold: it writes the
turn, the head, the entry in the user's list of sessions and the result for a repeated request, and what else joins it. If a hold
expires, two turns of a session can run, but only the holder can commit. So after any crash the session has the whole turn once,
or nothing of it.

A full session is compacted before its agent runs, or while it runs if the provider rejects the conversation as too long. The
compaction has its own commit, which transfers the hold to the successor, where the turn continues. If the turn fails after that,
the session stays compacted and nothing of the turn is recorded.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spass.calls.scope import Scope
from spass.core.errors import (
    InternalError,
    InvalidRequest,
    SessionArchived,
    SessionBusy,
    SessionNotFound,
    SpassError,
    StorageUnavailable,
)
from spass.core.events import Event
from spass.core.ids import SessionId
from spass.core.messages import Message
from spass.core.run_result import CompactionIds, RunResult, encode_run_result
from spass.core.time import Clock, Deadline, timestamp
from spass.sessions.hold import TurnRequest, held_by, is_deleted, release_hold, renew_hold
from spass.sessions.opening import OpenedSession
from spass.sessions.record import TurnRecord, TurnRecorder, load_turns, store_body, stored_overflow_key, with_decisions
from spass.sessions.session import Session
from spass.store import idempotency, keys
from spass.store.bucket import ObjectMissing
from spass.store.idempotency import StoredResponse
from spass.store.restored import check_restored
from spass.store.shielded import run_shielded
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put, Update, Write

if TYPE_CHECKING:
    from spass.sessions.compaction.commit import CompactionResult
    from spass.sessions.compaction.plan import CompactionPlan, Summary
    from spass.sessions.compaction.summary import Summarizer  # imported by the first compaction: most requests need none

# After one of these errors of a compaction's commit, the turn may have lost its session.
_HOLD_LOST: Final = (SessionArchived, SessionBusy, SessionNotFound, StorageUnavailable)
_HEAD: Final = 1
_OWN_WRITES: Final = {0, _HEAD}
"""The positions of the turn and the head. The conditions of both hold as long as the turn holds its session."""
_SUMMARY_SHARE: Final = 0.5
"""Share of the request's remaining time for a summary. The turn needs the rest."""


class Conversation:
    """The session of one turn, which the turn holds, and the stream that shows the turn, if it has one.

    ``scope`` is the agent's: after a compaction, it continues in the successor. ``summarizer`` is called if the turn compacts,
    which happens at most once: ``compaction`` or ``compaction_error`` is what came of it.

    A lock excludes renewal while a compaction transfers the hold, because the hold of an archived session cannot be renewed.
    """

    def __init__(
        self,
        scope: Scope,
        request: TurnRequest,
        opened: OpenedSession,
        summarizer: "Callable[[], Summarizer]",
        clock: Clock,
    ) -> None:
        self._scope = scope
        self._store = scope.store
        self._request = request
        self._opened = opened
        self._summarizer = summarizer
        self._clock = clock
        self._session = opened.session
        self._held_sessions = [opened.session.id]
        self._transfer_lock = asyncio.Lock()
        self._turns: Sequence[TurnRecord] = ()
        self._recorder = TurnRecorder(request.id, request.message, clock)
        self._has_compacted = False
        self.compaction: CompactionResult | None = None
        self.compaction_error: SpassError | None = None
        self._finished: tuple[Session, TurnRecord, RunResult] | None = None

    def check(self) -> None:
        """Check that the turn may continue this session, and tell the scope what its tools record with their effects.

        Raises:
            InvalidRequest: the session belongs to another operator, or has another workspace than the client named.
            LeaseLost: another attempt may run the stream.
        """
        request, session = self._request, self._session
        if session.operator != request.operator:
            message = f"This session belongs to the operator '{session.operator}'. Only its runs continue it: run its agent."
            raise InvalidRequest(message, param="session_id", details={"operator_id": session.operator})
        if request.workspace not in (None, session.workspace):
            kept = f"the workspace {session.workspace!r}" if session.workspace is not None else "no workspace"
            message = f"The session was created with {kept}, which does not change. Omit workspace, or start another session."
            raise InvalidRequest(message, param="workspace", details={"workspace": session.workspace})
        current = self._scope.current_session
        if current is not None:
            current.turn_id, current.message_id, current.workspace = self._request.id, request.message_id, session.workspace
            current.agent = request.agent
        self.check_lease()

    def check_lease(self) -> None:
        """Raise ``LeaseLost`` if this process paused for so long that another attempt may run the stream, or may have ended it.
        Check this before each effect of the turn."""
        if self._request.stream is not None:
            self._request.stream.check_lease(self._clock())

    async def renew(self) -> None:
        """Extend the lease of the stream and then the hold by a minute. So the next attempt of the stream finds a hold that is
        its own, or one that has expired.

        Raises:
            LeaseLost, ConditionFailed: the stream or the hold was lost.
            StorageUnavailable: the outcome is unknown.
        """
        async with self._transfer_lock:
            await self._renew_stream()
            await renew_hold(self._store, self._session.id, self._request.id, self._clock())

    async def load(self) -> RunResult | None:
        """Read the turns that are not compacted yet. Return the result if an earlier attempt of the request was committed.

        Raises:
            SessionBusy: the session is being deleted.
            IdempotencyKeyReused: the key was used with another body.
            InternalError: a restore could not bring all of the session back.
        """
        turns, result = await asyncio.gather(self._load_turns(), self._request.stored_result(self._store), return_exceptions=True)
        if isinstance(result, BaseException):
            raise result
        if result is not None:
            return result
        if isinstance(turns, ObjectMissing):  # this process paused for longer than its hold, and the session is being deleted
            await check_restored(self._store, keys.session_head(self._store.tenant, self._session.id), "this session")
            raise taken_over()
        if isinstance(turns, BaseException):
            raise turns
        self._turns = turns
        self.check_lease()
        self._recorder = TurnRecorder(self._request.id, self._request.message, self._clock)
        return None

    async def history(self) -> Sequence[Message]:
        """Return the messages before the new one. Compact the session first if it is full, which takes seconds. Call this once.

        Errors are those of ``shorten``.
        """
        live = await self._messages(self._turns)
        if self._session.should_compact(live, len(self._request.message), self._request.context_window):
            return await self.shorten() or live
        return live

    async def shorten(self) -> Sequence[Message] | None:
        """Continue in a shorter successor and return its messages. Call this when the provider rejects the conversation as too
        long. Return None if the session stays as it is; the result of the turn has the error of a failed compaction.

        Cancelling this interrupts the summary but not the commit: the turn then holds either session, and can be committed there.

        Raises:
            SessionArchived, SessionBusy, SessionNotFound: another request has taken the session.
            LeaseLost: another attempt may run the stream.
            StorageUnavailable: the outcome of the compaction is unknown.
        """
        self.check_lease()
        session = self._session
        if self._has_compacted or session.compact_strategy != "auto":
            return None
        from spass.sessions.compaction.plan import plan_compaction

        self._has_compacted = True
        try:
            plan = plan_compaction(session, [stored for turn in self._turns for stored in turn.messages])
            scope = self._scope.for_agent(session.agent, session.id)
            scope = replace(scope, deadline=Deadline.after(scope.deadline.remaining() * _SUMMARY_SHARE))
            summary = await self._summarizer().summarise_session(
                scope, session, self._turns, plan, fallback_model=self._request.run.model
            )
        except SpassError as error:
            self.compaction_error = error
        else:
            await run_shielded(self._compact(plan, summary))
        self.check_lease()
        return await self._messages([self.compaction.first]) if self.compaction is not None else None

    def record(self, event: Event) -> None:
        """Record an event of the turn."""
        self._recorder.add(event)

    def finish(self) -> RunResult:
        """Return the result of the turn, whose last event is recorded.

        Raises:
            InternalError: the turn has no answer.
        """
        recorder, session = self._recorder, self._session
        if not recorder.outcome.messages:
            raise InternalError("The turn ended without an answer.")
        turn = recorder.record(session.next_seq, self._scope.tally.total)
        after = replace(session, next_seq=turn.next_seq, updated_at=timestamp(self._clock()), hold=None)
        self._finished = after, turn, self._result(session.id, turn)
        return self._finished[2]

    async def prepare(self) -> "PreparedTurn":
        """Return what records the turn, which has finished. A large body is put into the bucket."""
        assert self._finished is not None  # noqa: S101 (the turn has finished)
        (session, turn, result), request, store = self._finished, self._request, self._store
        answer = StoredResponse(encode_run_result(result), {})
        requests = [request.idempotency, request.idempotency_at(session.id) if self.compaction is not None else None]
        answers = [await idempotency.record(store, one, answer) for one in dict.fromkeys(requests) if one is not None]
        body = await store_body(store, session.id, turn)
        writes: list[Write] = [
            Put(keys.session_turn(store.tenant, session.id, turn.first_seq), body, ITEM_ABSENT),
            Update(
                keys.session_head(store.tenant, session.id),
                set={"next_seq": session.next_seq, "updated_at": session.updated_at},
                remove=("hold",),
                when=held_by(turn.id),
            ),
            Put(keys.user_session(store.tenant, session.user, session.agent, session.id), session.entry()),
            *answers,
        ]
        return PreparedTurn(store, session.id, turn.id, writes, stored_overflow_key(dict(body)))

    def mark_committed(self) -> None:
        """Record that the commit has released the hold."""
        self._held_sessions = []

    async def release(self) -> None:
        """Release every hold that may still exist. Anything not released here expires with its lease."""
        for session in self._held_sessions:
            with suppress(StorageUnavailable):
                await release_hold(self._store, session, self._request.id)

    async def _renew_stream(self) -> None:
        if self._request.stream is not None:
            await self._request.stream.renew(self._clock())

    async def _load_turns(self) -> Sequence[TurnRecord]:
        opened = self._opened
        if opened.turns is not None:
            return opened.turns
        return await load_turns(self._store, opened.session.id, opened.session.compacted_before)

    async def _messages(self, turns: Sequence[TurnRecord]) -> Sequence[Message]:
        """Return the messages of ``turns`` as a model reads them."""
        decided = await with_decisions(self._store, self._request.user, turns, self._clock())
        return [stored.message for turn in decided for stored in turn.messages]

    async def _compact(self, plan: "CompactionPlan", summary: "Summary") -> None:
        """Commit the compaction, and continue in the successor. Errors are those of ``shorten``."""
        from spass.sessions.compaction.commit import CompactionNotStarted, commit_compaction

        try:
            async with self._transfer_lock:
                await self._renew_stream()
                self._held_sessions.append(plan.successor)  # release it too: the outcome of the commit may stay unknown
                now = self._clock()
                self.compaction = await commit_compaction(
                    self._store,
                    self._session,
                    self._turns,
                    plan,
                    summary,
                    owner=self._request.id,
                    at=now,
                    hold=self._request.hold(now, plan.successor),
                )
                self._session = self.compaction.session
                self._held_sessions = [plan.successor]
                self._scope.continue_in(plan.successor)
        except SpassError as error:
            if isinstance(error, _HOLD_LOST) and not isinstance(error, CompactionNotStarted):
                raise
            self.compaction_error = error

    def _result(self, session: SessionId, turn: TurnRecord) -> RunResult:
        summary = self.compaction.summary if self.compaction is not None else None
        error = self.compaction_error
        return replace(
            RunResult.of(self._request.run, self._recorder.outcome, self._scope.tally.total, turn.answer.created_at),
            session_id=session,
            message_id=turn.answer.id,
            seq=turn.answer.seq,
            compaction=CompactionIds(summary.source, summary.successor, summary.id) if summary is not None else None,
            compaction_error=error.code if error is not None else None,
        )


@dataclass(frozen=True, slots=True)
class PreparedTurn:
    """The ``writes`` that record the turn ``id`` in its ``session`` and release the hold, whose owner is the turn. They are the
    first ones of the transaction. A large body is in the bucket as ``body_object``."""

    store: TenantStore
    session: SessionId
    id: str
    writes: Sequence[Write]
    body_object: str | None

    async def is_recorded(self) -> bool:
        """Return whether the turn is recorded. After the release of the hold the answer is final."""
        item = await self.store.table.get(self.writes[0].key)
        return item is not None and item.get("id") == self.id

    def loss(self, failure: TransactionFailed) -> SpassError | None:
        """Return why the transaction can never take effect. Return None if the turn still holds its session."""
        if is_deleted(failure.failures.get(_HEAD, {})):
            return SessionNotFound("This session was deleted while the turn ran.")
        return None if _OWN_WRITES.isdisjoint(failure.failures) else taken_over()

    async def discard(self) -> None:
        """Remove the body of a turn that is not recorded and never will be."""
        if self.body_object is not None:
            with suppress(StorageUnavailable):
                await self.store.objects.delete([self.body_object])


def taken_over() -> SessionBusy:
    """Return the error of a turn that has lost its session to another request."""
    return SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
