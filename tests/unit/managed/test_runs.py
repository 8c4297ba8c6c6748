"""A run is started, begun and ended by one write each: at most one is active, and a failed one leaves its messages pending."""

import asyncio
from dataclasses import replace

import pytest

from spass.core.errors import (
    AgentPaused,
    IdempotencyKeyReused,
    InvalidRequest,
    NothingToRun,
    RunNotFound,
    SessionBusy,
    SpassError,
)
from spass.core.ids import RunId, derived_id
from spass.core.messages import TokenUsage
from spass.managed import mailbox, runs
from spass.managed.mailbox import INLINE_BYTES
from spass.managed.records import AgentStatus, Direction, MessageStatus, Run, RunStatus, RunTrigger
from spass.managed.run_start import new_run, skip, start
from spass.managed.runs import fail, skip_queued
from spass.store.table import TransactionFailed
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from tests.sampling import sampled
from tests.unit.managed.managed_store import TOKEN, ManagedStore, outcome, success

pytestmark = pytest.mark.anyio

LONG = "x" * (INLINE_BYTES + 1)
UPSTREAM = {"code": "upstream_error", "message": "The provider failed.", "type": "api_error"}


async def test_a_run_delivers_what_it_read_and_answers_in_one_transaction(managed: ManagedStore) -> None:
    agent = await managed.create()
    first = await managed.put(agent, "What is 2+2?")
    run = await managed.start(agent)
    assert (await managed.agent(agent)).status is AgentStatus.RUNNING
    second = await managed.put(agent, "And 3+3?")
    assert second.seq == 2
    assert await managed.finish(run, "4", [first])
    assert await managed.messages(agent) == [
        (1, Direction.USER_TO_AGENT, "What is 2+2?", MessageStatus.DELIVERED, run.id),
        (2, Direction.USER_TO_AGENT, "And 3+3?", MessageStatus.PENDING, None),
        (3, Direction.AGENT_TO_USER, "4", MessageStatus.DELIVERED, run.id),
    ]
    ended = await managed.run(run)
    assert (ended.status, ended.turns, ended.usage, ended.cost_usd) == (RunStatus.SUCCEEDED, 2, TokenUsage(30, 12), "0.000125")
    assert (await managed.agent(agent)).status is AgentStatus.IDLE
    assert managed.pending_work() == []


async def test_a_streamed_message_is_in_the_mailbox_when_its_run_has_started(managed: ManagedStore) -> None:
    agent = await managed.create()
    run = await managed.start(agent, LONG, trigger=RunTrigger.MESSAGE)
    assert run.status is RunStatus.RUNNING
    assert await managed.messages(agent) == [(1, Direction.USER_TO_AGENT, LONG, MessageStatus.PENDING, None)]
    assert managed.pending_work() == [f"RUN#{agent.id}#{run.id}"]
    assert [message.content for message in await mailbox.pending(managed.store, await managed.agent(agent))] == [LONG]


async def test_of_runs_that_race_one_starts_and_the_others_name_it(managed: ManagedStore) -> None:
    agent = await managed.create()
    results = await asyncio.gather(
        *(managed.start(agent, str(number), trigger=RunTrigger.MESSAGE) for number in range(8)), return_exceptions=True
    )
    started = [result for result in results if isinstance(result, Run)]
    refused = [result for result in results if isinstance(result, SessionBusy)]
    assert (len(started), len(refused)) == (1, 7)
    assert {error.details["run_id"] for error in refused} == {started[0].id}
    assert len(await managed.messages(agent)) == 1


async def test_a_commit_is_renewed_for_messages_that_come_in_before_it(managed: ManagedStore) -> None:
    agent = await managed.create()
    first = await managed.put(agent, "one")
    run = await managed.start(agent)
    commit = success(managed.store, run, "answer", [first], managed.now)
    writes = await commit.writes(outcome())
    await managed.put(agent, "two")
    with pytest.raises(TransactionFailed):
        await managed.store.table.transact(writes, token="a")
    newer = await commit.renew()
    assert newer is not None
    await managed.store.table.transact(newer, token="b")
    assert [(seq, text) for seq, _, text, *_ in await managed.messages(agent)] == [(1, "one"), (2, "two"), (3, "answer")]
    assert await commit.renew() is None


async def test_a_failed_run_leaves_its_messages_to_the_next_one(managed: ManagedStore) -> None:
    agent = await managed.create()
    message = await managed.put(agent, "What is 2+2?")
    run = await managed.start(agent)
    ended = await fail(managed.store, run, UPSTREAM, managed.now)
    assert ended is not None
    assert (ended.status, ended.error) == (RunStatus.FAILED, {"code": "upstream_error", "message": "The provider failed."})
    failed = await managed.agent(agent)
    assert (failed.status, failed.error) == (AgentStatus.ERROR, ended.error)
    assert managed.pending_work() == []
    assert await mailbox.pending(managed.store, failed) == [message]
    assert await managed.finish(await managed.start(agent), "4", [message])
    assert (await managed.agent(agent)).status is AgentStatus.IDLE


async def test_a_late_end_of_a_run_changes_nothing(managed: ManagedStore) -> None:
    agent = await managed.create()
    message = await managed.put(agent, "What is 2+2?")
    run = await managed.start(agent)
    await fail(managed.store, run, UPSTREAM, managed.now)
    later = await managed.start(agent)
    assert not await managed.finish(run, "too late", [message])
    late = await fail(managed.store, run, {"code": "other", "message": "m"}, managed.now)
    assert late is not None
    assert late.error == (await managed.run(run)).error == {"code": "upstream_error", "message": "The provider failed."}
    assert (await managed.agent(agent)).active_run == later.id
    assert len(await managed.messages(agent)) == 1


async def test_a_run_with_a_derived_id_is_started_once_for_one_body(managed: ManagedStore) -> None:
    agent = await managed.create()
    name = RunId(derived_id("run", 0, "key-1"))

    async def send(body: str) -> Run:
        run = replace(new_run(agent, RunTrigger.MESSAGE, TOKEN, managed.now, run=name), request_hash=body)
        return await start(managed.store, await managed.agent(agent), run, LONG, managed.now)

    first = await send("a")
    assert (await send("a")).id == first.id
    assert len(managed.aws.bucket.keys) == 1
    with pytest.raises(IdempotencyKeyReused):
        await send("b")
    assert await managed.finish(first, "done", await mailbox.pending(managed.store, await managed.agent(agent)))
    await managed.pause(agent)
    assert (await send("a")).status is RunStatus.SUCCEEDED
    assert len(await managed.messages(agent)) == 2


async def test_the_input_of_a_run_is_kept_for_its_worker_however_long(managed: ManagedStore) -> None:
    agent = await managed.create()
    for text in ("short", LONG):
        run = await managed.start(agent, own_input=text)
        assert (await managed.run(run)).input == text
        with inject(FaultPlan()) as plan:
            assert (await runs.read_run(managed.store, agent.id, run.id)).input is None
        assert [call.operation for call in plan.calls] == ["GetItem"], "readers that poll do not load the input"
        await managed.finish(run, "read")


@pytest.mark.parametrize("is_over", [True, False])
async def test_a_run_whose_messages_another_one_has_just_taken_does_not_start(managed: ManagedStore, is_over: bool) -> None:
    agent = await managed.create()
    await managed.put(agent, "hello")
    before = await managed.agent(agent)
    first = await managed.start(agent)
    if is_over:
        assert await managed.finish(first, "done", await mailbox.pending(managed.store, before))
    with pytest.raises(NothingToRun if is_over else SessionBusy):
        await start(managed.store, before, new_run(before, RunTrigger.RUN, TOKEN, managed.now), None, managed.now)
    found = await managed.agent(agent)
    assert (found.active_run, found.error) == (None if is_over else first.id, None)
    with_input = new_run(before, RunTrigger.RUN, TOKEN, managed.now, own_input="And now?")
    if is_over:
        assert await start(managed.store, before, with_input, None, managed.now) is with_input


async def test_a_run_takes_messages_that_come_in_while_it_starts(managed: ManagedStore) -> None:
    agent = await managed.create()
    await managed.put(agent, "hello")
    before = await managed.agent(agent)
    await managed.put(agent, "and more")
    run = new_run(before, RunTrigger.RUN, TOKEN, managed.now)
    assert await start(managed.store, before, run, None, managed.now) is run


async def test_a_paused_agent_starts_no_run(managed: ManagedStore) -> None:
    agent = await managed.create()
    await managed.pause(agent)
    with pytest.raises(AgentPaused):
        await managed.start(agent, "late", own_input="later")
    assert await managed.messages(agent) == []
    assert (await runs.page(managed.store, agent.id, None, 1)).runs == []
    assert managed.pending_work() == []


async def test_a_tick_is_skipped_once_and_never_started_afterwards(managed: ManagedStore) -> None:
    agent = await managed.create()
    active = await managed.start(agent)
    tick = new_run(agent, RunTrigger.SCHEDULE, TOKEN, managed.now, run=RunId(derived_id("run", 0, "tick")), own_input="i")
    skipped = await skip(managed.store, tick, managed.now)
    assert (skipped.status, await managed.run(skipped)) == (RunStatus.SKIPPED, skipped)
    assert (await skip(managed.store, tick, managed.now + 5)) == skipped
    await managed.finish(active, "done")
    assert (await start(managed.store, await managed.agent(agent), tick, None, managed.now)).status is RunStatus.SKIPPED
    assert (await managed.agent(agent)).active_run is None


async def test_a_run_that_was_started_is_not_skipped(managed: ManagedStore) -> None:
    agent = await managed.create()
    tick = new_run(agent, RunTrigger.SCHEDULE, TOKEN, managed.now)
    await start(managed.store, agent, tick, None, managed.now)
    assert (await skip(managed.store, tick, managed.now)).status is RunStatus.QUEUED


async def test_one_of_two_workers_begins_a_run_and_the_next_one_a_minute_later(managed: ManagedStore) -> None:
    agent = await managed.create()
    queued = await managed.start(agent)
    begun = await asyncio.gather(*(runs.begin(managed.store, queued, managed.now) for _ in range(4)))
    (first,) = [run for run in begun if run is not None]
    assert (first.status, first.attempts) == (RunStatus.RUNNING, 1)
    managed.now += 59
    assert await runs.begin(managed.store, await managed.run(queued), managed.now) is None
    managed.now += 2
    second = await runs.begin(managed.store, await managed.run(queued), managed.now)
    assert second is not None
    assert second.attempts == 2
    late = await fail(managed.store, first, UPSTREAM, managed.now)
    assert late is not None
    assert late.status is RunStatus.RUNNING
    assert await managed.finish(second, "done")
    assert await runs.begin(managed.store, await managed.run(queued), managed.now + 100) is None


async def test_a_queued_run_is_stopped_before_it_begins_and_a_begun_one_is_not(managed: ManagedStore) -> None:
    agent = await managed.create()
    message = await managed.put(agent, "What is 2+2?")
    queued = await managed.start(agent)
    skipped = await skip_queued(managed.store, queued, managed.now)
    assert skipped is not None
    assert skipped.status is RunStatus.SKIPPED
    assert await mailbox.pending(managed.store, await managed.agent(agent)) == [message]
    assert await runs.begin(managed.store, queued, managed.now) is None
    other = await managed.start(agent)
    assert await runs.begin(managed.store, other, managed.now) is not None
    stopped = await skip_queued(managed.store, other, managed.now)
    assert stopped is not None
    assert stopped.status is RunStatus.RUNNING


async def test_runs_are_listed_newest_first_and_paged(managed: ManagedStore) -> None:
    agent, other = await managed.create(), await managed.create()
    started = []
    for _ in range(5):
        started.append(await managed.start(agent))
        await managed.finish(started[-1], "done")
    page = await runs.page(managed.store, agent.id, None, 3)
    assert [view.id for view in page.runs] == [run.id for run in reversed(started)][:3]
    rest = await runs.page(managed.store, agent.id, page.next_cursor, 3)
    assert [view.id for view in rest.runs] == [run.id for run in reversed(started)][3:]
    assert rest.next_cursor is None
    with pytest.raises(InvalidRequest):
        await runs.page(managed.store, other.id, page.next_cursor, 3)
    with pytest.raises(RunNotFound):
        await runs.read_run(managed.store, other.id, started[0].id)


@pytest.mark.parametrize("age", [0, 59])
async def test_a_run_that_has_just_begun_is_not_lost(managed: ManagedStore, age: int) -> None:
    agent = await managed.create()
    await managed.start(agent, "hello", trigger=RunTrigger.MESSAGE)
    managed.now += age
    with pytest.raises(SessionBusy):
        await managed.start(agent)


async def test_a_lost_streamed_run_is_failed_by_the_next_one(managed: ManagedStore) -> None:
    agent = await managed.create()
    lost = await managed.start(agent, "hello", trigger=RunTrigger.MESSAGE)
    managed.now += 61
    run = await managed.start(agent)
    found = await managed.run(lost)
    assert found.status is RunStatus.FAILED
    assert found.error is not None
    assert found.error["code"] == "turn_lost"
    assert [message.content for message in await mailbox.pending(managed.store, await managed.agent(agent))] == ["hello"]
    assert managed.pending_work() == [f"RUN#{agent.id}#{run.id}"]


async def test_a_lost_queued_run_is_failed_only_after_its_third_attempt(managed: ManagedStore) -> None:
    agent = await managed.create()
    run = await managed.start(agent)
    for attempt in range(1, 4):
        begun = await runs.begin(managed.store, await managed.run(run), managed.now)
        assert begun is not None
        managed.now += 61
        settled = await runs.settle_lost(managed.store, await managed.agent(agent), managed.now)
        assert settled is (attempt == 3)
    assert (await managed.run(run)).status is RunStatus.FAILED


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.REPEATED, Fault.THROTTLE])
@pytest.mark.parametrize("at", sampled(range(20), 3))
async def test_a_run_ends_once_although_a_call_failed(managed: ManagedStore, fault: Fault, at: int) -> None:
    agent = await managed.create()
    with inject(FaultPlan(fault, at)) as plan:
        message = await managed.put(agent, LONG)
        run = await managed.start(agent, own_input=LONG)
        begun = await runs.begin(managed.store, run, managed.now)
        assert begun is not None
        assert await managed.finish(begun, LONG, [message])
        await managed.start(agent)
    assert len(plan.calls) <= 20, "raise the range above"
    assert await managed.messages(agent) == [
        (1, Direction.USER_TO_AGENT, LONG, MessageStatus.DELIVERED, run.id),
        (2, Direction.AGENT_TO_USER, LONG, MessageStatus.DELIVERED, run.id),
    ]


@pytest.mark.parametrize("fault", [*Fault])
@pytest.mark.parametrize("at", sampled(range(20), 3))
async def test_after_any_fault_the_next_request_finds_one_truth(managed: ManagedStore, fault: Fault, at: int) -> None:
    agent = await managed.create()
    accepted = 0
    try:
        with inject(FaultPlan(fault, at, times=2)):
            await managed.put(agent, "one")
            accepted += 1
            run = await managed.start(agent, "two", trigger=RunTrigger.MESSAGE)
            accepted += 1
            pending = await mailbox.pending(managed.store, await managed.agent(agent))
            if not await managed.finish(run, "answer", pending):
                await fail(managed.store, run, UPSTREAM, managed.now)
    except (Crash, SpassError):
        pass
    managed.now += 61
    last = await managed.start(agent)
    pending = await mailbox.pending(managed.store, await managed.agent(agent))
    assert await managed.finish(last, "last", pending)
    messages = await managed.messages(agent)
    assert [seq for seq, *_ in messages] == [*range(1, len(messages) + 1)]
    assert all(status is MessageStatus.DELIVERED for *_, status, _ in messages)
    assert len([message for message in messages if message[1] is Direction.USER_TO_AGENT]) >= accepted
    found = await managed.agent(agent)
    assert (found.pending, found.active_run, managed.pending_work()) == (0, None, [])
