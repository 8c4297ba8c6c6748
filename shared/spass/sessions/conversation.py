"""The conversation of a turn: the session that the turn holds, its history, and the commit that records the turn.

*Opening* takes the session's hold under the turn's id. The *commit* is one transaction, conditional on that hold: it writes the
turn, the head, the entry in the user's list of sessions and the outcome for a repeated request, and what else joins it. If a hold
expires, two turns of a session can run, but only the holder can commit. So after any crash the session has the whole turn once,
or nothing of it.

A full session is compacted before its agent runs, or while it runs if the provider rejects the conversation as too long. The
compaction has its own commit, which transfers the hold to the successor, where the turn continues. If the turn fails after that,
the session stays compacted and nothing of the turn is recorded.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from spass.calls.scope import Scope
from spass.core.errors import (
    CompactionInProgress,
    IdempotencyInProgress,
    InternalError,
    InvalidRequest,
    SessionArchived,
    SessionBusy,
)
from spass.core.events import Event
from spass.core.ids import SessionId
from spass.core.messages import Message
from spass.core.run_result import CompactionIds, RunResult, decode_run_result, encode_run_result
from spass.core.time import Clock, timestamp
from spass.sessions.decided_calls import with_decisions
from spass.sessions.held_session import HeldSession
from spass.sessions.hold import new_hold
from spass.sessions.opening import OpenedSession, SessionOpener
from spass.sessions.record import TurnRecord, TurnRecorder, load_turns
from spass.sessions.session import Hold, HoldKind, Session
from spass.sessions.turn_commit import TurnCommit, taken_over
from spass.sessions.turn_request import TurnRequest
from spass.store import idempotency
from spass.store.bucket import ObjectMissing
from spass.store.idempotency import StoredAnswer
from spass.store.tenant_store import TenantStore
from spass.store.writes import Write

if TYPE_CHECKING:
    from spass.sessions.compaction.compactor import Compactor

# After one of these errors the turn may have been committed already, by an earlier attempt of the same request.
_POSSIBLY_COMMITTED: Final = (SessionBusy, CompactionInProgress, IdempotencyInProgress, SessionArchived)


class _Recorded(NamedTuple):
    """A turn to commit: its record, its outcome, and the session after it."""

    session: Session
    turn: TurnRecord
    outcome: RunResult


class Conversation:
    """The session of one turn, which the turn holds. ``compactor`` has what came of a compaction.

    ``scope`` is that of the agent: after a compaction, it continues in the successor. ``turn_id`` owns the hold.
    """

    def __init__(
        self, scope: Scope, request: TurnRequest, turn_id: str, opened: OpenedSession, compactor: "Compactor", clock: Clock
    ) -> None:
        self.compactor = compactor
        self._scope = scope
        self._store = scope.store
        self._request = request
        self._turn_id = turn_id
        self._opened = opened
        self._clock = clock
        self._held = HeldSession(scope, turn_id, opened.session, clock, request.stream)
        self._turns: Sequence[TurnRecord] = ()
        self._recorder = TurnRecorder(turn_id, request.message, clock)
        self._recorded: _Recorded | None = None

    def check(self) -> None:
        """Check that the turn may continue this session, and tell the scope what its tools record with their effects.

        Raises:
            InvalidRequest: the session is that of another operator, or has another workspace than the client named.
            LeaseLost: the same as ``check_lease``.
        """
        request, session = self._request, self._held.session
        if session.operator != request.operator:
            message = f"This session belongs to the operator '{session.operator}'. Only its runs continue it: run its agent."
            raise InvalidRequest(message, param="session_id", details={"operator_id": session.operator})
        if request.workspace not in (None, session.workspace):
            kept = f"the workspace {session.workspace!r}" if session.workspace is not None else "no workspace"
            message = f"The session was created with {kept}, which does not change. Omit workspace, or start another session."
            raise InvalidRequest(message, param="workspace", details={"workspace": session.workspace})
        current = self._scope.current_session
        if current is not None:
            current.turn_id, current.message_id, current.workspace = self._turn_id, request.message_id, session.workspace
            current.agent = request.agent
        self.check_lease()

    def check_lease(self) -> None:
        """Raise ``LeaseLost`` if this process paused for so long that another attempt may run the stream, or may have ended it.
        Check this before each effect of the turn."""
        self._held.check_lease()

    async def renew(self) -> None:
        """Extend the hold and the lease of the stream. Errors are those of ``HeldSession.renew``."""
        await self._held.renew()

    async def load(self) -> RunResult | None:
        """Read the turns that are not compacted yet. Return the outcome if an earlier attempt of the request was committed.

        Raises:
            SessionBusy: the session is being deleted.
            IdempotencyKeyReused: the key was used with another body.
            StorageUnavailable: AWS throttled all retries or was unreachable.
        """
        turns, outcome = await asyncio.gather(
            self._load_turns(), stored_outcome(self._store, self._request), return_exceptions=True
        )
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not None:
            return outcome
        if isinstance(turns, ObjectMissing):  # this process paused for longer than its hold, and the session is being deleted
            raise taken_over()
        if isinstance(turns, BaseException):
            raise turns
        self._turns = turns
        self.check_lease()
        self._recorder = TurnRecorder(self._turn_id, self._request.message, self._clock)
        return None

    async def history(self) -> Sequence[Message]:
        """Return the messages before the new one. Compact the session first if it is full, which takes seconds. Call this once.

        Errors are those of ``shorten``.
        """
        live = await self._messages(self._turns)
        if self.compactor.should_compact(self._held.session, live, len(self._request.message)):
            return await self.shorten() or live
        return live

    async def shorten(self) -> Sequence[Message] | None:
        """Compact the session and return the messages of the successor, or None if it was not compacted. Call this when the
        provider rejects the conversation as too long. Errors are those of ``Compactor.compact``."""

        def hold(successor: SessionId) -> Hold:
            return new_turn_hold(self._request, self._turn_id, self._clock(), successor)

        self.check_lease()
        compaction = await self.compactor.compact(self._held, self._turns, hold)
        self.check_lease()
        return await self._messages([compaction.first]) if compaction is not None else None

    def record(self, event: Event) -> None:
        """Record an event of the turn."""
        self._recorder.add(event)

    def finish(self) -> RunResult:
        """Return the outcome of the turn, whose last event is recorded.

        Raises:
            InternalError: the turn has no answer.
        """
        recorder, session = self._recorder, self._held.session
        if not recorder.outcome.messages:
            raise InternalError("The turn ended without an answer.")
        turn = recorder.record(session.next_seq, self._scope.tally.total)
        after = replace(session, next_seq=turn.next_seq, updated_at=timestamp(self._clock()), hold=None)
        self._recorded = _Recorded(after, turn, self._outcome(session.id, turn))
        return self._recorded.outcome

    async def prepare_commit(self) -> TurnCommit:
        """Return what records the turn, which has finished.

        Raises:
            StorageUnavailable: the bucket does not answer.
        """
        assert self._recorded is not None  # noqa: S101 (the turn has finished)
        store, request, (session, turn, outcome) = self._store, self._request, self._recorded
        answer = StoredAnswer(encode_run_result(outcome), {})
        requests = dict.fromkeys([request.idempotency, request.idempotency_at(session.id) if self.compactor.result else None])
        answers: list[Write] = [await idempotency.record(store, request, answer) for request in requests if request]
        return await TurnCommit.prepare(store, session, turn, answers)

    def mark_committed(self) -> None:
        """Record that the commit has released the hold."""
        self._held.mark_committed()

    async def release(self) -> None:
        """Release the hold, unless the turn is recorded. Anything not released here expires with its lease."""
        await self._held.release()

    async def _load_turns(self) -> Sequence[TurnRecord]:
        opened = self._opened
        if opened.turns is not None:
            return opened.turns
        return await load_turns(self._store, opened.session.id, opened.session.compacted_before)

    async def _messages(self, turns: Sequence[TurnRecord]) -> Sequence[Message]:
        """Return the messages of ``turns`` as a model reads them."""
        decided = await with_decisions(self._store, self._request.user, turns, self._clock())
        return [stored.message for turn in decided for stored in turn.messages]

    def _outcome(self, session: SessionId, turn: TurnRecord) -> RunResult:
        compaction, error = self.compactor.result, self.compactor.error
        summary = compaction.summary if compaction is not None else None
        return replace(
            RunResult.of(self._request.run, self._recorder.outcome, self._scope.tally.total, turn.answer.created_at),
            session_id=session,
            message_id=turn.answer.id,
            seq=turn.answer.seq,
            compaction=CompactionIds(summary.source, summary.successor, summary.id) if summary is not None else None,
            compaction_error=error.code if error is not None else None,
        )


async def open_session(scope: Scope, request: TurnRequest, turn_id: str, clock: Clock) -> OpenedSession | RunResult:
    """Hold the session of a turn, or return the outcome if an earlier attempt of the request was committed.

    Raises:
        SpassError: the same as ``SessionOpener.open`` and ``SessionOpener.hold``.
    """
    agent = request.agent if request.operator is None else None
    opener = SessionOpener(scope.store, agent, request.user, new_turn_hold(request, turn_id, clock()), clock, request.stream)
    # Do not create a session for a turn that was committed, if the operator's session was deleted since.
    if request.operator is not None and (outcome := await stored_outcome(scope.store, request)) is not None:
        return outcome
    try:
        if request.opening is None:
            return OpenedSession(await opener.hold(request.session))
        opened = await opener.open(request.opening)
    except _POSSIBLY_COMMITTED:
        if (outcome := await stored_outcome(scope.store, request)) is not None:
            return outcome
        raise
    scope.continue_in(opened.session.id)
    return opened


async def stored_outcome(store: TenantStore, request: TurnRequest) -> RunResult | None:
    """Return the outcome that an earlier attempt of the request recorded, or None.

    Raises:
        IdempotencyKeyReused: the key was used with another body.
        StorageUnavailable: AWS throttled all retries or was unreachable.
    """
    answer = await idempotency.read(store, request.idempotency) if request.idempotency is not None else None
    return decode_run_result(answer.body) if answer is not None else None


def new_turn_hold(request: TurnRequest, turn_id: str, now: float, successor: SessionId | None = None) -> Hold:
    """Return the hold of a turn that starts ``now``, or that of its ``successor`` after a compaction."""
    client_request = request.idempotency if successor is None else request.idempotency_at(successor)
    hashes = client_request.hashes if client_request is not None else None
    return new_hold(turn_id, HoldKind.TURN, hashes, now, message_id=request.message_id, agent=request.stream_namespace)
