"""Commit a turn: one transaction writes the turn, the head, the user's list and the stored answer."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from spass.core.errors import SessionBusy, SessionNotFound, SpassError, StorageUnavailable
from spass.core.ids import SessionId, random_suffix
from spass.sessions.hold import held_by, is_deleted, release_hold
from spass.sessions.participants import JoinedWrites
from spass.sessions.record import TurnRecord, store_body, stored_overflow_key
from spass.sessions.session import Session
from spass.store import keys
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put, Update, Write

_COMMIT_ATTEMPTS: Final = 2
_COMMIT_DELAY: Final = 0.1  # seconds; doubled per attempt, full jitter
_RENEWALS: Final = 10  # each failed one means that another request has changed what the transaction requires
_RENEWAL_DELAY: Final = 0.02  # seconds, full jitter
_NOT_RECORDED: Final = "The turn could not be recorded; try again."
_OWN_WRITES: Final = {0, 1}
"""The positions of the turn and the head. The conditions of both hold as long as the turn holds its session."""


async def commit_turn(
    store: TenantStore,
    session: Session,
    turn: TurnRecord,
    answers: Sequence[Write],
    joined: JoinedWrites,
) -> None:
    """Record ``turn`` in its session and release the hold, whose owner is the turn's id. ``session`` is the state after the turn.
    The ``answers`` for a repeated request and the writes of ``joined`` are part of the transaction.

    Raises:
        SessionNotFound, SessionBusy: the hold was lost, or a condition of ``joined`` cannot hold; the turn is not recorded, and
            no later attempt can record it.
        StorageUnavailable: the outcome is unknown, or the turn is not recorded.
    """
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
    if error := await _transact(store, session.id, turn, writes, joined):
        if key := stored_overflow_key(dict(body)):
            with suppress(StorageUnavailable):
                await store.objects.delete([key])
        raise error


async def _transact(
    store: TenantStore, session: SessionId, turn: TurnRecord, writes: Sequence[Write], joined: JoinedWrites
) -> SpassError | None:
    """Make the ``writes`` and those of ``joined``, which are renewed if their conditions do not hold. Return None if they took
    effect, or an error if they did not and never will.

    Raises:
        StorageUnavailable: the outcome is unknown.
    """
    token, attempts, renewals, is_current = turn.id, 0, 0, True
    while attempts < _COMMIT_ATTEMPTS:
        try:
            if not is_current and not await joined.renew():
                return SessionBusy("Another request changed what this turn writes; the turn was not recorded.", retry_after=1)
            is_current = True
            await store.table.transact([*writes, *joined.writes], token=token)
        except TransactionFailed as failure:
            if await _is_committed(store, session, turn):  # by an earlier attempt, whose reply was lost
                return None
            if is_deleted(failure.failures.get(1, {})):
                return SessionNotFound("This session was deleted while the turn ran.")
            if not joined.is_renewable or not _OWN_WRITES.isdisjoint(failure.failures):
                return SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
            if renewals == _RENEWALS:
                break
            renewals, token, is_current = renewals + 1, random_suffix(), False
            await asyncio.sleep(random.uniform(0, _RENEWAL_DELAY * renewals))  # noqa: S311 (jitter)
        except StorageUnavailable:
            await asyncio.sleep(random.uniform(0, _COMMIT_DELAY * 2**attempts))  # noqa: S311 (jitter)
            attempts += 1
        else:
            return None
    # An attempt may still be in flight. Without the hold it can no longer take effect, so a read after the release is final.
    await release_hold(store, session, turn.id)
    if await _is_committed(store, session, turn):
        return None
    return StorageUnavailable(_NOT_RECORDED, retry_after=1)


async def _is_committed(store: TenantStore, session: SessionId, turn: TurnRecord) -> bool:
    item = await store.table.get(keys.session_turn(store.tenant, session, turn.first_seq))
    return item is not None and item.get("id") == turn.id
