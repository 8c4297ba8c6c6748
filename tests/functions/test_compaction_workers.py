"""The workers of compactions, called as the queue and the state machine call them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spass.core.ids import SessionId
from spass.testing.faults import Fault
from tests.simulated.deployment import CallFaults, SimulatedDeployment, StepFailed, simulated_deployment

pytestmark = pytest.mark.anyio

NOBODY_S = "job_" + "0" * 26


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[SimulatedDeployment]:
    with simulated_deployment(tmp_path, played=False) as deployment:
        yield deployment


async def start_job(deployment: SimulatedDeployment) -> tuple[SessionId, str]:
    session = await deployment.session()
    answer = await deployment.compact(session, {"Prefer": "respond-async"})
    return session, str(answer.json()["job_id"])


def message(**fields: object) -> str:
    return json.dumps({"job": "compact", "tenant": "demo", "id": NOBODY_S} | fields)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{secret", "the message is not JSON"),
        ("[" * 100_000, "the message is not JSON"),
        ('"secret"', "the message is not a known job"),
        (message(job="secret"), "the message is not a known job"),
        (message(id="job_secret"), "the message is not a known job"),
        (message(id=7), "the message is not a known job"),
        (message(tenant="secret"), "the tenant is not known"),
    ],
)
async def test_an_unknown_message_is_logged_and_dropped(
    deployment: SimulatedDeployment, body: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await deployment.message(body) == {"batchItemFailures": []}
    assert deployment.executions == {}
    printed = capsys.readouterr().out
    (line,) = [json.loads(line) for line in printed.splitlines()]
    assert (line["level"], line["event"], line["message_id"], line["why"]) == ("warning", "job_dropped", "m0", why)
    assert "secret" not in printed


async def test_a_repeated_message_starts_one_execution_named_after_its_job(deployment: SimulatedDeployment) -> None:
    session, job = await start_job(deployment)
    for _ in range(3):
        assert await deployment.message(message(id=job)) == {"batchItemFailures": []}
    await deployment.settled()
    assert list(deployment.executions) == [job]
    assert (await deployment.head(session)).archived_by == job


async def test_a_failed_message_does_not_affect_the_next_one(deployment: SimulatedDeployment) -> None:
    (first, one), (second, two) = await start_job(deployment), await start_job(deployment)
    deployment.points = CallFaults({0: Fault.THROTTLE, 1: Fault.THROTTLE})
    answer: Any = await deployment.message(message(id=one), "junk", message(id=two))
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m0"}]}
    await deployment.settled()
    assert (await deployment.head(first)).archived_at is None
    assert (await deployment.head(second)).archived_by == two


async def test_an_unknown_step_fails(deployment: SimulatedDeployment) -> None:
    with pytest.raises(StepFailed):
        await deployment.step("rollback", NOBODY_S)


async def test_events_and_answers_of_steps_contain_no_text(
    deployment: SimulatedDeployment, capsys: pytest.CaptureFixture[str]
) -> None:
    _, job = await start_job(deployment)
    for step in ("plan", "summarise", "commit"):
        assert await deployment.step(step, job) == {"job": job, "wait": 0}
    printed = capsys.readouterr().out
    assert "Berlin" not in printed
    assert "question" not in printed
