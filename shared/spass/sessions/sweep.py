"""Remove bodies of turns that were never committed, because a process died before the commit."""

from collections.abc import Sequence
from typing import Final

from spass.core.ids import SessionId
from spass.core.time import Deadline
from spass.sessions.record import OVERFLOW_FOLDER, stored_overflow_key
from spass.store import keys
from spass.store.bucket import ObjectSummary
from spass.store.tenant_store import TenantStore

UNCOMMITTED_SECONDS: Final = 24 * 3600
"""Age in seconds that no running turn reaches."""

# Many sweeps have checked an older body already, and each check reads all turns of its session.
_LOOKBACK_SECONDS: Final = 8 * UNCOMMITTED_SECONDS
_TURNS_PER_READ: Final = 16


async def sweep_bodies(store: TenantStore, at: int, deadline: Deadline) -> int:
    """Remove bodies that no turn refers to and that are at least a day old at ``at`` (seconds since the epoch). Stop at the
    deadline. Return the number of removed bodies.

    Raises:
        StorageUnavailable: the table or the bucket does not answer. Bodies removed before stay removed.
    """

    async def uncommitted(session: str, bodies: Sequence[ObjectSummary]) -> list[str]:
        referenced = await _referenced_keys(store, SessionId(session))
        return [body.key for body in bodies if body.key not in referenced]

    def is_due(body: ObjectSummary) -> bool:
        return UNCOMMITTED_SECONDS <= at - body.modified < _LOOKBACK_SECONDS

    return await store.objects.remove_orphans(OVERFLOW_FOLDER, is_due, uncommitted, deadline)


async def _referenced_keys(store: TenantStore, session: SessionId) -> set[str]:
    pages = store.table.pages(keys.session_partition(store.tenant, session), prefix=keys.TURN_PREFIX, size=_TURNS_PER_READ)
    return {key async for items in pages for item in items if (key := stored_overflow_key(item))}
