"""Bound the schedules of a tenant that have ticks."""

from spass.core.errors import TooManySchedules
from spass.core.ids import ManagedAgentId, random_suffix
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Equals, Update


async def count_schedule(store: TenantStore, agent: ManagedAgentId, allowed: int) -> Update:
    """Return the write to add to the transaction that stores the schedule of ``agent``. Its condition fails if another schedule
    was stored since the others were counted: count again then.

    Raises:
        TooManySchedules: other agents have ``allowed`` schedules, and this one has none yet.
    """
    key = keys.schedules_limit(store.tenant)
    guard = await store.table.get(key)  # before the count
    items = await store.table.query(keys.pending_partition(store.tenant), prefix=keys.PENDING_SCHEDULE_PREFIX)
    own = keys.pending_schedule(store.tenant, agent).sk
    if len(items) >= allowed and not any(item["sk"] == own for item in items):
        raise TooManySchedules(
            f"This tenant's agents have as many schedules as the operator allows: {allowed}. Remove or disable one.",
            param="schedule",
            details={"of": "tenant", "limit": "schedules", "in_use": len(items), "allowed": allowed},
        )
    when = Equals("version", guard["version"]) if guard is not None else ITEM_ABSENT
    return Update(key, set={"version": random_suffix()}, when=when)
