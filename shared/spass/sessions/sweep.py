"""Remove bodies of turns that were never committed, because a process died between the two writes."""

from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.core.ids import SessionId
from spass.core.time import Deadline
from spass.sessions.record import OVERFLOW_FOLDER, stored_overflow_key

UNCOMMITTED_SECONDS: Final = 24 * 3600
"""An age that no running turn can reach."""

_LOOKBACK_SECONDS: Final = (
    8 * UNCOMMITTED_SECONDS
)  # an older body has been checked by many sweeps; each check reads all turns of its session
_TURNS_AT_ONCE: Final = 16


async def sweep_bodies(store: TenantStore, at: int, deadline: Deadline) -> int:
    """Remove bodies that are a day old at second ``at`` and that no turn refers to, until the deadline. Return their number.

    Raises:
        StorageUnavailable: the table or the bucket does not answer. Bodies removed before stay removed.
    """
    removed = 0
    async for session, listed in store.objects.list_folders(OVERFLOW_FOLDER):
        if not deadline.remaining():
            break
        old = [body.key for body in listed if UNCOMMITTED_SECONDS <= at - body.modified < _LOOKBACK_SECONDS]
        if old:
            referenced = await _referenced_keys(store, SessionId(session))
            uncommitted = [key for key in old if key not in referenced]
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
