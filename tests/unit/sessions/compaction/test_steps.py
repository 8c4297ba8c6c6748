"""A compaction's steps, when something comes between them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.faults import Fault
from spass.aws.leases import LEASE_SECONDS
from spass.aws.table import TTL, Put, Update
from spass.core.ids import AgentName, JobId, MessageId, SessionId, UserId, new_id
from spass.core.messages import FinishReason, Message, Role, TokenUsage
from spass.core.time import timestamp
from spass.sessions.compaction import steps
from spass.sessions.compaction.job import JOB_SECONDS, Job, read_job
from spass.sessions.deletion import delete_session
from spass.sessions.hold import job_hold, release, take
from spass.sessions.record import StoredMessage, TurnRecord, load_turns, store_body
from spass.sessions.session import Hold, HoldKind, Session
from spass.tenancy.settings import Cascade
from tests.simulated.works import AGENT, STEP_SECONDS, USER, Points, StepFailed, Works, at_work
from tests.unit.virtual_time import BACKEND

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return BACKEND


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Works]:
    with at_work(tmp_path, played=False) as works:
        yield works


async def asked(works: Works, session: SessionId) -> JobId:
    answer = await works.compact(session, {"Prefer": "respond-async"})
    assert answer is not None
    assert answer.status_code == 202, answer.text
    return JobId(answer.json()["job_id"])


async def job_of(works: Works, job: JobId) -> Job:
    with works.quiet():
        found = await read_job(works.store, job)
    assert found is not None
    return found


async def drafts(works: Works) -> list[str]:
    return [str(item["text"]) for item in works.stored() if item["sk"] == "DRAFT"]


async def say(works: Works, session: SessionId, text: str) -> None:
    """A turn that came while nobody held the session."""
    seq = (await works.head(session)).next_seq
    said = [Message(Role.USER, text), Message(Role.ASSISTANT, f"answer to {text}")]
    at = timestamp(works.clock())
    messages = tuple(StoredMessage(MessageId(new_id("msg")), seq + n, at, message) for n, message in enumerate(said))
    turn = TurnRecord(new_id("turn"), messages, TokenUsage(), 1, FinishReason.STOP)
    with works.quiet():
        body = await store_body(works.store, session, turn)
        await works.store.table.write(Put(keys.session_turn(works.store.tenant, session, seq), body))
        head = keys.session_head(works.store.tenant, session)
        await works.store.table.write(Update(head, "SET next_seq = :next REMOVE hold", values={":next": turn.next_seq}))


async def test_the_session_is_held_from_the_request_to_the_commit(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)
    for step, status in (("plan", "running"), ("summarise", "running"), ("commit", "succeeded")):
        await asyncio.sleep(LEASE_SECONDS - 10)
        hold = (await works.head(session)).hold
        assert hold is not None
        assert (hold.owner, hold.kind, hold.live(works.clock())) == (job, HoldKind.JOB, True)
        await works.step(step, job)
        assert (await job_of(works, job)).status == status
    assert (await works.head(session)).hold is None


async def test_the_hold_outlives_a_long_summary(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)
    works.script.during = lambda: asyncio.sleep(4 * LEASE_SECONDS)
    summarising = asyncio.create_task(works.step("summarise", job))
    for _ in range(12):
        await asyncio.sleep(20)
        hold = (await works.head(session)).hold
        assert hold is not None
        assert hold.live(works.clock())
    await summarising
    assert await drafts(works) == [works.script.chat]


async def test_a_summary_is_made_once(works: Works) -> None:
    job = await asked(works, await works.session())
    await works.step("summarise", job)
    await works.step("summarise", job)
    assert len(works.script.requests) == 1
    await works.step("commit", job)
    assert await drafts(works) == []


async def test_a_summary_is_to_be_written_while_its_step_may_run(works: Works) -> None:
    await works.step("summarise", await asked(works, await works.session()))
    (context,) = works.script.contexts
    assert 0 < context.deadline.remaining() <= STEP_SECONDS


async def test_the_model_is_the_one_that_was_set_a_moment_ago(works: Works) -> None:
    with works.quiet():
        earlier = await works.services.cascade.effective(works.store)
        await Cascade(works.services.config).change(works.store, {"compact_summary_model": "dear"})
    assert earlier.compact_summary_model != "dear"
    job = await asked(works, await works.session())
    await works.step("summarise", job)
    assert [request.model for request in works.script.requests] == ["dear"]


async def test_the_budget_is_the_one_that_was_set_a_moment_ago(works: Works) -> None:
    with works.quiet():
        await works.services.cascade.effective(works.store)
        await Cascade(works.services.config).change(works.store, {"monthly_budget_usd": 0})
    job = await asked(works, await works.session())
    await works.step("summarise", job)
    failure = (await job_of(works, job)).failure
    assert failure is not None
    assert failure.code == "budget_exceeded"
    assert works.script.requests == []


async def test_a_try_that_could_not_keep_its_summary_stands_on_the_bill(works: Works) -> None:
    for _ in range(2):  # the first one also asks for the tenant's settings
        job = await asked(works, await works.session())
        works.points = Points()
        await works.step("summarise", job)
    kept_at = max(at for at, call in enumerate(works.points.calls) if call == "summarise TransactWriteItems")
    for fault, paid in ((Fault.TIMEOUT, 2), (Fault.LOST_REPLY, 1)):
        job = await asked(works, await works.session())
        works.points = Points({kept_at: fault, kept_at + 1: fault})
        with pytest.raises(StepFailed):
            await works.step("summarise", job)
        assert works.points.calls[kept_at : kept_at + 2] == ["summarise TransactWriteItems"] * 2
        works.points = Points()
        await works.step("summarise", job)
        await works.step("commit", job)
        found = await job_of(works, job)
        assert (found.status, found.cost.sub_calls) == ("succeeded", paid)


async def test_a_failed_job_tells_what_its_summaries_cost(works: Works) -> None:
    job = await asked(works, await works.session())
    works.script.chat = ""
    await works.step("summarise", job)
    found = await job_of(works, job)
    assert (found.status, found.cost.sub_calls) == ("failed", 1)


async def test_a_failed_job_that_could_not_let_its_session_go_does_so_with_the_next_try(works: Works) -> None:
    works.script.chat = ""
    for _ in range(2):  # the first one also asks for the tenant's settings
        job = await asked(works, await works.session())
        works.points = Points()
        await works.step("summarise", job)
    released_at = len(works.points.calls) - 1
    session = await works.session()
    job = await asked(works, session)
    works.points = Points({released_at: Fault.TIMEOUT, released_at + 1: Fault.TIMEOUT})
    with pytest.raises(StepFailed):
        await works.step("summarise", job)
    assert (await job_of(works, job)).status == "failed"
    assert (await works.head(session)).hold is not None
    works.points = Points()
    await works.step("summarise", job)
    assert (await works.head(session)).hold is None


async def test_a_job_that_is_ended_as_it_commits_leaves_its_session_free(works: Works, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await works.session()
    job = await asked(works, session)
    await works.step("summarise", job)

    async def loaded(store: TenantStore, found: SessionId, from_seq: int) -> list[TurnRecord]:
        turns = await load_turns(store, found, from_seq)
        await works.step("fail", job)
        with works.quiet():
            await take(store, found, AGENT, USER, job_hold(job, None, None, works.clock()), works.clock())
        return turns

    monkeypatch.setattr(steps, "load_turns", loaded)
    await works.step("commit", job)
    assert (await job_of(works, job)).status == "failed"
    head = await works.head(session)
    assert (head.hold, head.archived_at) == (None, None)


async def test_a_turn_that_came_while_the_hold_was_lost_is_kept(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)
    await works.step("plan", job)
    await works.step("summarise", job)
    await asyncio.sleep(LEASE_SECONDS + 1)
    await say(works, session, "in between")
    await works.step("commit", job)
    found = await job_of(works, job)
    assert (found.status, found.compacted, found.kept) == ("succeeded", 8, 6)
    kept = [one.message.content for one in await works.history(found.plan.successor)]
    assert kept[-2:] == ["in between", "answer to in between"]


async def test_a_step_waits_for_whoever_took_the_session_over(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)
    await works.step("plan", job)
    await asyncio.sleep(LEASE_SECONDS + 1)
    other = await asked(works, session)
    for step in ("summarise", "commit"):
        with pytest.raises(StepFailed):
            await works.step(step, job)
    await works.step("fail", other)
    await works.step("summarise", job)
    await works.step("commit", job)
    assert (await job_of(works, job)).status == "succeeded"


async def test_a_job_that_others_kept_from_its_session_says_so(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)
    await asyncio.sleep(LEASE_SECONDS + 1)
    other = await asked(works, session)
    with pytest.raises(StepFailed):
        await works.step("plan", job)
    await works.step("fail", job)
    failure = (await job_of(works, job)).failure
    assert failure is not None
    assert failure.code == "session_busy"
    hold = (await works.head(session)).hold
    assert hold is not None
    assert hold.owner == other


async def test_a_job_whose_session_another_one_compacted_fails_and_says_where_it_went(works: Works) -> None:
    session = await works.session()
    late = await asked(works, session)
    await works.step("summarise", late)
    await asyncio.sleep(LEASE_SECONDS + 1)
    faster = await asked(works, session)
    for step in ("plan", "summarise", "commit"):
        await works.step(step, faster)
    await works.step("commit", late)
    failure = (await job_of(works, late)).failure
    assert failure is not None
    assert (failure.code, failure.details) == (
        "session_archived",
        {"successor_session_id": (await job_of(works, faster)).plan.successor},
    )
    assert await drafts(works) == []


async def test_a_deleted_session_leaves_no_summary(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)
    await works.step("summarise", job)
    assert "Berlin" in str(works.stored())
    await asyncio.sleep(LEASE_SECONDS + 1)
    with works.quiet():
        await delete_session(works.store, session, AGENT, USER, works.clock())
    await works.step("commit", job)
    found = await job_of(works, job)
    assert found.failure is not None
    assert found.failure.code == "session_not_found"
    assert "Berlin" not in str(works.stored())


async def test_what_nobody_fetches_is_forgotten_with_the_job_s_hour(works: Works) -> None:
    job = await asked(works, await works.session())
    await works.step("summarise", job)
    (draft,) = [item for item in works.stored() if item["sk"] == "DRAFT"]
    assert draft[TTL] == (await job_of(works, job)).ends_at


async def test_a_job_that_is_ended_while_it_is_summarised_stays_so(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)

    async def ended() -> None:
        await works.step("fail", job)

    works.script.during = ended
    await works.step("summarise", job)
    assert (await job_of(works, job)).status == "failed"
    assert (await works.head(session)).hold is None
    assert await drafts(works) == []


@pytest.mark.parametrize("step", ["plan", "summarise", "commit"])
async def test_a_step_that_takes_the_session_of_a_job_that_was_just_ended_lets_go(
    works: Works, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await works.session()
    job = await asked(works, session)
    if step == "commit":
        await works.step("summarise", job)

    async def taken(  # the parts of ``take``
        store: TenantStore, found: SessionId, agent: AgentName, user: UserId, hold: Hold, now: float
    ) -> Session:
        await works.step("fail", job)
        return await take(store, found, agent, user, hold, now)

    monkeypatch.setattr(steps, "take", taken)
    await works.step(step, job)
    assert (await job_of(works, job)).status == "failed"
    head = await works.head(session)
    assert (head.hold, head.archived_at) == (None, None)
    assert await drafts(works) == []


async def test_a_failed_job_stays_failed(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)
    await works.step("fail", job)
    failed = await job_of(works, job)
    assert failed.failure is not None
    assert failed.failure.code == "storage_unavailable"
    for step in ("plan", "summarise", "commit", "fail"):
        await works.step(step, job)
    assert await job_of(works, job) == failed
    head = await works.head(session)
    assert (head.hold, head.archived_at) == (None, None)


async def test_a_commit_without_a_summary_is_no_commit(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)
    with pytest.raises(StepFailed):
        await works.step("commit", job)
    assert (await works.head(session)).archived_at is None


async def test_a_job_that_is_gone_is_no_work(works: Works) -> None:
    stored = works.stored()
    for step in ("plan", "summarise", "commit", "fail"):
        await works.step(step, "job_" + "0" * 26)
    assert works.stored() == stored


async def test_a_renewal_that_fails_stops_a_summary_and_the_next_try_makes_it(works: Works) -> None:
    session = await works.session()
    job = await asked(works, session)

    async def lost() -> None:
        with works.quiet():
            await release(works.store, session, job)
        await asyncio.sleep(LEASE_SECONDS)

    works.script.during = lost
    with pytest.raises(StepFailed):
        await works.step("summarise", job)
    assert await drafts(works) == []
    works.script.during = None
    await works.step("summarise", job)
    await works.step("commit", job)
    assert (await job_of(works, job)).status == "succeeded"


@pytest.mark.parametrize("step", ["plan", "summarise", "commit"])
async def test_after_its_hour_a_job_is_not_carried_out(works: Works, step: str) -> None:
    session = await works.session()
    job = await asked(works, session)
    await works.step("summarise", job)
    await asyncio.sleep(JOB_SECONDS)
    await works.step(step, job)
    found = await job_of(works, job)
    assert found.failure is not None
    assert found.failure.code == "upstream_timeout"
    head = await works.head(session)
    assert (head.hold, head.archived_at) == (None, None)
