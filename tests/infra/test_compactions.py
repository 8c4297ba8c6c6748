"""The state machine that compacts: what each step is told, for how long it is tried, and what an operator hears of it."""

import json
from typing import Any

import pytest

from infra.constructs.machine import COMPACTION
from infra.workers import WORKERS, Trigger

from .asl import longest, read, tasks
from .conftest import Deployment, actions_of, statements_of

DEFINITION = read(COMPACTION)
STEPS = tasks(DEFINITION["States"])
IDS = {"tenant.$": "$.tenant", "job.$": "$.job"}
(STEP,) = (worker for worker in WORKERS if worker.trigger is Trigger.COMPACTION)
AN_HOUR = 3600
"""As long as a job has (`spass/sessions/compaction`)."""


def test_a_compaction_that_goes_well_is_three_steps() -> None:
    way, state = [DEFINITION["StartAt"]], DEFINITION["States"][DEFINITION["StartAt"]]
    while "Next" in state:
        way.append(state["Next"])
        state = DEFINITION["States"][state["Next"]]
    assert way == ["Plan", "Summarise", "Commit"]
    assert state["End"] is True


def test_each_step_is_told_ids_and_hands_on_nothing() -> None:
    for name, task in STEPS.items():
        assert task["Parameters"] == {"step": name.lower(), **IDS}
        assert task["ResultPath"] is None
        assert [catch["ResultPath"] for catch in task.get("Catch", ())] == [None] * len(task.get("Catch", ()))


def test_a_step_that_fails_for_good_leaves_a_failed_job_and_a_failed_execution() -> None:
    states = DEFINITION["States"]
    for name in ("Plan", "Summarise", "Commit"):
        assert [(catch["ErrorEquals"], catch["Next"]) for catch in states[name]["Catch"]] == [(["States.ALL"], "Fail")]
    assert states["Fail"]["Next"] == "Failed"
    assert states["Failed"]["Type"] == "Fail"
    assert states["Failed"]["Error"] == "CompactionFailed"
    assert "Catch" not in states["Fail"], "what cannot be told either fails the execution all the same"


def test_every_step_is_tried_again_with_jitter_however_it_failed() -> None:
    assert set(STEPS) == {"Plan", "Summarise", "Commit", "Fail"}
    for task in STEPS.values():
        throttled, other = task["Retry"]
        assert throttled["ErrorEquals"] == ["Lambda.TooManyRequestsException"]
        assert other["ErrorEquals"] == ["States.ALL"]
        assert {throttled["JitterStrategy"], other["JitterStrategy"]} == {"FULL"}


@pytest.mark.parametrize("name", ["Plan", "Summarise", "Commit"])
def test_whatever_a_step_fails_of_its_job_says_so_within_the_hour_it_has(name: str) -> None:
    """Were the execution itself out of time, nothing of it would run any more."""
    assert DEFINITION["TimeoutSeconds"] == AN_HOUR
    step, last = STEPS[name], STEPS["Fail"]
    for kind, takes in ((0, False), (1, True)):  # being throttled takes no time; everything else at most a step's own
        worst = sum(_worst(task["Retry"][kind], task["TimeoutSeconds"] if takes else 0) for task in (step, last))
        assert worst <= AN_HOUR


def _worst(retry: dict[str, Any], seconds: float) -> float:
    return longest(retry) + float(retry["MaxAttempts"] + 1) * seconds


def test_a_step_waits_a_quarter_of_an_hour_for_a_free_function() -> None:
    assert all(longest(task["Retry"][0]) > AN_HOUR / 4 for task in STEPS.values())


def test_a_summary_may_take_as_long_as_its_function_which_ends_first(dev: Deployment) -> None:
    assert dev.functions()[STEP.function_name]["Timeout"] < STEPS["Summarise"]["TimeoutSeconds"]


def test_the_machine_may_call_its_step_and_do_nothing_else(dev: Deployment) -> None:
    name, machine = dev.machine(COMPACTION)
    step = {"Fn::GetAtt": [dev.worker(Trigger.COMPACTION), "Arn"]}
    assert machine["DefinitionSubstitutions"] == {"Step": step}
    assert machine["StateMachineType"] == "STANDARD"
    statements = statements_of(dev.jobs, machine["RoleArn"]["Fn::GetAtt"][0])
    granted = {action: one["Resource"] for one in statements for action in actions_of(one) if not action.startswith("logs:")}
    assert granted == {"lambda:InvokeFunction": step}
    variables = dev.functions()["worker-compactions"]["Environment"]["Variables"]
    assert variables["SPASS_COMPACTION_MACHINE"] == {"Ref": name}


def test_the_log_holds_errors_and_nothing_that_was_said(dev: Deployment) -> None:
    logging = dev.machine(COMPACTION)[1]["LoggingConfiguration"]
    assert (logging["Level"], logging["IncludeExecutionData"]) == ("ERROR", False)


def test_what_a_compaction_needs_has_no_weights_of_an_embedded_model(dev: Deployment) -> None:
    for name in ("worker-compactions", "worker-compaction-step", "sessions-compact"):
        assert "Model" not in dev.layers(name)


def test_an_execution_that_failed_or_ran_out_of_time_raises_an_alarm(prod: Deployment) -> None:
    watched = {
        name: sorted(query["MetricStat"]["Metric"]["MetricName"] for query in queries)
        for name, queries in _metrics(prod).items()
        if "AWS/States" in json.dumps(queries)
    }
    (compactions,) = watched.values()
    assert compactions == ["ExecutionsFailed", "ExecutionsTimedOut"]
    (threshold,) = [alarm["Threshold"] for name, alarm in _alarms(prod).items() if name in watched]
    assert threshold == 1


def _alarms(deployment: Deployment) -> dict[str, dict[str, Any]]:
    return {name: alarm["Properties"] for name, alarm in deployment.resources("AWS::CloudWatch::Alarm")}


def _metrics(deployment: Deployment) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [query for query in alarm["Metrics"] if "MetricStat" in query]
        for name, alarm in _alarms(deployment).items()
        if "Metrics" in alarm
    }
