"""Make the entries of EventBridge Scheduler equal the schedules in the table.

The table says which schedules exist. It is written first, and with an agent's schedule the item of its pending work, which exists
as long as the agent may have an entry. So a crash leaves only a difference that the hourly sweep can see
(``schedule_sweep.py``). A request that has changed an entry reads the table again: of two concurrent changes, the last one
finds what the table says.
"""

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spass.core.errors import StorageUnavailable
from spass.core.ids import ManagedAgentId, TenantId, random_suffix
from spass.core.jobs import Tick, body_of
from spass.core.time import Clock
from spass.managed.lookup import find_agent
from spass.managed.records import ManagedAgent, Schedule
from spass.store import keys
from spass.store.schedules import ScheduleEntry, Schedules
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Check, Delete, Equals, Write

if TYPE_CHECKING:
    from collections.abc import Awaitable

SCHEDULED_TIME: Final = "<aws.scheduler.scheduled-time>"
"""The scheduler replaces this by the time of the tick, such as ``2026-04-30T08:00:00Z``."""
_ATTEMPTS: Final = 4
_FIRING_SECONDS: Final = 3 * 3600
"""Seconds after the moment of an ``at(…)`` in which its tick may still be sent. The scheduler is precise to the minute, sends for
an hour what the queue does not take, and may mean the second one of two hours that the clocks show twice."""


class ScheduleWriter:
    """Writes the entries of managed agents. ``clock`` returns seconds since the epoch."""

    def __init__(self, entries: Callable[[], Schedules], clock: Clock) -> None:
        self._entries = entries
        self._clock = clock

    def check(self, schedule: Schedule) -> None:
        """Check a schedule before it is stored.

        Raises:
            InvalidRequest: the scheduler would refuse it, or it would never run the agent.
        """
        from spass.managed.schedule_expressions import check_schedule

        check_schedule(schedule, self._clock())

    async def apply(self, store: TenantStore, agent_id: ManagedAgentId) -> None:
        """Make the entry of an agent what the table says now. Remove the item of its pending work if it needs no entry.

        Raises:
            StorageUnavailable: the scheduler or the table does not answer, or other requests change the schedule all the time.
                The sweep repeats the call.
            InternalError: the scheduler refuses the entry.
        """
        agent = await find_agent(store, agent_id)
        for _ in range(_ATTEMPTS):
            entry = self.wanted(store.tenant, agent)
            await self._write(store.tenant, agent_id, entry)
            applied, agent = agent, await find_agent(store, agent_id)
            if self.wanted(store.tenant, agent) == entry and (entry or await self._close(store, agent_id, applied)):
                return
        raise StorageUnavailable("This schedule is being changed by other requests; try again.", retry_after=1)

    async def remove(self, store: TenantStore, agent_id: ManagedAgentId) -> None:
        """Delete the entry of an agent, if there is one.

        Raises:
            StorageUnavailable: the scheduler does not answer.
        """
        await self._entries().delete(entry_name(store.tenant, agent_id))

    async def repair(self, store: TenantStore, agent_id: ManagedAgentId, *, is_listed: bool) -> bool:
        """Make the entry of an agent what the table says, if it differs. Return whether it did. ``is_listed``: the scheduler has
        an entry with its name.

        An entry that does not differ is not written: the scheduler would begin the interval of a ``rate(…)`` again. That of an
        ``at(…)`` is not created after its moment: the scheduler has deleted it because it has fired.

        Raises:
            StorageUnavailable, InternalError: see ``apply``.
        """
        agent = await find_agent(store, agent_id)
        entry = self.wanted(store.tenant, agent)
        found = await self._entries().get(entry_name(store.tenant, agent_id)) if is_listed else None
        if entry is not None and (found == entry or (found is None and self._has_passed(agent, 0))):
            return False
        await self.apply(store, agent_id)
        return entry != found

    def wanted(self, tenant: TenantId, agent: ManagedAgent | None) -> ScheduleEntry | None:
        """Return the entry that an agent should have now, or None."""
        schedule = ticking_schedule(agent)
        if agent is None or schedule is None:
            return None
        if self._has_passed(agent, _FIRING_SECONDS):
            return None
        once = schedule.expression.startswith("at(")
        tick = Tick(tenant, agent.id, schedule_hash(schedule), SCHEDULED_TIME)
        return ScheduleEntry(entry_name(tenant, agent.id), schedule.expression, schedule.timezone, body_of(tick), once)

    def _has_passed(self, agent: ManagedAgent | None, seconds: float) -> bool:
        """Return whether the schedule of ``agent`` is an ``at(…)`` whose moment was ``seconds`` ago or longer."""
        if agent is None or agent.schedule is None or not agent.schedule.expression.startswith("at("):
            return False
        from spass.managed.schedule_expressions import has_passed  # it imports time zones

        return has_passed(agent.schedule, self._clock() - seconds)

    def _write(self, tenant: TenantId, agent_id: ManagedAgentId, entry: ScheduleEntry | None) -> "Awaitable[None]":
        entries = self._entries()
        return entries.put(entry) if entry is not None else entries.delete(entry_name(tenant, agent_id))

    async def _close(self, store: TenantStore, agent_id: ManagedAgentId, agent: ManagedAgent | None) -> bool:
        """Remove the item of pending work, unless the agent was changed since it was read as ``agent``."""
        unchanged = Equals("version", agent.version) if agent is not None else ITEM_ABSENT
        writes: list[Write] = [
            Delete(keys.pending_schedule(store.tenant, agent_id)),
            Check(keys.managed_agent(store.tenant, agent_id), unchanged),
        ]
        try:
            await store.table.transact(writes, token=random_suffix())
        except TransactionFailed:
            return False
        return True


def ticking_schedule(agent: ManagedAgent | None) -> Schedule | None:
    """Return the agent's schedule if it is enabled. A paused agent has ticks too, which are skipped."""
    if agent is None or agent.deleted_at is not None or agent.schedule is None:
        return None
    return agent.schedule if agent.schedule.enabled else None


def entry_name(tenant: TenantId, agent: ManagedAgentId) -> str:
    """Return the name of an agent's entry: a hash, because a tenant's id may have characters that a name may not have."""
    return hashlib.sha256(json.dumps([tenant, agent]).encode()).hexdigest()


def schedule_hash(schedule: Schedule) -> str:
    """Return a hash of the times at which the schedule has ticks."""
    return hashlib.sha256(json.dumps([schedule.expression, schedule.timezone]).encode()).hexdigest()[:16]
