"""Managed agents over HTTP, for the tests of their routes."""

import json
from collections.abc import Mapping
from typing import Any, Final

import httpx

from functions.workers import runs
from spass.aws.job_targets import JobTargets
from spass.core.ids import ManagedAgentId, RunId, TenantId
from spass.core.jobs import RunAgent, body_of
from tests.functions.gateway import Gateway, Reply

AGENTS = "/v1/managed-agents"
ADA = {"SPASS-User-Id": "ada"}
TARGETS: Final = JobTargets(
    runs_queue="https://sqs/runs",
    runs_queue_arn="arn:aws:sqs:eu-central-1:000000000000:runs",
    schedule_group="spass-test",
    schedule_role="arn:aws:iam::000000000000:role/schedules",
)
"""A queue for runs, and a scheduler."""


class ManagedClient:
    """The requests of one user. Every method returns the reply; ``create`` requires success and returns the agent's id."""

    def __init__(self, gateway: Gateway, *, user: str | None = "ada", token: str = "demo-token") -> None:
        self.gateway = gateway
        self.headers: Mapping[str, str] = {} if user is None else {"SPASS-User-Id": user}
        self.token = token

    def send(self, method: str, path: str = "", body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        sent = {**self.headers, **(headers or {})}
        return self.gateway.send(method, f"{AGENTS}{path}", token=self.token, headers=sent, body=body)

    def create(self, **fields: object) -> str:
        reply = self.send("POST", body={"name": "Ada's", "agent": "simple", **fields})
        assert reply.status == 201, reply.text
        return str(reply.json["id"])

    def get(self, agent: str) -> Mapping[str, Any]:
        reply = self.send("GET", f"/{agent}")
        assert reply.status == 200, reply.text
        found: Mapping[str, Any] = reply.json
        return found

    def messages(self, agent: str) -> list[Mapping[str, Any]]:
        reply = self.send("GET", f"/{agent}/messages")
        assert reply.status == 200, reply.text
        return list(reply.json["messages"])

    def runs(self, agent: str) -> list[Mapping[str, Any]]:
        reply = self.send("GET", f"/{agent}/runs")
        assert reply.status == 200, reply.text
        return list(reply.json["runs"])


def queue(client: ManagedClient, agent: str, own_input: str | None = "Go.") -> str:
    """Queue a run, and return its id."""
    reply = client.send("POST", f"/{agent}/run", {"input": own_input})
    assert reply.status == 202, reply.text
    return str(reply.json["id"])


def read_frames(reply: Reply | httpx.Response) -> list[tuple[str | None, Any]]:
    """Return the name of each event of a stream, None for a chunk, and its data: an object, or the text ``[DONE]``."""
    frames: list[tuple[str | None, Any]] = []
    for block in reply.text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.split("\n") if not line.startswith(":"))
        if "data" in fields:
            data = fields["data"]
            frames.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return frames


def event_lines(reply: Reply | httpx.Response) -> list[str]:
    """Return the ids of the events of a stream."""
    return [line.removeprefix("id: ") for line in reply.text.splitlines() if line.startswith("id: ")]


def execute(gateway: Gateway, agent: str, run: str, receives: int = 1) -> Any:
    """Deliver the message of a queued run to its worker. Return the worker's answer."""
    body = body_of(RunAgent(TenantId("demo"), ManagedAgentId(agent), RunId(run)))
    attributes = {"ApproximateReceiveCount": str(receives)}
    return gateway.work(runs.work, {"Records": [{"messageId": "m0", "body": body, "attributes": attributes}]})


def tick(gateway: Gateway, entry: Mapping[str, Any], at: str, receives: int = 1) -> Any:
    """Deliver what the scheduler sends for ``entry`` at the time ``at``. Return the worker's answer."""
    body = entry["Target"]["Input"].replace("<aws.scheduler.scheduled-time>", at)
    attributes = {"ApproximateReceiveCount": str(receives), "SentTimestamp": "1900000000000"}
    return gateway.work(runs.work, {"Records": [{"messageId": "m0", "body": body, "attributes": attributes}]})
