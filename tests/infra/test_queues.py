"""The work queues: senders, visibility timeouts and dead letters."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra.environments import ENVIRONMENTS
from infra.workers import WORKERS, Trigger

from .conftest import Deployment

OF: dict[str, Trigger] = {"QueueArn": Trigger.JOBS, "CompactionQueueArn": Trigger.COMPACTIONS}
TRIES = {"QueueArn": 5, "CompactionQueueArn": 20, "RunQueueArn": 3}


def _policy(deployment: Deployment, queue: str) -> list[dict[str, Any]]:
    (policy,) = [
        policy["Properties"]
        for _, policy in deployment.resources("AWS::SQS::QueuePolicy")
        if policy["Properties"]["Queues"] == [{"Ref": queue}]
    ]
    statements: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return statements


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_files_compactions_and_runs_have_separate_queues(deployments: dict[str, Deployment], name: str) -> None:
    assert deployments[name].queues().keys() == TRIES.keys()


@pytest.mark.parametrize("queue", TRIES)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_dead_letter_is_kept_for_two_weeks(deployments: dict[str, Deployment], name: str, queue: str) -> None:
    queues = deployments[name].queues()[queue]
    assert queues.work["RedrivePolicy"]["maxReceiveCount"] == TRIES[queue]
    assert queues.failed["MessageRetentionPeriod"] == 14 * 24 * 3600
    assert queues.work["MessageRetentionPeriod"] < queues.failed["MessageRetentionPeriod"], "a dead letter keeps its age"


@pytest.mark.parametrize("queue", OF)
def test_a_message_is_hidden_at_least_as_long_as_its_worker_may_run(dev: Deployment, queue: str) -> None:
    """Lambda refuses an event source that hides a message for less."""
    (worker,) = [worker for worker in WORKERS if worker.trigger is OF[queue]]
    assert dev.queues()[queue].work["VisibilityTimeout"] > dev.functions()[worker.function_name]["Timeout"]


def test_a_compaction_that_cannot_start_is_a_dead_letter_within_an_hour(
    dev: Deployment,
) -> None:
    queue = dev.queues()["CompactionQueueArn"].work
    assert queue["VisibilityTimeout"] <= 60
    assert queue["VisibilityTimeout"] * queue["RedrivePolicy"]["maxReceiveCount"] < 3600


@pytest.mark.parametrize("queue", TRIES)
def test_queues_are_encrypted_and_require_tls(dev: Deployment, queue: str) -> None:
    queues = dev.queues()[queue]
    for name, properties in ((queues.name, queues.work), (queues.failed_name, queues.failed)):
        assert properties["SqsManagedSseEnabled"] is True
        denied = [one for one in _policy(dev, name) if one["Effect"] == "Deny"]
        assert [one["Condition"] for one in denied] == [{"Bool": {"aws:SecureTransport": "false"}}]


def test_only_s3_may_send_for_this_stacks_bucket(prod: Deployment) -> None:
    queues = prod.queues()
    jobs = queues["QueueArn"].name
    closed = {name for one in queues.values() for name in (one.name, one.failed_name)} - {jobs}
    assert not [one for name in closed for one in _policy(prod, name) if one["Effect"] == "Allow"]
    (allowed,) = [one for one in _policy(prod, jobs) if one["Effect"] == "Allow"]
    assert allowed == {
        "Effect": "Allow",
        "Principal": {"Service": "s3.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": {"Fn::GetAtt": [jobs, "Arn"]},
        "Condition": {
            "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
            "ArnLike": {"aws:SourceArn": {"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, ":s3:::spass-prod-data-*"]]}},
        },
    }


@pytest.mark.parametrize(
    ("queue", "batch", "at_once"), [("QueueArn", 1, 33), ("CompactionQueueArn", 10, 2)], ids=["jobs", "compactions"]
)
def test_a_queue_delivers_without_delay_and_keeps_failed_messages(dev: Deployment, queue: str, batch: int, at_once: int) -> None:
    """Each file is one message, so that no file waits for another. Starting a compaction takes a moment."""
    arn = {"Fn::ImportValue": f"spass-dev-{queue}"}
    ((_, mapping),) = [
        one for one in dev.resources("AWS::Lambda::EventSourceMapping") if one[1]["Properties"]["EventSourceArn"] == arn
    ]
    properties = {key: value for key, value in mapping["Properties"].items() if key != "Tags"}
    assert properties == {
        "BatchSize": batch,
        "EventSourceArn": arn,
        "FunctionName": {"Ref": dev.worker(OF[queue])},
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "ScalingConfig": {"MaximumConcurrency": at_once},
    }


def test_only_the_compaction_worker_may_start_the_state_machine(dev: Deployment) -> None:
    starters = {name for name in dev.functions() if "states:StartExecution" in dev.actions(name)}
    assert starters == {"worker-compactions"}


def test_a_dead_letter_and_an_old_message_raise_alarms(prod: Deployment) -> None:
    alarms = [
        (alarm["Properties"]["MetricName"], json.dumps(alarm["Properties"]["Dimensions"]), alarm["Properties"]["Threshold"])
        for _, alarm in prod.resources("AWS::CloudWatch::Alarm")
        if alarm["Properties"]["Namespace"] == "AWS/SQS"
    ]
    thresholds = {(metric, _export_in(dimensions)): threshold for metric, dimensions, threshold in alarms}
    assert thresholds == {
        ("ApproximateNumberOfMessagesVisible", "spass-prod-FailedJobsArn"): 1,
        ("ApproximateNumberOfMessagesVisible", "spass-prod-FailedCompactionsArn"): 1,
        ("ApproximateNumberOfMessagesVisible", "spass-prod-FailedRunsArn"): 1,
        ("ApproximateAgeOfOldestMessage", "spass-prod-QueueArn"): 45 * 60,
        ("ApproximateAgeOfOldestMessage", "spass-prod-CompactionQueueArn"): 5 * 60,
        ("ApproximateAgeOfOldestMessage", "spass-prod-RunQueueArn"): 45 * 60,
    }


def test_a_tick_that_never_reaches_the_queue_raises_an_alarm(prod: Deployment) -> None:
    alarms = [alarm["Properties"] for _, alarm in prod.resources("AWS::CloudWatch::Alarm")]
    (dropped,) = [alarm for alarm in alarms if alarm.get("Namespace") == "AWS/Scheduler"]
    ((group, _),) = prod.resources("AWS::Scheduler::ScheduleGroup")
    assert (dropped["MetricName"], dropped["Statistic"], dropped["Threshold"]) == ("InvocationDroppedCount", "Sum", 1)
    assert dropped["Dimensions"] == [{"Name": "ScheduleGroup", "Value": {"Ref": group}}]


def _export_in(dimensions: str) -> str:
    (name,) = set(re.findall(r"spass-prod-\w+", dimensions))
    return str(name)


def test_the_page_of_operations_counts_the_queues(prod: Deployment) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    sources = len([*prod.resources("AWS::Lambda::EventSourceMapping")])
    number = ("no", "one", "two", "three", "four", "five")[sources]
    assert len([*prod.resources("AWS::SQS::Queue")]) == 2 * sources
    assert f"{number} queues with a dead-letter queue each" in page
    assert f"poll the {number} queues" in page
