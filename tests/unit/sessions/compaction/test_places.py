"""A tenant has places for its compactions in work; what exceeds it waits in order, whatever dies in between."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from spass.core.ids import JobId
from spass.core.jobs import WorkKind
from spass.sessions.compaction.job import JOB_SECONDS, read_job, repair_places
from spass.store import keys
from spass.testing.faults import Fault
from tests.simulated.deployment import CallFaults, SimulatedDeployment, simulated_deployment
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

ASYNC = {"Prefer": "respond-async"}
KIND = WorkKind.COMPACTIONS
PLACES = 4
SUMMARY_SECONDS = 20.0


class Summaries:
    """How many summaries are written at a time. ``most`` is the greatest number so far."""

    def __init__(self, deployment: SimulatedDeployment) -> None:
        self.now = self.most = 0
        deployment.model.before_chat = self.write

    async def write(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(SUMMARY_SECONDS)
        self.now -= 1


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[SimulatedDeployment]:
    with simulated_deployment(tmp_path) as deployment:
        deployment._work_bound = lambda *_: PLACES
        yield deployment


async def request(deployment: SimulatedDeployment, count: int) -> list[JobId]:
    answers = [await deployment.try_compact(await deployment.session(), ASYNC) for _ in range(count)]
    return [JobId(answer.json()["job_id"]) for answer in answers if answer is not None]


async def statuses(deployment: SimulatedDeployment, jobs: list[JobId]) -> list[str]:
    with deployment.quiet():
        records = [await read_job(deployment.store, job) for job in jobs]
    return [record.status for record in records if record is not None]


def left(deployment: SimulatedDeployment) -> list[str]:
    """Return the sort keys of the tenant's places and of what waits."""
    tenant = deployment.store.tenant
    place, line = keys.work_places(KIND, tenant), keys.waiting_partition(tenant, KIND)
    return [str(item["sk"]) for item in deployment.stored() if (item["pk"], item["sk"]) == place or item["pk"] == line]


async def test_a_tenant_gets_its_places_and_all_its_jobs_succeed(deployment: SimulatedDeployment) -> None:
    summaries = Summaries(deployment)
    jobs = await request(deployment, 10)
    await deployment.settled()
    assert summaries.most == PLACES
    assert await statuses(deployment, jobs) == ["succeeded"] * 10
    assert left(deployment) == []
    assert (deployment.failed_executions, deployment.dead_letters) == ([], [])


@pytest.mark.parametrize("at", range(0, 60, 3))
async def test_all_jobs_end_whichever_call_kills_a_process(deployment: SimulatedDeployment, at: int) -> None:
    jobs = await request(deployment, 1)
    deployment.points = CallFaults({at: Fault.CRASH_AFTER})
    jobs += await request(deployment, 6)
    await deployment.settled()
    deployment.points = CallFaults()
    with deployment.quiet():
        await repair_places(deployment.store, deployment.clock() + JOB_SECONDS)
    await deployment.settled()
    ends = await statuses(deployment, jobs)
    assert ends.count("succeeded") >= 6, "a request that dies may leave a job that never starts"
    assert left(deployment) == []


async def test_a_job_that_fails_gives_its_place_back(deployment: SimulatedDeployment) -> None:
    deployment.model.script = ""
    jobs = await request(deployment, 2 * PLACES)
    await deployment.settled()
    assert await statuses(deployment, jobs) == ["failed"] * len(jobs)
    assert left(deployment) == []


async def test_the_sweep_sends_what_waits_behind_jobs_whose_executions_died(deployment: SimulatedDeployment) -> None:
    deployment.played = False
    died = await request(deployment, PLACES)
    deployment.played = True
    (job,) = await request(deployment, 1)
    await deployment.settled()
    assert await statuses(deployment, [job]) == ["queued"]
    with deployment.quiet():
        await repair_places(deployment.store, deployment.clock())
    assert await statuses(deployment, [job]) == ["queued"], "the others may be in work"
    with deployment.quiet():
        await deployment.store.line.give_back(KIND, died[0])
    await deployment.settled()
    assert await statuses(deployment, [job]) == ["succeeded"]
    with deployment.quiet():
        await repair_places(deployment.store, deployment.clock() + JOB_SECONDS)
    assert left(deployment) == []
