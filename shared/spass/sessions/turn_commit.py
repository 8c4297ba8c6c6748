"""What records a turn in its session: the writes of its commit, and how to find out what came of them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from spass.core.errors import SessionBusy, SessionNotFound, SpassError, StorageUnavailable
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


@dataclass(frozen=True, slots=True)
class TurnCommit:
    """The ``writes`` that record ``turn`` in its session and release the hold, whose owner is the turn's id. They are the first
    ones of the transaction. ``session`` is the state after the turn. A large body is in the bucket as ``body_object``."""

    store: TenantStore
    session: Session
    turn: TurnRecord
    writes: Sequence[Write]
    body_object: str | None

    @classmethod
    async def prepare(cls, store: TenantStore, session: Session, turn: TurnRecord, answers: Sequence[Write]) -> Self:
        """Put a large body into the bucket, and return the commit. ``answers`` are those for a repeated request."""
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
        return cls(store, session, turn, writes, stored_overflow_key(dict(body)))

    async def is_recorded(self) -> bool:
        """Return whether the turn is recorded. After ``release`` the answer is final."""
        item = await self.store.table.get(keys.session_turn(self.store.tenant, self.session.id, self.turn.first_seq))
        return item is not None and item.get("id") == self.turn.id

    def lost(self, failure: TransactionFailed) -> SpassError | None:
        """Return why the transaction can never take effect. Return None if the turn still holds its session."""
        if is_deleted(failure.failures.get(_HEAD, {})):
            return SessionNotFound("This session was deleted while the turn ran.")
        return None if _OWN_WRITES.isdisjoint(failure.failures) else taken_over()

    async def release(self) -> None:
        """Release the hold. An attempt of the transaction that is still in flight then has no effect.

        Raises:
            StorageUnavailable: the outcome is unknown.
        """
        await release_hold(self.store, self.session.id, self.turn.id)

    async def discard(self) -> None:
        """Remove the body of a turn that is not recorded and never will be."""
        if self.body_object is not None:
            with suppress(StorageUnavailable):
                await self.store.objects.delete([self.body_object])


def taken_over() -> SessionBusy:
    """Return the error of a turn that has lost its session to another request."""
    return SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
