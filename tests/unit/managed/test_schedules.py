"""The table decides which schedules exist: entries follow it, whoever dies or races, and one sweep repairs every difference."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from spass.aws.job_targets import JobTargets
from spass.core.errors import StorageUnavailable
from spass.core.ids import ManagedAgentId, TenantId, new_id
from spass.core.jobs import Tick, job_of
from spass.core.time import Deadline, timestamp
from spass.managed.records import ManagedAgent, Schedule, find_agent
from spass.managed.schedules import SCHEDULED_TIME, ScheduleSweep, ScheduleWriter, SweptSchedules, entry_name
from spass.store import keys
from spass.store.codec import encode
from spass.store.schedules import ScheduleEntry
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Put, Update
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.managed.managed_store import ANA, TOKEN

pytestmark = pytest.mark.anyio

TARGETS = JobTargets(runs_queue_arn="arn:runs", schedule_group="group", schedule_role="arn:role")
DEMO, SIBLING = TenantId("demo"), TenantId("demo-2")
HOURLY, DAILY = Schedule("rate(1 hour)"), Schedule("cron(0 9 * * ? *)", "Europe/Berlin", "Report.")
ONCE = Schedule("at(2027-02-01T00:00:00)")
FAULTS = [fault for fault in Fault if fault is not Fault.REPEATED]


@dataclass
class Scheduled:
    """Managed agents with schedules, as the requests of ``ManagedAgents`` write them."""

    now: float = 1_800_000_000.0
    aws: MemoryAws = field(init=False)
    writer: ScheduleWriter = field(init=False)

    def __post_init__(self) -> None:
        self.aws = MemoryAws(TARGETS, clock=lambda: self.now)
        self.writer = ScheduleWriter(lambda: self.aws.schedules, lambda: self.now)

    def store(self, tenant: TenantId = DEMO) -> TenantStore:
        return self.aws.for_tenant(tenant)

    async def create(self, schedule: Schedule | None, tenant: TenantId = DEMO) -> ManagedAgentId:
        """Write an agent and the item of its pending work to the table."""
        at = timestamp(self.now)
        id_ = ManagedAgentId(new_id("agt"))
        agent = ManagedAgent(
            id=id_, name="a", agent="simple", owner=ANA, token_id=TOKEN, schedule=schedule, created_at=at, updated_at=at
        )
        store = self.store(tenant)
        await store.table.transact(
            [Put(keys.managed_agent(tenant, id_), encode(agent)), Put(keys.pending_schedule(tenant, id_), {"version": 1})],
            token=new_id("agt"),
        )
        return id_

    async def entered(self, schedule: Schedule | None) -> ManagedAgentId:
        """Create an agent and its entry."""
        agent = await self.create(schedule)
        await self.writer.apply(self.store(), agent)
        return agent

    async def change(self, agent_id: ManagedAgentId, schedule: Schedule | None, tenant: TenantId = DEMO) -> None:
        """Write another schedule to the table."""
        agent = await find_agent(self.store(tenant), agent_id)
        assert agent is not None
        changed = encode(replace(agent, schedule=schedule, version=agent.version + 1))
        await self.store(tenant).table.transact(
            [Put(keys.managed_agent(tenant, agent_id), changed), Put(keys.pending_schedule(tenant, agent_id), {"version": 2})],
            token=new_id("agt"),
        )

    async def hide(self, agent_id: ManagedAgentId) -> None:
        key = keys.managed_agent(DEMO, agent_id)
        await self.store().table.write(Update(key, set={"deleted_at": timestamp(self.now)}))

    async def forget(self, agent_id: ManagedAgentId) -> None:
        """Remove the agent's items without its entry."""
        await self.store().table.write(Delete(keys.pending_schedule(DEMO, agent_id)))
        await self.store().table.write(Delete(keys.managed_agent(DEMO, agent_id)))

    async def sweep(self, *tenants: TenantId, seconds: float = 60) -> SweptSchedules:
        sweep = ScheduleSweep(self.aws.schedules, self.writer, tenants or (DEMO,), self.aws.for_tenant)
        return await sweep.run(Deadline.after(seconds))

    def expressions(self) -> dict[str, str]:
        """Return the expression of each entry by its name."""
        return {name: one["ScheduleExpression"] for (_, name), one in self.aws.scheduler.entries.items()}

    def pending_work(self) -> set[str]:
        partition = keys.pending_partition(DEMO)
        return {str(item["sk"]).rpartition("#")[2] for item in self.aws.table.items() if item["pk"] == partition}


@pytest.fixture
def scheduled() -> Scheduled:
    return Scheduled()


def expected(*agents: tuple[ManagedAgentId, Schedule]) -> dict[str, str]:
    return {entry_name(DEMO, agent): schedule.expression for agent, schedule in agents}


async def test_an_entry_sends_the_tick_of_its_agent(scheduled: Scheduled) -> None:
    agent = await scheduled.entered(DAILY)
    entry = await scheduled.aws.schedules.get(entry_name(DEMO, agent))
    assert entry is not None
    assert (entry.expression, entry.timezone, entry.once) == ("cron(0 9 * * ? *)", "Europe/Berlin", False)
    tick = job_of(json.loads(entry.body))
    assert isinstance(tick, Tick)
    assert (tick.tenant, tick.agent, tick.at) == (DEMO, agent, SCHEDULED_TIME)


async def test_the_tick_names_the_times_but_not_the_input(scheduled: Scheduled) -> None:
    agent = await scheduled.create(HOURLY)
    bodies = set()
    for schedule in (HOURLY, replace(HOURLY, input="Other."), replace(HOURLY, timezone="Asia/Tokyo"), DAILY):
        await scheduled.change(agent, schedule)
        await scheduled.writer.apply(scheduled.store(), agent)
        entry = await scheduled.aws.schedules.get(entry_name(DEMO, agent))
        bodies.add(entry.body if entry else "")
    assert len(bodies) == 3


def test_the_name_of_an_entry_differs_between_tenants_and_fits() -> None:
    agent = ManagedAgentId(new_id("agt"))
    names = {entry_name(TenantId(tenant), agent) for tenant in ("demo", "demo-2", "Ünïcode#1")}
    assert len(names) == 3
    assert {len(name) for name in names} == {64}


@pytest.mark.parametrize("schedule", [None, replace(HOURLY, enabled=False)], ids=["removed", "disabled"])
async def test_without_an_enabled_schedule_neither_an_entry_nor_pending_work_remains(
    scheduled: Scheduled, schedule: Schedule | None
) -> None:
    agent = await scheduled.entered(HOURLY)
    assert scheduled.pending_work() == {agent}, "the sweep finds a missing entry by it"
    await scheduled.change(agent, schedule)
    await scheduled.writer.apply(scheduled.store(), agent)
    assert (scheduled.expressions(), scheduled.pending_work()) == ({}, set())


async def test_a_paused_agent_keeps_its_entry_and_a_deleted_one_loses_it(scheduled: Scheduled) -> None:
    agent = await scheduled.create(HOURLY)
    await scheduled.store().table.write(Update(keys.managed_agent(DEMO, agent), set={"paused": True}))
    await scheduled.writer.apply(scheduled.store(), agent)
    assert scheduled.expressions() == expected((agent, HOURLY))
    await scheduled.hide(agent)
    await scheduled.writer.apply(scheduled.store(), agent)
    assert scheduled.expressions() == {}


async def test_one_moment_has_an_entry_until_it_has_passed(scheduled: Scheduled) -> None:
    agent = await scheduled.entered(ONCE)
    entry = await scheduled.aws.schedules.get(entry_name(DEMO, agent))
    assert entry is not None
    assert entry.once, "the scheduler deletes it when it has fired"
    scheduled.now = 1_801_500_000
    await scheduled.sweep()
    assert (scheduled.expressions(), scheduled.pending_work()) == ({}, set())


async def test_an_entry_whose_moment_is_now_stays_until_the_scheduler_has_sent_its_tick(scheduled: Scheduled) -> None:
    """The scheduler is precise to the minute, and tries for an hour to send a tick."""
    agent = await scheduled.create(ONCE)
    scheduled.now = 1_801_440_000 - 1
    await scheduled.writer.apply(scheduled.store(), agent)
    for scheduled.now in (1_801_440_000, 1_801_440_000 + 3600):
        await scheduled.writer.apply(scheduled.store(), agent)
        await scheduled.sweep()
        assert scheduled.expressions() == expected((agent, ONCE))


async def test_an_entry_that_has_fired_is_not_created_again(scheduled: Scheduled) -> None:
    await scheduled.entered(ONCE)
    scheduled.now = 1_801_440_000 + 30
    scheduled.aws.scheduler.entries.clear()  # as the scheduler does
    assert await scheduled.sweep() == SweptSchedules()
    assert scheduled.expressions() == {}
    scheduled.now += 4 * 3600
    await scheduled.sweep()
    assert (scheduled.expressions(), scheduled.pending_work()) == ({}, set())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("before", "after"),
    [(None, HOURLY), (HOURLY, DAILY), (HOURLY, None), (HOURLY, replace(DAILY, enabled=False)), (ONCE, HOURLY)],
    ids=["added", "changed", "removed", "disabled", "repeated"],
)
async def test_a_crash_between_table_and_scheduler_is_repaired_by_one_sweep(
    fault: Fault, before: Schedule | None, after: Schedule | None
) -> None:
    """The worker dies at every call, twice in a row where the library retries."""
    for point in count():
        scheduled = Scheduled()
        agent = await scheduled.entered(before)
        await scheduled.change(agent, after)
        with inject(FaultPlan(fault, at=point, times=2)) as plan, suppress(Crash, StorageUnavailable):
            await scheduled.writer.apply(scheduled.store(), agent)
        await scheduled.sweep()
        wanted = after is not None and after.enabled
        assert scheduled.expressions() == (expected((agent, after)) if wanted and after else {}), (point, fault)
        assert scheduled.pending_work() == ({agent} if wanted else set())
        assert await scheduled.sweep() == SweptSchedules()
        if len(plan.calls) <= point:
            break
    assert point >= 3


async def test_a_sweep_corrects_what_differs_in_both_directions(scheduled: Scheduled) -> None:
    store = scheduled.store()
    missing, stale, right, removed, unknown = [await scheduled.create(HOURLY) for _ in range(5)]
    for agent in (stale, right, removed, unknown):
        await scheduled.writer.apply(store, agent)
    await scheduled.change(stale, DAILY)
    await scheduled.change(removed, None)
    await scheduled.forget(unknown)
    swept = await scheduled.sweep()
    assert swept == SweptSchedules(corrected=4)
    assert scheduled.expressions() == expected((missing, HOURLY), (stale, DAILY), (right, HOURLY))
    assert scheduled.pending_work() == {missing, stale, right}
    assert await scheduled.sweep() == SweptSchedules()


async def test_an_entry_that_is_right_is_not_written_again(scheduled: Scheduled) -> None:
    """After an update, the scheduler counts the period of a rate from that moment."""
    await scheduled.entered(HOURLY)
    with inject(FaultPlan()) as plan:
        await scheduled.sweep()
    assert [call.operation for call in plan.calls] == ["ListSchedules", "Query", "GetItem", "GetSchedule"]


@pytest.mark.parametrize(
    "change",
    [{"State": "DISABLED"}, {"ScheduleExpressionTimezone": "Asia/Tokyo"}, {"ActionAfterCompletion": "DELETE"}],
    ids=["disabled", "another time zone", "deleted after completion"],
)
async def test_what_somebody_changed_in_an_entry_is_corrected(scheduled: Scheduled, change: dict[str, str]) -> None:
    await scheduled.entered(HOURLY)
    (entry,) = scheduled.aws.scheduler.entries.values()
    original = dict(entry)
    entry |= change
    assert await scheduled.sweep() == SweptSchedules(corrected=1)
    assert [*scheduled.aws.scheduler.entries.values()] == [original]


async def test_every_entry_comes_back_after_the_group_was_lost(scheduled: Scheduled) -> None:
    agents = [await scheduled.create(HOURLY) for _ in range(40)]
    for agent in agents:
        await scheduled.writer.apply(scheduled.store(), agent)
    before = dict(scheduled.aws.scheduler.entries)
    scheduled.aws.scheduler.entries.clear()
    assert await scheduled.sweep() == SweptSchedules(corrected=40)
    assert scheduled.aws.scheduler.entries == before


async def test_entries_of_tenants_that_are_gone_and_foreign_entries_are_deleted(scheduled: Scheduled) -> None:
    gone = await scheduled.create(HOURLY, SIBLING)
    await scheduled.writer.apply(scheduled.store(SIBLING), gone)
    kept = await scheduled.entered(HOURLY)
    copied = await scheduled.aws.schedules.get(entry_name(DEMO, kept))
    assert copied is not None
    await scheduled.aws.schedules.put(replace(copied, name="a-copy"))
    await scheduled.aws.schedules.put(ScheduleEntry("by-hand", "rate(1 day)", "UTC", "hello", once=False))
    assert await scheduled.sweep(DEMO) == SweptSchedules(orphans=3)
    assert scheduled.expressions() == expected((kept, HOURLY))
    assert await scheduled.sweep(DEMO, SIBLING) == SweptSchedules(corrected=1)
    assert entry_name(SIBLING, gone) in scheduled.expressions(), "the tenant is back"


async def test_one_agent_that_cannot_be_swept_does_not_stop_the_others(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = [await scheduled.create(HOURLY) for _ in range(5)]
    original = scheduled.aws.schedules.put

    async def put(entry: ScheduleEntry) -> None:
        if entry.name == entry_name(DEMO, agents[2]):
            raise StorageUnavailable("The scheduler does not answer.")
        await original(entry)

    monkeypatch.setattr(scheduled.aws.schedules, "put", put)
    assert await scheduled.sweep() == SweptSchedules(corrected=4, failed=1)


async def test_an_agent_that_cannot_be_read_does_not_stop_the_others(scheduled: Scheduled) -> None:
    """A version before or after this one may have written it."""
    agents = [await scheduled.create(HOURLY) for _ in range(3)]
    await scheduled.store().table.write(Update(keys.managed_agent(DEMO, agents[1]), set={"schedule": {"every": "day"}}))
    assert await scheduled.sweep() == SweptSchedules(corrected=2, failed=1)


async def test_a_sweep_ends_at_its_deadline(scheduled: Scheduled) -> None:
    for _ in range(3):
        await scheduled.create(HOURLY)
    assert await scheduled.sweep(seconds=0) == SweptSchedules()
    assert scheduled.expressions() == {}


async def test_concurrent_changes_and_sweeps_end_with_what_the_table_says() -> None:
    """Every interleaving that threads produce in 60 rounds; the entry of a new agent is never deleted."""
    for _ in range(60):
        scheduled = Scheduled()
        store = scheduled.store()
        agent = await scheduled.create(HOURLY)

        async def change(schedule: Schedule | None) -> None:
            await scheduled.change(agent, schedule)  # noqa: B023 (awaited within the round)
            await scheduled.writer.apply(store, agent)  # noqa: B023

        async def create() -> ManagedAgentId:
            new = await scheduled.create(DAILY)  # noqa: B023
            await scheduled.writer.apply(store, new)  # noqa: B023
            return new

        sweeps = asyncio.gather(scheduled.sweep(), scheduled.sweep())
        changes = asyncio.gather(*(change(schedule) for schedule in (DAILY, None, HOURLY)))
        new, _, _ = await asyncio.gather(create(), changes, sweeps)
        found = await find_agent(store, agent)
        assert found is not None
        wanted = [(agent, found.schedule)] if found.schedule is not None else []
        assert scheduled.expressions() == expected((new, DAILY), *wanted)
        assert scheduled.pending_work() == {new, *(one for one, _ in wanted)}
