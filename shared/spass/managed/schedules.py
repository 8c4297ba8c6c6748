"""Make the entries of EventBridge Scheduler equal the schedules in the table.

The table says which schedules exist. It is written first, and with an agent's schedule the item of its pending work, which exists
as long as the agent may have an entry. So a crash leaves only a difference that the hourly sweep can see
(``ScheduleSweep``). A request that has changed an entry reads the table again: of two concurrent changes, the last one finds what
the table says.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from spass.core.errors import SpassError, StorageUnavailable
from spass.core.ids import ManagedAgentId, TenantId, random_suffix
from spass.core.jobs import Tick, body_of, job_of
from spass.core.time import Clock, Deadline
from spass.managed.records import ManagedAgent, Schedule, find_agent
from spass.redaction.log import failure_line, write_line
from spass.store import keys
from spass.store.schedules import ScheduleEntry, Schedules
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Check, Delete, Equals, Write

SCHEDULED_TIME: Final = "<aws.scheduler.scheduled-time>"
"""The scheduler replaces this by the time of the tick, such as ``2026-04-30T08:00:00Z``."""
_ATTEMPTS: Final = 4
_AT_ONCE: Final = 16
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
        tick = Tick(tenant, agent.id, schedule_hash(schedule), SCHEDULED_TIME)
        return ScheduleEntry(
            entry_name(tenant, agent.id), schedule.expression, schedule.timezone, body_of(tick), schedule.is_once
        )

    def _has_passed(self, agent: ManagedAgent | None, seconds: float) -> bool:
        """Return whether the schedule of ``agent`` is an ``at(…)`` whose moment was ``seconds`` ago or longer."""
        if agent is None or agent.schedule is None or not agent.schedule.is_once:
            return False
        from spass.managed.schedule_expressions import has_passed  # it imports time zones

        return has_passed(agent.schedule, self._clock() - seconds)

    def _write(self, tenant: TenantId, agent_id: ManagedAgentId, entry: ScheduleEntry | None) -> Awaitable[None]:
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


@dataclass(slots=True)
class SweptSchedules:
    """The number of agents whose entry was corrected, of entries that were deleted because no agent has them, and of agents and
    entries that could not be swept."""

    corrected: int = 0
    orphans: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ScheduleSweep:
    """One sweep over the schedules of all ``tenants``."""

    entries: Schedules
    writer: ScheduleWriter
    tenants: Collection[TenantId]
    store_of: Callable[[TenantId], TenantStore]
    swept: SweptSchedules = field(default_factory=SweptSchedules)

    async def run(self, deadline: Deadline) -> SweptSchedules:
        """Make the entries what the table says, until the deadline. One failure does not stop the others.

        The names of the entries are listed before the table is read. The table is written before an entry, so an entry in the
        list whose agent is not in the table does not belong to a new agent.

        Raises:
            StorageUnavailable: the scheduler does not list its entries.
        """
        unclaimed = set(await self.entries.names())
        work: list[Callable[[], Awaitable[None]]] = []
        for tenant in self.tenants:
            for agent in await self._scheduled_agents(tenant):
                name = entry_name(tenant, agent)
                work.append(partial(self._repair, tenant, agent, is_listed=name in unclaimed))
                unclaimed.discard(name)
        work += (partial(self._sweep_unclaimed, name) for name in unclaimed)
        random.shuffle(work)  # so that none is always last
        for start in range(0, len(work), _AT_ONCE):
            if not deadline.remaining():
                break
            await asyncio.gather(*(self._count_failure(one) for one in work[start : start + _AT_ONCE]))
        return self.swept

    async def _repair(self, tenant: TenantId, agent: ManagedAgentId, *, is_listed: bool) -> None:
        if await self.writer.repair(self.store_of(tenant), agent, is_listed=is_listed):
            self.swept.corrected += 1

    async def _sweep_unclaimed(self, name: str) -> None:
        """Delete an entry that no pending work names, unless its agent wants it after all."""
        entry = await self.entries.get(name)
        if entry is None:
            return
        tick = _tick(entry.body)
        if tick is not None and tick.tenant in self.tenants and entry_name(tick.tenant, tick.agent) == name:
            await self._repair(tick.tenant, tick.agent, is_listed=True)
        else:
            await self.entries.delete(name)
            self.swept.orphans += 1

    async def _scheduled_agents(self, tenant: TenantId) -> list[ManagedAgentId]:
        """Return the agents of a tenant that may have an entry; none if that cannot be read."""
        try:
            table = self.store_of(tenant).table
            items = await table.query(keys.pending_partition(tenant), prefix=keys.PENDING_SCHEDULE_PREFIX)
        except SpassError as error:
            self._failed(error)
            return []
        return [ManagedAgentId(str(item["sk"]).removeprefix(keys.PENDING_SCHEDULE_PREFIX)) for item in items]

    async def _count_failure(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 (one entry's failure must not stop the others)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        write_line({**failure_line(error, ""), "event": "schedule_sweep_failed"})
        self.swept.failed += 1


def _tick(body: str) -> Tick | None:
    try:
        job = job_of(json.loads(body))
    except ValueError:
        return None
    return job if isinstance(job, Tick) else None
