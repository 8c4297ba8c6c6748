"""Commit a turn: one transaction records it, releases its session and has the writes of all participants."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, Self, runtime_checkable

from spass.core.errors import SessionBusy, SessionNotFound, SpassError, StorageUnavailable
from spass.core.ids import random_suffix
from spass.core.run_result import RunResult
from spass.core.tasks import back_off
from spass.sessions.hold import held_by, is_deleted, release_hold
from spass.sessions.record import TurnRecord, store_body, stored_overflow_key
from spass.sessions.session import Session
from spass.store import keys
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put, Update, Write

_HEAD: Final = 1
_OWN_WRITES: Final = {0, _HEAD}
"""The positions of the turn and the head. The conditions of both hold as long as the turn holds its session."""
_COMMIT_ATTEMPTS: Final = 2
_COMMIT_DELAY: Final = 0.1  # seconds; doubled per attempt, full jitter
_RENEWALS: Final = 10  # each failed one means that another request has changed what the transaction requires
_RENEWAL_DELAY: Final = 0.02  # seconds, full jitter


class Participant(Protocol):
    """Something that is stored together with a turn, or not at all."""

    async def writes(self, result: RunResult, /) -> Sequence[Write]:
        """Return the writes that join the commit of the turn with this result. An error fails the turn."""


@runtime_checkable
class Renewable(Participant, Protocol):
    """A participant whose writes depend on what other requests may change meanwhile."""

    async def renew(self) -> Sequence[Write] | None:
        """Return newer writes for another try, because a condition of the transaction did not hold. Return None if none can
        hold. This is called only while the turn still holds its session."""


class JoinedWrites:
    """The writes of all participants of one commit. If none is renewable, a transaction that failed is not tried again."""

    def __init__(self, participants: Sequence[Participant], writes: Sequence[Sequence[Write]]) -> None:
        self._participants = participants
        self._writes = [*writes]

    @classmethod
    async def of(cls, participants: Sequence[Participant], result: RunResult) -> Self:
        """Return the writes of ``participants``, in their order."""
        return cls(participants, [await participant.writes(result) for participant in participants])

    @property
    def writes(self) -> Sequence[Write]:
        return [write for writes in self._writes for write in writes]

    @property
    def is_renewable(self) -> bool:
        return any(isinstance(participant, Renewable) for participant in self._participants)

    async def renew(self) -> bool:
        """Renew the writes of the renewable participants. Return False if the transaction can never take effect."""
        for number, participant in enumerate(self._participants):
            if isinstance(participant, Renewable):
                newer = await participant.renew()
                if newer is None:
                    return False
                self._writes[number] = newer
        return True


@dataclass(frozen=True, slots=True)
class TurnCommit:
    """The commit of ``turn``, whose id owns the hold of the session. ``session`` is its state after the turn."""

    store: TenantStore
    session: Session
    turn: TurnRecord

    async def execute(self, answers: Sequence[Write], joined: JoinedWrites) -> None:
        """Record the turn and release its session. ``answers`` are those for a repeated request.

        Raises:
            SessionNotFound, SessionBusy: the hold was lost, or a condition of ``joined`` cannot hold; the turn is not recorded,
                and no later attempt can record it.
            StorageUnavailable: the outcome is unknown, or the turn is not recorded.
        """
        body = await store_body(self.store, self.session.id, self.turn)
        tenant, session = self.store.tenant, self.session
        writes: list[Write] = [
            Put(keys.session_turn(tenant, session.id, self.turn.first_seq), body, ITEM_ABSENT),
            Update(
                keys.session_head(tenant, session.id),
                set={"next_seq": session.next_seq, "updated_at": session.updated_at},
                remove=("hold",),
                when=held_by(self.turn.id),
            ),
            Put(keys.user_session(tenant, session.user, session.agent, session.id), session.entry()),
            *answers,
        ]
        if error := await self._transact(writes, joined):
            if key := stored_overflow_key(dict(body)):
                with suppress(StorageUnavailable):
                    await self.store.objects.delete([key])
            raise error

    async def _transact(self, own: Sequence[Write], joined: JoinedWrites) -> SpassError | None:
        """Do the transaction. The writes of ``joined`` are renewed if their conditions do not hold. Return None if it took
        effect, or an error if it did not and never will.

        Raises:
            StorageUnavailable: the outcome is unknown.
        """
        token, attempts, renewals, is_current = self.turn.id, 0, 0, True
        while attempts < _COMMIT_ATTEMPTS:
            try:
                if not is_current and not await joined.renew():
                    return SessionBusy("Another request changed what this turn writes; the turn was not recorded.", retry_after=1)
                is_current = True
                await self.store.table.transact([*own, *joined.writes], token=token)
            except TransactionFailed as failure:
                if await self._is_recorded():  # by an earlier attempt, whose reply was lost
                    return None
                if (error := _loss(failure)) is not None or not joined.is_renewable:
                    return error or taken_over()
                if renewals == _RENEWALS:
                    break
                renewals, token, is_current = renewals + 1, random_suffix(), False
                await back_off(_RENEWAL_DELAY * renewals)
            except StorageUnavailable:
                await back_off(_COMMIT_DELAY * 2**attempts)
                attempts += 1
            else:
                return None
        # An attempt may still be in flight. Without the hold it can no longer take effect, so a read after the release is final.
        await release_hold(self.store, self.session.id, self.turn.id)
        if await self._is_recorded():
            return None
        return StorageUnavailable("The turn could not be recorded; try again.", retry_after=1)

    async def _is_recorded(self) -> bool:
        item = await self.store.table.get(keys.session_turn(self.store.tenant, self.session.id, self.turn.first_seq))
        return item is not None and item.get("id") == self.turn.id


def _loss(failure: TransactionFailed) -> SpassError | None:
    """Return why the transaction can never take effect. Return None if the turn still holds its session."""
    if is_deleted(failure.failures.get(_HEAD, {})):
        return SessionNotFound("This session was deleted while the turn ran.")
    return None if _OWN_WRITES.isdisjoint(failure.failures) else taken_over()


def taken_over() -> SessionBusy:
    """Return the error of a turn that has lost its session to another request."""
    return SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
