"""Refused compactions, the rights of callers, and the forms of a request."""

from typing import Any

import pytest

from tests.functions.compaction_harness import ASYNC, KEY, PLAIN, SUMMARY, CompactionHarness
from tests.functions.gateway import Reply


def test_nothing_to_compact(harness: CompactionHarness) -> None:
    for session in (harness.session(turns=0), harness.session(turns=1), harness.session(turns=2, keep=200)):
        before = harness.seen(session)
        refused = harness.compact(session)
        assert (refused.status, refused.code) == (409, "nothing_to_compact")
        assert harness.seen(session) == before
    successor = harness.compact_to_successor(harness.session())
    assert harness.compact(successor).code == "nothing_to_compact", "a session with only a summary has nothing to compact"
    assert harness.model.summaries[1:] == []


def test_a_session_that_keeps_nothing_is_summarised_completely(harness: CompactionHarness) -> None:
    reply = harness.compact(harness.session(keep=0))
    assert (reply.json["compacted_message_count"], reply.json["kept_message_count"]) == (6, 0)
    (only,) = harness.messages(reply.json["successor_session_id"])
    assert only["content"].endswith(SUMMARY)
    assert harness.say(reply.json["successor_session_id"], "And then?").status == 200


def test_only_a_configured_summary_model_is_exempt_from_a_tokens_allow_list(harness: CompactionHarness) -> None:
    path, admin = "/a1/agents/costly/sessions", "demo-admin-token"
    created = harness.gateway.send("POST", path, body={"compact_keep_last_n": 0}, token=admin)
    session = created.json["id"]
    assert harness.gateway.send("POST", f"{path}/{session}/messages", body={"message": "Hello."}, token=admin).status == 200
    unset = harness.gateway.send("PUT", "/v1/tenant/config", body={"compact_summary_model": None}, token=admin)
    assert unset.json["config"]["compact_summary_model"] is None
    before, summaries = harness.get(session, agent="costly"), len(harness.model.summaries)
    refused = harness.compact(session, agent="costly")
    assert (refused.status, refused.code) == (403, "model_not_allowed")
    assert (harness.get(session, agent="costly"), len(harness.model.summaries)) == (before, summaries)
    harness.gateway.set_config(compact_summary_model="dear")
    assert harness.compact(session, agent="costly").status == 200


def test_without_a_summary_model_the_agents_model_is_used(harness: CompactionHarness) -> None:
    harness.gateway.set_config(compact_summary_model=None)
    reply = harness.compact(harness.session())
    assert (reply.status, reply.json["summary_model"]) == (200, "small")


def test_a_session_with_strategy_off_is_not_compacted(harness: CompactionHarness) -> None:
    session = harness.session(compact_strategy="off")
    refused = harness.compact(session)
    assert (refused.status, refused.code) == (409, "compaction_disabled")
    assert harness.get(session)["archived_at"] is None


def test_an_archived_session_names_its_successor(harness: CompactionHarness) -> None:
    session = harness.session()
    successor = harness.compact_to_successor(session)
    refused = harness.compact(session)
    assert (refused.status, refused.code) == (409, "session_archived")
    assert refused.json["error"]["details"] == {"successor_session_id": successor}


def test_a_session_held_by_a_job_refuses_other_writes(harness: CompactionHarness) -> None:
    session = harness.session()
    harness.machine.stopped = True
    job = harness.compact(session, ASYNC).json["job_id"]
    before = harness.seen(session)
    at = f"{PLAIN}/{session}"
    for refused in (
        harness.say(session, "x"),
        harness.gateway.send("DELETE", at),
        harness.compact(session),
        harness.compact(session, KEY),
    ):
        assert (refused.status, refused.code) == (409, "compaction_in_progress")
        assert refused.json["error"]["details"] == {"job_id": job}
        assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert harness.seen(session) == before
    harness.machine.go_on()
    assert harness.job(job).json["status"] == "succeeded"
    assert harness.say(session, "x").status == 308


def test_a_running_turn_refuses_a_compaction(harness: CompactionHarness) -> None:
    session = harness.session()
    replies: list[Reply] = []

    async def compact_during_the_turn() -> None:
        harness.model.before_chat = None
        replies.append(await harness.gateway.post_async(f"{PLAIN}/{session}/compact", {}, {}))

    harness.model.before_chat = compact_during_the_turn
    assert harness.say(session, "question 3").status == 200
    (refused,) = replies
    assert (refused.status, refused.code) == (409, "session_busy")
    assert int(refused.headers["retry-after"]) >= 1
    assert harness.compact(session).status == 200


def test_only_the_owner_can_compact_a_session(harness: CompactionHarness) -> None:
    session = harness.session()
    at = f"{PLAIN}/{session}/compact"
    before = harness.seen(session)
    expected: list[tuple[dict[str, Any], int, str]] = [
        ({"user": "eve"}, 404, "session_not_found"),
        ({"token": "other-token"}, 404, "session_not_found"),
        ({"token": "sibling-token"}, 404, "session_not_found"),
        ({"token": "nonsense"}, 401, "invalid_token"),
        ({"user": None}, 400, "user_id_required"),
    ]
    for who, status, code in expected:
        refused = harness.gateway.send("POST", at, **who)
        assert (refused.status, refused.code) == (status, code)
    mismatch = harness.compact(session, agent="counting")
    assert (mismatch.status, mismatch.code) == (400, "session_agent_mismatch")
    assert harness.compact(session, agent="nobody").code == "agent_not_found"
    assert harness.compact("ses_" + "0" * 26).code == "session_not_found"
    assert harness.seen(session) == before
    assert harness.model.summaries == []


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"[]", 400), (b"null", 400), (b"7", 400), (b"{", 400), (b'{"keep": 3}', 400), (b'{"user_id": "eve"}', 400),
        (b'{"tenant": "other"}', 400), (b"\xff", 400), (b'{"a":' * 50_000, 400), (b" " * (4 * 2**20 + 1), 413),
    ],
)  # fmt: skip
def test_an_invalid_body_is_refused_and_nothing_is_compacted(harness: CompactionHarness, raw: bytes, status: int) -> None:
    session = harness.session()
    before = harness.gateway.stored()
    refused = harness.compact(session, raw=raw)
    assert refused.status == status, refused
    assert refused.code is not None
    assert harness.gateway.stored() == before


@pytest.mark.parametrize("raw", [b"", b"{}"])
def test_a_body_may_be_missing_or_empty(harness: CompactionHarness, raw: bytes) -> None:
    assert harness.compact(harness.session(), raw=raw).status == 200


@pytest.mark.parametrize("prefer", ["", "respond-sync", "wait=5", '"', "handling=lenient", "x" * 2000])
def test_an_unknown_preference_is_ignored(harness: CompactionHarness, prefer: str) -> None:
    assert harness.compact(harness.session(), {"Prefer": prefer}).status == 200


@pytest.mark.parametrize("prefer", ["Respond-Async", "wait=5, respond-async", "respond-async; x=1", " respond-async ,wait=10"])
def test_every_valid_form_of_the_preference_is_accepted(harness: CompactionHarness, prefer: str) -> None:
    session = harness.session()
    reply = harness.compact(session, {"Prefer": prefer})
    assert reply.status == 202
    harness.machine.go_on()
    assert harness.job(reply.json["job_id"]).json["status"] == "succeeded"
