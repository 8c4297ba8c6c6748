"""The ticks of a schedule over real services: one answer for each, with the rights that the agent's token has now."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from spass.managed.records import ManagedAgent, RunStatus, Schedule
from tests.functions.managed_runs import ManagedGateway
from tests.simulated.chats import Process, virtual_clocks
from tests.unit.virtual_time import BACKEND, VirtualLoop

pytestmark = pytest.mark.anyio

EVERY_MINUTE = Schedule("rate(1 minute)", input="Report.")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, type[VirtualLoop]]]:
    return BACKEND


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ManagedGateway]:
    with virtual_clocks():
        yield ManagedGateway(tmp_path)


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
    for minute in range(2):
        gateway.tick(agent, f"2026-12-01T08:0{minute}:00Z")
        await work(gateway)
    assert statuses(gateway, agent) == [RunStatus.SUCCEEDED] * 2
    assert len(await gateway.turns(agent)) == 2
    assert len(gateway.sessions()) == 1


async def test_a_run_whose_token_is_gone_fails_and_says_so(gateway: ManagedGateway) -> None:
    agent = await gateway.create(schedule=EVERY_MINUTE, token_id="gone")
    gateway.tick(agent, "2026-12-01T08:00:00Z")
    await work(gateway)
    (run,) = gateway.stored_runs(agent)
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert "'gone'" in str(run.error["message"])
    assert await gateway.turns(agent) == []
