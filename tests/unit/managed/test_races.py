"""Race messages, runs, ticks, changes, sweeps and the deletion of one agent, with faults, under many seeds.

At most one run is active at any time. In the end each accepted message was delivered once, by a run that answered once.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from spass.aws import commit_marker, keys
from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.aws.job_targets import JobTargets
from spass.aws.writes import Equals, Put, Update, Write
from spass.core.errors import AgentNotFound, SessionBusy, SpassError, UpstreamError
from spass.core.ids import ManagedAgentId, RunId, TenantId, UserId, derived_id, new_id
from spass.core.jobs import RunAgent, WorkKind
from spass.core.time import Deadline, timestamp
from spass.managed import mailbox, runs
from spass.managed.deletion import delete_agent
from spass.managed.lookup import find_agent, read_agent
from spass.managed.records import Direction, ManagedAgent, MessageStatus, Run, RunStatus, RunTrigger, decode_run, encode_agent
from spass.managed.run_end import fail, finish_writes, skip_queued
from spass.managed.run_start import new_run, skip, start
from spass.managed.sweep import ManagedSweep
from spass.managed.texts import INLINE_BYTES
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, inject
from tests.sampling import SOAK
from tests.simulated.schedule import MANY_FAULTS, FaultRates, Schedule, run_schedule
from tests.unit.managed.managed_store import outcome

SEEDS: Final = [int(os.environ["SPASS_SEED"])] if "SPASS_SEED" in os.environ else range(3000 if SOAK else 300)
RACE_FAULTS: Final = FaultRates({fault: 3 * odds for fault, odds in MANY_FAULTS.odds.items()})
OWNER, TENANT, TOKEN = UserId("ana"), TenantId("demo"), "token-1"
ERROR: Final = {"code": "upstream_error", "message": "The provider failed."}


@dataclass(slots=True)
class Race:
    """One agent, and the tasks that work on it. ``accepted`` are the contents whose senders got an answer."""

    schedule: Schedule
    aws: MemoryAws
    agent: ManagedAgent
    accepted: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    events: Counter[str] = field(default_factory=Counter)

    @property
    def store(self) -> TenantStore:
        return self.aws.for_tenant(TENANT)

    @property
    def now(self) -> float:
        return self.schedule.now()

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(self.schedule.rng.random() * seconds)

    async def in_processes(self, work: Callable[[], Awaitable[None]], tries: int, pause: float = 30) -> None:
        """Do ``work`` several times, each in a process of its own, which may crash."""
        for _ in range(tries):
            await self.wait(pause)
            with inject(self.schedule.process()), suppress(Crash):
                try:
                    await work()
                except SpassError as error:
                    self.events[error.code] += 1

    def text(self) -> str:
        content = new_id("msg")
        self.sent.add(content)
        return content + "x" * (INLINE_BYTES if self.schedule.rng.random() < 0.2 else 0)

    async def send(self) -> None:
        content = self.text()
        await mailbox.put(self.store, await self.read(), content, self.now)
        self.accepted.add(content)

    async def stream(self) -> None:
        content = self.text()
        found = await self.read()
        run = await start(self.store, found, new_run(found, RunTrigger.MESSAGE, TOKEN, self.now), content, self.now)
        self.accepted.add(content)
        await self.execute(run)

    async def queue(self) -> None:
        found = await self.read()
        text = self.text() if self.schedule.rng.random() < 0.3 else None
        run = await start(self.store, found, new_run(found, RunTrigger.RUN, TOKEN, self.now, own_input=text), None, self.now)
        await self.store.jobs.send(RunAgent(TENANT, run.agent_id, run.id))

    async def work(self) -> None:
        """Execute the active run, as a worker does that got its message, perhaps not for the first time."""
        found = await self.read()
        if found.active_run is None:
            return
        run = await runs.read_run(self.store, found.id, found.active_run)
        if run.trigger is RunTrigger.MESSAGE or run.attempts >= 3:
            return
        begun = await runs.begin(self.store, run, self.now)
        if begun is not None:
            await self.execute(begun)

    async def tick(self) -> None:
        """Receive a tick of one of the last minutes."""
        found = await self.read()
        minute = int(self.now) // 60 - self.schedule.rng.randrange(2)
        run = new_run(
            found, RunTrigger.SCHEDULE, TOKEN, self.now, run=RunId(derived_id("run", minute * 60_000, f"{found.id}{minute}"))
        )
        new = runs.begun(run, self.now)
        try:
            stored = await start(self.store, found, new, None, self.now)
        except SpassError as error:
            if error.code in ("session_busy", "agent_paused", "nothing_to_run"):
                await skip(self.store, run, self.now)
                return
            raise
        if stored.begun_by == new.begun_by:
            await self.execute(stored)

    async def execute(self, run: Run) -> None:
        """Run a turn: read the mailbox, wait for a model, and commit, or fail."""
        found = await find_agent(self.store, run.agent_id)
        if found is None:
            return
        pending = await mailbox.pending(self.store, found)
        await self.wait(90 if self.schedule.rng.random() < 0.1 else 5)
        try:
            if self.schedule.rng.random() < 0.3:
                raise UpstreamError("The provider failed.")
            commit = await finish_writes(self.store, run, outcome(f"answer of {run.id}"), pending, self.now)
            writes: Sequence[Write] | None = commit.writes
            while writes is not None and await commit_marker.commit(self.store, writes):
                assert commit.renew is not None
                writes = await commit.renew()
        except SpassError:
            await fail(self.store, run, ERROR, self.now)

    async def stop(self) -> None:
        found = await self.read()
        if found.active_run is not None:
            await skip_queued(self.store, await runs.read_run(self.store, found.id, found.active_run), self.now)

    async def pause(self) -> None:
        """Pause the agent, or continue it."""
        found = await self.read()
        values = {"paused": not found.paused, "version": found.version + 1}
        key = keys.managed_agent(TENANT, found.id)
        await commit_marker.commit(self.store, [Update(key, set=values, when=Equals("version", found.version))])

    async def sweep(self) -> None:
        await ManagedSweep(self.store, None, Deadline.after(60), self.schedule.now).run()

    async def delete(self) -> None:
        await delete_agent(self.store, OWNER, self.agent.id, None, Deadline.after(60), self.schedule.now)

    async def read(self) -> ManagedAgent:
        return await read_agent(self.store, OWNER, self.agent.id)

    async def drain(self) -> None:
        """End what is active, and let runs read the rest of the mailbox."""
        await self.schedule.calm()
        for _ in range(8):
            await asyncio.sleep(3 * 3600)
            await self.sweep()
            await self.work()
        found = await self.read()
        assert found.active_run is None
        if found.paused:
            await self.pause()
        while (found := await self.read()).pending:
            run = await start(self.store, found, new_run(found, RunTrigger.MESSAGE, TOKEN, self.now), None, self.now)
            commit = await finish_writes(
                self.store, run, outcome(f"answer of {run.id}"), await mailbox.pending(self.store, found), self.now
            )
            assert not await commit_marker.commit(self.store, commit.writes)

    async def check(self) -> None:
        """Check the mailbox and the runs of an agent that has nothing left to do."""
        found = await self.read()
        page = await mailbox.page(self.store, found.id, None, 1000)
        assert [message.seq for message in page.messages] == [*range(1, found.next_seq)]
        stored = [decode_run(item) for item in self.items() if str(item["sk"]).startswith(keys.RUN_PREFIX)]
        succeeded = {run.id for run in stored if run.status is RunStatus.SUCCEEDED}
        assert all(run.status.is_final for run in stored)
        answers = Counter(message.run_id for message in page.messages if message.direction is Direction.AGENT_TO_USER)
        assert answers == Counter(succeeded)
        questions = [message for message in page.messages if message.direction is Direction.USER_TO_AGENT]
        contents = Counter(message.content for message in questions)
        assert max(contents.values(), default=1) == 1
        assert self.accepted <= contents.keys()
        assert all(message.status is MessageStatus.DELIVERED and message.run_id in succeeded for message in questions)
        assert self.open_work() == []
        self.events["messages"] += len(questions)
        self.events["succeeded"] += len(succeeded)
        for run in stored:
            self.events[run.status] += 1

    def items(self) -> list[Item]:
        partition = keys.managed_partition(TENANT, self.agent.id)
        return [item for item in self.aws.table.items() if item["pk"] == partition]

    def open_work(self) -> list[str]:
        return [str(item["sk"]) for item in self.aws.table.items() if item["pk"] == keys.open_work_partition(TENANT)]


async def race(schedule: Schedule) -> Race:
    """Return a race for a new agent. No write replaces its active run by another one."""
    aws = MemoryAws(JobTargets(queue="jobs", runs_queue="runs"), clock=schedule.now)
    at = timestamp(schedule.now())
    agent = ManagedAgent(
        id=ManagedAgentId(new_id("agt")),
        name="helper",
        agent="simple",
        owner=OWNER,
        token_id=TOKEN,
        created_at=at,
        updated_at=at,
    )

    def watch(before: Item | None, after: Item | None) -> None:
        active = [item.get("active_run") for item in (before, after) if item is not None and item["sk"] == "AGENT"]
        assert len(active) < 2 or None in active or active[0] == active[1], active
        if before is not None and after is not None and str(before["sk"]).startswith(keys.RUN_PREFIX):
            status = RunStatus(str(before["status"]))
            assert not status.is_final or after["status"] == status, (before, after)

    aws.table.watch = watch
    found = Race(schedule, aws, agent)
    await found.store.table.write(Put(keys.managed_agent(TENANT, agent.id), encode_agent(agent)))
    await found.store.table.write(Put(keys.user_managed(TENANT, OWNER, agent.id), {"created_at": at}))
    return found


async def tell_story(schedule: Schedule) -> Counter[str]:
    """Race everything but a deletion."""
    one = await race(schedule)
    tasks = [
        *(one.in_processes(one.send, 5) for _ in range(3)),
        *(one.in_processes(one.stream, 4) for _ in range(3)),
        *(one.in_processes(one.queue, 3, 60) for _ in range(2)),
        *(one.in_processes(one.work, 12, 30) for _ in range(3)),
        *(one.in_processes(one.tick, 3, 60) for _ in range(3)),
        one.in_processes(one.stop, 3, 60),
        one.in_processes(one.pause, 4, 60),
        one.in_processes(one.sweep, 3, 90),
    ]
    await asyncio.gather(*tasks)
    await one.drain()
    await one.check()
    return one.events


async def tell_deletion(schedule: Schedule) -> Counter[str]:
    """Delete the agent while others use it. Afterwards nothing of it is left."""
    one = await race(schedule)
    tasks = [
        *(one.in_processes(one.send, 4) for _ in range(2)),
        *(one.in_processes(one.stream, 3) for _ in range(2)),
        one.in_processes(one.queue, 3, 60),
        *(one.in_processes(one.work, 6, 30) for _ in range(2)),
        one.in_processes(one.tick, 3, 60),
        *(one.in_processes(one.delete, 4, 60) for _ in range(2)),
    ]
    await asyncio.gather(*tasks)
    await schedule.calm()
    for _ in range(10):
        await asyncio.sleep(3 * 3600)
        await one.sweep()
        with suppress(AgentNotFound, SessionBusy):  # a run that was never sent is active until the sweep sends it
            await one.delete()
        with suppress(AgentNotFound):
            await one.work()
    await asyncio.sleep(24 * 3600)
    await one.sweep()
    left = [item for item in one.aws.table.items() if "#COMMIT#" not in str(item["pk"])]
    assert [item for item in left if item["pk"] != keys.work_partition(WorkKind.RUNS)] == []  # this race has no real workers
    assert one.aws.bucket.keys == []
    return one.events


def test_every_accepted_message_is_delivered_and_answered_once() -> None:
    events: Counter[str] = Counter()
    faults = 0
    for seed in SEEDS:
        schedule = Schedule(seed, RACE_FAULTS)
        try:
            events += run_schedule(schedule, lambda schedule=schedule: tell_story(schedule))  # type: ignore[misc]
        except BaseException as error:
            error.add_note(f"SPASS_SEED={seed}")
            raise
        faults += sum(schedule.fault_counts.values())
    if len(SEEDS) > 1:
        assert {"session_busy", "agent_paused", "succeeded", "failed", "skipped", "messages"} <= events.keys()
        assert faults > len(SEEDS)


def test_a_deletion_that_races_leaves_nothing() -> None:
    events: Counter[str] = Counter()
    for seed in SEEDS[::3]:
        schedule = Schedule(seed, RACE_FAULTS)
        try:
            events += run_schedule(schedule, lambda schedule=schedule: tell_deletion(schedule))  # type: ignore[misc]
        except BaseException as error:
            error.add_note(f"SPASS_SEED={seed}")
            raise
    if len(SEEDS) > 1:
        assert {"session_busy", "agent_not_found"} <= events.keys()
