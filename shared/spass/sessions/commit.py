"""Commit a turn: one transaction writes the turn, the head, the user's list and the stored answer."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.table import TransactionFailed
from spass.aws.writes import ITEM_ABSENT, Put, Update, Write
from spass.core.errors import SessionBusy, SessionNotFound, SpassError, StorageUnavailable
from spass.core.ids import SessionId
from spass.sessions.hold import held_by, is_deleted, release_hold
from spass.sessions.record import TurnRecord, store_body, stored_overflow_key
from spass.sessions.session import Session

_COMMIT_ATTEMPTS: Final = 2
_COMMIT_DELAY: Final = 0.1  # seconds; doubled per attempt, full jitter


async def commit_turn(store: TenantStore, session: Session, turn: TurnRecord, with_effect: Sequence[Write] = ()) -> None:
    """Record ``turn`` in its session and release the hold, whose owner is the turn's id. ``session`` is the state after the turn.
    The writes ``with_effect`` join the transaction.

    Raises:
        SessionNotFound, SessionBusy: the hold was lost; the turn is not recorded, and no later attempt can record it.
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
        *with_effect,
    ]
    if error := await _transact(store, session.id, turn, writes):
        if key := stored_overflow_key(dict(body)):
            with suppress(StorageUnavailable):
                await store.objects.delete([key])
        raise error


async def _transact(store: TenantStore, session: SessionId, turn: TurnRecord, writes: Sequence[Write]) -> SpassError | None:
    """Make the writes. Return None if they took effect, or an error if they did not and never will.

    Raises:
        StorageUnavailable: the outcome is unknown.
    """
    for attempt in range(_COMMIT_ATTEMPTS):
        try:
            await store.table.transact(writes, token=turn.id)
        except TransactionFailed as failure:
            if await _is_committed(store, session, turn):  # by an earlier attempt, whose reply was lost
                return None
            if is_deleted(failure.failures.get(1, {})):
                return SessionNotFound("This session was deleted while the turn ran.")
            return SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
        except StorageUnavailable:
            await asyncio.sleep(random.uniform(0, _COMMIT_DELAY * 2**attempt))  # noqa: S311 (jitter)
        else:
            return None
    # An attempt may still be in flight. Without the hold it can no longer take effect, so a read after the release is final.
    await release_hold(store, session, turn.id)
    if await _is_committed(store, session, turn):
        return None
    return StorageUnavailable("The turn could not be recorded; try again.", retry_after=1)


async def _is_committed(store: TenantStore, session: SessionId, turn: TurnRecord) -> bool:
    item = await store.table.get(keys.session_turn(store.tenant, session, turn.first_seq))
    return item is not None and item.get("id") == turn.id
