"""What works without being called: who may tell it what, what happens to what fails, and what that costs."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.constructs.function import TAG
from infra.constructs.machine import DEFINITION
from infra.environments import DEV, ENVIRONMENTS, Environment
from infra.routes import Permission
from infra.template import local_template
from infra.workers import WORKERS, Trigger, Worker

from .conftest import Deployment, Resource, actions_of, statements_of, tags

NAMES = [worker.function_name for worker in WORKERS]
FIFTEEN_MINUTES = 900


def _queues(deployment: Deployment) -> tuple[str, Resource, str, Resource]:
    """The queue of jobs and that of failed ones, each after its logical id."""
    queues = {name: queue["Properties"] for name, queue in deployment.resources("AWS::SQS::Queue")}
    ((jobs, failed),) = [
        (name, queue["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0])
        for name, queue in queues.items()
        if "RedrivePolicy" in queue
    ]
    assert set(queues) == {jobs, failed}
    return jobs, queues[jobs], failed, queues[failed]


def _statements(deployment: Deployment, queue: str) -> list[dict[str, Any]]:
    (policy,) = [
        policy["Properties"]
        for _, policy in deployment.resources("AWS::SQS::QueuePolicy")
        if policy["Properties"]["Queues"] == [{"Ref": queue}]
    ]
    statements: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return statements


def _logical_id(deployment: Deployment, trigger: Trigger) -> str:
    """The function that is started by this."""
    (worker,) = [worker for worker in WORKERS if worker.trigger is trigger]
    (name,) = [
        name
        for name, function in deployment.resources("AWS::Lambda::Function")
        if tags(function["Properties"])[TAG] == worker.function_name
    ]
    return name


@pytest.mark.parametrize("worker", WORKERS, ids=NAMES)
def test_a_worker_is_its_modules_handler_and_may_take_15_minutes(dev: Deployment, worker: Worker) -> None:
    function = dev.functions()[worker.function_name]
    assert function["Handler"] == f"functions.workers.{worker.module}.handler"
    assert function["Timeout"] == FIFTEEN_MINUTES
    assert function["MemorySize"] == worker.memory
    assert "AWS_LAMBDA_EXEC_WRAPPER" not in function["Environment"]["Variables"]
    embeds = Permission.EMBEDDING in worker.permissions
    assert sorted(dev.layers(worker.function_name)) == sorted(["Config", "Runtime", *(["Model"] if embeds else [])])
    assert ("SPASS_MODEL" in function["Environment"]["Variables"]) == embeds


def test_each_trigger_starts_one_worker() -> None:
    assert sorted(worker.trigger for worker in WORKERS) == sorted(Trigger)


def test_a_workers_name_is_no_routes_name(dev: Deployment) -> None:
    assert all(name.startswith("worker-") for name in NAMES)
    assert not [name for name in dev.functions() if name.startswith("worker-") and name not in NAMES]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_job_that_five_workers_could_not_do_is_kept_for_two_weeks(deployments: dict[str, Deployment], name: str) -> None:
    _, jobs, _, failed = _queues(deployments[name])
    assert jobs["RedrivePolicy"]["maxReceiveCount"] == 5
    assert failed["MessageRetentionPeriod"] == 14 * 24 * 3600
    assert jobs["MessageRetentionPeriod"] < failed["MessageRetentionPeriod"], "a dead letter keeps its age"


def test_a_job_stays_hidden_for_as_long_as_a_worker_can_live(dev: Deployment) -> None:
    _, jobs, _, _ = _queues(dev)
    assert jobs["VisibilityTimeout"] > FIFTEEN_MINUTES


def test_both_queues_are_encrypted_and_speak_only_tls(dev: Deployment) -> None:
    jobs, jobs_properties, failed, failed_properties = _queues(dev)
    for name, properties in ((jobs, jobs_properties), (failed, failed_properties)):
        assert properties["SqsManagedSseEnabled"] is True
        denied = [one for one in _statements(dev, name) if one["Effect"] == "Deny"]
        assert [one["Condition"] for one in denied] == [{"Bool": {"aws:SecureTransport": "false"}}]


def test_only_s3_and_only_for_this_stacks_bucket_may_send_from_outside(prod: Deployment) -> None:
    jobs, _, failed, _ = _queues(prod)
    assert not [one for one in _statements(prod, failed) if one["Effect"] == "Allow"]
    (allowed,) = [one for one in _statements(prod, jobs) if one["Effect"] == "Allow"]
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


def test_the_bucket_tells_the_queue_of_every_upload_and_of_nothing_else(dev: Deployment) -> None:
    jobs, _, _, _ = _queues(dev)
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
    assert policy in bucket["DependsOn"], "S3 asks whether it may send when the bucket is made"


def test_the_stack_has_no_function_that_sets_the_notification_afterwards(dev: Deployment) -> None:
    assert {one["Type"] for one in dev.data["Resources"].values()} == {
        "AWS::DynamoDB::Table",
        "AWS::S3::Bucket",
        "AWS::S3::BucketPolicy",
        "AWS::SQS::Queue",
        "AWS::SQS::QueuePolicy",
    }


def test_the_queue_gives_one_message_at_a_time_to_ten_workers_at_most_and_keeps_those_that_fail(dev: Deployment) -> None:
    ((_, mapping),) = dev.resources("AWS::Lambda::EventSourceMapping")
    properties = {key: value for key, value in mapping["Properties"].items() if key != "Tags"}
    assert properties == {
        "BatchSize": 1,
        "EventSourceArn": {"Fn::ImportValue": "spass-dev-QueueArn"},
        "FunctionName": {"Ref": _logical_id(dev, Trigger.QUEUE)},
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "ScalingConfig": {"MaximumConcurrency": 10},
    }


def test_the_worker_of_the_queue_knows_the_machine_and_the_machine_only_its_step(dev: Deployment) -> None:
    ((machine, properties),) = dev.resources("AWS::StepFunctions::StateMachine")
    step = {"Fn::GetAtt": [_logical_id(dev, Trigger.MACHINE), "Arn"]}
    assert properties["Properties"]["DefinitionSubstitutions"] == {"IngestStep": step}
    assert json.loads(properties["Properties"]["DefinitionString"]) == json.loads(DEFINITION.read_text(encoding="utf-8"))
    told = {
        name: function["Environment"]["Variables"].get("SPASS_INGEST_MACHINE")
        for name, function in dev.functions().items()
        if "SPASS_INGEST_MACHINE" in function["Environment"]["Variables"]
    }
    assert told.pop("worker-jobs") == {"Ref": machine}
    starts = [name for name in dev.functions() if "states:StartExecution" in dev.actions(name)]
    assert starts == ["worker-jobs"]


def test_the_machine_may_call_its_step_and_run_children_of_its_own(dev: Deployment) -> None:
    ((name, machine),) = dev.resources("AWS::StepFunctions::StateMachine")
    statements = statements_of(dev.jobs, machine["Properties"]["RoleArn"]["Fn::GetAtt"][0])
    granted = {action: one["Resource"] for one in statements for action in actions_of(one) if not action.startswith("logs:")}
    executions = ["arn:", {"Ref": "AWS::Partition"}, ":states:eu-central-1:", {"Ref": "AWS::AccountId"}, ":execution:"]
    children = [{"Fn::Join": ["", [*executions, {"Fn::GetAtt": [name, "Name"]}, rest]]} for rest in (":*", "/*")]
    assert granted == {
        "lambda:InvokeFunction": {"Fn::GetAtt": [_logical_id(dev, Trigger.MACHINE), "Arn"]},
        "states:StartExecution": {"Ref": name},
        "states:DescribeExecution": children,
        "states:StopExecution": children,
        "states:RedriveExecution": children,
    }


def _tasks(states: dict[str, Any]) -> dict[str, Any]:
    found = {name: state for name, state in states.items() if state["Type"] == "Task"}
    for state in states.values():
        found |= _tasks(state["ItemProcessor"]["States"]) if "ItemProcessor" in state else {}
    return found


def test_every_step_of_the_machine_is_tried_again_and_what_fails_for_good_is_told() -> None:
    definition = json.loads(DEFINITION.read_text(encoding="utf-8"))
    tasks = _tasks(definition["States"])
    assert set(tasks) == {"Part", "Finish", "Fail"}
    for task in tasks.values():
        *_, retry = task["Retry"]
        assert retry["ErrorEquals"] == ["States.ALL"]
        assert retry["JitterStrategy"] == "FULL"
        assert task["TimeoutSeconds"] > FIFTEEN_MINUTES, "the function itself ends first, and says where it stands"
    for name in ("Parts", "Finish"):
        assert [catch["Next"] for catch in definition["States"][name]["Catch"]] == ["Fail"]


def test_a_part_waits_for_a_function_as_long_as_others_have_them_all_and_outlives_an_outage() -> None:
    """One part that fails for good ends all others. Files run eight parts each, so a hundred files may want all functions of an
    account. A message of the queue is tried for more than an hour, too."""
    definition = json.loads(DEFINITION.read_text(encoding="utf-8"))
    throttled, other = definition["States"]["Parts"]["ItemProcessor"]["States"]["Part"]["Retry"]
    assert throttled["ErrorEquals"] == ["Lambda.TooManyRequestsException"]
    assert _longest(throttled) > 24 * 3600
    assert 3600 < _longest(other) < 2 * 3600, "then its record says so"


def test_no_step_fails_for_want_of_a_function() -> None:
    """Else a file that is done, or one whose failure is to be told, would wait in vain while others have all functions."""
    for task in _tasks(json.loads(DEFINITION.read_text(encoding="utf-8"))["States"]).values():
        throttled, _ = task["Retry"]
        assert throttled["ErrorEquals"] == ["Lambda.TooManyRequestsException"]
        assert _longest(throttled) > 24 * 3600


def test_an_environment_may_bound_how_many_steps_run_at_once_over_all_files(
    synthesize: Callable[[Environment], Deployment],
) -> None:
    functions = synthesize(replace(DEV, ingest_steps=24)).functions()
    reserved = {
        name: one["ReservedConcurrentExecutions"] for name, one in functions.items() if "ReservedConcurrentExecutions" in one
    }
    assert reserved == {"worker-ingest-step": 24}


def test_each_execution_tells_its_steps_which_one_it_is() -> None:
    """So that what is left of one that has failed can do nothing more."""
    states = json.loads(DEFINITION.read_text(encoding="utf-8"))["States"]
    for told in (states["Parts"]["ItemSelector"], states["Finish"]["Parameters"], states["Fail"]["Parameters"]):
        assert told["execution.$"] == "$.execution"


def _longest(retry: dict[str, Any]) -> float:
    """Seconds until the last try."""
    pauses = (retry["IntervalSeconds"] * float(retry["BackoffRate"]) ** n for n in range(retry["MaxAttempts"]))
    return float(sum(min(pause, retry["MaxDelaySeconds"]) for pause in pauses))


def test_the_machine_hands_on_nothing_but_ids() -> None:
    definition = json.loads(DEFINITION.read_text(encoding="utf-8"))
    parts = definition["States"]["Parts"]
    assert set(parts["ItemSelector"]) == {"step", "tenant.$", "index.$", "upload.$", "execution.$", "part.$"}
    assert parts["ResultPath"] is None
    assert parts["ItemProcessor"]["States"]["Done"]["Result"] == {}, "the results of all parts together are limited to 256 KiB"


def test_the_sweep_runs_every_hour_as_a_role_that_may_do_nothing_else(dev: Deployment) -> None:
    ((_, clock),) = dev.resources("AWS::Scheduler::Schedule")
    sweep = {"Fn::GetAtt": [_logical_id(dev, Trigger.HOURLY), "Arn"]}
    assert clock["Properties"]["ScheduleExpression"] == "rate(1 hour)"
    assert clock["Properties"]["Target"]["Arn"] == sweep
    role = clock["Properties"]["Target"]["RoleArn"]["Fn::GetAtt"][0]
    assert [(actions_of(one), one["Resource"]) for one in statements_of(dev.jobs, role)] == [(["lambda:InvokeFunction"], sweep)]
    (trusted,) = dev.jobs["Resources"][role]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert trusted["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert trusted["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def test_one_failed_job_or_ingest_raises_an_alarm_and_so_does_a_job_that_nobody_takes(prod: Deployment) -> None:
    alarms = {
        alarm["Properties"]["MetricName"]: alarm["Properties"]
        for _, alarm in prod.resources("AWS::CloudWatch::Alarm")
        if alarm["Properties"].get("Namespace") in {"AWS/SQS", "AWS/States"}
    }
    thresholds = {name: alarm["Threshold"] for name, alarm in alarms.items()}
    assert thresholds == {"ApproximateNumberOfMessagesVisible": 1, "ApproximateAgeOfOldestMessage": 2700, "ExecutionsFailed": 1}
    queues = {name: json.dumps(alarm["Dimensions"]) for name, alarm in alarms.items()}
    assert "spass-prod-FailedJobsArn" in queues["ApproximateNumberOfMessagesVisible"]
    assert "spass-prod-QueueArn" in queues["ApproximateAgeOfOldestMessage"]


def test_the_first_failure_of_a_sweep_raises_its_alarm_and_the_third_of_what_runs_often(prod: Deployment) -> None:
    """A sweep that takes too long fails every hour once."""
    alarms = {name: alarm["Properties"]["Threshold"] for name, alarm in prod.resources("AWS::CloudWatch::Alarm")}
    of_functions = {name: threshold for name, threshold in alarms.items() if "MonitoringFunction" in name}
    assert {name for name, threshold in of_functions.items() if threshold == 1} == {
        name for name in of_functions if "workersweep" in name
    }
    assert set(of_functions.values()) == {1, 3}


def test_the_laptop_has_every_worker_and_what_starts_it_and_hides_a_message_only_briefly() -> None:
    resources = json.loads(local_template())["Resources"].values()
    functions = {one["Properties"]["FunctionName"] for one in resources if one["Type"] == "AWS::Lambda::Function"}
    assert functions == {f"spass-local-{name}" for name in NAMES}
    kinds = [one["Type"] for one in resources]
    for kind in ("AWS::Lambda::EventSourceMapping", "AWS::StepFunctions::StateMachine", "AWS::Scheduler::Schedule"):
        assert kinds.count(kind) == 1
    (hidden,) = [one["Properties"]["VisibilityTimeout"] for one in resources if "VisibilityTimeout" in one["Properties"]]
    assert 60 < hidden < 120, "a dead worker's lease on its file lasts a minute"
    assert "ImportValue" not in json.dumps(list(resources))
