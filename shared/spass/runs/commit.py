"""Commit a turn: one transaction records it, releases its session and has the writes of all participants."""

from collections.abc import Sequence
from typing import Final, Protocol, Self, runtime_checkable

from spass.core.errors import SessionBusy, SpassError, StorageUnavailable
from spass.core.ids import random_suffix
from spass.core.run_result import RunResult
from spass.core.tasks import back_off
from spass.sessions.conversation import Conversation, PreparedTurn, taken_over
from spass.sessions.hold import release_hold
from spass.store.table import TransactionFailed
from spass.store.writes import Write

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


async def commit(conversation: Conversation, joined: JoinedWrites) -> None:
    """Record the turn of ``conversation``, which has finished, together with ``joined``.

    Raises:
        SessionNotFound, SessionBusy: the hold was lost, or a condition of ``joined`` cannot hold; the turn is not recorded, and
            no later attempt can record it.
        StorageUnavailable: the outcome is unknown, or the turn is not recorded.
    """
    turn = await conversation.prepare()
    if error := await _transact(turn, joined):
        await turn.discard()
        raise error
    conversation.mark_committed()


async def _transact(turn: PreparedTurn, joined: JoinedWrites) -> SpassError | None:
    """Do the transaction. The writes of ``joined`` are renewed if their conditions do not hold. Return None if it took effect, or
    an error if it did not and never will.

    Raises:
        StorageUnavailable: the outcome is unknown.
    """
    token, attempts, renewals, is_current = turn.id, 0, 0, True
    while attempts < _COMMIT_ATTEMPTS:
        try:
            if not is_current and not await joined.renew():
                return SessionBusy("Another request changed what this turn writes; the turn was not recorded.", retry_after=1)
            is_current = True
            await turn.store.table.transact([*turn.writes, *joined.writes], token=token)
        except TransactionFailed as failure:
            if await turn.is_recorded():  # by an earlier attempt, whose reply was lost
                return None
            if (error := turn.loss(failure)) is not None or not joined.is_renewable:
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
    await release_hold(turn.store, turn.session, turn.id)
    if await turn.is_recorded():
        return None
    return StorageUnavailable("The turn could not be recorded; try again.", retry_after=1)
