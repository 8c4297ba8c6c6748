"""The one step of a turn that anybody sees: the turn, the head, the user's list and the kept answer change together, or not at
all."""

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
    """Record ``turn`` in the session that it holds under its own id, and let that go. ``session`` is as it will be then;
    the writes ``with_effect`` join the transaction.

    Raises:
        SessionNotFound, SessionBusy: the hold was lost; nothing was recorded and nothing will be.
        StorageUnavailable: we cannot know, or nothing was recorded.
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
    if refused := await _transact(store, session.id, turn, writes):
        if key := stored_overflow_key(dict(body)):
            with suppress(StorageUnavailable):
                await store.objects.delete([key])
        raise refused


async def _transact(store: TenantStore, session: SessionId, turn: TurnRecord, writes: Sequence[Write]) -> SpassError | None:
    """Make the writes, and be sure of it; or why it is sure that nothing was recorded and nothing will be.

    Raises:
        StorageUnavailable: we cannot know.
    """
    for attempt in range(_COMMIT_ATTEMPTS):
        try:
            await store.table.transact(writes, token=turn.id)
        except TransactionFailed as failure:
            if await _is_committed(store, session, turn):  # by an earlier try, whose reply was lost
                return None
            if is_deleted(failure.failures.get(1, {})):
                return SessionNotFound("This session was deleted while the turn ran.")
            return SessionBusy("Another request took this session over; the turn was not recorded.", retry_after=1)
        except StorageUnavailable:
            await asyncio.sleep(random.uniform(0, _COMMIT_DELAY * 2**attempt))  # noqa: S311 (jitter)
        else:
            return None
    # A try may still be on its way. Without the hold it can no longer take effect, so what we read then is final.
    await release_hold(store, session, turn.id)
    if await _is_committed(store, session, turn):
        return None
    return StorageUnavailable("The turn could not be recorded; try again.", retry_after=1)


async def _is_committed(store: TenantStore, session: SessionId, turn: TurnRecord) -> bool:
    item = await store.table.get(keys.session_turn(store.tenant, session, turn.first_seq))
    return item is not None and item.get("id") == turn.id
