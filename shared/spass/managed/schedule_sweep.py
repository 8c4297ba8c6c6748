"""Sweep the schedules: write the entries that the table wants, and delete those that it does not."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from spass.core.errors import SpassError
from spass.core.ids import ManagedAgentId, TenantId
from spass.core.jobs import Tick, job_of
from spass.core.time import Deadline
from spass.managed.schedules import ScheduleWriter, entry_name
from spass.redaction.log import failure_line, write_line
from spass.store import keys
from spass.store.schedules import Schedules
from spass.store.tenant_store import TenantStore

_AT_ONCE: Final = 16


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
