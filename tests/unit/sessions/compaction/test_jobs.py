"""Compactions through the routes, with a simulated queue and state machine."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from spass.core.errors import RateLimited, UpstreamError
from spass.core.ids import JobId, RequestId, SessionId, UserId
from spass.sessions.compaction import jobs
from spass.sessions.compaction.job import JOB_SECONDS, Job
from spass.sessions.deletion import delete_session
from spass.sessions.hold import acquire_hold, new_hold
from spass.sessions.record import TurnRecord, load_turns
from spass.sessions.session import HoldKind
from spass.store import keys
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put, Update
from spass.testing.faults import Crash, Fault, inject
from tests.simulated.deployment import AGENT, USER, CallFaults, Invocation, SimulatedDeployment, StepFailed, simulated_deployment
from tests.unit.idempotent_requests import idempotent_request
from tests.unit.scopes import scope_of
from tests.unit.virtual_time import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

ASYNC: Mapping[str, str] = {"Prefer": "respond-async"}


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[SimulatedDeployment]:
    with simulated_deployment(tmp_path) as deployment:
        yield deployment


def json_of(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def error_of(answer: httpx.Response, status: int, code: str) -> Any:
    error = json_of(answer, status)["error"]
    assert error["code"] == code
    return error


def delay_model(deployment: SimulatedDeployment, seconds: float) -> None:
    """Delay the model's answers."""
    deployment.model.before_chat = lambda: asyncio.sleep(seconds)


async def test_a_request_waits_for_the_compaction_and_returns_all_its_fields(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    before = await deployment.history(session)
    answer = await deployment.compact(session, content=b"{}")
    result = json_of(answer, 200)
    source, successor = await deployment.head(session), await deployment.head(result["successor_session_id"])
    assert result == {
        "job_id": source.archived_by,
        "source_session_id": session,
        "successor_session_id": source.successor_session_id,
        "summary_id": successor.summary_id,
        "summary_text": deployment.model.script,
        "summary_model": "small",
        "compacted_message_count": 8,
        "kept_message_count": 4,
    }
    assert await deployment.history(session) == before
    assert [one.message for one in await deployment.history(successor.id)][1:] == [one.message for one in before[8:]]
    assert answer.headers["spass-cost-sub-calls"] == "1"
    assert answer.headers["spass-cost-usd"] == "0.00002"


async def test_a_finished_job_shows_its_result(deployment: SimulatedDeployment) -> None:
    result = json_of(await deployment.compact(await deployment.session()), 200)
    answer = await deployment.send("GET", f"/a1/jobs/{result['job_id']}")
    job = json_of(answer, 200)
    assert {name: job[name] for name in ("id", "kind", "status", "result", "error")} == {
        "id": result["job_id"],
        "kind": "compaction",
        "status": "succeeded",
        "result": result,
        "error": None,
    }
    assert job["created_at"] < job["finished_at"]
    assert answer.headers["spass-cost-sub-calls"] == "1"


async def test_respond_async_returns_the_location_of_the_job(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    delay_model(deployment, 10)
    answer = await deployment.compact(session, ASYNC)
    ticket = json_of(answer, 202)
    assert ticket == {"job_id": ticket["job_id"], "status": "queued"}
    assert answer.headers["location"] == f"/a1/jobs/{ticket['job_id']}"
    assert answer.headers["preference-applied"] == "respond-async"
    await asyncio.sleep(5)
    running = json_of(await deployment.send("GET", answer.headers["location"]), 200)
    assert (running["status"], running["finished_at"], running["result"], running["error"]) == ("running", None, None, None)
    await deployment.settled()
    assert json_of(await deployment.send("GET", answer.headers["location"]), 200)["status"] == "succeeded"


async def test_a_long_job_is_answered_with_202_after_25_seconds_and_few_reads(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    delay_model(deployment, 40)
    start_time = deployment.clock()
    answer = await deployment.compact(session)
    assert json_of(answer, 202)["status"] == "running"
    assert 25 <= deployment.clock() - start_time < 26
    assert "preference-applied" not in answer.headers
    assert deployment.points.calls.count("route GetItem") < 40
    await deployment.settled()
    assert json_of(await deployment.send("GET", answer.headers["location"]), 200)["status"] == "succeeded"


async def test_a_failed_read_does_not_end_the_wait_for_a_job(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    delay_model(deployment, 5)
    deployment.points = CallFaults(dict.fromkeys(range(8, 12), Fault.THROTTLE))
    answer = json_of(await deployment.compact(session), 200)
    assert (await deployment.head(session)).successor_session_id == answer["successor_session_id"]


async def test_the_location_of_a_job_contains_the_stage(deployment: SimulatedDeployment) -> None:
    deployment.app.root_path = "/prod"
    answer = await deployment.compact(await deployment.session(), ASYNC)
    assert answer.headers["location"] == f"/prod/a1/jobs/{answer.json()['job_id']}"


@pytest.mark.parametrize("body", [b'{"keep_last_n": 3}', b"[]", b"{"])
async def test_a_body_other_than_an_empty_object_is_refused(deployment: SimulatedDeployment, body: bytes) -> None:
    session = await deployment.session()
    error_of(await deployment.compact(session, content=body), 400, "invalid_request")
    assert (await deployment.head(session)).hold is None


async def test_compacting_an_archived_session_names_its_successor(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    successor = json_of(await deployment.compact(session), 200)["successor_session_id"]
    error = error_of(await deployment.compact(session), 409, "session_archived")
    assert error["details"] == {"successor_session_id": successor}


async def test_strategy_off_and_short_sessions_are_not_compacted(deployment: SimulatedDeployment) -> None:
    off, short, empty = (
        await deployment.session(strategy="off"),
        await deployment.session(1, keep_last=4),
        await deployment.session(0, keep_last=0),
    )
    stored = deployment.stored()
    error_of(await deployment.compact(off), 409, "compaction_disabled")
    error_of(await deployment.compact(short), 409, "nothing_to_compact")
    error_of(await deployment.compact(empty), 409, "nothing_to_compact")
    assert deployment.stored() == stored


async def test_a_session_with_strategy_auto_can_be_compacted_on_request(deployment: SimulatedDeployment) -> None:
    assert json_of(await deployment.compact(await deployment.session(strategy="auto")), 200)


async def test_a_session_that_a_turn_holds_is_busy(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    hold = new_hold("turn_1", HoldKind.TURN, None, deployment.clock())
    with deployment.quiet():
        await acquire_hold(deployment.store, session, AGENT, USER, hold, deployment.clock())
    stored = deployment.stored()
    answer = await deployment.compact(session)
    error_of(answer, 409, "session_busy")
    assert int(answer.headers["retry-after"]) >= 1
    assert deployment.stored() == stored


async def test_a_turn_between_the_read_and_the_hold_makes_the_session_busy(
    deployment: SimulatedDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn runs between the read of the session and the acquisition of its hold."""
    session = await deployment.session()

    async def add_message_after_load(store: TenantStore, read: SessionId, from_seq: int) -> list[TurnRecord]:
        turns = await load_turns(store, read, from_seq)
        write = Update(keys.session_head(store.tenant, read), add={"next_seq": 1})
        await store.table.write(write)
        return turns

    monkeypatch.setattr(jobs, "load_turns", add_message_after_load)
    answer = await deployment.compact(session)
    error_of(answer, 409, "session_busy")
    assert (await deployment.head(session)).hold is None
    assert not [item for item in deployment.stored() if item["sk"] == "JOB"]


async def test_a_second_compaction_is_refused_while_one_runs(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    delay_model(deployment, 10)
    job = json_of(await deployment.compact(session, ASYNC), 202)["job_id"]
    answer = await deployment.compact(session)
    assert error_of(answer, 409, "compaction_in_progress")["details"] == {"job_id": job}
    assert int(answer.headers["retry-after"]) >= 1
    await deployment.settled()
    assert (await deployment.head(session)).archived_by == job


async def test_sessions_and_jobs_of_other_users_are_not_found(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    error_of(await deployment.send("POST", f"/a1/agents/plain/sessions/{session}/compact", user="bob"), 404, "session_not_found")
    error_of(await deployment.send("POST", f"/a1/agents/counting/sessions/{session}/compact"), 400, "session_agent_mismatch")
    job = json_of(await deployment.compact(session), 200)["job_id"]
    for path, user, token in (
        (f"/a1/jobs/{job}", "bob", "demo-token"),
        (f"/a1/jobs/{job}", USER, "other-token"),
        (f"/a1/jobs/job_{'0' * 26}", USER, "demo-token"),
        ("/a1/jobs/job_1", USER, "demo-token"),
    ):
        error_of(
            await deployment.send("GET", path, user=user, headers={"Authorization": f"Bearer {token}"}), 404, "job_not_found"
        )


async def test_a_repeated_idempotency_key_gets_the_same_answer(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    key = {"Idempotency-Key": "k"}
    first, repeated = await deployment.compact(session, key), await deployment.compact(session, key)
    assert json_of(first, 200) == json_of(repeated, 200)
    assert repeated.headers["idempotency-replayed"] == "true"
    assert repeated.headers["spass-cost-usd"] == "0.00002"
    error_of(await deployment.compact(session, key, content=b"{}"), 422, "idempotency_key_reused")


async def test_a_replayed_202_has_the_same_status_and_location(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    key = {"Idempotency-Key": "k", **ASYNC}
    first, repeated = await deployment.compact(session, key), await deployment.compact(session, key)
    assert json_of(first, 202) == json_of(repeated, 202)
    assert first.headers["location"] == repeated.headers["location"]
    assert repeated.headers["idempotency-replayed"] == "true"


async def test_a_failed_summary_leaves_the_session_unchanged_and_released(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    head, before = await deployment.head(session), await deployment.history(session)
    deployment.model.failure = UpstreamError("Connection to http://10.0.0.7:8080/v1 refused by llm.internal.example.com.")
    answer = await deployment.compact(session, {"Idempotency-Key": "k"})
    error = error_of(answer, 502, "summary_failed")
    job = json_of(await deployment.send("GET", f"/a1/jobs/{error['details']['job_id']}"), 200)
    assert (job["status"], job["result"]) == ("failed", None)
    assert job["error"] == {"code": "summary_failed", "message": error["message"]}
    assert not {"10.0.0.7", "internal"} & set(job["error"]["message"].replace("/", " ").split())
    assert (await deployment.head(session), await deployment.history(session)) == (head, before)
    assert deployment.failed_executions == []
    deployment.model.failure = None
    assert json_of(await deployment.compact(session, {"Idempotency-Key": "k"}), 200)["job_id"] != job["id"]


async def test_a_waiting_request_gets_the_retry_after_of_the_failure(deployment: SimulatedDeployment) -> None:
    deployment.model.failure = RateLimited("The provider is busy.", retry_after=400)
    answer = await deployment.compact(await deployment.session())
    error_of(answer, 429, "rate_limited")
    assert answer.headers["retry-after"] == "400"


async def test_a_job_that_never_started_fails_after_an_hour_and_releases_its_session(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    delay_model(deployment, JOB_SECONDS + 100)
    answer = await deployment.compact(session, ASYNC)
    job = json_of(answer, 202)["job_id"]
    await asyncio.sleep(JOB_SECONDS)
    first_answer = json_of(await deployment.send("GET", f"/a1/jobs/{job}"), 200)
    assert (first_answer["status"], first_answer["error"]["code"]) == ("failed", "upstream_timeout")
    assert (await deployment.head(session)).hold is None
    await deployment.settled()
    assert (await deployment.head(session)).archived_at is None, "a failed job compacted its session"
    repeated = json_of(await deployment.send("GET", f"/a1/jobs/{job}"), 200)
    assert repeated == first_answer


async def test_deleting_the_successor_deletes_the_summary(deployment: SimulatedDeployment) -> None:
    result = json_of(await deployment.compact(await deployment.session()), 200)
    with deployment.quiet():
        await delete_session(deployment.store, SessionId(result["successor_session_id"]), AGENT, USER, deployment.clock())
    job = json_of(await deployment.send("GET", f"/a1/jobs/{result['job_id']}"), 200)
    assert job["result"] == {**result, "summary_text": None}


async def test_compacting_a_successor_includes_the_earlier_summary(deployment: SimulatedDeployment) -> None:
    first = json_of(await deployment.compact(await deployment.session(4, keep_last=8)), 200)
    successor = SessionId(first["successor_session_id"])
    error_of(await deployment.compact(successor), 409, "nothing_to_compact")
    head = await deployment.head(successor)
    with deployment.quiet():
        shorter = Put(keys.session_head("demo", successor), {**head.attributes(), "compact_keep_last_n": 4})  # type: ignore[arg-type]
        await deployment.store.table.write(shorter)
    deployment.model.script = "Ada lives in Berlin."
    second = json_of(await deployment.compact(successor), 200)
    assert (second["compacted_message_count"], second["kept_message_count"]) == (5, 4)
    prompt = str(deployment.model.requests[-1].messages[-1].content)
    assert "Ada moves to Berlin on 3 May." in prompt
    assert "[compaction summary from session" not in prompt


async def test_the_audit_of_the_request_contains_the_calls_of_its_job(deployment: SimulatedDeployment) -> None:
    answer = await deployment.compact(
        await deployment.session(), {"SPASS-Caller-Depth": "1", "SPASS-Parent-Request-Id": "req_elsewhere"}
    )
    with deployment.quiet():
        request = RequestId(answer.headers["spass-request-id"])
        (call,) = await deployment.store.table.query(keys.audit_partition(deployment.store.tenant, request))
    assert call["token_id"] == "demo-user"
    assert (call["user"], call["agent"], call["session"]) == (USER, AGENT, answer.json()["source_session_id"])
    assert (call["origin_request_id"], call["route"]) == ("req_elsewhere", "/a1/agents/{name}/sessions/{session_id}/compact")
    (context,) = deployment.model.contexts
    assert context.headers == {"SPASS-Caller-Depth": "2", "SPASS-Parent-Request-Id": call["request_id"]}


async def test_the_record_of_a_job_contains_no_text_of_the_conversation(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    job = json_of(await deployment.compact(session), 200)["job_id"]
    (stored,) = [item for item in deployment.stored() if item["pk"] == keys.job(deployment.store.tenant, JobId(job)).pk]
    assert stored["sk"] == "JOB"
    assert "Berlin" not in str(stored)
    assert UserId(str(stored["user"])) == USER


async def start(deployment: SimulatedDeployment, session: SessionId) -> Job:
    """Start the job of a request; each call repeats the same request."""
    request = idempotent_request("key", "body")
    with inject(Invocation(points=deployment.points, role="route")):
        return await deployment.services.compaction_jobs.start(
            scope_of(deployment.store, USER), AGENT, session, fallback_model="small", idempotency=request
        )


async def test_a_retry_sends_the_message_of_a_queued_job_again(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    deployment.points = CallFaults({4: Fault.CRASH_BEFORE})
    with pytest.raises(Crash):
        await start(deployment, session)
    assert deployment.points.calls[-1] == "route SendMessage"
    hold = (await deployment.head(session)).hold
    assert hold is not None
    assert (await start(deployment, session)).id == hold.owner
    await deployment.settled()
    assert (await deployment.head(session)).archived_by == hold.owner
    assert (await start(deployment, session)).status == "succeeded"


async def test_a_retry_after_a_failed_job_releases_the_session_and_starts_a_new_job(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    deployment.played = False
    failed = await start(deployment, session)
    deployment.points = CallFaults({3: Fault.CRASH_BEFORE})
    with pytest.raises(StepFailed):
        await deployment.step("fail", failed.id)
    deployment.points = CallFaults()
    repeated = await start(deployment, session)
    assert (repeated.id != failed.id, repeated.status) == (True, "queued")


async def test_a_job_whose_message_cannot_be_sent_fails(deployment: SimulatedDeployment) -> None:
    session = await deployment.session()
    deployment.points = CallFaults({5: Fault.TIMEOUT, 6: Fault.TIMEOUT})
    error_of(await deployment.compact(session), 503, "storage_unavailable")
    (job,) = [item for item in deployment.stored() if item["sk"] == "JOB"]
    assert job["status"] == "failed"
    assert (await deployment.head(session)).hold is None
