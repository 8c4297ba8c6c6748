"""Inject each fault into each AWS call of a compaction. After a retry the session has one successor."""

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
import pytest

from spass.core.ids import SessionId
from spass.sessions.record import StoredMessage
from spass.sessions.session import Session, decode_session
from spass.store.writes import Item
from spass.testing.faults import Fault
from tests.sampling import SOAK, sampled
from tests.simulated.deployment import CallFaults, SimulatedDeployment, simulated_deployment
from tests.unit.virtual_time import BACKEND

pytestmark = pytest.mark.anyio

TURNS, KEPT = 3, 4
ATTEMPTS = 200  # of a client, which obeys Retry-After


@pytest.fixture(scope="module")
def anyio_backend() -> object:
    return BACKEND


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedDeployment]:
    with simulated_deployment(tmp_path_factory.mktemp("operator")) as deployment:
        yield deployment


@dataclass
class Case:
    """One session to compact, in its own table. After every write the compaction is complete or absent."""

    deployment: SimulatedDeployment
    source: SessionId
    before: Sequence[StoredMessage]
    successor_ids: set[str] = field(default_factory=set)

    @classmethod
    async def create(cls, deployment: SimulatedDeployment, faults: Mapping[int, Fault]) -> "Case":
        deployment.begin_anew(CallFaults())
        source = await deployment.session(TURNS, keep_last=2)
        case = cls(deployment, source, await deployment.history(source))
        deployment.points = CallFaults(faults, watch=case.check_writes)
        return case

    def check_writes(self) -> None:
        """Assert that the compaction is complete or absent. The deployment calls this after every write of a process."""
        stored = {(str(item["pk"]), str(item["sk"])): item for item in self.deployment.stored()}
        heads = [decode_session(item) for (_, sk), item in stored.items() if sk == "HEAD"]
        (source,) = [head for head in heads if head.id == self.source]
        successors = [head for head in heads if head.id != self.source]
        turns = [item for (_, sk), item in stored.items() if sk.startswith("TURN#")]
        summaries = [item for (_, sk), item in stored.items() if sk.startswith("SUM#")]
        succeeded = [item for (_, sk), item in stored.items() if sk == "JOB" and item["status"] == "succeeded"]
        listed = [_list_entry(item) for (pk, _), item in stored.items() if "#USER#" in pk]
        assert len(successors) == len(summaries) == len(succeeded) == len(turns) - TURNS, "complete or absent"
        assert listed == [_list_entry(item) for (_, sk), item in stored.items() if sk == "HEAD"], "list and heads must agree"
        if not successors:
            assert (source.archived_at, source.successor_session_id, source.compacted_before) == (None, None, 1)
            return
        (successor,) = successors
        self.successor_ids.add(successor.id)
        assert len(self.successor_ids) == 1, "there must be only one successor at all times"
        assert (source.successor_session_id, source.archived_by) == (successor.id, succeeded[0]["id"])
        assert source.compacted_before == len(self.before) - KEPT + 1
        assert successor.parent_session_id == source.id
        assert not [sk for _, sk in stored if sk == "DRAFT"], "a finished job must leave no draft"

    async def end(self) -> Session | None:
        """Wait until all processes have ended, and check the stored sessions. Return the successor, if any."""
        await self.deployment.settled()
        self.check_writes()
        assert await self.deployment.history(self.source) == self.before, "the compaction must not change the source"
        source = await self.deployment.head(self.source)
        if source.successor_session_id is None:
            return None
        successor = await self.deployment.head(source.successor_session_id)
        summary, *tail = await self.deployment.history(successor.id)
        assert summary.message.content == f"[compaction summary from session {source.id}] {self.deployment.model.script}"
        assert [(one.message, one.created_at) for one in tail] == [(one.message, one.created_at) for one in self.before[-KEPT:]]
        assert (source.hold, successor.hold) == (None, None)
        return successor

    async def retry(self, headers: Mapping[str, str]) -> SessionId:
        """Request a compaction until it succeeds, and return the successor.

        The answer 202 is stored under its key, so the client uses a new key after a failed job.
        """
        for attempt in range(ATTEMPTS):
            answer = await self.deployment.compact(self.source, headers)
            if answer.status_code == 200:
                return SessionId(answer.json()["successor_session_id"])
            if answer.status_code == 202:
                successor = await self._wait_for_job(answer.headers["location"])
                if successor is not None:
                    return successor
                headers = {"Idempotency-Key": f"again-{attempt}"} if headers else {}
                continue
            error = answer.json()["error"]
            if error["code"] == "session_archived" and not headers:
                return SessionId(error["details"]["successor_session_id"])
            assert answer.status_code in (409, 503), answer.text
            assert error["code"] != "session_archived", "a retry with the same key must find its compaction"
            await asyncio.sleep(int(answer.headers["retry-after"]))
        raise AssertionError(f"the compaction has not succeeded after {ATTEMPTS} attempts")

    async def _wait_for_job(self, location: str) -> SessionId | None:
        """Poll a job until it ends. Return the successor, or None if the job failed."""
        for _ in range(ATTEMPTS):
            answer = await self.deployment.send("GET", location)
            job = answer.json()
            if job["status"] == "succeeded":
                return SessionId(job["result"]["successor_session_id"])
            if job["status"] == "failed":
                return None
            await asyncio.sleep(1)
        raise AssertionError(f"the job has not ended after {ATTEMPTS} seconds")


def _list_entry(item: Item) -> dict[str, object]:
    return {name: value for name, value in item.items() if name not in ("pk", "sk", "hold")}


async def calls(deployment: SimulatedDeployment, headers: Mapping[str, str]) -> list[str]:
    """Return the calls of a compaction without faults."""
    case = await Case.create(deployment, {})
    answer = await deployment.compact(case.source, headers)
    assert answer.status_code == 200
    assert await case.end() is not None
    return deployment.points.calls


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "once"}], ids=["without a key", "with a key"])
@pytest.mark.parametrize("fault", list(Fault))
async def test_a_session_is_compacted_once_if_any_call_fails(
    deployment: SimulatedDeployment, fault: Fault, key: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    points = await calls(deployment, key)
    assert {name.split()[0] for name in points} == {"route", "queue", "plan", "summarise", "commit"}, points
    for point, name in sampled([*enumerate(points)], 4, f"{fault} {key}"):
        case = await Case.create(deployment, {point: fault})
        answer = await deployment.try_compact(case.source, key)
        await case.end()
        where = f"{fault} at {point} ({name})"
        assert len(deployment.points.calls) > point, where
        successor = await case.retry(key)
        stored = await case.end()
        assert stored is not None, where
        assert stored.id == successor, where
        _assert_consistent(answer, successor, where)
        assert deployment.failed_executions == [], where
        assert deployment.dead_letters == [], where
    record_property("points_tried", len(points))


def _assert_consistent(answer: httpx.Response | None, successor: SessionId, where: str) -> None:
    """Assert that the first attempt, if it succeeded, returned the successor."""
    if answer is not None and answer.status_code == 200:
        assert answer.json()["successor_session_id"] == successor, where


async def test_a_session_is_compacted_once_if_any_two_calls_of_the_commit_fail(
    deployment: SimulatedDeployment, record_property: Callable[[str, object], None]
) -> None:
    """Test any two calls of the commit; in a soak, any two calls of the whole compaction."""
    points = await calls(deployment, {})
    first = [number for number, name in enumerate(points) if SOAK or name.startswith("commit ")]
    faults = [fault for fault in Fault if SOAK or fault is not Fault.TIMEOUT]  # the gateway handles it like a throttle
    pairs = sampled([*itertools.product(first, range(1, len(first)), faults, faults)], 4)
    for one, between, fault, then in pairs:
        where = f"{fault} at {one} ({points[one]}), {then} at the {between}. after it"
        await _compact_in_spite_of(deployment, {one: fault, one + between: then}, {}, where)
    record_property("pairs_tried", len(pairs))


async def _compact_in_spite_of(
    deployment: SimulatedDeployment, faults: Mapping[int, Fault], key: Mapping[str, str], where: str
) -> None:
    """Request a compaction with ``faults``, and again without them. Assert that there is one successor."""
    case = await Case.create(deployment, faults)
    await deployment.try_compact(case.source, key)
    await case.end()
    deployment.points.faults = {}
    successor = await case.retry(key)
    stored = await case.end()
    assert stored is not None, where
    assert stored.id == successor, where


async def test_a_session_is_compacted_once_if_many_calls_fail(
    deployment: SimulatedDeployment, record_property: Callable[[str, object], None]
) -> None:
    seeds = 3000 if SOAK else 20
    for seed in range(seeds):
        chance = random.Random(seed)
        faults = {chance.randrange(40): chance.choice(list(Fault)) for _ in range(chance.randint(3, 10))}
        key = chance.choice([{}, {"Idempotency-Key": "once"}])
        await _compact_in_spite_of(deployment, faults, key, f"seed {seed}")
    record_property("seeds_tried", seeds)


async def test_messages_and_steps_that_repeat_after_the_end_change_nothing(deployment: SimulatedDeployment) -> None:
    case = await Case.create(deployment, {})
    answer = await deployment.compact(case.source)
    job = answer.json()["job_id"]
    assert await case.end() is not None
    stored = list(deployment.table.items())
    for step in ("plan", "summarise", "commit", "fail"):
        await deployment.step(step, job)
    assert await deployment.message(json.dumps({"job": "compact", "tenant": "demo", "id": job})) == {"batchItemFailures": []}
    await deployment.settled()
    assert list(deployment.table.items()) == stored


async def test_steps_that_run_twice_concurrently_create_one_successor(deployment: SimulatedDeployment) -> None:
    """The state machine abandons a step that still runs, and invokes it again."""
    case = await Case.create(deployment, {})
    answer = await deployment.compact(case.source, {"Prefer": "respond-async"})
    job = answer.json()["job_id"]
    for step in ("plan", "summarise", "commit", "fail"):
        await asyncio.gather(*(deployment.step(step, job) for _ in range(3)), return_exceptions=True)
        case.check_writes()
    stored = await case.end()
    assert stored is not None
    assert stored.id == await case.retry({})


async def test_a_job_whose_steps_always_fail_leaves_the_session_unchanged(deployment: SimulatedDeployment) -> None:
    case = await Case.create(deployment, {})
    deployment.points.faults = dict.fromkeys(range(6, 26), Fault.TIMEOUT)  # each of ten attempts makes its call twice
    answer = await deployment.compact(case.source, {"Prefer": "respond-async"})
    job = answer.json()["job_id"]
    assert await case.end() is None
    job_response = await deployment.send("GET", answer.headers["location"])
    assert (job_response.json()["status"], job_response.json()["error"]["code"]) == ("failed", "storage_unavailable")
    assert deployment.failed_executions == [job]
    deployment.points.faults = {}
    await case.retry({})
    assert await case.end() is not None
