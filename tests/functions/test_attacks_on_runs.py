"""Attacks on the runs of managed agents: loops, bills, rights that grow, and odd answers of providers."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject
from tests.functions.gateway import Gateway
from tests.functions.managed_agents import ADA, AGENTS, TARGETS, ManagedClient, execute, read_frames, tick

EIGHT: Final = "2030-01-31T08:00:00Z"
DEEP: Final = {"SPASS-Caller-Depth": "2"}
HOURLY: Final[Mapping[str, Any]] = {"expression": "rate(1 hour)", "input": "Tick."}


@pytest.fixture
def aws() -> MemoryAws:
    return MemoryAws(TARGETS)


@pytest.fixture
def client(gateway: Gateway) -> ManagedClient:
    gateway.services.settings = replace(gateway.services.settings, job_targets=TARGETS)
    return ManagedClient(gateway)


def depths(client: ManagedClient) -> list[str]:
    return [context.headers["SPASS-Caller-Depth"] for context in client.gateway.model.contexts]


def test_a_queued_run_is_as_deep_as_the_request_for_it(client: ManagedClient) -> None:
    agent = client.create()
    run = client.send("POST", f"/{agent}/run", {"input": "Go."}, DEEP).json["id"]
    execute(client.gateway, agent, run)
    client.send("POST", f"/{agent}/messages", {"content": "Go.", "stream": True}, DEEP)
    assert depths(client) == ["3", "3"]
    reply = client.send("POST", f"/{agent}/run", {"input": "Go."}, {"SPASS-Caller-Depth": "3"})
    assert (reply.status, reply.code) == (508, "recursion_depth_exceeded")


@pytest.mark.parametrize("change", [None, {"system_prompt": "Go on."}, {"schedule": HOURLY}])
def test_an_agent_that_schedules_agents_does_not_do_so_for_ever(
    client: ManagedClient, aws: MemoryAws, change: Mapping[str, object] | None
) -> None:
    if change is None:
        agent = client.send("POST", "", {"name": "a", "agent": "simple", "schedule": HOURLY}, DEEP).json["id"]
    else:
        agent = client.create(schedule=HOURLY)
        assert client.send("PATCH", f"/{agent}", change, DEEP).status == 200
    assert client.send("PATCH", f"/{agent}", {"name": "b", "paused": False}).status == 200
    (entry,) = aws.scheduler.entries.values()
    tick(client.gateway, entry, EIGHT)
    assert depths(client) == ["3"]
    assert client.runs(agent)[0]["status"] == "succeeded"


def test_a_reader_of_a_run_does_not_read_its_long_input_at_every_poll(client: ManagedClient) -> None:
    agent, gateway = client.create(), client.gateway
    run = client.send("POST", f"/{agent}/run", {"input": "x" * 200_000}).json["id"]
    path = f"{AGENTS}/{agent}/runs/{run}"

    async def stop_later() -> None:
        await asyncio.sleep(1)
        assert (await gateway.send_async("DELETE", path, headers=ADA)).json == {"status": "skipped"}

    with inject(FaultPlan()) as plan:
        assert client.send("GET", f"/{agent}/runs/{run}").json["status"] == "queued"
        followed = gateway.send_during(gateway.send_async("GET", f"{path}/stream", headers=ADA), stop_later())
    assert followed.status == 200
    assert [name for name, _ in read_frames(followed)] == ["error"]
    assert len(plan.calls) > 10
    assert [call.operation for call in plan.calls if call.service == "s3"] == []
