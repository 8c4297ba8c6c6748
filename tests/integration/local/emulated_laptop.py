"""The laptop's queues, state machine and functions, which the emulator creates from the CDK template."""

import importlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

from infra.workers import WORKERS
from local.emulator import TEMPLATE, StackOutputs, emulated_aws, point_to, provision, reconfigure_emulator
from local.home import Home
from local.signatures import new_access_key
from local.workers import Workers
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.services import Services
from spass.web.startup import EventHandler, worker_handler

SECONDS = 20.0
PAGE_ORIGIN = "http://127.0.0.1:3000"
_SECONDS_OF = {worker.module: worker.seconds for worker in WORKERS}

Answer = Callable[[Mapping[str, Any]], Json]


@dataclass
class Laptop:
    """A running emulator, and the events that each of its workers has received."""

    stores: StackOutputs
    given: dict[str, list[Mapping[str, Any]]] = field(default_factory=lambda: {name: [] for name in _SECONDS_OF})

    def send(self, body: str, queue: str | None = None) -> None:
        """Send a message to ``queue``, by default to the job queue."""
        boto3.client("sqs").send_message(QueueUrl=queue or self.stores.queue, MessageBody=body)

    def bodies(self, worker: str = "jobs") -> list[str]:
        """Return the messages that this worker has received, without the test events of S3."""
        bodies = [record["body"] for event in self.given[worker] for record in event["Records"]]
        return [body for body in bodies if "s3:TestEvent" not in body]

    def failed(self) -> list[str]:
        """Return the dead letters of the job queue."""
        sqs = boto3.client("sqs")
        attributes = sqs.get_queue_attributes(QueueUrl=self.stores.queue, AttributeNames=["RedrivePolicy"])["Attributes"]
        name = json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"].rpartition(":")[2]
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        received = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0, MaxNumberOfMessages=10)
        return [message["Body"] for message in received.get("Messages", [])]

    def start(self, name: str) -> None:
        """Start an execution of the compaction state machine."""
        work = json.dumps({"tenant": "demo", "job": name})
        boto3.client("stepfunctions").start_execution(stateMachineArn=self.stores.compaction_machine, name=name, input=work)

    def status(self, name: str) -> str:
        """Return the status of an execution of the compaction state machine."""
        return str(execution(self.stores.compaction_machine, name)["status"])

    def steps(self) -> list[str]:
        """Return the compaction steps that have started, in order."""
        return [one["step"] for one in self.given["compaction_step"]]


@contextmanager
def emulated(home: Home, template: Path = TEMPLATE, *, ours: bool = True) -> Iterator[tuple[StackOutputs, Workers]]:
    """Start the emulator and yield it with workers that do not serve yet, in the order in which the gateway starts them.

    If ``ours`` is false, the emulator starts without the URLs of the workers, as if another process had started it.
    """
    home.logs.mkdir(parents=True, exist_ok=True)
    workers = Workers()
    with pytest.MonkeyPatch.context() as patch, (home.path / "lock").open("a") as lock:
        patch.setattr(os, "environ", os.environ.copy())
        patch.setattr(boto3, "DEFAULT_SESSION", None)
        key = new_access_key()
        with emulated_aws(home, lock.fileno(), workers.urls if ours else {}, key, [PAGE_ORIGIN], template) as endpoint:
            point_to(endpoint, key)
            stores = provision(template, damaged=home.damaged)
            if not ours:
                assert "ministack" in reconfigure_emulator(workers.urls)
            yield stores, workers


@contextmanager
def running(home: Home, answers: Mapping[str, Answer], template: Path = TEMPLATE, *, ours: bool = True) -> Iterator[Laptop]:
    """Run the emulator and its workers until the block ends. ``answers`` maps the module of a worker to its answer."""
    with pytest.MonkeyPatch.context() as patch, emulated(home, template, ours=ours) as (stores, workers):
        laptop = Laptop(stores)
        for name, seconds in _SECONDS_OF.items():
            answer = answers.get(name, lambda _: None)
            work = _worker(laptop.given[name], answer, seconds)
            patch.setattr(importlib.import_module(f"functions.workers.{name}"), "handler", worker_handler(work))
        with workers.serving(stores.queues):
            yield laptop


def _worker(given: list[Mapping[str, Any]], answer: Answer, seconds: int) -> EventHandler:
    async def work(_services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
        assert seconds - 50 < deadline.remaining() < seconds
        given.append(event)
        return answer(event)

    return work


def execution(machine: str, name: str) -> Mapping[str, Any]:
    """Return the description of an execution from Step Functions."""
    arn = f"{machine.replace(':stateMachine:', ':execution:')}:{name}"
    return dict(boto3.client("stepfunctions").describe_execution(executionArn=arn))


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` is true, at most ``SECONDS``."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"the condition is still false after {SECONDS:.0f} s"
        time.sleep(0.05)
