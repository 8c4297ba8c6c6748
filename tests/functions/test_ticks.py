"""The ticks of a schedule over real services: one answer for each, with the rights that the agent's token has now."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spass.core.effects import StoreNote
from spass.core.jobs import WorkKind
from spass.core.messages import FinishReason, TokenUsage
from spass.core.time import timestamp
from spass.managed.records import ManagedAgent, RunStatus, Schedule
from spass.memory.operator_memory import OperatorMemory
from spass.models.types import ChatDelta
from spass.store import keys
from spass.store.invocation import ServiceCall
from spass.store.work_line import WorkLine
from spass.store.writes import Delete, Put
from spass.testing.faults import Fault, inject
from tests.functions.managed_runs import ManagedGateway
from tests.simulated.chats import Process, virtual_clocks
from tests.simulated.managed_world import TENANT, QueuedMessage

pytestmark = pytest.mark.anyio

EVERY_MINUTE = Schedule("rate(1 minute)", input="Report.")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ManagedGateway]:
    with virtual_clocks():
        yield ManagedGateway(tmp_path)


@dataclass
class DiesAt(Process):
    """A process that dies at its first call of ``operation``."""

    operation: str = ""

    def next_fault(self, call: ServiceCall) -> Fault | None:
        super().next_fault(call)
        return Fault.CRASH_BEFORE if call.operation == self.operation else None


async def work(gateway: ManagedGateway) -> None:
    while await gateway.work(Process()):
        pass


def statuses(gateway: ManagedGateway, agent: ManagedAgent) -> list[RunStatus]:
    return [run.status for run in gateway.stored_runs(agent)]


async def test_a_tick_that_is_delivered_five_times_makes_one_answer(gateway: ManagedGateway) -> None:
    agent = await gateway.create(schedule=EVERY_MINUTE)
    gateway.tick(agent, "2026-12-01T08:00:00Z", times=5)
    await work(gateway)
    assert statuses(gateway, agent) == [RunStatus.SUCCEEDED]
    assert [turn.messages[0].message.content for turn in await gateway.turns(agent)] == ["Report."]
    assert gateway.dead == []


async def test_ticks_of_two_minutes_continue_one_conversation(gateway: ManagedGateway) -> None:
    agent = await gateway.create(schedule=EVERY_MINUTE)
    for _ in range(2):
        gateway.tick(agent, timestamp(gateway.now()))
        await work(gateway)
        await asyncio.sleep(60)
    assert statuses(gateway, agent) == [RunStatus.SUCCEEDED] * 2
    assert len(await gateway.turns(agent)) == 2
    assert len(gateway.sessions()) == 1


async def test_ticks_that_come_late_together_are_one_run(gateway: ManagedGateway) -> None:
    """A tick that was due before a run of the schedule began is covered by that run."""
    agent = await gateway.create(schedule=EVERY_MINUTE)
    due = [timestamp(gateway.now() + 60 * minute) for minute in range(4)]
    await asyncio.sleep(150)
    for at in due[:3]:
        gateway.tick(agent, at)
    await work(gateway)
    assert sorted(statuses(gateway, agent)) == [RunStatus.SKIPPED, RunStatus.SKIPPED, RunStatus.SUCCEEDED]
    await asyncio.sleep(60)
    gateway.tick(agent, due[3])
    await work(gateway)
    assert statuses(gateway, agent).count(RunStatus.SUCCEEDED) == 2, "the next tick runs"
    assert len(await gateway.turns(agent)) == 2


@pytest.mark.parametrize("is_tick", [True, False])
async def test_a_run_that_meets_the_tenants_rate_limit_leaves_its_worker_and_comes_back(
    gateway: ManagedGateway, is_tick: bool
) -> None:
    """Its worker is free after seconds. The run is queued, has not failed, and this was no attempt. Its readers wait."""
    await gateway.store.table.write(Put(keys.tenant_config(TENANT), {"tokens_per_minute": 5000, "version": 1}))
    gateway.model.script = [ChatDelta("Done.", finish_reason=FinishReason.STOP, usage=TokenUsage(4900, 100))]
    first, second = [await gateway.create(schedule=EVERY_MINUTE) for _ in range(2)]
    await gateway.run(first, "First.", Process())
    await work(gateway)
    if is_tick:
        gateway.tick(second, timestamp(gateway.now()))
    else:
        await gateway.run(second, "Second.", Process())
    before = gateway.now()
    await work(gateway)
    (run,) = gateway.stored_runs(second)
    assert gateway.now() - before < 10, "the worker does not wait for the next minute"
    assert (run.status, run.attempts, run.begun_at) == (RunStatus.QUEUED, 0, None)
    assert len(gateway.queue) == 1
    following = asyncio.create_task(gateway.follow(second, run.id))
    await gateway.store.table.write(Put(keys.tenant_config(TENANT), {"version": 2}))  # the limits' clock is the real one
    gateway.replace_worker()
    await asyncio.sleep(gateway.queue[0].visible_at - gateway.now() + 1)
    await work(gateway)
    assert [run.status for run in gateway.stored_runs(second)] == [RunStatus.SUCCEEDED]
    reading = await following
    assert reading is not None
    assert (reading.text, reading.is_done) == ("Done.", True)
    await gateway.check_line()


async def test_a_run_whose_first_call_is_an_embedding_leaves_its_worker_too(gateway: ManagedGateway) -> None:
    """The embedding is paid again each time, so the run comes back ever later."""
    params = {"retrieval_strategy": "semantic", "memory_extraction": "none", "observation_compression": "none"}
    gateway.model.script = [ChatDelta("Done.", finish_reason=FinishReason.STOP, usage=TokenUsage(4700, 100))]
    agent = await gateway.create(agent="monitor_operative", params=params)
    await gateway.run(agent, "First.", Process())
    await work(gateway)
    memory = OperatorMemory(gateway.scope(), agent.operator, lambda: gateway.services.embedder)
    with inject(Process()):
        await memory.keep(StoreNote("The harbour is open."))
    gateway.replace_worker()
    await gateway.store.table.write(Put(keys.tenant_config(TENANT), {"tokens_per_minute": 5000, "version": 1}))
    first = await gateway.create()
    await gateway.run(first, "Uses up the minute.", Process())
    await work(gateway)
    embeddings = len(gateway.model.embeddings)
    await gateway.run(agent, "Is it open?", Process())
    delays: list[float] = []
    for _ in range(4):
        before = gateway.now()
        await work(gateway)
        assert gateway.now() - before < 10, "the worker does not wait for the next minute"
        (message,) = gateway.queue
        delays.append(message.visible_at - gateway.now())
        await asyncio.sleep(delays[-1] + 1)
    assert statuses(gateway, agent)[-1] is RunStatus.QUEUED
    assert len(gateway.model.embeddings) - embeddings == 4
    assert delays[3] > 4 * delays[0]


@pytest.mark.parametrize("dies_at", ["SendMessage", "UpdateItem"])
@pytest.mark.parametrize("event", ["request", "tick"])
async def test_a_run_that_was_not_sent_is_sent_by_the_next_event_of_its_agent(
    gateway: ManagedGateway, dies_at: str, event: str
) -> None:
    agent = await gateway.create(schedule=EVERY_MINUTE)
    assert await gateway.run(agent, "Hello.", DiesAt(operation=dies_at)) == "crash"
    assert (gateway.queue, statuses(gateway, agent)) == ([], [RunStatus.QUEUED])
    await asyncio.sleep(61)
    for _ in range(3):
        if event == "request":
            assert await gateway.run(agent, "Again.", Process()) == "session_busy"
        else:
            gateway.tick(agent, timestamp(gateway.now()))
            await gateway.work(Process())
    assert sum('"tick"' not in message.body for message in gateway.queue) <= 1, "a run that only waits is not sent each time"
    await work(gateway)
    assert statuses(gateway, agent)[0] is RunStatus.SUCCEEDED
    await gateway.check_line()


async def test_a_run_whose_token_is_gone_fails_and_says_so(gateway: ManagedGateway) -> None:
    agent = await gateway.create(schedule=EVERY_MINUTE, token_id="gone")
    gateway.tick(agent, "2026-12-01T08:00:00Z")
    await work(gateway)
    (run,) = gateway.stored_runs(agent)
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert "'gone'" in str(run.error["message"])
    assert await gateway.turns(agent) == []


async def test_a_run_that_was_put_back_has_one_message_and_no_place_however_long_it_waits(gateway: ManagedGateway) -> None:
    await gateway.store.table.write(Put(keys.tenant_config(TENANT), {"tokens_per_minute": 5000, "version": 1}))
    gateway.model.script = [ChatDelta("Done.", finish_reason=FinishReason.STOP, usage=TokenUsage(4900, 100))]
    first, second = [await gateway.create() for _ in range(2)]
    for agent in (first, second):
        await gateway.run(agent, "Hello.", Process())
        await work(gateway)
    for _ in range(4):
        assert gateway.items(keys.work_partition(WorkKind.RUNS)) == [], "other runs do not wait for it"
        await asyncio.sleep(3600)
        await gateway.sweep()
        await work(gateway)
    assert statuses(gateway, second) == [RunStatus.QUEUED]
    assert len(gateway.queue) == 1


async def test_a_second_message_of_a_run_that_was_put_back_has_no_successor(gateway: ManagedGateway) -> None:
    await gateway.store.table.write(Put(keys.tenant_config(TENANT), {"tokens_per_minute": 5000, "version": 1}))
    gateway.model.script = [ChatDelta("Done.", finish_reason=FinishReason.STOP, usage=TokenUsage(4900, 100))]
    first, second = [await gateway.create() for _ in range(2)]
    for agent in (first, second):
        await gateway.run(agent, "Hello.", Process())
        await work(gateway)
    (message,) = gateway.queue
    gateway.queue += [QueuedMessage(message.body, message.visible_at) for _ in range(3)]
    await asyncio.sleep(message.visible_at - gateway.now() + 1)
    await work(gateway)
    assert len(gateway.queue) == 1


async def test_a_message_without_a_place_waits_in_the_line(gateway: ManagedGateway) -> None:
    """An earlier release sent each run at once, and a sweep may have given a place back."""
    agent = await gateway.create()
    await gateway.run(agent, "Hello.", Process())
    await gateway.store.line.give_back(WorkKind.RUNS, f"{agent.id}#{gateway.stored_runs(agent)[0].id}")
    places = gateway.store.line.bound(gateway.store.tenant, WorkKind.RUNS)
    for n in range(places):
        assert await gateway.store.line.take(WorkKind.RUNS, str(n))
    await work(gateway)
    assert (statuses(gateway, agent), gateway.queue) == ([RunStatus.QUEUED], [])
    with inject(Process()):
        for n in range(places):
            await gateway.store.line.give_back(WorkKind.RUNS, str(n))
    await work(gateway)
    assert statuses(gateway, agent) == [RunStatus.SUCCEEDED]
    assert gateway.items(keys.work_partition(WorkKind.RUNS)) == []


async def test_a_tick_of_an_agent_that_is_deleted_meanwhile_leaves_no_place(
    gateway: ManagedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await gateway.create(schedule=EVERY_MINUTE)
    take = WorkLine.take

    async def take_and_delete(line: WorkLine, kind: WorkKind, name: str) -> bool:
        has_place = await take(line, kind, name)
        await gateway.store.table.write(Delete(keys.managed_agent(TENANT, agent.id)))
        return has_place

    monkeypatch.setattr(WorkLine, "take", take_and_delete)
    gateway.tick(agent, timestamp(gateway.now()))
    await work(gateway)
    assert gateway.queue == []
    assert gateway.items(keys.work_partition(WorkKind.RUNS)) == []
