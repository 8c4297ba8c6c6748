"""When a session is not compacted, who may ask for it, and what may be sent."""

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
    successor = harness.compacted(harness.session())
    assert harness.compact(successor).code == "nothing_to_compact", "a summary alone is not summarised again"
    assert harness.model.summaries[1:] == []


def test_keep_nothing_and_all_is_summarised(harness: CompactionHarness) -> None:
    reply = harness.compact(harness.session(keep=0))
    assert (reply.json["compacted_message_count"], reply.json["kept_message_count"]) == (6, 0)
    (only,) = harness.messages(reply.json["successor_session_id"])
    assert only["content"].endswith(SUMMARY)
    assert harness.say(reply.json["successor_session_id"], "And then?").status == 200


def test_only_a_configured_summary_model_is_exempt_from_a_tokens_allow_list(harness: CompactionHarness) -> None:
    path, admin = "/a1/agents/costly/sessions", "demo-admin-token"
    made = harness.gateway.send("POST", path, body={"compact_keep_last_n": 0}, token=admin)
    session = made.json["id"]
    assert harness.gateway.send("POST", f"{path}/{session}/messages", body={"message": "Hello."}, token=admin).status == 200
    unset = harness.gateway.send("PUT", "/v1/tenant/config", body={"compact_summary_model": None}, token=admin)
    assert unset.json["config"]["compact_summary_model"] is None
    before, asked = harness.get(session, agent="costly"), len(harness.model.summaries)
    refused = harness.compact(session, agent="costly")
    assert (refused.status, refused.code) == (403, "model_not_allowed")
    assert (harness.get(session, agent="costly"), len(harness.model.summaries)) == (before, asked)
    harness.gateway.send("PUT", "/v1/tenant/config", body={"compact_summary_model": "dear"}, token=admin)
    assert harness.compact(session, agent="costly").status == 200


def test_without_a_summary_model_the_agents_own_summarises_for_its_users(harness: CompactionHarness) -> None:
    harness.gateway.send("PUT", "/v1/tenant/config", body={"compact_summary_model": None}, token="demo-admin-token")
    reply = harness.compact(harness.session())
    assert (reply.status, reply.json["summary_model"]) == (200, "small")


def test_off_is_off(harness: CompactionHarness) -> None:
    session = harness.session(compact_strategy="off")
    refused = harness.compact(session)
    assert (refused.status, refused.code) == (409, "compaction_disabled")
    assert harness.get(session)["archived_at"] is None


def test_an_archived_session_says_where_it_goes_on(harness: CompactionHarness) -> None:
    session = harness.session()
    successor = harness.compacted(session)
    refused = harness.compact(session)
    assert (refused.status, refused.code) == (409, "session_archived")
    assert refused.json["error"]["details"] == {"successor_session_id": successor}


def test_while_a_job_holds_it_a_session_takes_nothing_else(harness: CompactionHarness) -> None:
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


def test_a_turn_that_runs_holds_a_compaction_off(harness: CompactionHarness) -> None:
    session = harness.session()
    replies: list[Reply] = []

    async def meanwhile() -> None:
        harness.model.before = None
        replies.append(await harness.gateway.post_meanwhile(f"{PLAIN}/{session}/compact", {}, {}))

    harness.model.before = meanwhile
    assert harness.say(session, "question 3").status == 200
    (refused,) = replies
    assert (refused.status, refused.code) == (409, "session_busy")
    assert int(refused.headers["retry-after"]) >= 1
    assert harness.compact(session).status == 200


def test_whose_session_it_is_decides_who_may_compact_it(harness: CompactionHarness) -> None:
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
def test_a_body_of_junk_compacts_nothing(harness: CompactionHarness, raw: bytes, status: int) -> None:
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
def test_a_preference_that_is_none_of_ours_is_as_if_it_were_not_there(harness: CompactionHarness, prefer: str) -> None:
    assert harness.compact(harness.session(), {"Prefer": prefer}).status == 200


@pytest.mark.parametrize("prefer", ["Respond-Async", "wait=5, respond-async", "respond-async; x=1", " respond-async ,wait=10"])
def test_a_preference_is_read_as_it_may_be_written(harness: CompactionHarness, prefer: str) -> None:
    session = harness.session()
    reply = harness.compact(session, {"Prefer": prefer})
    assert reply.status == 202
    harness.machine.go_on()
    assert harness.job(reply.json["job_id"]).json["status"] == "succeeded"
