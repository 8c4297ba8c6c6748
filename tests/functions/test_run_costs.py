"""What the runs of managed agents cost: the calls of the table, beside those of a turn of a session. ``bench/managed.py`` has the
dollars.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from spass.agents.spec import AgentSpec
from spass.core.ids import AgentName
from spass.managed.records import ManagedAgent, Schedule
from spass.runs.run import RunRequest
from spass.runs.service import Started
from spass.sessions.session import CreateSession
from spass.testing.faults import inject
from tests.functions.managed_runs import ManagedGateway
from tests.simulated.chats import Process, virtual_clocks
from tests.simulated.scripted_turns import render_error

pytestmark = pytest.mark.anyio

MORE_CALLS: Final = 6
"""Calls of the table that a tick may make in addition to those of a streamed turn."""


@pytest.fixture(params=["orchestrator", "operative"])
def kind(request: pytest.FixtureRequest) -> str:
    """Kinds without and with a memory."""
    return str(request.param)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ManagedGateway]:
    with virtual_clocks():
        yield ManagedGateway(tmp_path)


async def create(gateway: ManagedGateway, kind: str) -> ManagedAgent:
    """Put an agent that has run before, so that it has a session."""
    agent = await gateway.create(agent=kind, schedule=Schedule("rate(1 hour)", input="Report."))
    await gateway.stream(agent, "earlier", Process())
    return agent


async def calls_of_turn(gateway: ManagedGateway) -> int:
    """Return the calls of a streamed turn of a session."""
    services, scope, process = gateway.services, gateway.scope(), Process()
    spec = AgentSpec(name="orchestrator", model="small")
    with inject(Process()):
        session = await services.sessions.create(scope, AgentName(spec.name), CreateSession())
    with inject(process):
        stream = await services.runs.stream(scope, spec, RunRequest("hello", session.id), render_error)
        assert isinstance(stream, Started)
        await stream.wait()
    assert stream.error is None
    return len(process.calls)


async def calls_of_work(gateway: ManagedGateway, agent: ManagedAgent) -> list[str]:
    """Let the worker execute the run of the message that waits. Return its calls."""
    process = Process()
    assert await gateway.work(process)
    assert gateway.stored_runs(agent)[-1].status == "succeeded"
    return [call.operation for call in process.calls]


async def test_a_tick_makes_at_most_six_calls_more_than_a_turn(gateway: ManagedGateway, kind: str) -> None:
    agent = await create(gateway, kind)
    gateway.tick(agent, "2026-12-01T08:00:00Z")
    calls = await calls_of_work(gateway, agent)
    assert calls == [
        *("GetItem", "UpdateItem", "TransactWriteItems"),  # the agent; a place; the run, begun and the agent's active one
        *("GetItem", "PutItem", "UpdateItem", "Query"),  # the session, the stream, the hold, the history
        *(["GetItem"] if kind == "operative" else []),  # the state
        *("TransactWriteItems", "GetItem", "TransactWriteItems"),  # the model's call; the mailbox's next number, the commit
        "DeleteItem",  # the place
    ]
    assert len(calls) <= await calls_of_turn(gateway) + MORE_CALLS


async def test_a_queued_run_reads_the_run_and_the_mailbox_too(gateway: ManagedGateway, kind: str) -> None:
    agent = await create(gateway, kind)
    await gateway.send(agent, "hello", Process())
    process = Process()
    await gateway.run(agent, None, process)
    assert [call.operation for call in process.calls] == ["GetItem", "TransactWriteItems", "UpdateItem", "SendMessage"]
    assert len(await calls_of_work(gateway, agent)) == {"orchestrator": 13, "operative": 14}[kind]


async def test_a_streamed_message_needs_no_place(gateway: ManagedGateway, kind: str) -> None:
    agent, process = await create(gateway, kind), Process()
    assert (await gateway.stream(agent, "hello", process)).is_done
    assert len(process.calls) == {"orchestrator": 10, "operative": 11}[kind]
