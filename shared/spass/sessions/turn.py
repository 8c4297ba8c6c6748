"""A turn: begin, load, run, commit. Whatever dies on the way, the session has all of a turn or nothing, and never twice.

*Begin* takes the session's hold under the turn's id. *Commit* is one transaction, conditional on that hold: the turn, the head,
the user's list and the kept answer change together. Two turns of a session can both run, if the first one's hold expires under
it, but only the holder can commit.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from spass.aws import idempotency, keys
from spass.aws.again import again
from spass.aws.clients import TenantStore
from spass.aws.idempotency import IdempotentRequest, StoredAnswer
from spass.aws.leases import renewing
from spass.aws.table import ABSENT, Put, TransactionFailed, Update, Write
from spass.core.errors import (
    CompactionInProgress,
    IdempotencyInProgress,
    InternalError,
    SessionArchived,
    SessionBusy,
    SessionNotFound,
    SpassError,
    StorageUnavailable,
)
from spass.core.events import Event, Failed, Outcome, TurnFinished
from spass.core.ids import AgentName, SessionId, UserId, new_id
from spass.core.messages import Message
from spass.core.running import Running
from spass.core.time import timestamp
from spass.sessions.hold import gone, held_by, release, renew, take, turn_hold
from spass.sessions.record import TurnRecord, TurnRecorder, load_turns, overflow_of, store_body
from spass.sessions.session import Session

Respond: TypeAlias = Callable[[Sequence[Message]], AsyncGenerator[Event, None]]
"""From the messages before the new one to the events of the turn."""
Clock: TypeAlias = Callable[[], float]
"""Seconds since the epoch."""

# Refused, but perhaps only because an earlier try of the same request got through.
_MAY_BE_DONE: Final = (SessionBusy, CompactionInProgress, IdempotencyInProgress, SessionArchived)
_COMMIT_ATTEMPTS: Final = 3
_COMMIT_DELAY: Final = 0.1  # seconds; doubled per attempt, full jitter


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a committed turn leaves: the session after it, its record and its collected events."""

    session: Session
    turn: TurnRecord
    outcome: Outcome


Render: TypeAlias = Callable[[Recorded], StoredAnswer]
"""Makes the answer that is kept with the turn; called once, before the commit."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A user's message to a session. ``user`` and ``agent`` are as the request has them; the session says whether they fit."""

    session: SessionId
    agent: AgentName
    user: UserId
    message: str
    idempotency: IdempotentRequest | None = None


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """A turn's answer. ``replayed``: it was kept from an earlier try of the same request."""

    answer: StoredAnswer
    replayed: bool


class Turn:
    """A turn under way, in a task of its own: who stops listening changes nothing.

    ``running`` are its events. What refuses the turn is raised before the first of them; the last one comes after the commit.
    A turn that was done before has no events, only an answer.
    """

    def __init__(
        self, store: TenantStore, request: TurnRequest, respond: Respond, render: Render, clock: Clock = time.time
    ) -> None:
        self.id = new_id("turn")
        self._store = store
        self._request = request
        self._respond = respond
        self._render = render
        self._clock = clock
        self._held = False
        self._answer: TurnAnswer | None = None
        self.running: Running[Event] = Running(self._run())

    async def answer(self) -> TurnAnswer:
        """The answer, once the turn has ended.

        Raises:
            SpassError: the turn was refused or failed; the session is as it was.
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
        try:
            history = await self._load(session)
            if history is None:
                return
            recorder = TurnRecorder(self.id, session.next_seq, self._request.message, timestamp(self._clock()))
            finished: TurnFinished | None = None
            async with renewing(self._renew), aclosing(self._respond(history)) as events:
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
            await self._commit(session, recorder)
            yield finished
        finally:
            await self._let_go()

    async def _begin(self) -> Session | None:
        """The session, held; None when the request turns out to be done."""
        request, now = self._request, self._clock()
        hold = turn_hold(self.id, request.idempotency, now)
        try:
            session = await take(self._store, request.session, request.agent, request.user, hold, now)
        except _MAY_BE_DONE:
            if await self._replay():
                return None
            raise
        self._held = True
        return session

    async def _load(self, session: Session) -> list[Message] | None:
        """The live messages; None when the request turns out to be done."""
        turns, replayed = await asyncio.gather(
            load_turns(self._store, session.id, session.compacted_before), self._replay(), return_exceptions=True
        )
        if isinstance(replayed, BaseException):
            raise replayed
        if replayed:
            return None
        if isinstance(turns, BaseException):
            raise turns
        return [stored.message for turn in turns for stored in turn.messages]

    async def _replay(self) -> bool:
        """Whether this request was answered before; if so, that is the answer."""
        request = self._request.idempotency
        kept = await idempotency.read(self._store, request) if request else None
        if kept is not None:
            self._answer = TurnAnswer(kept, replayed=True)
        return kept is not None

    async def _renew(self) -> None:
        await renew(self._store, self._request.session, self.id, self._clock())

    async def _commit(self, session: Session, recorder: TurnRecorder) -> None:
        store, turn = self._store, recorder.record()
        after = replace(session, next_seq=turn.next_seq, updated_at=timestamp(self._clock()), hold=None)
        answer = self._render(Recorded(after, turn, recorder.outcome))
        body = await again(lambda: store_body(store, session.id, turn))
        writes: list[Write] = [
            Put(keys.session_turn(store.tenant, session.id, turn.first_seq), body, ABSENT),
            Update(
                keys.session_head(store.tenant, session.id),
                "SET next_seq = :next, updated_at = :at REMOVE #hold",
                values={":next": after.next_seq, ":at": after.updated_at},
                condition=held_by(self.id),
            ),
            Put(keys.user_session(store.tenant, session.user, session.agent, session.id), after.entry()),
        ]
        if request := self._request.idempotency:
            writes.append(await again(lambda: idempotency.record(store, request, answer)))
        if refused := await self._transact(writes, turn):
            if key := overflow_of(dict(body)):
                with suppress(StorageUnavailable):
                    await store.objects.delete([key])
            raise refused
        self._held = False
        self._answer = TurnAnswer(answer, replayed=False)

    async def _transact(self, writes: Sequence[Write], turn: TurnRecord) -> SpassError | None:
        """Make the writes, and be sure of it; or why it is sure that nothing was recorded and nothing will be.

        Raises:
            StorageUnavailable: we cannot know.
        """
        for attempt in range(_COMMIT_ATTEMPTS):
            try:
                await self._store.table.transact(writes, token=self.id)
            except TransactionFailed as failure:
                if await self._recorded(turn):  # by an earlier try, whose reply was lost
                    return None
                if gone(failure.failures.get(1, {})):
                    return SessionNotFound("This session was deleted while the turn ran.")
                return SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
            except StorageUnavailable:
                await asyncio.sleep(random.uniform(0, _COMMIT_DELAY * 2**attempt))  # noqa: S311 (jitter)
            else:
                return None
        # A try may still be on its way. Without the hold it can no longer take effect, so what we read then is final.
        await release(self._store, self._request.session, self.id)
        if await self._recorded(turn):
            return None
        return StorageUnavailable("The turn could not be recorded; try again.", retry_after=1)

    async def _recorded(self, turn: TurnRecord) -> bool:
        item = await self._store.table.get(keys.session_turn(self._store.tenant, self._request.session, turn.first_seq))
        return item is not None and item.get("id") == self.id

    async def _let_go(self) -> None:
        if self._held:
            with suppress(StorageUnavailable):
                await release(self._store, self._request.session, self.id)
