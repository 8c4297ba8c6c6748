"""The state machine in process retries, catches and ends as the States Language defines."""

import asyncio
from collections.abc import Mapping

import pytest

from spass.testing.state_machine import StateMachine

pytestmark = pytest.mark.anyio

RETRY = [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 1, "BackoffRate": 2, "MaxAttempts": 2, "MaxDelaySeconds": 3}]
PARAMETERS = {"step": "first", "job.$": "$.job"}
DEFINITION = {
    "StartAt": "First",
    "States": {
        "First": {"Type": "Task", "Parameters": PARAMETERS, "Retry": RETRY, "Catch": [{"Next": "Broken"}], "Next": "Second"},
        "Second": {"Type": "Task", "Parameters": {"step": "second"}, "Retry": RETRY, "Catch": [{"Next": "Broken"}], "End": True},
        "Broken": {"Type": "Fail"},
    },
}


@pytest.mark.parametrize(
    ("failures", "succeeds", "tasks", "delays"),
    [
        (0, True, ["first", "second"], []),
        (2, True, ["first", "first", "first", "second"], [1, 2]),
        (3, False, ["first"] * 3, [1, 2, 3]),
    ],
)
async def test_a_task_is_retried_and_its_failure_caught(
    failures: int, succeeds: bool, tasks: list[str], delays: list[float]
) -> None:
    events: list[Mapping[str, str]] = []
    waited: list[float] = []

    async def invoke(event: Mapping[str, str]) -> None:
        events.append(event)
        if len(events) <= failures:
            raise LookupError(event["step"])

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        await asyncio.sleep(0)

    assert await StateMachine(DEFINITION, invoke, wait).run({"job": "j1"}) is succeeds
    assert ([event["step"] for event in events], waited) == (tasks, delays)
    assert events[0] == {"step": "first", "job": "j1"}


async def test_a_choice_among_numbers_leads_to_a_wait_and_back() -> None:
    first = {"Type": "Task", "Parameters": PARAMETERS, "ResultPath": "$.first", "Retry": RETRY, "Next": "IsEarly"}
    choices = [{"Variable": "$.first.wait", "NumericGreaterThan": 0, "Next": "Wait"}]
    states = {
        "First": first,
        "IsEarly": {"Type": "Choice", "Choices": choices, "Default": "Last"},
        "Wait": {"Type": "Wait", "SecondsPath": "$.first.wait", "Next": "First"},
        "Last": {"Type": "Task", "Parameters": {"step": "last"}, "ResultPath": None, "Retry": RETRY, "End": True},
    }
    waited: list[float] = []
    answers = [{"wait": 7}, {"wait": 3}, {"wait": 0}, None]
    steps: list[str] = []

    async def invoke(event: Mapping[str, str]) -> object:
        steps.append(event["step"])
        return answers.pop(0)

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    assert await StateMachine({"StartAt": "First", "States": states}, invoke, wait).run({"job": "j1"})
    assert (steps, waited) == (["first"] * 3 + ["last"], [7, 3])
