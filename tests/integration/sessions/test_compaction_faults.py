"""Each AWS call of a compaction fails in every way, and the client retries."""

import asyncio
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
import pytest

from spass.aws.attributes import Item
from spass.core.ids import SessionId
from spass.sessions.record import StoredMessage
from spass.sessions.session import Session, decode_session
from spass.testing.faults import Fault
from tests.simulated.deployment import CallFaults, SimulatedDeployment, simulated_deployment
from tests.unit.virtual_time import BACKEND

pytestmark = pytest.mark.anyio

TURNS, KEPT = 3, 4
PATIENCE = 200  # tries of a client, which waits as long as it is told to
SOAK = bool(os.environ.get("SPASS_SOAK"))


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
    seen: set[str] = field(default_factory=set)

    @classmethod
    async def of(cls, deployment: SimulatedDeployment, faults: Mapping[int, Fault]) -> "Case":
        deployment.begin_anew(CallFaults())
        source = await deployment.session(TURNS, keep_last=2)
        case = cls(deployment, source, await deployment.history(source))
        deployment.points = CallFaults(faults, watch=case.look)
        return case

    def look(self) -> None:
        """Assert that the compaction is complete or absent. Called after every write of any process."""
        stored = {(str(item["pk"]), str(item["sk"])): item for item in self.deployment.stored()}
        heads = [decode_session(item) for (_, sk), item in stored.items() if sk == "HEAD"]
        (source,) = [head for head in heads if head.id == self.source]
        successors = [head for head in heads if head.id != self.source]
        turns = [item for (_, sk), item in stored.items() if sk.startswith("TURN#")]
        summaries = [item for (_, sk), item in stored.items() if sk.startswith("SUM#")]
        succeeded = [item for (_, sk), item in stored.items() if sk == "JOB" and item["status"] == "succeeded"]
        listed = [_entry(item) for (pk, _), item in stored.items() if "#USER#" in pk]
        assert len(successors) == len(summaries) == len(succeeded) == len(turns) - TURNS, "all or nothing"
        assert listed == [_entry(item) for (_, sk), item in stored.items() if sk == "HEAD"], "the list shows the heads"
        if not successors:
            assert (source.archived_at, source.successor_session_id, source.compacted_before) == (None, None, 1)
            return
        (successor,) = successors
        self.seen.add(successor.id)
        assert len(self.seen) == 1, "there was and is one successor"
        assert (source.successor_session_id, source.archived_by) == (successor.id, succeeded[0]["id"])
        assert source.compacted_before == len(self.before) - KEPT + 1
        assert successor.parent_session_id == source.id
        assert not [sk for _, sk in stored if sk == "DRAFT"], "what a job made is where it belongs"

    async def end(self) -> Session | None:
        """Check what is stored after all processes have ended, and return the successor, if any."""
        await self.deployment.settled()
        self.look()
        assert await self.deployment.history(self.source) == self.before, "history is never shorter"
        source = await self.deployment.head(self.source)
        if source.successor_session_id is None:
            return None
        successor = await self.deployment.head(source.successor_session_id)
        opening, *kept = await self.deployment.history(successor.id)
        assert opening.message.content == f"[compaction summary from session {source.id}] {self.deployment.model.script}"
        assert [(one.message, one.created_at) for one in kept] == [(one.message, one.created_at) for one in self.before[-KEPT:]]
        assert (source.hold, successor.hold) == (None, None)
        return successor

    async def retried(self, headers: Mapping[str, str]) -> SessionId:
        """Request a compaction until it succeeds, and return the successor. A ticket is stored under its key, so after a failed
        job the client uses a new key."""
        for attempt in range(PATIENCE):
            answer = await self.deployment.compact(self.source, headers)
            assert answer is not None
            if answer.status_code == 200:
                return SessionId(answer.json()["successor_session_id"])
            if answer.status_code == 202:
                found = await self._job_s_end(answer.headers["location"])
                if found is not None:
                    return found
                headers = {"Idempotency-Key": f"again-{attempt}"} if headers else {}
                continue
            error = answer.json()["error"]
            if error["code"] == "session_archived" and not headers:
                return SessionId(error["details"]["successor_session_id"])
            assert answer.status_code in (409, 503), answer.text
            assert error["code"] != "session_archived", "the same key finds its own compaction"
            await asyncio.sleep(int(answer.headers["retry-after"]))
        raise AssertionError("the client lost its patience")

    async def _job_s_end(self, location: str) -> SessionId | None:
        for _ in range(PATIENCE):
            answer = await self.deployment.send("GET", location)
            assert answer is not None
            job = answer.json()
            if job["status"] == "succeeded":
                return SessionId(job["result"]["successor_session_id"])
            if job["status"] == "failed":
                return None
            await asyncio.sleep(1)
        raise AssertionError("the client lost its patience")


def _entry(item: Item) -> dict[str, object]:
    return {name: value for name, value in item.items() if name not in ("pk", "sk", "hold")}


async def calls(deployment: SimulatedDeployment, headers: Mapping[str, str]) -> list[str]:
    """Return the calls of a compaction without faults."""
    case = await Case.of(deployment, {})
    answer = await deployment.compact(case.source, headers)
    assert answer is not None
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
    for point, name in enumerate(points):
        case = await Case.of(deployment, {point: fault})
        answer = await deployment.compact(case.source, key)
        await case.end()
        where = f"{fault} at {point} ({name})"
        assert len(deployment.points.calls) > point, where
        successor = await case.retried(key)
        found = await case.end()
        assert found is not None, where
        assert found.id == successor, where
        _agrees(answer, successor, where)
        assert deployment.failed_executions == [], where
        assert deployment.dead_letters == [], where
    record_property("points_tried", len(points))


def _agrees(answer: httpx.Response | None, successor: SessionId, where: str) -> None:
    """Assert that the answer to the first attempt is true."""
    if answer is not None and answer.status_code == 200:
        assert answer.json()["successor_session_id"] == successor, where


async def test_a_session_is_compacted_once_if_any_two_calls_of_the_commit_fail(
    deployment: SimulatedDeployment, record_property: Callable[[str, object], None]
) -> None:
    """In a soak, any two calls of the whole compaction."""
    points = await calls(deployment, {})
    first = [number for number, name in enumerate(points) if SOAK or name.startswith("commit ")]
    faults = [fault for fault in Fault if SOAK or fault is not Fault.TIMEOUT]  # to us it looks like a throttle
    tried = 0
    for one, between in itertools.product(first, range(1, len(first))):
        for fault, then in itertools.product(faults, faults):
            case = await Case.of(deployment, {one: fault, one + between: then})
            await deployment.compact(case.source)
            await case.end()
            deployment.points.faults = {}
            successor = await case.retried({})
            found = await case.end()
            where = f"{fault} at {one} ({points[one]}), {then} at the {between}. after it"
            assert found is not None, where
            assert found.id == successor, where
            tried += 1
    record_property("pairs_tried", tried)


async def test_a_session_is_compacted_once_if_many_calls_fail(
    deployment: SimulatedDeployment, record_property: Callable[[str, object], None]
) -> None:
    seeds = 3000 if SOAK else 60
    for seed in range(seeds):
        chance = random.Random(seed)
        faults = {chance.randrange(40): chance.choice(list(Fault)) for _ in range(chance.randint(3, 10))}
        key = chance.choice([{}, {"Idempotency-Key": "once"}])
        case = await Case.of(deployment, faults)
        await deployment.compact(case.source, key)
        await case.end()
        deployment.points.faults = {}
        successor = await case.retried(key)
        found = await case.end()
        assert found is not None, f"seed {seed}"
        assert found.id == successor, f"seed {seed}"
    record_property("seeds_tried", seeds)


async def test_repeated_messages_and_steps_after_the_end_change_nothing(deployment: SimulatedDeployment) -> None:
    case = await Case.of(deployment, {})
    answer = await deployment.compact(case.source)
    assert answer is not None
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
    case = await Case.of(deployment, {})
    answer = await deployment.compact(case.source, {"Prefer": "respond-async"})
    assert answer is not None
    job = answer.json()["job_id"]
    for step in ("plan", "summarise", "commit", "fail"):
        await asyncio.gather(*(deployment.step(step, job) for _ in range(3)), return_exceptions=True)
        case.look()
    found = await case.end()
    assert found is not None
    assert found.id == await case.retried({})


async def test_a_job_whose_steps_always_fail_leaves_the_session_unchanged(deployment: SimulatedDeployment) -> None:
    case = await Case.of(deployment, {})
    deployment.points.faults = dict.fromkeys(range(5, 25), Fault.TIMEOUT)  # each of ten tries makes its call twice
    answer = await deployment.compact(case.source, {"Prefer": "respond-async"})
    assert answer is not None
    job = answer.json()["job_id"]
    assert await case.end() is None
    shown = await deployment.send("GET", answer.headers["location"])
    assert shown is not None
    assert (shown.json()["status"], shown.json()["error"]["code"]) == ("failed", "storage_unavailable")
    assert deployment.failed_executions == [job]
    deployment.points.faults = {}
    await case.retried({})
    assert await case.end() is not None
