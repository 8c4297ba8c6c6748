"""What works without being called: who may tell it what, what happens to what fails, and what that costs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infra.constructs.machine import COMPACTION, INGEST
from infra.environments import DEV, Environment
from infra.routes import Permission
from infra.template import local_template
from infra.workers import WORKERS, Trigger, Worker

from .asl import longest, read, tasks
from .conftest import Deployment, actions_of, statements_of

NAMES = [worker.function_name for worker in WORKERS]
FIFTEEN_MINUTES = 900


@pytest.mark.parametrize("worker", WORKERS, ids=NAMES)
def test_a_worker_is_its_modules_handler_and_may_take_as_long_as_its_row_says(dev: Deployment, worker: Worker) -> None:
    function = dev.functions()[worker.function_name]
    assert function["Handler"] == f"functions.workers.{worker.module}.handler"
    assert function["Timeout"] == worker.seconds <= FIFTEEN_MINUTES
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


def test_the_bucket_tells_the_queue_of_every_upload_and_of_nothing_else(dev: Deployment) -> None:
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
    assert policy in bucket["DependsOn"], "S3 asks whether it may send when the bucket is made"


def test_the_stack_has_no_function_that_sets_the_notification_afterwards(dev: Deployment) -> None:
    assert {one["Type"] for one in dev.data["Resources"].values()} == {
        "AWS::DynamoDB::Table",
        "AWS::S3::Bucket",
        "AWS::S3::BucketPolicy",
        "AWS::SQS::Queue",
        "AWS::SQS::QueuePolicy",
    }


def test_the_worker_of_the_queue_knows_the_machine_and_the_machine_only_its_step(dev: Deployment) -> None:
    machine, properties = dev.machine(INGEST)
    step = {"Fn::GetAtt": [dev.worker(Trigger.INGEST), "Arn"]}
    assert properties["DefinitionSubstitutions"] == {"Step": step}
    assert dev.functions()["worker-jobs"]["Environment"]["Variables"]["SPASS_INGEST_MACHINE"] == {"Ref": machine}


def test_the_machine_may_call_its_step_and_run_children_of_its_own(dev: Deployment) -> None:
    name, machine = dev.machine(INGEST)
    statements = statements_of(dev.jobs, machine["RoleArn"]["Fn::GetAtt"][0])
    granted = {action: one["Resource"] for one in statements for action in actions_of(one) if not action.startswith("logs:")}
    executions = ["arn:", {"Ref": "AWS::Partition"}, ":states:eu-central-1:", {"Ref": "AWS::AccountId"}, ":execution:"]
    children = [{"Fn::Join": ["", [*executions, {"Fn::GetAtt": [name, "Name"]}, rest]]} for rest in (":*", "/*")]
    assert granted == {
        "lambda:InvokeFunction": {"Fn::GetAtt": [dev.worker(Trigger.INGEST), "Arn"]},
        "states:StartExecution": {"Ref": name},
        "states:DescribeExecution": children,
        "states:StopExecution": children,
        "states:RedriveExecution": children,
    }


def test_every_step_of_the_machine_is_tried_again_and_what_fails_for_good_is_told() -> None:
    definition = read(INGEST)
    found = tasks(definition["States"])
    assert set(found) == {"Part", "Finish", "Fail"}
    for task in found.values():
        *_, retry = task["Retry"]
        assert retry["ErrorEquals"] == ["States.ALL"]
        assert retry["JitterStrategy"] == "FULL"
        assert task["TimeoutSeconds"] > FIFTEEN_MINUTES, "the function itself ends first, and says where it stands"
    for name in ("Parts", "Finish"):
        assert [catch["Next"] for catch in definition["States"][name]["Catch"]] == ["Fail"]


def test_a_part_waits_for_a_function_as_long_as_others_have_them_all_and_outlives_an_outage() -> None:
    """One part that fails for good ends all others. Files run eight parts each, so a hundred files may want all functions of an
    account. A message of the queue is tried for more than an hour, too."""
    definition = read(INGEST)
    throttled, other = definition["States"]["Parts"]["ItemProcessor"]["States"]["Part"]["Retry"]
    assert throttled["ErrorEquals"] == ["Lambda.TooManyRequestsException"]
    assert longest(throttled) > 24 * 3600
    assert 3600 < longest(other) < 2 * 3600, "then its record says so"


def test_no_step_fails_for_want_of_a_function() -> None:
    """Else a file that is done, or one whose failure is to be told, would wait in vain while others have all functions."""
    for task in tasks(read(INGEST)["States"]).values():
        throttled, _ = task["Retry"]
        assert throttled["ErrorEquals"] == ["Lambda.TooManyRequestsException"]
        assert longest(throttled) > 24 * 3600


def test_an_environment_may_bound_how_many_steps_run_at_once(
    synthesize: Callable[[Environment], Deployment],
) -> None:
    functions = synthesize(replace(DEV, ingest_steps=24, compaction_steps=50)).functions()
    reserved = {
        name: one["ReservedConcurrentExecutions"] for name, one in functions.items() if "ReservedConcurrentExecutions" in one
    }
    assert reserved == {"worker-ingest-step": 24, "worker-compaction-step": 50}


def test_each_execution_tells_its_steps_which_one_it_is() -> None:
    """So that what is left of one that has failed can do nothing more."""
    states = read(INGEST)["States"]
    for told in (states["Parts"]["ItemSelector"], states["Finish"]["Parameters"], states["Fail"]["Parameters"]):
        assert told["execution.$"] == "$.execution"


def test_the_machine_hands_on_nothing_but_ids() -> None:
    definition = read(INGEST)
    parts = definition["States"]["Parts"]
    assert set(parts["ItemSelector"]) == {"step", "tenant.$", "index.$", "upload.$", "execution.$", "part.$"}
    assert parts["ResultPath"] is None
    assert parts["ItemProcessor"]["States"]["Done"]["Result"] == {}, "the results of all parts together are limited to 256 KiB"


def test_the_sweep_runs_every_hour_as_a_role_that_may_do_nothing_else(dev: Deployment) -> None:
    ((_, clock),) = dev.resources("AWS::Scheduler::Schedule")
    sweep = {"Fn::GetAtt": [dev.worker(Trigger.HOURLY), "Arn"]}
    assert clock["Properties"]["ScheduleExpression"] == "rate(1 hour)"
    assert clock["Properties"]["Target"]["Arn"] == sweep
    role = clock["Properties"]["Target"]["RoleArn"]["Fn::GetAtt"][0]
    assert [(actions_of(one), one["Resource"]) for one in statements_of(dev.jobs, role)] == [(["lambda:InvokeFunction"], sweep)]
    (trusted,) = dev.jobs["Resources"][role]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    assert trusted["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert trusted["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


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
    counts = {
        "AWS::Lambda::EventSourceMapping": 2,
        "AWS::StepFunctions::StateMachine": 2,
        "AWS::Scheduler::Schedule": 1,
    }
    assert {kind: kinds.count(kind) for kind in counts} == counts
    hidden = [one["Properties"]["VisibilityTimeout"] for one in resources if "VisibilityTimeout" in one["Properties"]]
    assert sorted(hidden) == [60, 75], "a dead worker's lease on its file lasts a minute"
    assert "ImportValue" not in json.dumps(list(resources))


@pytest.mark.parametrize("definition", [INGEST, COMPACTION], ids=["ingest", "compaction"])
def test_a_state_machine_logs_where_no_policy_of_the_account_must_name_its_log(dev: Deployment, definition: Path) -> None:
    _, machine = dev.machine(definition)
    (destination,) = machine["LoggingConfiguration"]["Destinations"]
    group = dev.jobs["Resources"][destination["CloudWatchLogsLogGroup"]["LogGroupArn"]["Fn::GetAtt"][0]]
    start, stack, machine_id = group["Properties"]["LogGroupName"]["Fn::Join"][1]
    assert (start, stack) == ("/aws/vendedlogs/states/", {"Ref": "AWS::StackName"})
    assert machine_id in ("/Ingest", "/Compaction")
