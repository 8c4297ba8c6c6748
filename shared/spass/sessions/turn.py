"""A turn: begin, load, run, commit. After any crash the session has the whole turn once, or nothing of it.

*Begin* takes the session's hold under the turn's id. *Commit* is one transaction, conditional on that hold: it writes the turn,
the head, the entry in the user's list of sessions and the outcome for a repeated request. If a hold expires, two turns of a
session can run, but only the holder can commit.

A full session is compacted before its agent runs, or while it runs if the provider rejects the conversation as too long. The
compaction has its own commit, which transfers the hold to the successor, where the turn continues. If the turn fails after that,
the session stays compacted and nothing of the turn is recorded.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from spass.calls.scope import Scope
from spass.core.errors import (
    GATEWAY_STOPPED,
    CompactionInProgress,
    IdempotencyInProgress,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    SessionArchived,
    SessionBusy,
    SpassError,
    internal_error,
)
from spass.core.event_task import EventTask
from spass.core.events import Event, Failed, TurnFinished
from spass.core.ids import SessionId, new_id
from spass.core.messages import Message
from spass.core.outcome import CompactionIds, TurnOutcome, decode_outcome, encode_outcome
from spass.core.time import Clock, timestamp
from spass.sessions.commit import commit_turn
from spass.sessions.commit_participants import read_commit
from spass.sessions.decided_calls import with_decisions
from spass.sessions.held_session import HeldSession
from spass.sessions.hold import new_hold
from spass.sessions.opening import OpenedSession, SessionOpener, remove_refused
from spass.sessions.record import TurnRecord, TurnRecorder, load_turns
from spass.sessions.session import Hold, HoldKind, Session
from spass.sessions.turn_request import CommitWith, Respond, TurnRequest
from spass.store import idempotency
from spass.store.idempotency import StoredAnswer
from spass.store.leases import renewing
from spass.store.objects import ObjectMissing
from spass.store.writes import Write

if TYPE_CHECKING:
    from spass.sessions.compaction.compactor import Compactor

# After one of these errors the turn may have been committed already, by an earlier attempt of the same request.
_POSSIBLY_COMMITTED: Final = (SessionBusy, CompactionInProgress, IdempotencyInProgress, SessionArchived)


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """The outcome of a turn. ``replayed`` is True if an earlier attempt of the same request recorded it."""

    outcome: TurnOutcome
    replayed: bool


class _Recorded(NamedTuple):
    """A turn to commit: its record, its outcome, and the session after it."""

    session: Session
    turn: TurnRecord
    outcome: TurnOutcome


class Turn:
    """Run a turn in its own task, so that it continues when the client disconnects.

    ``task`` yields the events of the turn. If the turn is refused, it raises before the first event. After that it does not
    raise: the last event is ``TurnFinished``, which follows the commit, or ``Failed``. A turn that an earlier attempt committed
    has no events, only an answer. ``scope`` is that of the agent: after a compaction, it continues in the successor.
    """

    def __init__(
        self,
        scope: Scope,
        request: TurnRequest,
        respond: Respond,
        compactor: "Compactor",
        clock: Clock = time.time,
    ) -> None:
        self.id = request.stream.head.owner if request.stream is not None else new_id("turn")
        self.compactor = compactor
        self._scope = scope
        self._store = scope.store
        self._request = request
        self._respond = respond
        self._clock = clock
        self._answer: TurnAnswer | None = None
        self.task: EventTask[Event] = EventTask(self._run())

    @property
    def session(self) -> SessionId | None:
        """Return the session of the turn. A compaction changes it, and before the first event it is a guess."""
        return self._scope.session

    async def answer(self) -> TurnAnswer:
        """Wait for the end of the turn and return its answer.

        Raises:
            SpassError: the turn was refused or failed, and nothing of it is recorded.
            StorageUnavailable: the outcome may be unknown; repeat the request with the same Idempotency-Key.
        """
        events = await self.task.result()
        if events and isinstance(last := events[-1], Failed):
            raise last.error
        if self._answer is None:
            raise InternalError("The turn ended without an answer.")
        return self._answer

    async def _run(self) -> AsyncIterator[Event]:
        """Yield the events of the turn. After the first one, an error is the event ``Failed``."""
        started = False
        try:
            async with aclosing(self._perform()) as events:
                async for event in events:
                    started = True
                    yield event
        except asyncio.CancelledError:
            if not started:
                raise
            yield Failed(GATEWAY_STOPPED)
        except Exception as error:
            if not started:
                raise
            yield Failed(error if isinstance(error, SpassError) else internal_error(error))

    async def _perform(self) -> AsyncGenerator[Event, None]:
        opened = await self._begin()
        if opened is None:
            return
        held = HeldSession(self._scope, self.id, opened.session, self._clock, self._request.stream)
        try:
            self._check_operator(opened.session)
            self._check_workspace(opened.session)
            self._name_turn(opened.session)
            held.check_lease()
            async with renewing(held.renew):
                turns = await self._load(opened)
                if turns is None:
                    return
                held.check_lease()
                recorder = TurnRecorder(self.id, self._request.message, self._clock)
                load, shorten = partial(self._load_history, held, turns), partial(self._shorten_history, held, turns)
                async with aclosing(self._respond(load, shorten)) as events:
                    async for event in events:
                        if isinstance(event, CommitWith):
                            raise InternalError("The turn named its writes before its last event.")
                        recorder.add(event)
                        match event:
                            case TurnFinished():
                                last_event = event
                                break
                            case Failed(error):
                                raise error
                            case _:
                                yield event
                        held.check_lease()
                    else:
                        raise InternalError("The turn ended without an answer.")
                    recorded = self._record(held, recorder)
                    joined = await read_commit(events, recorded.outcome)
            await self._commit(held, recorded, joined)
            yield last_event
        except LimitExceeded:
            if not self._scope.tally.has_acted:
                await remove_refused(self._store, opened, self.id)
            raise
        finally:
            await held.release()

    async def _begin(self) -> OpenedSession | None:
        """Hold the session and return it, or None if an earlier attempt of the request was committed."""
        request, now = self._request, self._clock()
        hashes = request.idempotency.hashes if request.idempotency else None
        hold = new_hold(self.id, HoldKind.TURN, hashes, now, message_id=request.message_id, agent=request.filed_under)
        agent = request.agent if request.operator is None else None
        opener = SessionOpener(self._store, agent, request.user, hold, self._clock, request.stream)
        if request.operator is not None and await self._replay():  # do not create a session for it, if the operator's was deleted
            return None
        try:
            if request.opening is None:
                return OpenedSession(await opener.hold(request.session))
            opened = await opener.open(request.opening)
        except _POSSIBLY_COMMITTED:
            if await self._replay():
                return None
            raise
        self._scope.continue_in(opened.session.id)
        return opened

    def _check_operator(self, session: Session) -> None:
        """Raise InvalidRequest if ``session`` is that of an operator which does not run in this turn."""
        if session.operator != self._request.operator:
            message = f"This session belongs to the operator '{session.operator}'. Only its runs continue it: run its agent."
            raise InvalidRequest(message, param="session_id", details={"operator_id": session.operator})

    def _check_workspace(self, session: Session) -> None:
        """Raise InvalidRequest if the client named another workspace than that of ``session``."""
        if self._request.workspace not in (None, session.workspace):
            kept = f"the workspace {session.workspace!r}" if session.workspace is not None else "no workspace"
            message = f"The session was created with {kept}, which does not change. Omit workspace, or start another session."
            raise InvalidRequest(message, param="workspace", details={"workspace": session.workspace})

    def _name_turn(self, session: Session) -> None:
        """Tell the scope what its tools record with their effects."""
        current = self._scope.current_session
        if current is not None:
            current.turn_id, current.message_id, current.workspace = self.id, self._request.message_id, session.workspace
            current.agent = self._request.agent

    async def _load(self, opened: OpenedSession) -> Sequence[TurnRecord] | None:
        """Return the turns that are not compacted yet, or None if an earlier attempt of the request was committed."""
        turns, replayed = await asyncio.gather(self._turns(opened), self._replay(), return_exceptions=True)
        if isinstance(replayed, BaseException):
            raise replayed
        if replayed:
            return None
        if isinstance(turns, ObjectMissing):  # this process paused for longer than its hold, and the session is being deleted
            raise SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
        if isinstance(turns, BaseException):
            raise turns
        return turns

    async def _turns(self, opened: OpenedSession) -> Sequence[TurnRecord]:
        if opened.turns is not None:
            return opened.turns
        return await load_turns(self._store, opened.session.id, opened.session.compacted_before)

    async def _replay(self) -> bool:
        """Use the outcome that an earlier attempt of this request recorded. Return False if there is none."""
        request = self._request.idempotency
        answer = await idempotency.read(self._store, request) if request else None
        if answer is not None:
            self._answer = TurnAnswer(decode_outcome(answer.body), replayed=True)
        return answer is not None

    async def _load_history(self, held: HeldSession, turns: Sequence[TurnRecord]) -> Sequence[Message]:
        """Return the messages before the new one. Compact the session first if it is full."""
        live = await self._messages(turns)
        if self.compactor.should_compact(held.session, live, len(self._request.message)):
            return await self._shorten_history(held, turns) or live
        return live

    async def _shorten_history(self, held: HeldSession, turns: Sequence[TurnRecord]) -> Sequence[Message] | None:
        """Compact the session and return the messages of the successor, or None if it was not compacted."""

        def hold(successor: SessionId) -> Hold:
            request = self._request.idempotency_at(successor)
            hashes, message_id, agent = request.hashes if request else None, self._request.message_id, self._request.filed_under
            return new_hold(self.id, HoldKind.TURN, hashes, self._clock(), message_id=message_id, agent=agent)

        held.check_lease()
        compaction = await self.compactor.compact(held, turns, hold)
        held.check_lease()
        return await self._messages([compaction.first]) if compaction is not None else None

    async def _messages(self, turns: Sequence[TurnRecord]) -> Sequence[Message]:
        """Return the messages of ``turns`` as a model reads them."""
        decided = await with_decisions(self._store, self._request.user, turns, self._clock())
        return [stored.message for turn in decided for stored in turn.messages]

    def _record(self, held: HeldSession, recorder: TurnRecorder) -> _Recorded:
        if not recorder.outcome.messages:
            raise InternalError("The turn ended without an answer.")
        turn = recorder.record(held.session.next_seq, self._scope.tally.total)
        session = replace(held.session, next_seq=turn.next_seq, updated_at=timestamp(self._clock()), hold=None)
        return _Recorded(session, turn, self._outcome(session.id, turn, recorder))

    async def _commit(self, held: HeldSession, recorded: _Recorded, joined: CommitWith) -> None:
        store, request, (session, turn, outcome) = self._store, self._request, recorded
        answer = StoredAnswer(encode_outcome(outcome), {})
        requests = dict.fromkeys([request.idempotency, request.idempotency_at(session.id) if self.compactor.result else None])
        answers: list[Write] = [await idempotency.record(store, request, answer) for request in requests if request]
        await commit_turn(store, session, turn, answers, joined)
        held.mark_committed()
        self._answer = TurnAnswer(outcome, replayed=False)

    def _outcome(self, session: SessionId, turn: TurnRecord, recorder: TurnRecorder) -> TurnOutcome:
        compaction, error = self.compactor.result, self.compactor.error
        summary = compaction.summary if compaction is not None else None
        return replace(
            TurnOutcome.of(self._request.run, recorder.outcome, self._scope.tally.total, turn.answer.created_at),
            session_id=session,
            message_id=turn.answer.id,
            seq=turn.answer.seq,
            compaction=CompactionIds(summary.source, summary.successor, summary.id) if summary is not None else None,
            compaction_error=error.code if error is not None else None,
        )
