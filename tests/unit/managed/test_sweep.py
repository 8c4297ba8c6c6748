"""The sweep sends queued runs again that nothing executes, ends the hopeless ones, and removes texts without an item."""

import json

import pytest

from spass.aws.job_targets import JobTargets
from spass.core.errors import AgentPaused
from spass.core.ids import SessionId
from spass.core.jobs import RunAgent, WorkKind, job_of
from spass.core.time import Deadline
from spass.journal.head import claim, stream_digest
from spass.managed import mailbox, runs
from spass.managed.mailbox import FOLDER, INLINE_BYTES
from spass.managed.records import MAX_ATTEMPTS, ManagedAgent, RunStatus, RunTrigger, run_key
from spass.managed.runs import run_lost
from spass.managed.sending import send_run
from spass.managed.sweep import RESEND_SECONDS, UNWRITTEN_SECONDS, ManagedSweep, Swept
from spass.store.leases import LEASE_SECONDS
from spass.store.writes import Update
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.unit.managed.managed_store import ManagedStore

pytestmark = pytest.mark.anyio

LONG = "x" * (INLINE_BYTES + 1)


@pytest.fixture
def sent(managed: ManagedStore) -> list[object]:
    """The jobs that were sent."""
    managed.aws = MemoryAws(JobTargets(queue="jobs", runs_queue="runs"), clock=lambda: managed.now)
    jobs: list[object] = []
    managed.aws.queues.on_message = lambda _, body: jobs.append(job_of(json.loads(body)))
    return jobs


async def sweep(managed: ManagedStore) -> Swept:
    return await ManagedSweep(managed.store, None, Deadline.after(60), lambda: managed.now).run()


async def test_a_run_that_was_never_sent_is_sent_again_after_a_while(managed: ManagedStore, sent: list[object]) -> None:
    agent = await managed.create()
    run = await managed.start(agent)
    managed.now += RESEND_SECONDS - 1
    assert await sweep(managed) == Swept()
    managed.now += 1
    assert await sweep(managed) == Swept(resent=1)
    assert sent == [RunAgent(managed.tenant, agent.id, run.id)]
    assert (await managed.run(run)).status is RunStatus.QUEUED


async def test_a_run_that_never_begins_is_sent_again_and_never_fails(managed: ManagedStore, sent: list[object]) -> None:
    agent = await managed.create()
    await managed.put(agent, "hello")
    run = await managed.start(agent)
    managed.now += RESEND_SECONDS
    for _ in range(3 * MAX_ATTEMPTS):
        assert await sweep(managed) == Swept(resent=1)
        managed.now += 3600
    assert len(sent) == 3 * MAX_ATTEMPTS
    found = await managed.agent(agent)
    assert ((await managed.run(run)).status, found.status, found.pending) == (RunStatus.QUEUED, "running", 1)


async def test_a_run_whose_worker_died_is_sent_again_until_its_third_attempt(managed: ManagedStore, sent: list[object]) -> None:
    agent = await managed.create()
    run = await managed.start(agent)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert await runs.begin(managed.store, await managed.run(run), managed.now) is not None
        managed.now += RESEND_SECONDS
        assert await sweep(managed) == (Swept(resent=1) if attempt < MAX_ATTEMPTS else Swept(lost=1))
    assert (await managed.run(run)).error == {"code": "turn_lost", "message": run_lost().message}
    assert len(sent) == MAX_ATTEMPTS - 1


@pytest.mark.parametrize("trigger", [RunTrigger.MESSAGE, RunTrigger.RUN])
async def test_a_run_with_a_live_stream_is_left_alone(managed: ManagedStore, sent: list[object], trigger: RunTrigger) -> None:
    agent = await managed.create()
    run = await managed.start(agent, "hello", trigger=trigger)
    await runs.begin(managed.store, run, managed.now)
    managed.now += RESEND_SECONDS
    await live_stream(managed, agent, run.id)
    assert await sweep(managed) == Swept()
    managed.now += 61
    assert await sweep(managed) == (Swept(lost=1) if trigger is RunTrigger.MESSAGE else Swept(resent=1))


async def live_stream(managed: ManagedStore, agent: ManagedAgent, name: str) -> None:
    digest = stream_digest(agent.owner, agent.stream_agent, name)
    await claim(managed.store, digest, "", SessionId("ses_1"), "turn_1", managed.now)


async def test_an_idle_tenant_costs_the_sweep_five_reads(managed: ManagedStore) -> None:
    for _ in range(5):
        agent = await managed.create()
        await managed.put(agent, "hello")
        await managed.finish(await managed.start(agent), "done", await mailbox.pending(managed.store, await managed.agent(agent)))
    with inject(FaultPlan()) as plan:
        assert await sweep(managed) == Swept()
    assert [call.operation for call in plan.calls] == ["Query", "GetItem", "Query", "Query", "ListObjectsV2"]


async def test_the_sweep_reads_the_runs_that_wait_together(managed: ManagedStore, sent: list[object]) -> None:
    places = managed.store.line.bound(managed.store.tenant, WorkKind.RUNS)
    for _ in range(places + 30):
        await send_run(managed.store, await managed.start(await managed.create()))
    assert len(sent) == places
    managed.now += RESEND_SECONDS - 1
    with inject(FaultPlan()) as plan:
        assert await sweep(managed) == Swept()
    assert len(plan.calls) <= 4 * places + 10, [call.operation for call in plan.calls]
    assert len(sent) == places


async def test_the_place_of_a_run_that_the_sweep_ends_goes_to_what_waits(managed: ManagedStore, sent: list[object]) -> None:
    places = managed.store.line.bound(managed.store.tenant, WorkKind.RUNS)
    started = [await managed.start(await managed.create()) for _ in range(places + 1)]
    for run in started:
        await send_run(managed.store, run)
    for _ in range(MAX_ATTEMPTS):
        assert await runs.begin(managed.store, await managed.run(started[0]), managed.now) is not None
        managed.now += LEASE_SECONDS
    assert await sweep(managed) == Swept(lost=1)
    assert sent == [RunAgent(managed.tenant, run.agent_id, run.id) for run in started]


async def test_texts_that_no_item_has_are_removed_after_a_day(managed: ManagedStore) -> None:
    agent = await managed.create()
    await managed.put(agent, LONG)
    await managed.finish(await managed.start(agent, own_input=LONG), LONG)
    for at in range(2):
        with pytest.raises(Crash), inject(FaultPlan(Fault.CRASH_AFTER, 1 + at)):
            await managed.start(agent, LONG, own_input=LONG)
    kept = managed.aws.bucket.keys
    await managed.put(agent, "hello")
    assert len(kept) == 3 + 3
    managed.now += UNWRITTEN_SECONDS - 1
    assert (await sweep(managed)).texts == 0
    managed.now += 1
    assert (await sweep(managed)).texts == 3
    assert [message[2] for message in await managed.messages(agent)] == [LONG, LONG, "hello"]
    assert len(managed.aws.bucket.keys) == 3


async def test_texts_of_refused_requests_are_removed_after_a_day(managed: ManagedStore) -> None:
    agent = await managed.create()
    before = await managed.agent(agent)
    await managed.pause(agent)
    with pytest.raises(AgentPaused):
        await mailbox.put(managed.store, before, LONG, managed.now)
    with pytest.raises(AgentPaused):
        await managed.start(agent, LONG, own_input=LONG)
    managed.now += UNWRITTEN_SECONDS
    assert (await sweep(managed)).texts == 3
    assert managed.aws.bucket.keys == []


async def test_a_text_of_a_busy_mailbox_is_found_although_it_was_numbered_late(managed: ManagedStore) -> None:
    agent = await managed.create()
    stale = await managed.agent(agent)
    for number in range(80):
        await managed.put(agent, str(number))
    await mailbox.put(managed.store, stale, LONG, managed.now)
    managed.now += UNWRITTEN_SECONDS
    assert (await sweep(managed)).texts == 0
    assert (await managed.messages(agent))[-1][2] == LONG


async def test_one_failure_does_not_stop_the_sweep(managed: ManagedStore, sent: list[object]) -> None:
    agents = [await managed.create() for _ in range(3)]
    for agent in agents:
        await managed.start(agent)
    managed.now += RESEND_SECONDS
    with inject(FaultPlan(Fault.THROTTLE, 2, times=2)):
        swept = await sweep(managed)
    assert (swept.failed, swept.resent) == (1, 2)
    assert len(sent) == 2


async def test_what_cannot_be_read_does_not_stop_the_sweep(managed: ManagedStore, sent: list[object]) -> None:
    """A version before or after this one may have written it. It would stop every sweep of the tenant."""
    agents = [await managed.create() for _ in range(3)]
    started = [await managed.start(agent) for agent in agents]
    key = run_key(managed.store, started[1])
    await managed.store.table.write(Update(key, set={"status": "dreaming"}))
    for name in ("readme.txt", "x/y"):
        await managed.store.objects.put(f"{FOLDER}{agents[0].id}/{name}", b"by hand")
    idle = await managed.agent(agents[2])
    with pytest.raises(Crash), inject(FaultPlan(Fault.CRASH_AFTER)):
        await mailbox.put(managed.store, idle, LONG, managed.now)
    managed.now += UNWRITTEN_SECONDS
    assert await sweep(managed) == Swept(resent=2, texts=1, failed=2)
    assert len(sent) == 2
