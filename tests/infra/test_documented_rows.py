"""The lines of the guide to routes and workers are deployed: functions with roles of their own, a path and a schedule."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.environments import DEV, Environment
from infra.routes import ROUTES, Route, Surface
from infra.stacks import api, jobs
from infra.workers import WORKERS, Trigger, Worker

from .conftest import Deployment
from .test_permissions import LOGS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch, synthesize: Callable[[Environment], Deployment]) -> Deployment:
    """Return the templates of dev with both lines."""
    names = {"Route": Route, "Worker": Worker, "Surface": Surface, "Trigger": Trigger}
    rows = [eval(line, names) for line in re.findall(r"```text\n((?:Route|Worker)\(.*\)),\n```", GUIDE.read_text())]
    (route,) = (row for row in rows if isinstance(row, Route))
    (worker,) = (row for row in rows if isinstance(row, Worker))
    monkeypatch.setattr(api, "ROUTES", (*ROUTES, route))
    for module in (api, jobs):
        monkeypatch.setattr(module, "WORKERS", (*WORKERS, worker))
    return synthesize(DEV)


def test_the_lines_of_the_guide_are_deployed(dev: Deployment, deployed: Deployment) -> None:
    assert deployed.functions().keys() - dev.functions().keys() == {"tokens-whoami", "worker-census"}
    assert deployed.methods().keys() - dev.methods().keys() == {(verb, "/v1/whoami") for verb in ("GET", "HEAD", "ANY")}
    assert deployed.actions("tokens-whoami") == deployed.actions("worker-census") == LOGS
    clocks = dict(deployed.resources("AWS::Scheduler::Schedule"))
    before = dict(dev.resources("AWS::Scheduler::Schedule"))
    assert clocks.items() >= before.items(), "the schedule of the sweep stays as it is"
    ((_, clock),) = [item for item in clocks.items() if item[0] not in before]
    assert clock["Properties"]["Target"]["Arn"] == {"Fn::GetAtt": [deployed.function_id("worker-census"), "Arn"]}
    assert clock["Properties"]["ScheduleExpression"] == "rate(1 hour)"
