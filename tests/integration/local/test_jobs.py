"""The laptop's queue, state machine and functions as the emulator makes them of the CDK's definition, with workers of ours."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest

import functions.workers.ingest_step
import functions.workers.jobs
import functions.workers.sweep
from local.emulator import TEMPLATE, Stores, emulated_aws, hand_over, point_to, provision
from local.executions import resume_executions
from local.home import Home
from local.workers import Workers
from spass.core.messages import Json
from spass.core.time import Deadline
from spass.web.functions import Work, worker_handler
from spass.web.services import Services

MODULES = {"jobs": functions.workers.jobs, "step": functions.workers.ingest_step, "sweep": functions.workers.sweep}
SECONDS = 20.0


@dataclass
class Laptop:
    """An emulator that is running, and what its workers were given so far."""

    stores: Stores
    given: dict[str, list[Mapping[str, Any]]] = field(default_factory=lambda: {name: [] for name in MODULES})

    def send(self, body: str) -> None:
        boto3.client("sqs").send_message(QueueUrl=self.stores.queue, MessageBody=body)

    def bodies(self) -> list[str]:
        """The messages that were given to the worker of the queue, without what S3 sends to see whether the queue is there."""
        bodies = [record["body"] for event in self.given["jobs"] for record in event["Records"]]
        return [body for body in bodies if "s3:TestEvent" not in body]

    def failed(self) -> list[str]:
        """The dead letters."""
        sqs = boto3.client("sqs")
        attributes = sqs.get_queue_attributes(QueueUrl=self.stores.queue, AttributeNames=["RedrivePolicy"])["Attributes"]
        name = json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"].rpartition(":")[2]
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        received = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0, MaxNumberOfMessages=10)
        return [message["Body"] for message in received.get("Messages", [])]

    def start(self, name: str, **work: Json) -> None:
        boto3.client("stepfunctions").start_execution(
            stateMachineArn=self.stores.ingest_machine, name=name, input=json.dumps(work)
        )

    def status(self, name: str) -> str:
        machine = self.stores.ingest_machine.replace(":stateMachine:", ":execution:")
        return boto3.client("stepfunctions").describe_execution(executionArn=f"{machine}:{name}")["status"]

    def steps(self, upload: str) -> list[str]:
        """The steps of this upload that were begun so far."""
        return [f"{one['step']} {one.get('part', '')}".strip() for one in self.given["step"] if one["upload"] == upload]


Answer = Callable[[Mapping[str, Any]], Json]


def _worker(given: list[Mapping[str, Any]], answer: Answer) -> Work:
    async def work(_services: Services, event: Mapping[str, Any], deadline: Deadline) -> Json:
        assert 800 < deadline.remaining() < 900
        given.append(event)
        return answer(event)

    return work


@contextmanager
def _running(home: Home, answers: Mapping[str, Answer], template: Path = TEMPLATE, *, ours: bool = True) -> Iterator[Laptop]:
    """The emulator and the workers, until the block ends; in the order of the gateway. One that is not ours was started by
    somebody who knows nothing of workers."""
    home.logs.mkdir(parents=True, exist_ok=True)
    workers = Workers()
    with pytest.MonkeyPatch.context() as patch, (home.path / "lock").open("a") as lock:
        patch.setattr(os, "environ", os.environ.copy())
        patch.setattr(boto3, "DEFAULT_SESSION", None)
        with emulated_aws(home, lock.fileno(), workers.urls if ours else {}) as endpoint:
            point_to(endpoint)
            laptop = Laptop(provision(template, damaged=home.damaged))
            if not ours:
                assert "ministack" in hand_over(workers.urls)
            for name, module in MODULES.items():
                given, answer = laptop.given[name], answers.get(name, lambda _: None)
                patch.setattr(module, "handler", worker_handler(_worker(given, answer)))
            with workers.serving(laptop.stores.queues):
                yield laptop


def _eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def _jobs(event: Mapping[str, Any]) -> Json:
    """Fails the messages that say so."""
    failed: list[Json] = [{"itemIdentifier": one["messageId"]} for one in event["Records"] if "fail" in one["body"]]
    return {"batchItemFailures": failed}


class Steps:
    """Every part is done at its second call; one named ``bad`` never is, and one named ``stuck`` waits to be let go."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int]] = set()
        self.free = threading.Event()

    def __call__(self, event: Mapping[str, Any]) -> Json:
        if event["step"] != "part":
            return {"done": True}
        if event["upload"] == "bad":
            raise RuntimeError("this part cannot be done")
        if event["upload"] == "stuck" and not self.free.is_set():
            return {"done": False}
        part = (event["upload"], event["part"])
        again = part in self._seen
        self._seen.add(part)
        return {"done": again}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    home = Home(tmp_path_factory.mktemp("laptop") / "home")
    with _running(home, {"jobs": _jobs, "step": Steps(), "sweep": lambda _: {"swept": 0}}) as running:
        boto3.client("sqs").set_queue_attributes(QueueUrl=running.stores.queue, Attributes={"VisibilityTimeout": "1"})
        yield running


def test_a_file_in_the_bucket_is_told_to_the_worker_and_what_lies_elsewhere_is_not(laptop: Laptop) -> None:
    s3 = boto3.client("s3")
    s3.put_object(Bucket=laptop.stores.bucket, Key="T/demo/rag/x", Body=b"ours")
    put = s3.put_object(Bucket=laptop.stores.bucket, Key="uploads/demo/berlin/über b.md", Body=b"# Berlin")
    _eventually(lambda: any("uploads" in body for body in laptop.bodies()))
    ((record,),) = [json.loads(body)["Records"] for body in laptop.bodies() if "Records" in body]
    assert record["s3"]["object"]["key"] == "uploads/demo/berlin/%C3%BCber+b.md"
    assert record["s3"]["object"]["versionId"] == put["VersionId"]
    assert record["s3"]["bucket"]["name"] == laptop.stores.bucket


def test_a_message_that_fails_comes_again_and_is_a_dead_letter_after_the_fifth_time(laptop: Laptop) -> None:
    laptop.send("good")
    laptop.send("fail")
    _eventually(lambda: laptop.failed() == ["fail"])
    assert laptop.bodies().count("good") == 1
    assert laptop.bodies().count("fail") == 5


def test_the_state_machine_calls_each_part_until_it_is_done_and_then_finishes(laptop: Laptop) -> None:
    laptop.start("good", tenant="demo", index="berlin", upload="good", execution=0, parts=[0, 1, 2])
    _eventually(lambda: laptop.status("good") == "SUCCEEDED")
    steps = laptop.steps("good")
    assert sorted(steps[:-1]) == ["part 0", "part 0", "part 1", "part 1", "part 2", "part 2"]
    assert steps[-1] == "finish"
    assert {"tenant": "demo", "index": "berlin", "upload": "good", "execution": 0, "step": "part", "part": 1} in [
        {key: value for key, value in event.items() if key != "result"} for event in laptop.given["step"]
    ]


def test_a_part_that_fails_for_good_fails_the_upload(laptop: Laptop) -> None:
    states = boto3.client("stepfunctions")
    definition = states.describe_state_machine(stateMachineArn=laptop.stores.ingest_machine)["definition"]
    impatient = re.sub(r'"MaxAttempts": [0-9]+', '"MaxAttempts": 0', definition)
    assert impatient != definition
    states.update_state_machine(stateMachineArn=laptop.stores.ingest_machine, definition=impatient)
    try:
        laptop.start("bad", tenant="demo", index="berlin", upload="bad", execution=0, parts=[0])
        _eventually(lambda: laptop.status("bad") == "FAILED")
    finally:
        states.update_state_machine(stateMachineArn=laptop.stores.ingest_machine, definition=definition)
    assert laptop.steps("bad") == ["part 0", "fail"]
    assert {event["execution"] for event in laptop.given["step"] if event["upload"] == "bad"} == {0}


def test_the_clock_starts_the_sweep(laptop: Laptop) -> None:
    scheduler = boto3.client("scheduler")
    (found,) = scheduler.list_schedules()["Schedules"]
    target = scheduler.get_schedule(Name=found["Name"])["Target"]["Arn"]
    answered = boto3.client("lambda").invoke(FunctionName=target, Payload=b'{"by": "the clock"}')
    assert json.load(answered["Payload"]) == {"swept": 0}
    assert laptop.given["sweep"] == [{"by": "the clock"}]


def test_after_a_restart_the_queue_is_worked_off_and_a_cut_off_execution_goes_on_once(tmp_path: Path) -> None:
    home, steps = Home(tmp_path / "home"), Steps()
    answers: dict[str, Answer] = {"jobs": _jobs, "step": steps}
    with _running(home, answers) as first:
        first.start("stuck", tenant="demo", index="berlin", upload="stuck", execution=1, parts=[0, 1])
        _eventually(lambda: len(first.steps("stuck")) > 2)
    steps.free.set()
    with _running(home, answers) as second:
        assert second.stores == first.stores
        second.send("good")
        _eventually(lambda: second.bodies() == ["good"])
        assert second.status("stuck") == "FAILED"
        resume_executions(second.stores.machines)
        _eventually(lambda: second.status("stuck-2") == "SUCCEEDED")
        assert {event["execution"] for event in second.given["step"]} == {1}, "it is the one in force still"
        assert sorted(second.steps("stuck")) == ["finish", "part 0", "part 0", "part 1", "part 1"]
        resume_executions(second.stores.machines)
        _eventually(lambda: second.status("stuck-2") == "SUCCEEDED")
        assert len(second.steps("stuck")) == 5


@pytest.mark.parametrize("lost", ["sqs", "lambda", "stepfunctions", "scheduler"])
def test_what_is_stored_outlives_damage_to_what_works_on_it(tmp_path: Path, lost: str) -> None:
    home = Home(tmp_path / "home")
    answers: dict[str, Answer] = {"jobs": _jobs, "step": Steps()}
    with _running(home, answers) as first:
        boto3.client("s3").put_object(Bucket=first.stores.bucket, Key="T/demo/x", Body=b"kept")
    (home.emulator_state / f"{lost}.json").write_text('{"half')
    assert home.left_behind()
    with _running(home, answers) as second:
        assert (second.stores.table, second.stores.bucket) == (first.stores.table, first.stores.bucket)
        assert boto3.client("s3").get_object(Bucket=second.stores.bucket, Key="T/demo/x")["Body"].read() == b"kept"
        boto3.client("s3").put_object(Bucket=second.stores.bucket, Key="uploads/demo/berlin/x.md", Body=b"new")
        _eventually(lambda: any("uploads" in body for body in second.bodies()))
        second.start("good", tenant="demo", index="berlin", upload="good", execution=0, parts=[0])
        _eventually(lambda: second.status("good") == "SUCCEEDED")
        assert len(boto3.client("scheduler").list_schedules()["Schedules"]) == 1


def test_a_home_from_before_there_were_workers_gets_them_and_keeps_what_it_holds(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    template = json.loads(TEMPLATE.read_text())
    stored = {name: one for name, one in template["Resources"].items() if one["Type"].startswith(("AWS::DynamoDB", "AWS::S3"))}
    for resource in stored.values():
        resource["Properties"].pop("NotificationConfiguration", None)
        resource.pop("DependsOn", None)
    outputs = {name: template["Outputs"][name] for name in ("TableName", "BucketName")}
    before = tmp_path / "before.json"
    before.write_text(json.dumps({**template, "Resources": stored, "Outputs": outputs}))
    with _running(home, {}, before) as first:
        boto3.client("s3").put_object(Bucket=first.stores.bucket, Key="T/demo/x", Body=b"kept")
    with _running(home, {"jobs": _jobs}) as second:
        assert (second.stores.table, second.stores.bucket) == (first.stores.table, first.stores.bucket)
        assert boto3.client("s3").get_object(Bucket=second.stores.bucket, Key="T/demo/x")["Body"].read() == b"kept"
        boto3.client("s3").put_object(Bucket=second.stores.bucket, Key="uploads/demo/berlin/x.md", Body=b"new")
        _eventually(lambda: any("uploads" in body for body in second.bodies()))


def test_an_emulator_that_somebody_else_has_started_hands_its_work_to_us_too(tmp_path: Path) -> None:
    with _running(Home(tmp_path / "home"), {"jobs": _jobs, "step": Steps()}, ours=False) as laptop:
        laptop.send("good")
        _eventually(lambda: laptop.bodies() == ["good"])
        laptop.start("good", tenant="demo", index="berlin", upload="good", execution=0, parts=[0])
        _eventually(lambda: laptop.status("good") == "SUCCEEDED")
