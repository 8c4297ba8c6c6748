"""A streamed run whose function died ends as failed (``turn_lost``) as soon as anybody meets it. Its message stays pending."""

import time
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from spass.core.ids import ManagedAgentId, RunId, TenantId
from spass.core.time import Deadline
from spass.managed.records import RunTrigger, find_agent
from spass.managed.run_start import new_run, start
from spass.store.leases import LEASE_SECONDS
from spass.testing.aws import MemoryAws
from tests.functions.gateway import Reply
from tests.functions.managed_agents import ManagedClient, execute, tick

AT: Final = "2030-01-31T08:00:00Z"
SCHEDULE: Final = {"expression": "rate(1 hour)", "input": "Tick."}


def die_in_a_run(client: ManagedClient, agent: str, seconds: float) -> RunId:
    """Begin the run of a streamed message ``seconds`` ago, as a function does that dies before its stream has begun."""

    async def begin() -> RunId:
        store, began = client.gateway.aws.for_tenant(TenantId("demo")), time.time() - seconds
        found = await find_agent(store, ManagedAgentId(agent))
        assert found is not None
        return (await start(store, found, new_run(found, RunTrigger.MESSAGE, "demo-user", began), "Hello", began)).id

    return client.gateway.run(begin())


def send(client: ManagedClient, agent: str, _: RunId) -> Reply:
    return client.send("POST", f"/{agent}/messages", {"content": "Next."})


def stream(client: ManagedClient, agent: str, _: RunId) -> Reply:
    return client.send("POST", f"/{agent}/messages", {"content": "Next.", "stream": True})


def run(client: ManagedClient, agent: str, _: RunId) -> Reply:
    reply = client.send("POST", f"/{agent}/run", {"input": "Next."})
    if reply.status == 202:
        execute(client.gateway, agent, reply.json["id"])
    return reply


def stop(client: ManagedClient, agent: str, lost: RunId) -> Reply:
    return client.send("DELETE", f"/{agent}/runs/{lost}")


def fire(client: ManagedClient, agent: str, _: RunId) -> Reply:
    """Deliver a tick, and return the agent."""
    aws = client.gateway.aws
    assert isinstance(aws, MemoryAws)
    (entry,) = aws.scheduler.entries.values()
    tick(client.gateway, entry, AT)
    return client.send("GET", f"/{agent}")


def sweep(client: ManagedClient, agent: str, _: RunId) -> Reply:
    """Let the hourly sweep pass, and return the agent."""
    store = client.gateway.aws.for_tenant(TenantId("demo"))
    client.gateway.run(client.gateway.services.managed_agents.sweep(store, Deadline.after(60)))
    return client.send("GET", f"/{agent}")


Meet = Callable[[ManagedClient, str, RunId], Reply]
MEETINGS: Mapping[str, tuple[Meet, int, list[str], str | None]] = {
    "a message": (send, 202, ["Hello", "Next."], None),
    "a streamed message": (stream, 200, [], "Hello\n\nNext."),
    "a run": (run, 202, [], "Hello\n\nNext."),
    "a tick": (fire, 200, [], "Hello\n\nTick."),
    "a stop": (stop, 200, ["Hello"], None),
    "the sweep": (sweep, 200, ["Hello"], None),
}
"""What meets the lost run, the status of its answer, the messages that are pending then, and what a model was asked."""


@pytest.mark.parametrize("name", MEETINGS)
def test_whatever_meets_a_lost_run_ends_it_and_its_message_waits(client: ManagedClient, name: str) -> None:
    meet, status, pending, asked = MEETINGS[name]
    agent = client.create(schedule=SCHEDULE)
    lost = die_in_a_run(client, agent, 2 * LEASE_SECONDS)
    assert client.get(agent)["status"] == "running"
    reply = meet(client, agent, lost)
    assert reply.status == status, reply.text
    found = client.send("GET", f"/{agent}/runs/{lost}").json
    assert (found["status"], found["trigger"], found["turns"]) == ("failed", "message", 0)
    assert found["error"]["code"] == "turn_lost"
    assert found["finished_at"]
    assert [message["content"] for message in client.messages(agent) if message["status"] == "pending"] == pending
    assert [request.messages[-1].content for request in client.gateway.model.requests] == ([asked] if asked else [])
    assert client.get(agent)["status"] == ("idle" if asked else "error")
    assert stop(client, agent, lost).json == {"status": "failed"}


def test_a_lost_run_does_not_keep_its_agent_from_being_deleted(client: ManagedClient) -> None:
    before = client.gateway.stored()
    agent = client.create(schedule=SCHEDULE)
    die_in_a_run(client, agent, 2 * LEASE_SECONDS)
    assert client.send("DELETE", f"/{agent}").json == {"deleted": True}
    assert client.gateway.stored() == before


def test_a_run_that_has_just_begun_is_busy_and_not_lost(client: ManagedClient) -> None:
    agent = client.create(schedule=SCHEDULE)
    young = die_in_a_run(client, agent, LEASE_SECONDS / 2)
    for meet in (stream, run):
        assert meet(client, agent, young).code == "session_busy"
    assert client.send("DELETE", f"/{agent}").code == "session_busy"
    assert send(client, agent, young).status == 202
    fire(client, agent, young)
    sweep(client, agent, young)
    by_status = {run["status"] for run in client.runs(agent)}
    assert by_status == {"running", "skipped"}
    assert client.gateway.model.requests == []
