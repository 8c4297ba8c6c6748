"""Compact sessions on the laptop, with the emulated queue and state machine and the real workers."""

import asyncio
import hashlib
import importlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from local.emulator import StackOutputs
from local.home import Home
from local.server import routers
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.testing.model_server import Completion, serve_model
from spass.web.app import create_app
from spass.web.services import Services
from spass.web.startup import worker_handler
from tests.integration.local.emulated_laptop import emulated, execution

CONFIG = """
llm:
  strategy: failover
  backends:
    - {{name: scripted, provider: openai, base_url: "{url}", supported_models: [small]}}
models:
  - {{name: small, context_window: 8000}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: small, compact_keep_last_n: 2}}
usd_to_eur: 0.92
tenants:
  - id: demo
    tokens: [{{id: demo, sha256: {token}, admin: true, allowed_models: ["*"]}}]
"""
pytestmark = pytest.mark.anyio

SESSIONS = "/a1/agents/plain/sessions"


@dataclass
class StepFailures:
    """Failures of the compaction steps, a counter of their calls, and the reply of the model.

    ``remaining`` is the number of calls of each step that still fail.
    """

    summary: str = "The number is 42."
    remaining: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Laptop:
    stores: StackOutputs
    failures: StepFailures

    def outcome(self, job: str) -> str:
        return str(execution(self.stores.compaction_machine, job)["status"])

    def executions(self) -> list[str]:
        """Return the names of all executions, ended ones included."""
        executions = boto3.client("stepfunctions").list_executions(stateMachineArn=self.stores.compaction_machine)["executions"]
        return [one["name"] for one in executions]

    def waiting(self) -> bool:
        """Return True if a message is in the queue or in flight."""
        queue = self.stores.compaction_queue
        attributes = boto3.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        return (attributes["ApproximateNumberOfMessages"], attributes["ApproximateNumberOfMessagesNotVisible"]) != ("0", "0")


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Run the emulator, with waits shortened to a thousandth, and the workers, whose steps fail as the test sets."""
    folder, failures = tmp_path_factory.mktemp("laptop"), StepFailures()
    module = importlib.import_module("functions.workers.compaction_step")
    step = module.handler.work

    async def work(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
        failures.calls[event["step"]] += 1
        if failures.remaining[event["step"]] > 0:
            failures.remaining[event["step"]] -= 1
            raise RuntimeError("this attempt fails")
        answer: Json = await step(services, event, deadline)
        return answer

    with pytest.MonkeyPatch.context() as patch, serve_model(lambda body: Completion({"content": failures.summary})) as url:
        patch.setenv("SFN_WAIT_SCALE", "0.001")
        patch.setattr(module, "handler", worker_handler(work))
        environment = os.environ  # the dict of this process: the emulator's clients get a copy
        with emulated(Home(folder / "home")) as (stores, workers):
            for name, value in {**_write_configuration(folder, f"{url}/v1"), **stores.variables()}.items():
                patch.setitem(environment, name, value)
            with workers.serving(stores.queues):
                yield Laptop(stores, failures)


def _write_configuration(folder: Path, url: str) -> dict[str, str]:
    config, agents = folder / "gateway.yaml", folder / "agents"
    config.write_text(CONFIG.format(url=url, token=hashlib.sha256(b"demo-token").hexdigest()))
    agents.mkdir()
    (agents / "plain.yaml").write_text("name: plain\nmodel: small\ndescription: Answers.\nsystem_prompt: Answer.\n")
    return {"SPASS_CONFIG": str(config), "SPASS_AGENTS": str(agents)}


@asynccontextmanager
async def gateway(laptop: Laptop) -> AsyncIterator[httpx.AsyncClient]:
    """Serve every route in this process, without failures of the steps, and yield a client."""
    laptop.failures.remaining.clear()
    laptop.failures.calls.clear()
    services = Services()
    transport = httpx.ASGITransport(create_app(routers(), services))
    headers = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers, timeout=60) as client:
        yield client
    await services.aclose()


async def conversation(client: httpx.AsyncClient) -> str:
    """Create a session of two turns, of which a compaction keeps one. Return its path."""
    created = await client.post(SESSIONS, json={})
    assert created.status_code == 201, created.text
    path = f"{SESSIONS}/{created.json()['id']}"
    for number in range(2):
        answer = await client.post(f"{path}/messages", json={"message": f"The number is {number}."})
        assert answer.status_code == 200, answer.text
    return path


async def wait_for_job(client: httpx.AsyncClient, location: str) -> dict[str, Any]:
    """Poll the job until it has ended, and return it."""
    for _ in range(200):
        job: dict[str, Any] = (await client.get(location)).json()
        if job["status"] in {"succeeded", "failed"}:
            return job
        await asyncio.sleep(0.1)
    raise AssertionError("the job did not end after 200 polls")


async def test_a_request_that_waits_gets_the_successor_within_five_seconds(laptop: Laptop) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        start = time.monotonic()
        answer = await client.post(f"{path}/compact")
        seconds = time.monotonic() - start
        assert answer.status_code == 200, answer.text
        compaction = answer.json()
        assert seconds < 5, "an idle machine needs a third of a second"
        assert (compaction["summary_text"], compaction["summary_model"]) == (laptop.failures.summary, "small")
        assert (compaction["compacted_message_count"], compaction["kept_message_count"]) == (2, 2)
        assert laptop.outcome(compaction["job_id"]) == "SUCCEEDED"
        assert laptop.failures.calls == {"plan": 1, "summarise": 1, "commit": 1}
        successor = f"{SESSIONS}/{compaction['successor_session_id']}"
        contents = [message["content"] for message in (await client.get(f"{successor}/messages")).json()["messages"]]
        assert contents[1:] == ["The number is 1.", laptop.failures.summary]
        redirected = await client.post(f"{path}/messages", json={"message": "And now?"})
        assert (redirected.status_code, redirected.headers["Location"]) == (308, f"{successor}/messages")


async def test_a_step_that_fails_twice_succeeds_on_its_third_attempt(laptop: Laptop) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        laptop.failures.remaining |= {"plan": 2, "summarise": 2, "commit": 2}
        accepted = await client.post(f"{path}/compact", headers={"Prefer": "respond-async"})
        assert accepted.status_code == 202, accepted.text
        job = await wait_for_job(client, accepted.headers["Location"])
        assert job["status"] == "succeeded"
        assert laptop.failures.calls == {"plan": 3, "summarise": 3, "commit": 3}
        assert (await client.get(path)).json()["successor_session_id"] == job["result"]["successor_session_id"]


@pytest.mark.parametrize("step", ["plan", "summarise", "commit"])
async def test_a_step_that_always_fails_fails_the_job_and_does_not_change_the_session(laptop: Laptop, step: str) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        before = (await client.get(f"{path}/messages")).json()
        laptop.failures.remaining |= {step: 1000}
        answer = await client.post(f"{path}/compact")
        assert answer.status_code >= 500, answer.text
        job = await wait_for_job(client, f"/a1/jobs/{answer.json()['error']['details']['job_id']}")
        assert (job["status"], job["error"]["code"]) == ("failed", answer.json()["error"]["code"])
        assert laptop.failures.calls["fail"] == 1
        assert await _wait_for_execution(laptop, job["id"]) == ("FAILED", "CompactionFailed")
        assert (await client.get(f"{path}/messages")).json() == before
        assert (await client.post(f"{path}/messages", json={"message": "Go on."})).status_code == 200


async def _wait_for_execution(laptop: Laptop, job: str) -> tuple[str, str | None]:
    """Return the status and the error of the execution, which ends shortly after its job."""
    while (description := execution(laptop.stores.compaction_machine, job))["status"] == "RUNNING":
        await asyncio.sleep(0.05)
    return description["status"], description.get("error")


async def test_an_empty_summary_fails_the_request_but_not_the_execution(laptop: Laptop) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        laptop.failures.summary = "  "
        answer = await client.post(f"{path}/compact")
        laptop.failures.summary = StepFailures.summary
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "summary_failed")
        job = answer.json()["error"]["details"]["job_id"]
        assert await _wait_for_execution(laptop, job) == ("SUCCEEDED", None)
        assert laptop.failures.calls == {"plan": 1, "summarise": 1, "commit": 1}
        assert (await client.post(f"{path}/compact")).status_code == 200


async def test_a_message_that_is_delivered_twice_starts_one_execution(laptop: Laptop) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        compaction = (await client.post(f"{path}/compact")).json()
        executions = laptop.executions()
        body = f'{{"job": "compact", "tenant": "demo", "id": "{compaction["job_id"]}"}}'
        boto3.client("sqs").send_message(QueueUrl=laptop.stores.compaction_queue, MessageBody=body)
        while laptop.waiting():
            await asyncio.sleep(0.05)
        assert laptop.executions() == executions
