"""A compaction on the laptop, from the request to the successor: the emulated queue and state machine, and the real workers."""

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
from spass.web.worker_function import worker_handler
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
    """How often each step still fails before it does what it shall, how often it was called, and what the model answers."""

    says: str = "The number is 42."
    left: Counter[str] = field(default_factory=Counter)
    called: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Laptop:
    stores: StackOutputs
    troubles: StepFailures

    def outcome(self, job: str) -> str:
        return str(execution(self.stores.compaction_machine, job)["status"])

    def executions(self) -> list[str]:
        """The names of all that were ever started."""
        found = boto3.client("stepfunctions").list_executions(stateMachineArn=self.stores.compaction_machine)["executions"]
        return [one["name"] for one in found]

    def waiting(self) -> bool:
        """Whether a message is in the queue, or in the hands of a worker."""
        queue = self.stores.compaction_queue
        told = boto3.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        return (told["ApproximateNumberOfMessages"], told["ApproximateNumberOfMessagesNotVisible"]) != ("0", "0")


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """The emulator, whose pauses are a thousandth of what they are, and our workers, whose steps have the troubles of a test."""
    folder, troubles = tmp_path_factory.mktemp("laptop"), StepFailures()
    module = importlib.import_module("functions.workers.compaction_step")
    step = module.handler.work

    async def work(services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
        troubles.called[event["step"]] += 1
        if troubles.left[event["step"]] > 0:
            troubles.left[event["step"]] -= 1
            raise RuntimeError("this try fails")
        answer: Json = await step(services, event, deadline)
        return answer

    with pytest.MonkeyPatch.context() as patch, serve_model(lambda body: Completion({"content": troubles.says})) as url:
        patch.setenv("SFN_WAIT_SCALE", "0.001")
        patch.setattr(module, "handler", worker_handler(work))
        environment = os.environ  # the emulator's clients get another one
        with emulated(Home(folder / "home")) as (stores, workers):
            for name, value in {**_operators_files(folder, f"{url}/v1"), **stores.variables()}.items():
                patch.setitem(environment, name, value)
            with workers.serving(stores.queues):
                yield Laptop(stores, troubles)


def _operators_files(folder: Path, url: str) -> dict[str, str]:
    config, agents = folder / "gateway.yaml", folder / "agents"
    config.write_text(CONFIG.format(url=url, token=hashlib.sha256(b"demo-token").hexdigest()))
    agents.mkdir()
    (agents / "plain.yaml").write_text("name: plain\nmodel: small\ndescription: Answers.\nsystem_prompt: Answer.\n")
    return {"SPASS_CONFIG": str(config), "SPASS_AGENTS": str(agents)}


@asynccontextmanager
async def gateway(laptop: Laptop) -> AsyncIterator[httpx.AsyncClient]:
    """Every route, in this process."""
    laptop.troubles.left.clear()
    laptop.troubles.called.clear()
    services = Services()
    transport = httpx.ASGITransport(create_app(routers(), services))
    headers = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers, timeout=60) as client:
        yield client
    await services.aclose()


async def conversation(client: httpx.AsyncClient) -> str:
    """The path of a session of two turns, of which one is kept."""
    created = await client.post(SESSIONS, json={})
    assert created.status_code == 201, created.text
    path = f"{SESSIONS}/{created.json()['id']}"
    for number in range(2):
        said = await client.post(f"{path}/messages", json={"message": f"The number is {number}."})
        assert said.status_code == 200, said.text
    return path


async def ended(client: httpx.AsyncClient, location: str) -> dict[str, Any]:
    """The job once it is over."""
    for _ in range(200):
        job: dict[str, Any] = (await client.get(location)).json()
        if job["status"] in {"succeeded", "failed"}:
            return job
        await asyncio.sleep(0.1)
    raise AssertionError("the job did not end")


async def test_who_waits_has_the_successor_in_a_moment(laptop: Laptop) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        begun = time.monotonic()
        answered = await client.post(f"{path}/compact")
        took = time.monotonic() - begun
        assert answered.status_code == 200, answered.text
        made = answered.json()
        assert took < 5, "it takes a third of a second on a machine that has nothing else to do"
        assert (made["summary_text"], made["summary_model"]) == (laptop.troubles.says, "small")
        assert (made["compacted_message_count"], made["kept_message_count"]) == (2, 2)
        assert laptop.outcome(made["job_id"]) == "SUCCEEDED"
        assert laptop.troubles.called == {"plan": 1, "summarise": 1, "commit": 1}
        successor = f"{SESSIONS}/{made['successor_session_id']}"
        said = [message["content"] for message in (await client.get(f"{successor}/messages")).json()["messages"]]
        assert said[1:] == ["The number is 1.", laptop.troubles.says]
        redirected = await client.post(f"{path}/messages", json={"message": "And now?"})
        assert (redirected.status_code, redirected.headers["Location"]) == (308, f"{successor}/messages")


async def test_a_step_that_fails_twice_is_done_at_its_third_try(laptop: Laptop) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        laptop.troubles.left |= {"plan": 2, "summarise": 2, "commit": 2}
        asked = await client.post(f"{path}/compact", headers={"Prefer": "respond-async"})
        assert asked.status_code == 202, asked.text
        job = await ended(client, asked.headers["Location"])
        assert job["status"] == "succeeded"
        assert laptop.troubles.called == {"plan": 3, "summarise": 3, "commit": 3}
        assert (await client.get(path)).json()["successor_session_id"] == job["result"]["successor_session_id"]


@pytest.mark.parametrize("step", ["plan", "summarise", "commit"])
async def test_a_step_that_always_fails_leaves_a_failed_job_and_the_session_as_it_was(laptop: Laptop, step: str) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        before = (await client.get(f"{path}/messages")).json()
        laptop.troubles.left |= {step: 1000}
        answered = await client.post(f"{path}/compact")
        assert answered.status_code >= 500, answered.text
        job = await ended(client, f"/a1/jobs/{answered.json()['error']['details']['job_id']}")
        assert (job["status"], job["error"]["code"]) == ("failed", answered.json()["error"]["code"])
        assert laptop.troubles.called["fail"] == 1
        assert await _outcome_at_last(laptop, job["id"]) == ("FAILED", "CompactionFailed")
        assert (await client.get(f"{path}/messages")).json() == before
        assert (await client.post(f"{path}/messages", json={"message": "Go on."})).status_code == 200


async def _outcome_at_last(laptop: Laptop, job: str) -> tuple[str, str | None]:
    """The execution ends a moment after its job."""
    while (found := execution(laptop.stores.compaction_machine, job))["status"] == "RUNNING":
        await asyncio.sleep(0.05)
    return found["status"], found.get("error")


async def test_a_model_that_writes_no_summary_is_no_trouble_of_the_machine(laptop: Laptop) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        laptop.troubles.says = "  "
        answered = await client.post(f"{path}/compact")
        laptop.troubles.says = StepFailures.says
        assert (answered.status_code, answered.json()["error"]["code"]) == (502, "summary_failed")
        job = answered.json()["error"]["details"]["job_id"]
        assert await _outcome_at_last(laptop, job) == ("SUCCEEDED", None)
        assert laptop.troubles.called == {"plan": 1, "summarise": 1, "commit": 1}
        assert (await client.post(f"{path}/compact")).status_code == 200


async def test_a_message_that_comes_twice_starts_one_execution(laptop: Laptop) -> None:
    async with gateway(laptop) as client:
        path = await conversation(client)
        made = (await client.post(f"{path}/compact")).json()
        begun = laptop.executions()
        body = f'{{"job": "compact", "tenant": "demo", "id": "{made["job_id"]}"}}'
        boto3.client("sqs").send_message(QueueUrl=laptop.stores.compaction_queue, MessageBody=body)
        while laptop.waiting():
            await asyncio.sleep(0.05)
        assert laptop.executions() == begun
