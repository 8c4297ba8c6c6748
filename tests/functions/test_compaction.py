"""``POST …/compact`` over HTTP: answers, cost and effects."""

import asyncio
import json
import re

import pytest

from functions.sessions import compact as route
from tests.functions.compaction_harness import ASYNC, PLAIN, SUMMARY, CompactionHarness
from tests.functions.gateway import STAGE


def test_the_answer_describes_the_compaction(harness: CompactionHarness) -> None:
    session = harness.session()
    reply = harness.compact(session)
    answer = reply.json
    assert reply.status == 200
    assert list(answer) == [
        *("job_id", "source_session_id", "successor_session_id", "summary_id", "summary_text", "summary_model"),
        *("compacted_message_count", "kept_message_count"),
    ]
    for name, prefix in {"job_id": "job", "successor_session_id": "ses", "summary_id": "sum"}.items():
        assert re.fullmatch(prefix + "_[0-9a-z]{26}", answer[name])
    assert answer["source_session_id"] == session != answer["successor_session_id"]
    assert (answer["summary_text"], answer["summary_model"]) == (SUMMARY, "dear"), (
        "the summary model does not depend on the models of the token"
    )
    assert (answer["compacted_message_count"], answer["kept_message_count"]) == (4, 2)
    assert len(harness.model.summaries) == 1


def test_the_cost_is_in_the_headers_the_audit_and_the_usage(harness: CompactionHarness) -> None:
    harness.gateway.set_config(compact_summary_model="small")
    session = harness.session()
    before = harness.gateway.send("GET", "/v1/usage").json["total"]
    harness.model.requests.clear()
    reply = harness.compact(session)
    assert reply.status == 200
    assert len(harness.model.requests) == 1
    costs = {name: reply.headers[f"spass-cost-{name}"] for name in ("usd", "eur", "source", "sub-calls")}
    assert costs == {"usd": "0.00002", "eur": "0.00001", "source": "catalog", "sub-calls": "1"}
    job_reply = harness.job(reply.json["job_id"])
    assert {name: job_reply.headers[f"spass-cost-{name}"] for name in costs} == costs
    tree = harness.gateway.send("GET", f"/v1/audit/{reply.headers['spass-request-id']}", headers={"SPASS-User-Id": "ada"}).json
    (call,) = tree["calls"]
    record = {name: call[name] for name in ("session", "agent", "user", "model", "status")}
    assert record == {
        "session": session, "agent": "plain", "user": "ada", "model": "small", "status": "ok",
    }  # fmt: skip
    after = harness.gateway.send("GET", "/v1/usage").json["total"]
    assert {name: after[name] - before[name] for name in ("requests", "total_tokens")} == {"requests": 1, "total_tokens": 15}


def test_both_sessions_and_the_list_contain_the_link(harness: CompactionHarness) -> None:
    session = harness.session()
    before = harness.get(session)
    successor = harness.compact_to_successor(session)
    source, follower = harness.get(session), harness.get(successor)
    assert source["archived_at"] is not None
    assert source == before | {
        "archived_at": source["archived_at"],
        "updated_at": source["updated_at"],
        "successor_session_id": successor,
        "live_message_count": 2,
    }
    fresh = {name: follower[name] for name in ("id", "created_at", "updated_at")}
    assert follower == before | fresh | {
        "id": successor,
        "parent_session_id": session,
        "message_count": 3,
        "live_message_count": 3,
    }
    listed = {one["id"]: one for one in harness.gateway.send("GET", PLAIN).json["sessions"]}
    assert listed.keys() == {session, successor}
    assert listed == {session: source, successor: follower}


def test_the_source_keeps_all_messages_and_the_successor_copies_the_last_ones(harness: CompactionHarness) -> None:
    session = harness.session()
    before = harness.messages(session)
    successor = harness.compact_to_successor(session)
    source_messages, successor_messages = harness.messages(session), harness.messages(successor)
    archived_at = harness.get(session)["archived_at"]
    assert source_messages == [message | {"compacted_at": archived_at if message["seq"] <= 4 else None} for message in before]
    first, *kept_messages = successor_messages
    assert (first["role"], first["content"]) == ("assistant", f"[compaction summary from session {session}] {SUMMARY}")
    assert (first["compacted_at"], first["tool_calls"], first["tool_call_id"]) == (None, [], None)
    renumbered = [{**message, "id": None, "seq": message["seq"] + 3} for message in kept_messages]
    # A copied turn was paid for once, in the source.
    assert renumbered == [{**message, "id": None, "usage": None, "cost_usd": None} for message in before[4:]]
    assert before[5]["usage"] is not None
    assert not {message["id"] for message in successor_messages} & {message["id"] for message in before}
    reply = harness.say(successor, "And then?")
    assert (reply.status, reply.json["session_id"], reply.json["message"]["seq"]) == (200, successor, 5)
    sent = [message.content for message in harness.model.requests[-1].messages]
    assert sent == ["Answer.", first["content"], "question 2", "Hello there.", "And then?"]


def test_a_tool_call_is_never_separated_from_its_result(harness: CompactionHarness) -> None:
    agent = "counting"
    session = harness.session(turns=1, keep=2, agent=agent)
    harness.say(session, "Calculate six times seven.", agent=agent)
    roles = [message["role"] for message in harness.messages(session, agent=agent)]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant"]
    reply = harness.compact(session, agent=agent)
    assert (reply.json["compacted_message_count"], reply.json["kept_message_count"]) == (2, 4)
    _, question, call, result, _ = harness.messages(reply.json["successor_session_id"], agent=agent)
    assert (question["role"], call["role"], result["role"]) == ("user", "assistant", "tool")
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]


def test_the_summary_model_reads_the_conversation_without_the_system_prompt(harness: CompactionHarness) -> None:
    harness.compact_to_successor(harness.session())
    (request,) = harness.model.summaries
    read = "\n".join(message.content for message in request.messages)
    assert "question 0" in read
    assert "question 1" in read
    assert "question 2" not in read
    assert "Answer." not in read
    assert request.tools == ()


@pytest.mark.parametrize("masked", [True, False])
def test_the_observation_mask_changes_the_instruction(harness: CompactionHarness, masked: bool) -> None:
    harness.compact_to_successor(harness.session(compact_observation_mask=masked))
    (request,) = harness.model.summaries
    instruction = request.messages[0].content.lower()
    assert ("greetings" in instruction) == masked
    assert ("open questions" in instruction) == masked


def test_respond_async_returns_202_with_the_location_of_the_job(harness: CompactionHarness) -> None:
    session = harness.session()
    harness.machine.stopped = True
    reply = harness.compact(session, ASYNC)
    job = reply.json["job_id"]
    assert (reply.status, reply.json) == (202, {"job_id": job, "status": "queued"})
    assert reply.headers["location"] == f"/a1/jobs/{job}"
    queued = harness.job(job).json
    assert set(queued) == {"id", "kind", "status", "created_at", "finished_at", "result", "error"}
    assert (queued["id"], queued["kind"], queued["status"]) == (job, "compaction", "queued")
    assert (queued["finished_at"], queued["result"], queued["error"]) == (None, None, None)
    harness.machine.go_on()
    finished = harness.job(job).json
    assert (finished["status"], finished["error"]) == ("succeeded", None)
    assert finished["created_at"] == queued["created_at"] <= finished["finished_at"]
    result = finished["result"]
    assert (result["job_id"], result["source_session_id"], result["summary_text"]) == (job, session, SUMMARY)
    assert (result["compacted_message_count"], result["kept_message_count"]) == (4, 2)
    assert harness.get(session)["successor_session_id"] == result["successor_session_id"]


def test_a_job_continues_after_the_wait_of_its_request(harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "WAIT_SECONDS", 0.2)
    session = harness.session()
    harness.model.gate = asyncio.Event()
    reply = harness.compact(session)
    job = reply.json["job_id"]
    assert (reply.status, reply.json["status"]) == (202, "running")
    assert harness.job(job).json["status"] == "running"
    harness.model.gate.set()
    harness.machine.go_on()
    assert harness.job(job).json["status"] == "succeeded"


def test_the_answer_to_a_waiting_client_equals_the_result_of_the_job(harness: CompactionHarness) -> None:
    reply = harness.compact(harness.session())
    assert harness.job(reply.json["job_id"]).json["result"] == reply.json


def test_a_location_contains_the_stage_or_the_base_path(harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    session = harness.session()
    harness.machine.stopped = True
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "x")
    at = f"{PLAIN}/{session}"

    def context(path: str) -> dict[str, str]:
        return {"x-amzn-request-context": json.dumps({"stage": STAGE, "path": path})}

    reply = harness.compact(session, ASYNC | context(f"/{STAGE}{at}/compact"))
    assert reply.headers["location"] == f"/{STAGE}/a1/jobs/{reply.json['job_id']}"
    harness.machine.go_on()
    successor = harness.get(session)["successor_session_id"]
    for root in (f"/{STAGE}", "/our/gateway", ""):
        moved = harness.say(session, "And then?", **context(f"{root}{at}/messages"))
        assert (moved.status, moved.json) == (308, {"successor_session_id": successor})
        assert moved.headers["location"] == f"{root}{PLAIN}/{successor}/messages"


def test_only_its_user_can_read_a_job(harness: CompactionHarness) -> None:
    job = harness.compact(harness.session()).json["job_id"]
    assert harness.job(job, token="demo-admin-token").status == 200, "users belong to the tenant, not to a token"
    for who in ({"user": "eve"}, {"token": "other-token"}, {"token": "sibling-token"}):
        refused = harness.job(job, **who)
        assert (refused.status, refused.code) == (404, "job_not_found")
    absent = harness.job("job_" + "0" * 26)
    stranger = harness.job(job, user="eve")
    assert absent.json["error"] == stranger.json["error"], "the job of another user looks like an absent job"


@pytest.mark.parametrize(
    "job", ["x", "job_", "job_..", "%2e%2e", "job_%00", "ses_" + "0" * 26, "job_" + "z" * 5000, "%F0%9F%A6%93"]
)
def test_an_unknown_job_id_is_not_found(harness: CompactionHarness, job: str) -> None:
    refused = harness.job(job)
    assert refused.status in (400, 404)
    assert refused.code in ("job_not_found", "invalid_request", "route_not_found")
