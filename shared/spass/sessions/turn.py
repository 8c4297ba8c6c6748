"""A turn: begin, load, run, commit. Whatever dies on the way, the session has all of a turn or nothing, and never twice.

*Begin* takes the session's hold under the turn's id. *Commit* is one transaction, conditional on that hold: the turn, the head,
the user's list and the kept answer change together. Two turns of a session can both run, if the first one's hold expires under
it, but only the holder can commit.

A session that is full is compacted before its turn runs, or while it runs when the provider finds it too long. That has a commit
of its own, by which the hold goes over to the successor, where the turn goes on. A turn that breaks after that leaves a session
that was compacted, and nothing of the turn.
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
from spass.sessions.hold import acquire_hold, new_turn_hold
from spass.sessions.record import TurnRecord, TurnRecorder, load_turns
from spass.sessions.session import Hold, Session

if TYPE_CHECKING:
    from spass.sessions.compaction.compactor import Compactor
    from spass.sessions.compaction.types import CompactionResult

ShortenHistory: TypeAlias = Callable[[], Awaitable[Sequence[Message] | None]]
"""Asked when the provider finds the conversation too long: shorter messages before the new one, or None if there are none."""
Respond: TypeAlias = Callable[[Sequence[Message], ShortenHistory], AsyncGenerator[Event, None]]
"""From the messages before the new one to the events of the turn."""

# Refused, but perhaps only because an earlier try of the same request got through.
_POSSIBLY_COMMITTED: Final = (SessionBusy, CompactionInProgress, IdempotencyInProgress, SessionArchived)


@dataclass(frozen=True, slots=True)
class CommittedTurn:
    """What a committed turn leaves: the session after it, its record and its collected events. ``compacted``: how it came to be
    another session than the one that was asked; ``compaction_error``: why it did not, where it should have."""

    session: Session
    turn: TurnRecord
    outcome: Outcome
    compacted: "CompactionResult | None" = None
    compaction_error: SpassError | None = None


Render: TypeAlias = Callable[[CommittedTurn], StoredAnswer]
"""Makes the answer that is kept with the turn; called once, before the commit."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A user's message to a session. ``user`` and ``agent`` are as the request has them; the session says whether they fit.
    ``redirected`` is the same request, sent to another session as a client does that is told where this one went on.
    """

    session: SessionId
    agent: AgentName
    user: UserId
    message: str
    idempotency: IdempotentRequest | None = None
    redirected: Callable[[SessionId], IdempotentRequest | None] | None = None


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """A turn's answer. ``replayed``: it was kept from an earlier try of the same request."""

    answer: StoredAnswer
    replayed: bool


class Turn:
    """A turn under way, in a task of its own: who stops listening changes nothing.

    ``running`` are its events. What refuses the turn is raised before the first of them; the last one comes after the commit.
    A turn that was done before has no events, only an answer. ``session`` is where it takes place, which may change before it is
    responded to.
    """

    def __init__(  # one turn's parts
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
        self.running: EventTask[Event] = EventTask(self._run())

    async def answer(self) -> TurnAnswer:
        """The answer, once the turn has ended.

        Raises:
            SpassError: the turn was refused or failed; nothing of it is recorded.
            StorageUnavailable: it failed, or its end is unknown: the same Idempotency-Key tells.
        """
        await self.running.result()
        if self._answer is None:
            raise InternalError("The turn ended without an answer.")
        return self._answer

    async def _run(self) -> AsyncIterator[Event]:
        session = await self._begin()
        if session is None:
            return
        held = HeldSession(self._store, self.id, session, self._clock)
        try:
            finished: TurnFinished | None = None
            async with renewing(held.renew):
                turns = await self._load(session)
                if turns is None:
                    return
                history = await self._history(held, turns)
                recorder = TurnRecorder(self.id, self._request.message, timestamp(self._clock()))
                async with aclosing(self._respond(history, partial(self._shorter, held, turns))) as events:
                    async for event in events:
                        recorder.add(event, timestamp(self._clock()))
                        match event:
                            case TurnFinished():
                                finished = event
                            case Failed(error):
                                raise error
                            case _:
                                yield event
            if finished is None or not recorder.outcome.messages:
                raise InternalError("The turn ended without an answer.")
            await self._commit(held, recorder)
            yield finished
        finally:
            await held.release()

    async def _begin(self) -> Session | None:
        """The session, held; None when the request turns out to be done."""
        request, now = self._request, self._clock()
        hold = new_turn_hold(self.id, request.idempotency, now)
        try:
            return await acquire_hold(self._store, request.session, request.agent, request.user, hold, now)
        except _POSSIBLY_COMMITTED:
            if await self._replay():
                return None
            raise

    async def _load(self, session: Session) -> list[TurnRecord] | None:
        """The turns with the live messages; None when the request turns out to be done."""
        turns, replayed = await asyncio.gather(
            load_turns(self._store, session.id, session.compacted_before), self._replay(), return_exceptions=True
        )
        if isinstance(replayed, BaseException):
            raise replayed
        if replayed:
            return None
        if isinstance(turns, ObjectMissing):  # it stood still for longer than its hold, and somebody deletes the session
            raise SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
        if isinstance(turns, BaseException):
            raise turns
        return turns

    async def _replay(self) -> bool:
        """Whether this request was answered before; if so, that is the answer."""
        request = self._request.idempotency
        kept = await idempotency.read(self._store, request) if request else None
        if kept is not None:
            self._answer = TurnAnswer(kept, replayed=True)
        return kept is not None

    async def _history(self, held: HeldSession, turns: Sequence[TurnRecord]) -> Sequence[Message]:
        """The messages before the new one, of a session that has room for it if it can be had."""
        live = _messages(turns)
        if self._compactor.should_compact(held.session, live, self._request.message):
            return await self._shorter(held, turns) or live
        return live

    async def _shorter(self, held: HeldSession, turns: Sequence[TurnRecord]) -> Sequence[Message] | None:
        """The messages of the successor, on which the turn goes on; None when there is none."""

        def hold(successor: SessionId) -> Hold:
            return new_turn_hold(self.id, self._redirected(successor), self._clock())

        compacted = await self._compactor.compact(held, turns, hold)
        self.session = held.session.id
        return _messages([compacted.first]) if compacted is not None else None

    def _redirected(self, successor: SessionId) -> IdempotentRequest | None:
        return self._request.redirected(successor) if self._request.redirected else None

    async def _commit(self, held: HeldSession, recorder: TurnRecorder) -> None:
        store, compactor = self._store, self._compactor
        turn = recorder.record(held.session.next_seq)
        session = replace(held.session, next_seq=turn.next_seq, updated_at=timestamp(self._clock()), hold=None)
        answer = self._render(CommittedTurn(session, turn, recorder.outcome, compactor.compacted, compactor.error))
        requests = [self._request.idempotency, self._redirected(session.id) if compactor.compacted else None]
        kept: list[Write] = [await idempotency.record(store, request, answer) for request in requests if request]
        await commit_turn(store, session, turn, kept)
        held.mark_committed()
        self._answer = TurnAnswer(answer, replayed=False)


def _messages(turns: Sequence[TurnRecord]) -> list[Message]:
    return [stored.message for turn in turns for stored in turn.messages]
