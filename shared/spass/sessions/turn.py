"""A turn: begin, load, run, commit. After any crash the session has the whole turn once, or nothing of it.

*Begin* takes the session's hold under the turn's id. *Commit* is one transaction, conditional on that hold: it writes the turn,
the head, the entry in the user's list of sessions and the stored answer. If a hold expires, two turns of a session can run, but
only the holder can commit.

A full session is compacted before its turn runs, or during it if the provider rejects the conversation as too long. The
compaction has its own commit, which transfers the hold to the successor, where the turn continues. If the turn fails after that,
the session stays compacted and nothing of the turn is recorded.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from spass.aws import idempotency
from spass.aws.clients import TenantStore
from spass.aws.idempotency import IdempotentRequest, StoredAnswer
from spass.aws.leases import renewing
from spass.aws.objects import ObjectMissing
from spass.aws.writes import Write
from spass.core.errors import CompactionInProgress, IdempotencyInProgress, InternalError, SessionArchived, SessionBusy, SpassError
from spass.core.event_task import EventTask
from spass.core.events import Event, Failed, Outcome, TurnFinished
from spass.core.ids import AgentName, SessionId, UserId, new_id
from spass.core.messages import Message
from spass.core.time import timestamp
from spass.sessions.commit import commit_turn
from spass.sessions.held_session import Clock, HeldSession
from spass.sessions.hold import acquire_hold, new_hold
from spass.sessions.record import TurnRecord, TurnRecorder, load_turns
from spass.sessions.session import Hold, HoldKind, Session

if TYPE_CHECKING:
    from spass.sessions.compaction.commit import CompactionResult
    from spass.sessions.compaction.compactor import Compactor

ShortenHistory: TypeAlias = Callable[[], Awaitable[Sequence[Message] | None]]
"""Compact the session and return the shorter history, or None if it cannot be compacted. Call it when the provider rejects the
conversation as too long."""
Respond: TypeAlias = Callable[[Sequence[Message], ShortenHistory], AsyncGenerator[Event, None]]
"""Return the events of a turn, given the messages before the new one."""

# After one of these errors the turn may have been committed already, by an earlier attempt of the same request.
_POSSIBLY_COMMITTED: Final = (SessionBusy, CompactionInProgress, IdempotencyInProgress, SessionArchived)


@dataclass(frozen=True, slots=True)
class CommittedTurn:
    """The result of a turn: the session after it, its record and its collected events. ``compaction`` is the compaction that
    moved the turn to a successor. ``compaction_error`` is the error of an attempted compaction that failed."""

    session: Session
    turn: TurnRecord
    outcome: Outcome
    compaction: "CompactionResult | None" = None
    compaction_error: SpassError | None = None


Render: TypeAlias = Callable[[CommittedTurn], StoredAnswer]
"""Return the answer to store with the turn. Called once, before the commit."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A user's message to a session. ``user`` and ``agent`` are those of the request; the hold checks them against the session.
    ``successor_idempotency`` returns the idempotency of the same request to a successor: after SessionArchived, a client repeats
    the request there.
    """

    session: SessionId
    agent: AgentName
    user: UserId
    message: str
    idempotency: IdempotentRequest | None = None
    successor_idempotency: Callable[[SessionId], IdempotentRequest | None] | None = None


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """A turn's answer. ``replayed`` is True if an earlier attempt of the same request stored it."""

    answer: StoredAnswer
    replayed: bool


class Turn:
    """Run a turn in its own task, so that it continues when the client disconnects.

    ``task`` yields the events of the turn. If the turn is refused, it raises before the first event. The last event follows the
    commit. A turn that an earlier attempt committed has no events, only an answer. ``session`` is the
    session of the turn; after a compaction it is the successor.
    """

    def __init__(
        self,
        store: TenantStore,
        request: TurnRequest,
        respond: Respond,
        render: Render,
        compactor: "Compactor",
        clock: Clock = time.time,
    ) -> None:
        self.id = new_id("turn")
        self.session = request.session
        self._store = store
        self._request = request
        self._respond = respond
        self._render = render
        self._compactor = compactor
        self._clock = clock
        self._answer: TurnAnswer | None = None
        self.task: EventTask[Event] = EventTask(self._run())

    async def answer(self) -> TurnAnswer:
        """Wait for the end of the turn and return its answer.

        Raises:
            SpassError: the turn was refused or failed, and nothing of it is recorded.
            StorageUnavailable: the outcome may be unknown; repeat the request with the same Idempotency-Key.
        """
        await self.task.result()
        if self._answer is None:
            raise InternalError("The turn ended without an answer.")
        return self._answer

    async def _run(self) -> AsyncIterator[Event]:
        session = await self._begin()
        if session is None:
            return
        held = HeldSession(self._store, self.id, session, self._clock)
        try:
            last_event: TurnFinished | None = None
            async with renewing(held.renew):
                turns = await self._load(session)
                if turns is None:
                    return
                history = await self._prepare_history(held, turns)
                recorder = TurnRecorder(self.id, self._request.message, timestamp(self._clock()))
                async with aclosing(self._respond(history, partial(self._shorten_history, held, turns))) as events:
                    async for event in events:
                        recorder.add(event, timestamp(self._clock()))
                        match event:
                            case TurnFinished():
                                last_event = event
                            case Failed(error):
                                raise error
                            case _:
                                yield event
            if last_event is None or not recorder.outcome.messages:
                raise InternalError("The turn ended without an answer.")
            await self._commit(held, recorder)
            yield last_event
        finally:
            await held.release()

    async def _begin(self) -> Session | None:
        """Hold the session and return it, or None if an earlier attempt of the request was committed."""
        request, now = self._request, self._clock()
        hold = new_hold(self.id, HoldKind.TURN, request.idempotency, now)
        try:
            return await acquire_hold(self._store, request.session, request.agent, request.user, hold, now)
        except _POSSIBLY_COMMITTED:
            if await self._replay():
                return None
            raise

    async def _load(self, session: Session) -> list[TurnRecord] | None:
        """Return the turns that are not compacted yet, or None if an earlier attempt of the request was committed."""
        turns, replayed = await asyncio.gather(
            load_turns(self._store, session.id, session.compacted_before), self._replay(), return_exceptions=True
        )
        if isinstance(replayed, BaseException):
            raise replayed
        if replayed:
            return None
        if isinstance(turns, ObjectMissing):  # this process paused for longer than its hold, and the session is being deleted
            raise SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
        if isinstance(turns, BaseException):
            raise turns
        return turns

    async def _replay(self) -> bool:
        """Use the answer that an earlier attempt of this request stored. Return False if there is none."""
        request = self._request.idempotency
        answer = await idempotency.read(self._store, request) if request else None
        if answer is not None:
            self._answer = TurnAnswer(answer, replayed=True)
        return answer is not None

    async def _prepare_history(self, held: HeldSession, turns: Sequence[TurnRecord]) -> Sequence[Message]:
        """Return the messages before the new one. Compact the session first if it is full."""
        live = _messages(turns)
        if self._compactor.should_compact(held.session, live, self._request.message):
            return await self._shorten_history(held, turns) or live
        return live

    async def _shorten_history(self, held: HeldSession, turns: Sequence[TurnRecord]) -> Sequence[Message] | None:
        """Compact the session and return the messages of the successor, or None if it was not compacted."""

        def hold(successor: SessionId) -> Hold:
            return new_hold(self.id, HoldKind.TURN, self._successor_idempotency(successor), self._clock())

        compaction = await self._compactor.compact(held, turns, hold)
        self.session = held.session.id
        return _messages([compaction.first]) if compaction is not None else None

    def _successor_idempotency(self, successor: SessionId) -> IdempotentRequest | None:
        return self._request.successor_idempotency(successor) if self._request.successor_idempotency else None

    async def _commit(self, held: HeldSession, recorder: TurnRecorder) -> None:
        store, compactor = self._store, self._compactor
        turn = recorder.record(held.session.next_seq)
        session = replace(held.session, next_seq=turn.next_seq, updated_at=timestamp(self._clock()), hold=None)
        answer = self._render(CommittedTurn(session, turn, recorder.outcome, compactor.result, compactor.error))
        requests = [self._request.idempotency, self._successor_idempotency(session.id) if compactor.result else None]
        answers: list[Write] = [await idempotency.record(store, request, answer) for request in requests if request]
        await commit_turn(store, session, turn, answers)
        held.mark_committed()
        self._answer = TurnAnswer(answer, replayed=False)


def _messages(turns: Sequence[TurnRecord]) -> list[Message]:
    return [stored.message for turn in turns for stored in turn.messages]
