"""The state machine of compactions: its steps, its retries and its alarms."""

from typing import Any

import pytest

from infra.constructs.machine import COMPACTION
from infra.workers import WORKERS, Trigger

from .asl import longest, read, tasks
from .conftest import Deployment, actions_of, statements_of

DEFINITION = read(COMPACTION)
STEPS = tasks(DEFINITION["States"])
IDS = {"tenant.$": "$.tenant", "job.$": "$.job", "input.$": "$$.Execution.Input"}
(STEP,) = (worker for worker in WORKERS if worker.trigger is Trigger.COMPACTION)
AN_HOUR = 3600
"""The time limit of a job (`spass/sessions/compaction`)."""


def test_a_successful_compaction_is_three_steps() -> None:
    way, state = [DEFINITION["StartAt"]], DEFINITION["States"][DEFINITION["StartAt"]]
    while following := state.get("Next") or state.get("Default"):
        way.append(following)
        state = DEFINITION["States"][following]
    assert way == ["Plan", "Summarise", "IsLimited", "Commit"]
    assert state["End"] is True


def test_a_summary_that_meets_a_rate_limit_holds_no_function() -> None:
    states = DEFINITION["States"]
    ((limit, wait),) = [(choice, states[choice["Next"]]) for choice in states["IsLimited"]["Choices"]]
    assert (limit["Variable"], limit["NumericGreaterThan"]) == ("$.summary.wait", 0)
    assert wait == {"Type": "Wait", "SecondsPath": "$.summary.wait", "Next": "Summarise"}


def test_each_step_gets_ids_and_passes_at_most_a_number_on() -> None:
    for name, task in STEPS.items():
        may_wait = {"may_wait": True} if name == "Summarise" else {}
        assert task["Parameters"] == {"step": name.lower(), **IDS, **may_wait}
        assert task["ResultPath"] == ("$.summary" if name == "Summarise" else None)
        assert [catch["ResultPath"] for catch in task.get("Catch", ())] == [None] * len(task.get("Catch", ()))


def test_a_step_without_further_retries_fails_the_job_and_the_execution() -> None:
    states = DEFINITION["States"]
    for name in ("Plan", "Summarise", "Commit"):
        assert [(catch["ErrorEquals"], catch["Next"]) for catch in states[name]["Catch"]] == [(["States.ALL"], "Fail")]
    assert states["Fail"]["Next"] == "Failed"
    assert states["Failed"]["Type"] == "Fail"
    assert states["Failed"]["Error"] == "CompactionFailed"
    assert "Catch" not in states["Fail"], "a failure of the step Fail fails the execution"


def test_every_step_is_retried_with_jitter_after_any_error() -> None:
    assert set(STEPS) == {"Plan", "Summarise", "Commit", "Fail"}
    for task in STEPS.values():
        throttled, other = task["Retry"]
        assert throttled["ErrorEquals"] == ["Lambda.TooManyRequestsException"]
        assert other["ErrorEquals"] == ["States.ALL"]
        assert {throttled["JitterStrategy"], other["JitterStrategy"]} == {"FULL"}


@pytest.mark.parametrize("name", ["Plan", "Summarise", "Commit"])
def test_a_failed_step_fails_its_job_within_the_hour(name: str) -> None:
    """After a timeout of the execution itself, no step could report the failure."""
    assert DEFINITION["TimeoutSeconds"] == AN_HOUR
    step, last = STEPS[name], STEPS["Fail"]
    for kind, takes in ((0, False), (1, True)):  # a throttled attempt takes no time, others at most the timeout of the step
        worst = sum(_worst(task["Retry"][kind], task["TimeoutSeconds"] if takes else 0) for task in (step, last))
        assert worst <= AN_HOUR


def _worst(retry: dict[str, Any], seconds: float) -> float:
    return longest(retry) + float(retry["MaxAttempts"] + 1) * seconds


def test_a_step_waits_a_quarter_of_an_hour_for_a_free_function() -> None:
    assert all(longest(task["Retry"][0]) > AN_HOUR / 4 for task in STEPS.values())


def test_the_summary_step_has_a_longer_timeout_than_its_function(dev: Deployment) -> None:
    assert dev.functions()[STEP.function_name]["Timeout"] < STEPS["Summarise"]["TimeoutSeconds"]


def test_the_state_machine_may_only_call_its_function(dev: Deployment) -> None:
    name, machine = dev.machine(COMPACTION)
    step = {"Fn::GetAtt": [dev.worker(Trigger.COMPACTION), "Arn"]}
    assert machine["DefinitionSubstitutions"] == {"Step": step}
    assert machine["StateMachineType"] == "STANDARD"
    statements = statements_of(dev.jobs, machine["RoleArn"]["Fn::GetAtt"][0])
    resources = {action: one["Resource"] for one in statements for action in actions_of(one) if not action.startswith("logs:")}
    assert resources == {"lambda:InvokeFunction": step}
    variables = dev.functions()["worker-compactions"]["Environment"]["Variables"]
    assert variables["SPASS_COMPACTION_MACHINE"] == {"Ref": name}


def test_the_log_contains_errors_without_inputs_and_outputs(dev: Deployment) -> None:
    logging = dev.machine(COMPACTION)[1]["LoggingConfiguration"]
    assert (logging["Level"], logging["IncludeExecutionData"]) == ("ERROR", False)


def test_functions_of_compactions_have_no_weights(dev: Deployment) -> None:
    for name in ("worker-compactions", "worker-compaction-step", "sessions-compact"):
        assert "Model" not in dev.layers(name)
