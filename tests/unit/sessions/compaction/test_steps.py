"""The steps of a compaction job, with failures and other requests between them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from spass.calls.admission import Admission
from spass.calls.scope import JOB_MAX_WAIT, REQUEST_MAX_WAIT, Scope
from spass.core.cost import Cost
from spass.core.errors import RateLimited
from spass.core.ids import AgentName, JobId, MessageId, SessionId, UserId, new_id
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import timestamp
from spass.limits.shard import Reservation
from spass.sessions.compaction import steps
from spass.sessions.compaction.job import JOB_SECONDS, RETRIES_EXHAUSTED, Job, JobResult, fail_job, read_job
from spass.sessions.deletion import delete_session
from spass.sessions.hold import acquire_hold, new_hold, release_hold
from spass.sessions.record import StoredMessage, TurnRecord, load_turns, store_body
from spass.sessions.session import Hold, HoldKind, Session
from spass.store import keys
from spass.store.leases import LEASE_SECONDS
from spass.store.table import TTL
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put, Update
from spass.tenancy.settings import Cascade
from spass.testing.faults import Fault
from tests.simulated.deployment import (
    AGENT,
    STEP_SECONDS,
    USER,
    CallFaults,
    SimulatedDeployment,
    StepFailed,
    simulated_deployment,
)
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[SimulatedDeployment]:
    with simulated_deployment(tmp_path, played=False) as deployment:
        yield deployment


async def start_job(deployment: SimulatedDeployment, session: SessionId) -> JobId:
    answer = await deployment.compact(session, {"Prefer": "respond-async"})
    assert answer.status_code == 202, answer.text
    return JobId(answer.json()["job_id"])


async def job_of(deployment: SimulatedDeployment, job: JobId) -> Job:
    with deployment.quiet():
        record = await read_job(deployment.store, job)
    assert record is not None
    return record


async def failure_of(deployment: SimulatedDeployment, job: JobId) -> str | None:
    failure = (await job_of(deployment, job)).failure
    return failure.code if failure is not None else None


async def check_released(deployment: SimulatedDeployment, session: SessionId) -> None:
    head = await deployment.head(session)
    assert (head.hold, head.archived_at) == (None, None)


async def run_steps(deployment: SimulatedDeployment, job: str, *steps: str) -> None:
    for step in steps:
        await deployment.step(step, job)


async def drafts(deployment: SimulatedDeployment) -> list[str]:
    return [str(item["text"]) for item in deployment.stored() if item["sk"] == "DRAFT"]


async def say(deployment: SimulatedDeployment, session: SessionId, text: str) -> None:
    """Add a turn to a session that is not held."""
    seq = (await deployment.head(session)).next_seq
    new_messages = [Message(Role.USER, text), Message(Role.ASSISTANT, f"answer to {text}")]
    at = timestamp(deployment.clock())
    messages = tuple(StoredMessage(MessageId(new_id("msg")), seq + n, at, message) for n, message in enumerate(new_messages))
    turn = TurnRecord(new_id("turn"), messages, TokenUsage(), 1, FinishReason.STOP)
    with deployment.quiet():
        body = await store_body(deployment.store, session, turn)
        await deployment.store.table.write(Put(keys.session_turn(deployment.store.tenant, session, seq), body))
        head = keys.session_head(deployment.store.tenant, session)
        await deployment.store.table.write(Update(head, set={"next_seq": turn.next_seq}, remove=("hold",)))


async def test_the_session_is_held_from_the_request_to_the_commit(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    for step, status in (("plan", "running"), ("summarise", "running"), ("commit", "succeeded")):
        await asyncio.sleep(LEASE_SECONDS - 10)
        hold = (await deployment.head(session)).hold
        assert hold is not None
        assert (hold.owner, hold.kind, hold.live(deployment.clock())) == (job, HoldKind.JOB, True)
        await deployment.step(step, job)
        assert (await job_of(deployment, job)).status == status
    assert (await deployment.head(session)).hold is None


async def test_the_hold_is_renewed_during_a_long_summary(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    deployment.model.before_chat = lambda: asyncio.sleep(4 * LEASE_SECONDS)
    summarising = asyncio.create_task(deployment.step("summarise", job))
    for _ in range(12):
        await asyncio.sleep(20)
        hold = (await deployment.head(session)).hold
        assert hold is not None
        assert hold.live(deployment.clock())
    await summarising
    assert await drafts(deployment) == [deployment.model.script]


async def test_a_repeated_summarise_step_does_not_call_the_model_again(deployment: SimulatedDeployment) -> None:
    job = await start_job(deployment, await deployment.session())
    await run_steps(deployment, job, "summarise", "summarise")
    assert len(deployment.model.requests) == 1
    await deployment.step("commit", job)
    assert await drafts(deployment) == []


async def test_the_deadline_of_a_summary_is_within_the_time_of_its_step(deployment: SimulatedDeployment) -> None:
    await deployment.step("summarise", await start_job(deployment, await deployment.session()))
    (context,) = deployment.model.contexts
    assert 0 < context.deadline.remaining() <= STEP_SECONDS


async def test_a_step_reads_the_current_summary_model_of_the_tenant(deployment: SimulatedDeployment) -> None:
    with deployment.quiet():
        earlier = await deployment.services.cascade.effective(deployment.store)
        await Cascade(deployment.services.config).change(deployment.store, {"compact_summary_model": "dear"})
    assert earlier.config.compact_summary_model != "dear"
    job = await start_job(deployment, await deployment.session())
    await deployment.step("summarise", job)
    assert [request.model for request in deployment.model.requests] == ["dear"]


async def test_a_step_reads_the_current_budget_of_the_tenant(deployment: SimulatedDeployment) -> None:
    with deployment.quiet():
        await deployment.services.cascade.effective(deployment.store)
        await Cascade(deployment.services.config).change(deployment.store, {"monthly_budget_usd": 0})
    job = await start_job(deployment, await deployment.session())
    await deployment.step("summarise", job)
    assert await failure_of(deployment, job) == "budget_exceeded"
    assert deployment.model.requests == []


async def test_the_cost_of_an_attempt_whose_draft_was_not_stored_is_counted(deployment: SimulatedDeployment) -> None:
    for _ in range(2):  # the first one also asks for the tenant's settings
        job = await start_job(deployment, await deployment.session())
        deployment.points = CallFaults()
        await deployment.step("summarise", job)
    kept_at = max(at for at, call in enumerate(deployment.points.calls) if call == "summarise TransactWriteItems")
    for fault, paid in ((Fault.TIMEOUT, 2), (Fault.LOST_REPLY, 1)):
        job = await start_job(deployment, await deployment.session())
        deployment.points = CallFaults({kept_at: fault, kept_at + 1: fault})
        with pytest.raises(StepFailed):
            await deployment.step("summarise", job)
        assert deployment.points.calls[kept_at : kept_at + 2] == ["summarise TransactWriteItems"] * 2
        deployment.points = CallFaults()
        await deployment.step("summarise", job)
        await deployment.step("commit", job)
        record = await job_of(deployment, job)
        assert (record.status, record.cost.sub_calls) == ("succeeded", paid)


async def test_a_failed_job_has_the_cost_of_its_model_calls(deployment: SimulatedDeployment) -> None:
    job = await start_job(deployment, await deployment.session())
    deployment.model.script = ""
    await deployment.step("summarise", job)
    record = await job_of(deployment, job)
    assert (record.status, record.cost.sub_calls) == ("failed", 1)


async def test_a_retry_releases_the_session_that_a_failed_job_could_not_release(deployment: SimulatedDeployment) -> None:
    deployment.model.script = ""
    for _ in range(2):  # the first one also asks for the tenant's settings
        job = await start_job(deployment, await deployment.session())
        deployment.points = CallFaults()
        await deployment.step("summarise", job)
    released_at = len(deployment.points.calls) - 1
    session = await deployment.session()
    job = await start_job(deployment, session)
    deployment.points = CallFaults({released_at: Fault.TIMEOUT, released_at + 1: Fault.TIMEOUT})
    with pytest.raises(StepFailed):
        await deployment.step("summarise", job)
    assert (await job_of(deployment, job)).status == "failed"
    assert (await deployment.head(session)).hold is not None
    deployment.points = CallFaults()
    await deployment.step("summarise", job)
    assert (await deployment.head(session)).hold is None


async def test_a_job_that_fails_during_its_commit_leaves_its_session_released(
    deployment: SimulatedDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    await deployment.step("summarise", job)

    async def fail_after_load(store: TenantStore, session_id: SessionId, from_seq: int) -> list[TurnRecord]:
        turns = await load_turns(store, session_id, from_seq)
        await deployment.step("fail", job)
        hold = new_hold(job, HoldKind.JOB, None, deployment.clock())
        with deployment.quiet():
            await acquire_hold(store, session_id, AGENT, USER, hold, deployment.clock())
        return turns

    monkeypatch.setattr(steps, "load_turns", fail_after_load)
    await deployment.step("commit", job)
    assert (await job_of(deployment, job)).status == "failed"
    await check_released(deployment, session)


async def test_a_turn_added_while_the_hold_was_lost_is_kept(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    await run_steps(deployment, job, "plan", "summarise")
    await asyncio.sleep(LEASE_SECONDS + 1)
    await say(deployment, session, "in between")
    await deployment.step("commit", job)
    record = await job_of(deployment, job)
    assert (record.status, record.result) == ("succeeded", JobResult(8, 6, "small"))
    texts = [one.message.content for one in await deployment.history(record.plan.successor)]
    assert texts[-2:] == ["in between", "answer to in between"]


async def test_a_step_fails_until_the_new_holder_releases_the_session(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    await deployment.step("plan", job)
    await asyncio.sleep(LEASE_SECONDS + 1)
    other = await start_job(deployment, session)
    for step in ("summarise", "commit"):
        with pytest.raises(StepFailed):
            await deployment.step(step, job)
    await deployment.step("fail", other)
    await run_steps(deployment, job, "summarise", "commit")
    assert (await job_of(deployment, job)).status == "succeeded"


async def test_a_job_that_never_got_its_hold_back_fails_with_session_busy(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    await asyncio.sleep(LEASE_SECONDS + 1)
    other = await start_job(deployment, session)
    with pytest.raises(StepFailed):
        await deployment.step("plan", job)
    await deployment.step("fail", job)
    assert await failure_of(deployment, job) == "session_busy"
    hold = (await deployment.head(session)).hold
    assert hold is not None
    assert hold.owner == other


async def test_a_job_fails_with_the_successor_that_another_job_created(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    late = await start_job(deployment, session)
    await deployment.step("summarise", late)
    await asyncio.sleep(LEASE_SECONDS + 1)
    faster = await start_job(deployment, session)
    await run_steps(deployment, faster, "plan", "summarise", "commit")
    await deployment.step("commit", late)
    failure = (await job_of(deployment, late)).failure
    assert failure is not None
    assert (failure.code, failure.details) == (
        "session_archived",
        {"successor_session_id": (await job_of(deployment, faster)).plan.successor},
    )
    assert await drafts(deployment) == []


async def test_a_deleted_session_leaves_no_summary(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    await deployment.step("summarise", job)
    assert "Berlin" in str(deployment.stored())
    await asyncio.sleep(LEASE_SECONDS + 1)
    with deployment.quiet():
        await delete_session(deployment.store, session, AGENT, USER, deployment.clock())
    await deployment.step("commit", job)
    assert await failure_of(deployment, job) == "session_not_found"
    assert "Berlin" not in str(deployment.stored())


async def test_a_draft_expires_with_the_time_limit_of_its_job(deployment: SimulatedDeployment) -> None:
    job = await start_job(deployment, await deployment.session())
    await deployment.step("summarise", job)
    (draft,) = [item for item in deployment.stored() if item["sk"] == "DRAFT"]
    assert draft[TTL] == (await job_of(deployment, job)).ends_at


async def test_a_job_that_fails_during_its_summary_stays_failed(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)

    async def fail_job_during_summary() -> None:
        await deployment.step("fail", job)

    deployment.model.before_chat = fail_job_during_summary
    await deployment.step("summarise", job)
    assert (await job_of(deployment, job)).status == "failed"
    assert (await deployment.head(session)).hold is None
    assert await drafts(deployment) == []


@pytest.mark.parametrize("step", ["plan", "summarise", "commit"])
async def test_a_step_releases_the_session_if_its_job_has_failed_meanwhile(
    deployment: SimulatedDeployment, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    if step == "commit":
        await deployment.step("summarise", job)

    async def fail_before_hold(
        store: TenantStore, session_id: SessionId, agent: AgentName, user: UserId, hold: Hold, now: float
    ) -> Session:
        await deployment.step("fail", job)
        return await acquire_hold(store, session_id, agent, user, hold, now)

    monkeypatch.setattr(steps, "acquire_hold", fail_before_hold)
    await deployment.step(step, job)
    assert (await job_of(deployment, job)).status == "failed"
    await check_released(deployment, session)
    assert await drafts(deployment) == []


async def test_a_failed_job_stays_failed(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    await deployment.step("fail", job)
    failed = await job_of(deployment, job)
    assert failed.failure is not None
    assert failed.failure.code == "storage_unavailable"
    await run_steps(deployment, job, "plan", "summarise", "commit", "fail")
    assert await job_of(deployment, job) == failed
    await check_released(deployment, session)


async def test_a_late_retry_of_the_failing_step_does_not_undo_a_success(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    unfinished = await job_of(deployment, job)
    await run_steps(deployment, job, "plan", "summarise", "commit")
    succeeded = await job_of(deployment, job)
    stored = deployment.stored()
    await deployment.step("fail", job)
    with deployment.quiet():  # a retry of the step that read the job before it succeeded
        assert await fail_job(deployment.store, unfinished, RETRIES_EXHAUSTED, deployment.clock()) == succeeded
    assert deployment.stored() == stored


async def test_a_commit_without_a_summary_fails(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    with pytest.raises(StepFailed):
        await deployment.step("commit", job)
    assert (await deployment.head(session)).archived_at is None


async def test_the_steps_of_a_missing_job_do_nothing(deployment: SimulatedDeployment) -> None:
    stored = deployment.stored()
    await run_steps(deployment, "job_" + "0" * 26, "plan", "summarise", "commit", "fail")
    assert deployment.stored() == stored


async def test_a_failed_renewal_stops_the_summary_and_a_retry_completes_it(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)

    async def lose_hold() -> None:
        with deployment.quiet():
            await release_hold(deployment.store, session, job)
        await asyncio.sleep(LEASE_SECONDS)

    deployment.model.before_chat = lose_hold
    with pytest.raises(StepFailed):
        await deployment.step("summarise", job)
    assert await drafts(deployment) == []
    deployment.model.before_chat = None
    await run_steps(deployment, job, "summarise", "commit")
    assert (await job_of(deployment, job)).status == "succeeded"


@pytest.mark.parametrize("step", ["plan", "summarise", "commit"])
async def test_a_step_after_the_time_limit_fails_the_job(deployment: SimulatedDeployment, step: str) -> None:
    session = await deployment.session()
    job = await start_job(deployment, session)
    await deployment.step("summarise", job)
    await asyncio.sleep(JOB_SECONDS)
    await deployment.step(step, job)
    assert await failure_of(deployment, job) == "upstream_timeout"
    await check_released(deployment, session)


class Limited:
    """A tenant's rate limit that refuses calls of models. ``waits`` are the seconds that each refused call was ready to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[float] = []
        self.is_full = True
        reserve = Admission._reserve

        async def refuse(admission: Admission, scope: Scope, expected: TokenUsage, cost: Cost) -> Reservation | None:
            if self.is_full:
                self.waits.append(scope.seconds_to_wait)
                raise RateLimited("The limit is reached.", retry_after=50)
            return await reserve(admission, scope, expected, cost)

        monkeypatch.setattr(Admission, "_reserve", refuse)


async def test_a_summary_that_meets_the_rate_limit_leaves_its_function(
    deployment: SimulatedDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is held meanwhile."""
    limit = Limited(monkeypatch)
    session = await deployment.session()
    job = await start_job(deployment, session)
    await deployment.step("plan", job)
    for _ in range(2):
        answer = await deployment.step("summarise", job, may_wait=True)
        assert isinstance(answer, dict)
        wait = answer["wait"]
        assert isinstance(wait, int)
        assert 50 <= wait <= 55
        await asyncio.sleep(wait)
        hold = (await deployment.head(session)).hold
        assert hold is not None
        assert (hold.owner, hold.live(deployment.clock())) == (job, True)
    assert limit.waits == [REQUEST_MAX_WAIT] * 2
    assert (await job_of(deployment, job)).status == "running"
    limit.is_full = False
    assert await deployment.step("summarise", job) == {"job": job, "wait": 0}
    await deployment.step("commit", job)
    assert (await job_of(deployment, job)).status == "succeeded"
    assert len(deployment.model.requests) == 1


async def test_an_execution_of_the_release_before_waits_in_its_function(
    deployment: SimulatedDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine has no state that waits: it would go on to the commit without a summary, and retry that for minutes."""
    limit = Limited(monkeypatch)
    session = await deployment.session()
    job = await start_job(deployment, session)
    assert await deployment.step("summarise", job) == {"job": job, "wait": 0}
    assert limit.waits == [JOB_MAX_WAIT]
    record = await job_of(deployment, job)
    assert record.failure is not None
    assert record.failure.code == "rate_limited"
    assert (await deployment.head(session)).hold is None


async def test_a_summary_that_does_not_get_below_the_rate_limit_fails_in_minutes(
    deployment: SimulatedDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Limited(monkeypatch)
    deployment.played = True
    session = await deployment.session()
    began = deployment.clock()
    job = await start_job(deployment, session)
    await deployment.settled()
    assert 180 <= deployment.clock() - began < 300
    record = await job_of(deployment, job)
    assert record.failure is not None
    assert (record.failure.code, record.failure.retry_after) == ("rate_limited", 50)
    assert (await deployment.head(session)).hold is None
    assert len(limit.waits) <= 6
    assert deployment.failed_executions == []


async def test_a_job_that_ends_while_its_summary_is_put_back_stays_ended(
    deployment: SimulatedDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    Limited(monkeypatch)
    session = await deployment.session()
    job = await start_job(deployment, session)
    await deployment.step("summarise", job, may_wait=True)
    await deployment.step("fail", job)
    assert await deployment.step("summarise", job, may_wait=True) == {"job": job, "wait": 0}
    assert (await job_of(deployment, job)).status == "failed"
    assert (await deployment.head(session)).hold is None
