"""The workers: their triggers, permissions, failures and concurrency."""

from collections import Counter

import pytest

from infra.constructs.machine import COMPACTION
from infra.environments import ENVIRONMENTS
from infra.routes import Permission
from infra.workers import WORKERS, Trigger, Worker

from .conftest import Deployment, actions_of, statements_of

NAMES = [worker.function_name for worker in WORKERS]
OF_CLOCK = [worker.function_name for worker in WORKERS if worker.trigger is Trigger.HOURLY]
FIFTEEN_MINUTES = 900
PARTS_OF_A_TENANT = 8  # spass/rag/ingest/parts.py


@pytest.mark.parametrize("worker", WORKERS, ids=NAMES)
def test_a_worker_has_the_handler_and_timeout_of_its_row(dev: Deployment, worker: Worker) -> None:
    function = dev.functions()[worker.function_name]
    assert function["Handler"] == f"functions.workers.{worker.module}.handler"
    assert function["Timeout"] == worker.seconds <= FIFTEEN_MINUTES
    assert function["MemorySize"] == worker.memory
    assert "AWS_LAMBDA_EXEC_WRAPPER" not in function["Environment"]["Variables"]
    embeds = Permission.EMBEDDING in worker.permissions
    edits = Permission.EDITOR in worker.permissions
    assert sorted(dev.layers(worker.function_name)) == sorted(
        ["Runtime", *(["Model"] if embeds else []), *(["Editor"] if edits else [])]
    )
    assert ("SPASS_MODEL" in function["Environment"]["Variables"]) == embeds


def test_each_trigger_starts_one_worker_but_the_clock_may_start_several() -> None:
    started = Counter(worker.trigger for worker in WORKERS)
    assert {
        trigger: min(count, 1) if trigger is Trigger.HOURLY else count for trigger, count in started.items()
    } == dict.fromkeys(Trigger, 1)


def test_workers_and_routes_have_different_names(dev: Deployment) -> None:
    assert all(name.startswith("worker-") for name in NAMES)
    assert not [name for name in dev.functions() if name.startswith("worker-") and name not in NAMES]


def test_the_bucket_notifies_the_queue_of_uploads_only(dev: Deployment) -> None:
    jobs = dev.queues()["QueueArn"].name
    ((_, bucket),) = dev.resources("AWS::S3::Bucket")
    assert bucket["Properties"]["NotificationConfiguration"] == {
        "QueueConfigurations": [
            {
                "Event": "s3:ObjectCreated:*",
                "Filter": {"S3Key": {"Rules": [{"Name": "prefix", "Value": "uploads/"}]}},
                "Queue": {"Fn::GetAtt": [jobs, "Arn"]},
            }
        ]
    }
    ((policy, _),) = [
        (name, one) for name, one in dev.resources("AWS::SQS::QueuePolicy") if one["Properties"]["Queues"] == [{"Ref": jobs}]
    ]
    assert policy in bucket["DependsOn"], "S3 checks its permission to send when the bucket is created"


def test_the_notification_is_set_without_a_custom_resource(dev: Deployment) -> None:
    assert {one["Type"] for one in dev.data["Resources"].values()} == {
        "AWS::DynamoDB::Table",
        "AWS::S3::Bucket",
        "AWS::S3::BucketPolicy",
        "AWS::SQS::Queue",
        "AWS::SQS::QueuePolicy",
    }


def test_an_environment_limits_concurrent_messages_steps_and_followers(extended: Deployment) -> None:
    functions = extended.functions()
    reserved = {
        name: one["ReservedConcurrentExecutions"] for name, one in functions.items() if "ReservedConcurrentExecutions" in one
    }
    assert reserved == {"worker-compaction-step": 51, "streams-get": 36, "managed-run-stream": 24}
    (jobs,) = [
        one["Properties"]
        for _, one in extended.resources("AWS::Lambda::EventSourceMapping")
        if one["Properties"]["EventSourceArn"] == {"Fn::ImportValue": "spass-prod-QueueArn"}
    ]
    assert (jobs["BatchSize"], jobs["ScalingConfig"]) == (1, {"MaximumConcurrency": 25}), (
        "a file must not wait for other files of a batch"
    )


def test_the_parts_of_one_tenant_leave_most_workers_to_other_tenants() -> None:
    assert all(environment.job_workers >= 3 * PARTS_OF_A_TENANT for environment in ENVIRONMENTS.values())


def test_the_clock_has_a_schedule_for_each_of_its_workers(dev: Deployment) -> None:
    started = {clock["Properties"]["Target"]["Arn"]["Fn::GetAtt"][0] for _, clock in dev.resources("AWS::Scheduler::Schedule")}
    assert started == {dev.function_id(name) for name in OF_CLOCK}
    assert OF_CLOCK[0] == "worker-sweep"


@pytest.mark.parametrize("name", OF_CLOCK)
def test_such_a_worker_runs_hourly_with_a_role_that_may_only_start_it(dev: Deployment, name: str) -> None:
    worker = {"Fn::GetAtt": [dev.function_id(name), "Arn"]}
    clocks = [clock["Properties"] for _, clock in dev.resources("AWS::Scheduler::Schedule")]
    (clock,) = [clock for clock in clocks if clock["Target"]["Arn"] == worker]
    assert clock["ScheduleExpression"] == "rate(1 hour)"
    role = clock["Target"]["RoleArn"]["Fn::GetAtt"][0]
    assert [(actions_of(one), one["Resource"]) for one in statements_of(dev.jobs, role)] == [(["lambda:InvokeFunction"], worker)]
    (trusted,) = dev.jobs["Resources"][role]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert trusted["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert trusted["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def test_the_state_machines_log_group_needs_no_resource_policy(dev: Deployment) -> None:
    _, machine = dev.machine(COMPACTION)
    (destination,) = machine["LoggingConfiguration"]["Destinations"]
    group = dev.jobs["Resources"][destination["CloudWatchLogsLogGroup"]["LogGroupArn"]["Fn::GetAtt"][0]]
    start, stack, machine_id = group["Properties"]["LogGroupName"]["Fn::Join"][1]
    assert (start, stack) == ("/aws/vendedlogs/states/", {"Ref": "AWS::StackName"})
    assert machine_id == "/Compaction"
