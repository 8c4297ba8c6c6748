"""Removing bodies of turns that were never committed: a process died between putting one and its turn."""

from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.core.ids import SessionId
from spass.core.time import Deadline
from spass.sessions.record import OVERFLOW_FOLDER, stored_overflow_key

UNCOMMITTED_SECONDS: Final = 24 * 3600
"""How long a turn may take, by far."""

_LOOKBACK_SECONDS: Final = 8 * UNCOMMITTED_SECONDS  # by then many sweeps have found its turn, at the price of reading all others
_TURNS_AT_ONCE: Final = 16


async def sweep_bodies(store: TenantStore, at: int, deadline: Deadline) -> int:
    """Remove bodies that are a day old by second ``at`` and that no turn of their session points at, as far as the deadline lets;
    how many.

    Raises:
        StorageUnavailable: the table or bucket does not answer; what was removed by then is gone.
    """
    removed = 0
    async for session, listed in store.objects.list_folders(OVERFLOW_FOLDER):
        if not deadline.remaining():
            break
        old = [body.key for body in listed if UNCOMMITTED_SECONDS <= at - body.modified < _LOOKBACK_SECONDS]
        if old:
            pointed_at = await _referenced_keys(store, SessionId(session))
            uncommitted = [key for key in old if key not in pointed_at]
            await store.objects.delete(uncommitted)
            removed += len(uncommitted)
    return removed


async def _referenced_keys(store: TenantStore, session: SessionId) -> set[str]:
    partition = keys.session_partition(store.tenant, session)
    found: set[str] = set()
    after: str | None = None
    while items := await store.table.query(partition, prefix=keys.TURN_PREFIX, after=after, limit=_TURNS_AT_ONCE):
        found |= {key for item in items if (key := stored_overflow_key(item))}
        after = str(items[-1]["sk"])
    return found
