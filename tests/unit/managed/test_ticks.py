"""A tick of a schedule claims one run, however often it is delivered, or stores a skipped one."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from spass.aws.job_targets import JobTargets
from spass.core.errors import StorageUnavailable
from spass.core.ids import RunId
from spass.core.jobs import Tick
from spass.core.time import timestamp
from spass.managed import mailbox
from spass.managed.records import ManagedAgent, Run, RunStatus, RunTrigger, Schedule, run_key
from spass.managed.runs import fail
from spass.managed.schedules import SCHEDULED_TIME, ScheduleWriter, entry_name, schedule_hash
from spass.managed.ticks import ClaimedRun, Ticks
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.writes import Delete, Put
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.managed.managed_store import ANA, ManagedStore

pytestmark = pytest.mark.anyio

TARGETS = JobTargets(runs_queue_arn="arn:runs", schedule_group="group", schedule_role="arn:role")
DAILY = Schedule("cron(0 9 * * ? *)", "Europe/Berlin", "Report.")
AT = "2026-12-01T08:00:00Z"


@dataclass
class Ticking(ManagedStore):
    """Managed agents with schedules, and the ticks of these."""

    ticks: Ticks = field(init=False)

    def __post_init__(self) -> None:
        self.aws = MemoryAws(TARGETS, clock=lambda: self.now)
        self.writer = ScheduleWriter(lambda: self.aws.schedules, lambda: self.now)
        self.ticks = Ticks(lambda: self.writer, lambda: self.now)

    async def scheduled(self, schedule: Schedule | None = DAILY) -> ManagedAgent:
        """Put an agent with a schedule, and its entry."""
        agent = await self.change(await self.create(ANA), schedule=DAILY)
        await self.writer.apply(self.store, agent.id)
        return await self.change(agent, schedule=schedule)

    async def change(self, agent: ManagedAgent, **values: object) -> ManagedAgent:
        changed = replace(await self.agent(agent), **values)  # type: ignore[arg-type]
        await self.store.table.write(Put(keys.managed_agent(self.tenant, agent.id), encode(changed)))
        return changed

    async def claim(self, agent: ManagedAgent, at: str = AT, sent: float = 0.0, schedule: Schedule = DAILY) -> RunId | None:
        claimed = await self.claim_run(agent, at, sent, schedule)
        return claimed.run.id if claimed is not None else None

    async def claim_run(
        self, agent: ManagedAgent, at: str = AT, sent: float = 0.0, schedule: Schedule = DAILY
    ) -> ClaimedRun | None:
        return await self.ticks.claim(self.store, Tick(self.tenant, agent.id, schedule_hash(schedule), at), sent)

    def has_entry(self, agent: ManagedAgent) -> bool:
        return ("group", entry_name(self.tenant, agent.id)) in self.aws.scheduler.entries

    def runs(self, agent: ManagedAgent) -> list[Run]:
        items = self.items(keys.managed_partition(self.tenant, agent.id))
        return [decode(Run, item) for item in items if str(item["sk"]).startswith(keys.RUN_PREFIX)]


@pytest.fixture
def ticking() -> Ticking:
    return Ticking()


async def test_a_tick_starts_a_run_with_the_input_and_the_token_of_the_agent(ticking: Ticking) -> None:
    agent = await ticking.scheduled()
    run_id = await ticking.claim(agent)
    (run,) = ticking.runs(agent)
    assert (run.id, run.trigger, run.status) == (run_id, RunTrigger.SCHEDULE, RunStatus.RUNNING)
    assert (run.token_id, run.scheduled_for) == (agent.token_id, timestamp(1_796_112_000))
    assert (await ticking.agent(agent)).active_run == run_id


async def test_a_tick_that_is_delivered_again_claims_the_same_run(ticking: Ticking) -> None:
    agent = await ticking.scheduled()
    claimed = {await ticking.claim(agent) for _ in range(3)} | {*await asyncio.gather(*(ticking.claim(agent) for _ in range(3)))}
    assert len(claimed) == 1
    assert [run.attempts for run in ticking.runs(agent)] == [1]
    again = await ticking.claim_run(agent)
    assert again is not None
    assert (again.is_begun, again.run.input) == (False, "Report.")


async def test_of_concurrent_deliveries_of_a_tick_one_begins_its_run(ticking: Ticking) -> None:
    agent = await ticking.scheduled()
    claimed = [claim for claim in await asyncio.gather(*(ticking.claim_run(agent) for _ in range(8))) if claim is not None]
    assert len(claimed) == 8
    assert [{claim.run.id for claim in claimed}] == [{run.id for run in ticking.runs(agent)}]
    assert [claim.is_begun for claim in claimed].count(True) == 1
    assert {claim.agent.active_run for claim in claimed} == {claimed[0].run.id}
    assert {claim.run.attempts for claim in claimed} == {1}, "a claim that lost spends no attempt"


async def test_a_run_that_is_over_is_not_claimed_again(ticking: Ticking) -> None:
    agent = await ticking.scheduled()
    await ticking.claim(agent)
    (run,) = ticking.runs(agent)
    await fail(ticking.store, run, {"code": "turn_lost", "message": "lost"}, ticking.now)
    assert await ticking.claim(agent) is None
    assert [run.status for run in ticking.runs(agent)] == [RunStatus.FAILED]


async def test_each_minute_has_a_run_of_its_own(ticking: Ticking) -> None:
    agent = await ticking.scheduled()
    for minute in range(3):
        ticking.now = 1_796_112_000 + 60 * minute + 0.5
        await ticking.claim(agent, f"2026-12-01T08:0{minute}:00Z")
        active = (await ticking.agent(agent)).active_run
        (run,) = [run for run in ticking.runs(agent) if run.id == active]
        await ticking.finish(run, "Done.")
    assert sorted(str(run.scheduled_for) for run in ticking.runs(agent)) == [
        timestamp(1_796_112_000 + 60 * minute) for minute in range(3)
    ]


@pytest.mark.parametrize("at", [SCHEDULED_TIME, "", "soon"])
async def test_without_a_scheduled_time_the_minute_in_which_it_was_sent_counts(ticking: Ticking, at: str) -> None:
    agent = await ticking.scheduled()
    run_id = await ticking.claim(agent, at, 1_796_112_059.9)
    assert run_id is not None
    assert await ticking.claim(agent, at, 1_796_112_000.0) == run_id
    assert await ticking.claim(agent, AT) == run_id
    assert await ticking.claim(agent, at, 1_796_112_060.0) is None, "another minute's, and the first run is active"


@pytest.mark.parametrize("reason", ["busy", "paused", "nothing to do"])
async def test_a_tick_that_cannot_run_is_a_skipped_run(ticking: Ticking, reason: str) -> None:
    agent = await ticking.scheduled(DAILY if reason != "nothing to do" else replace(DAILY, input=None))
    if reason == "busy":
        await ticking.start(agent, "hello")
    await ticking.pause(agent, reason == "paused")
    for _ in range(2):
        assert await ticking.claim(agent) is None
    skipped = [run for run in ticking.runs(agent) if run.trigger is RunTrigger.SCHEDULE]
    assert [run.status for run in skipped] == [RunStatus.SKIPPED]


async def test_a_tick_whose_messages_another_run_has_just_taken_is_skipped(
    ticking: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await ticking.scheduled(replace(DAILY, input=None))
    await ticking.put(agent, "hello")
    before = await ticking.agent(agent)
    await ticking.finish(await ticking.start(agent), "Done.", await mailbox.pending(ticking.store, before))

    async def read(*_: object) -> ManagedAgent:
        return before

    monkeypatch.setattr("spass.managed.ticks.find_agent", read)
    assert await ticking.claim(agent) is None
    assert sorted(run.status for run in ticking.runs(agent)) == [RunStatus.SKIPPED, RunStatus.SUCCEEDED]
    assert (await ticking.agent(agent)).error is None


async def test_a_skipped_tick_stays_skipped_when_the_agent_is_idle_again(ticking: Ticking) -> None:
    agent = await ticking.scheduled()
    await ticking.pause(agent)
    await ticking.claim(agent)
    await ticking.pause(agent, paused=False)
    assert await ticking.claim(agent) is None
    assert [run.status for run in ticking.runs(agent)] == [RunStatus.SKIPPED]


async def test_pending_messages_are_enough_for_a_tick_without_input(ticking: Ticking) -> None:
    agent = await ticking.scheduled(replace(DAILY, input=None))
    await ticking.put(agent, "hello")
    assert await ticking.claim(agent) is not None


@pytest.mark.parametrize("schedule", [None, replace(DAILY, enabled=False)], ids=["removed", "disabled"])
async def test_a_tick_without_a_schedule_deletes_the_entry(ticking: Ticking, schedule: Schedule | None) -> None:
    agent = await ticking.scheduled(schedule)
    assert ticking.has_entry(agent)
    assert await ticking.claim(agent) is None
    assert (ticking.has_entry(agent), ticking.runs(agent)) == (False, [])


async def test_a_deleted_agent_has_no_run_and_loses_its_entry(ticking: Ticking) -> None:
    agent = await ticking.scheduled()
    await ticking.change(agent, deleted_at=timestamp(ticking.now))
    assert await ticking.claim(agent) is None
    assert (ticking.has_entry(agent), ticking.runs(agent)) == (False, [])


async def test_a_tick_whose_run_is_deleted_between_two_reads_is_dropped(ticking: Ticking) -> None:
    agent = await ticking.scheduled()
    await ticking.claim(agent)
    (run,) = ticking.runs(agent)
    await ticking.store.table.write(Delete(run_key(ticking.store, run)))
    assert await ticking.claim(agent) is None


async def test_the_tick_of_an_earlier_schedule_does_nothing(ticking: Ticking) -> None:
    agent = await ticking.scheduled()
    assert await ticking.claim(agent, schedule=replace(DAILY, timezone="UTC")) is None
    assert (ticking.has_entry(agent), ticking.runs(agent)) == (True, [])


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.REPEATED])
async def test_a_worker_that_dies_while_it_claims_loses_no_tick(fault: Fault) -> None:
    """Each call fails, twice in a row because the table retries once. Then the queue delivers the tick again."""
    for point in count():
        ticking = Ticking()
        agent = await ticking.scheduled()
        with inject(FaultPlan(fault, at=point, times=2)) as plan, suppress(Crash, StorageUnavailable):
            await ticking.claim(agent)
        run_id = await ticking.claim(agent)
        assert run_id is not None, (fault, point)
        assert [run.id for run in ticking.runs(agent)] == [run_id]
        assert (await ticking.agent(agent)).active_run == run_id
        if len(plan.calls) <= point:
            break
    assert point >= 2
