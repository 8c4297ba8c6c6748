"""The laptop's queues, state machine and functions, which the emulator creates from the CDK template, with scripted workers."""

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from local.emulator import TEMPLATE
from local.executions import resume_executions
from local.home import Home
from spass.core.messages import Json
from tests.integration.local.emulated_laptop import Answer, Laptop, eventually, running
from tests.sampling import sampled


def _fail_marked_messages(event: Mapping[str, Any]) -> Json:
    """Fail the messages that contain "fail"."""
    failed: list[Json] = [{"itemIdentifier": one["messageId"]} for one in event["Records"] if "fail" in one["body"]]
    return {"batchItemFailures": failed}


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    folder = tmp_path_factory.mktemp("laptop")
    template = json.loads(TEMPLATE.read_text())
    for resource in template["Resources"].values():
        if resource["Properties"].get("RedrivePolicy", {}).get("maxReceiveCount") == 5:  # the job queue
            resource["Properties"]["VisibilityTimeout"] = 1
    (folder / "template.json").write_text(json.dumps(template))
    answers: Mapping[str, Answer] = {"jobs": _fail_marked_messages, "sweep": lambda _: {"swept": 0}}
    with running(Home(folder / "home"), answers, folder / "template.json") as laptop:
        yield laptop


def test_the_worker_gets_events_of_objects_under_uploads_only(laptop: Laptop) -> None:
    s3 = boto3.client("s3")
    s3.put_object(Bucket=laptop.stores.bucket, Key="T/demo/rag/x", Body=b"ours")
    put = s3.put_object(Bucket=laptop.stores.bucket, Key="uploads/demo/berlin/über b.md", Body=b"# Berlin")
    eventually(lambda: any("uploads" in body for body in laptop.bodies()))
    ((record,),) = [json.loads(body)["Records"] for body in laptop.bodies() if "Records" in body]
    assert record["s3"]["object"]["key"] == "uploads/demo/berlin/%C3%BCber+b.md"
    assert record["s3"]["object"]["versionId"] == put["VersionId"]
    assert record["s3"]["bucket"]["name"] == laptop.stores.bucket


def test_a_message_that_fails_five_times_becomes_a_dead_letter(laptop: Laptop) -> None:
    laptop.send("good")
    laptop.send("fail")
    eventually(lambda: laptop.failed() == ["fail"])
    assert laptop.bodies().count("good") == 1
    assert laptop.bodies().count("fail") == 5


def test_the_schedule_invokes_the_sweep(laptop: Laptop) -> None:
    scheduler = boto3.client("scheduler")
    (schedule,) = scheduler.list_schedules()["Schedules"]
    target = scheduler.get_schedule(Name=schedule["Name"])["Target"]["Arn"]
    response = boto3.client("lambda").invoke(FunctionName=target, Payload=b'{"by": "the clock"}')
    assert json.load(response["Payload"]) == {"swept": 0}
    assert laptop.given["sweep"] == [{"by": "the clock"}]


def test_after_a_restart_queues_are_drained_and_aborted_executions_resume_once(tmp_path: Path) -> None:
    home, may_succeed = Home(tmp_path / "home"), threading.Event()

    def compact(_: Mapping[str, Any]) -> Json:
        if not may_succeed.is_set():
            raise RuntimeError("this step will be retried")
        return None

    answers: dict[str, Answer] = {"jobs": _fail_marked_messages, "compaction_step": compact}
    with running(home, answers) as first:
        first.start("job_1")
        eventually(lambda: len(first.steps()) > 0)
    may_succeed.set()
    with running(home, answers) as second:
        assert second.stores == first.stores
        second.send("good")
        second.send("too", second.stores.compaction_queue)
        eventually(lambda: second.bodies() == ["good"] and second.bodies("compactions") == ["too"])
        assert second.status("job_1") == "FAILED"
        resume_executions(second.stores.compaction_machine)
        eventually(lambda: second.status("job_1-2") == "SUCCEEDED")
        assert second.steps() == ["plan", "summarise", "commit"]
        resume_executions(second.stores.compaction_machine)
        eventually(lambda: second.status("job_1-2") == "SUCCEEDED")
        assert len(second.steps()) == 3


@pytest.mark.parametrize("damaged_service", sampled(["sqs", "lambda", "stepfunctions", "scheduler"], 4))
def test_table_and_bucket_survive_a_damaged_state_file_of_another_service(tmp_path: Path, damaged_service: str) -> None:
    home = Home(tmp_path / "home")
    answers: dict[str, Answer] = {"jobs": _fail_marked_messages}
    with running(home, answers) as first:
        boto3.client("s3").put_object(Bucket=first.stores.bucket, Key="T/demo/x", Body=b"kept")
    (home.emulator_state / f"{damaged_service}.json").write_text('{"half')
    assert home.check_last_run()
    with running(home, answers) as second:
        assert (second.stores.table, second.stores.bucket) == (first.stores.table, first.stores.bucket)
        assert boto3.client("s3").get_object(Bucket=second.stores.bucket, Key="T/demo/x")["Body"].read() == b"kept"
        boto3.client("s3").put_object(Bucket=second.stores.bucket, Key="uploads/demo/berlin/x.md", Body=b"new")
        second.send("good", second.stores.compaction_queue)
        eventually(lambda: any("uploads" in body for body in second.bodies()) and second.bodies("compactions") == ["good"])
        second.start("good")
        eventually(lambda: second.status("good") == "SUCCEEDED")
        assert len(boto3.client("scheduler").list_schedules()["Schedules"]) == 1


def test_a_home_without_workers_gets_them_and_keeps_its_data(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    template = json.loads(TEMPLATE.read_text())
    stored = {name: one for name, one in template["Resources"].items() if one["Type"].startswith(("AWS::DynamoDB", "AWS::S3"))}
    for resource in stored.values():
        resource["Properties"].pop("NotificationConfiguration", None)
        resource.pop("DependsOn", None)
    outputs = {name: template["Outputs"][name] for name in ("TableName", "BucketName")}
    before = tmp_path / "before.json"
    before.write_text(json.dumps({**template, "Resources": stored, "Outputs": outputs}))
    with running(home, {}, before) as first:
        boto3.client("s3").put_object(Bucket=first.stores.bucket, Key="T/demo/x", Body=b"kept")
    with running(home, {"jobs": _fail_marked_messages}) as second:
        assert (second.stores.table, second.stores.bucket) == (first.stores.table, first.stores.bucket)
        assert boto3.client("s3").get_object(Bucket=second.stores.bucket, Key="T/demo/x")["Body"].read() == b"kept"
        boto3.client("s3").put_object(Bucket=second.stores.bucket, Key="uploads/demo/berlin/x.md", Body=b"new")
        eventually(lambda: any("uploads" in body for body in second.bodies()))


def test_an_emulator_of_another_process_invokes_our_workers(tmp_path: Path) -> None:
    with running(Home(tmp_path / "home"), {"jobs": _fail_marked_messages}, ours=False) as laptop:
        laptop.send("good")
        eventually(lambda: laptop.bodies() == ["good"])
        laptop.start("good")
        eventually(lambda: laptop.status("good") == "SUCCEEDED")
