"""The hourly sweep of managed agents: runs that nothing executes, deletions that were interrupted, texts without an item.

It reads the tenant's list of pending work, and lists the folder of long texts: a request per thousand of them. So an idle agent
without long texts costs nothing. Runs that wait in the tenant's line are read together, and not one by one.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from spass.core.ids import ManagedAgentId, RunId
from spass.core.jobs import RunAgent, WorkKind
from spass.core.time import Clock, Deadline, epoch_s
from spass.managed.deletion import finish_deletion
from spass.managed.mailbox import FOLDER, has_item
from spass.managed.records import IS_OPEN, MAX_ATTEMPTS, Run, find_agent, run_key
from spass.managed.runs import fail_lost, is_lost, settle_lost
from spass.managed.schedules import ScheduleWriter
from spass.managed.sending import put_in_line
from spass.redaction.log import failure_line, write_line
from spass.store import keys
from spass.store.bucket import ObjectSummary
from spass.store.codec import decode
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Equals, Update

RESEND_SECONDS: Final = 40 * 60
"""Age in seconds of a run's last step after which it is sent again. Within this time the queue delivers its message twice."""
UNWRITTEN_SECONDS: Final = 24 * 3600
"""Age in seconds that no text reaches before its item is written."""
_LOOKBACK_SECONDS: Final = 8 * UNWRITTEN_SECONDS  # many sweeps have checked an older text already


@dataclass(slots=True)
class Swept:
    """The number of runs that were sent again, of runs that were ended as failed, of deletions that were finished, of removed
    texts, and of failures."""

    resent: int = 0
    lost: int = 0
    deleted: int = 0
    texts: int = 0
    failed: int = 0


class ManagedSweep:
    """One sweep of a tenant until the deadline. A failure of one entry does not stop the others."""

    def __init__(
        self, store: TenantStore, schedules: ScheduleWriter | None, deadline: Deadline, clock: Clock = time.time
    ) -> None:
        self.swept = Swept()
        self._store = store
        self._schedules = schedules
        self._deadline = deadline
        self._clock = clock

    async def run(self) -> Swept:
        """Do the sweep."""
        pending = await self._pending_work(keys.PENDING_RUN_PREFIX)
        # A run that waits has not begun, and the line sends it.
        waiting = await self._store.line.waiting(WorkKind.RUNS) if pending else frozenset()
        await self._each([name for name in pending if name not in waiting], keys.PENDING_RUN_PREFIX, self._look_after_run)
        async with self._counted_failure("the line of runs"):
            await self._look_after_line()
        await self._each(
            await self._pending_work(keys.PENDING_DELETION_PREFIX), keys.PENDING_DELETION_PREFIX, self._finish_deletion
        )
        await self._remove_texts()
        return self.swept

    async def _each(self, names: Iterable[str], prefix: str, work: Callable[[str], Awaitable[None]]) -> None:
        for name in names:
            if not self._deadline.remaining():
                return
            async with self._counted_failure(f"{prefix}{name}"):
                await work(name)

    @asynccontextmanager
    async def _counted_failure(self, work: str) -> AsyncGenerator[None]:
        """Log and count a failure of ``work``. An item that cannot be read is a failure too: it would stop each sweep."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (one entry's failure must not stop the others)
            write_line({**failure_line(error, ""), "event": "managed_sweep_failed", "work": work})
            self.swept.failed += 1

    async def _pending_work(self, prefix: str) -> list[str]:
        """Return the rest of the sort key of each item of pending work."""
        items = await self._store.table.query(keys.pending_partition(self._store.tenant), prefix=prefix)
        return [str(item["sk"]).removeprefix(prefix) for item in items]

    async def _finish_deletion(self, name: str) -> None:
        if await finish_deletion(self._store, ManagedAgentId(name), self._schedules, self._deadline, self._clock):
            self.swept.deleted += 1

    async def _look_after_run(self, name: str) -> None:
        """Send a run again whose worker died, or end it. Put one that has not begun into the tenant's line: its message may be
        lost. Such a run never fails here."""
        agent_name, _, run_name = name.partition("#")
        agent_id, run_id, store = ManagedAgentId(agent_name), RunId(run_name), self._store
        agent = await find_agent(store, agent_id)
        item = await store.table.get(keys.managed_run(store.tenant, agent_id, run_id))
        if agent is None or item is None:
            await store.table.write(Delete(keys.pending_run(store.tenant, agent_id, run_id)))
            return
        run, now = decode(Run, item), self._clock()
        if agent.active_run != run.id:
            return
        if await settle_lost(store, agent, now):
            self.swept.lost += 1
        elif now < epoch_s(run.begun_at or run.due_at or run.created_at) + RESEND_SECONDS:
            return
        elif run.begun_at is None:
            await put_in_line(store, run)
            self.swept.resent += 1
        elif await is_lost(store, agent, run, now):
            await self._send_again(run, now)

    async def _look_after_line(self) -> None:
        """Give back the places of runs that are over, whose workers died before they did it, and send what waits."""

        async def is_over(name: str) -> bool:
            return await self._store.table.get(keys.Key(partition, f"{keys.PENDING_RUN_PREFIX}{name}")) is None

        partition = keys.pending_partition(self._store.tenant)
        await self._store.line.repair(WorkKind.RUNS, is_over)

    async def _send_again(self, run: Run, now: float) -> None:
        if run.sends >= MAX_ATTEMPTS:
            await fail_lost(self._store, run, now)
            self.swept.lost += 1
            return
        count = Update(run_key(self._store, run), set={"sends": run.sends + 1}, when=IS_OPEN & Equals("sends", run.sends))
        try:
            await self._store.table.write(count)
        except ConditionFailed:  # another sweep is sending it, or the run has ended
            return
        await self._store.jobs.send(RunAgent(self._store.tenant, run.agent_id, run.id))
        self.swept.resent += 1

    async def _remove_texts(self) -> None:
        def guard(agent: str) -> AbstractAsyncContextManager[None]:
            return self._counted_failure(f"{FOLDER}{agent}")

        self.swept.texts += await self._store.objects.remove_orphans(FOLDER, self._is_old, self._unwritten, self._deadline, guard)

    async def _unwritten(self, agent: str, texts: Sequence[ObjectSummary]) -> list[str]:
        return [text.key for text in texts if not await has_item(self._store, ManagedAgentId(agent), text)]

    def _is_old(self, text: ObjectSummary) -> bool:
        return UNWRITTEN_SECONDS <= self._clock() - text.modified < _LOOKBACK_SECONDS
