"""When a session is not compacted, who may ask for it, and what may be sent."""

from typing import Any

import pytest

from tests.functions.gateway import Reply
from tests.functions.house import ASYNC, KEY, PLAIN, SUMMARY, House


def test_nothing_to_compact(house: House) -> None:
    for session in (house.session(turns=0), house.session(turns=1), house.session(turns=2, keep=200)):
        before = house.seen(session)
        refused = house.compact(session)
        assert (refused.status, refused.code) == (409, "nothing_to_compact")
        assert house.seen(session) == before
    successor = house.compacted(house.session())
    assert house.compact(successor).code == "nothing_to_compact", "a summary alone is not summarised again"
    assert house.script.summaries[1:] == []


def test_keep_nothing_and_all_is_summarised(house: House) -> None:
    reply = house.compact(house.session(keep=0))
    assert (reply.json["compacted_message_count"], reply.json["kept_message_count"]) == (6, 0)
    (only,) = house.messages(reply.json["successor_session_id"])
    assert only["content"].endswith(SUMMARY)
    assert house.say(reply.json["successor_session_id"], "And then?").status == 200


def test_only_a_configured_summary_model_is_exempt_from_a_tokens_allow_list(house: House) -> None:
    path, admin = "/a1/agents/costly/sessions", "demo-admin-token"
    made = house.gateway.send("POST", path, body={"compact_keep_last_n": 0}, token=admin)
    session = made.json["id"]
    assert house.gateway.send("POST", f"{path}/{session}/messages", body={"message": "Hello."}, token=admin).status == 200
    unset = house.gateway.send("PUT", "/v1/tenant/config", body={"compact_summary_model": None}, token=admin)
    assert unset.json["config"]["compact_summary_model"] is None
    before, asked = house.get(session, agent="costly"), len(house.script.summaries)
    refused = house.compact(session, agent="costly")
    assert (refused.status, refused.code) == (403, "model_not_allowed")
    assert (house.get(session, agent="costly"), len(house.script.summaries)) == (before, asked)
    house.gateway.send("PUT", "/v1/tenant/config", body={"compact_summary_model": "dear"}, token=admin)
    assert house.compact(session, agent="costly").status == 200


def test_without_a_configured_summary_model_a_token_that_may_use_the_agents_has_it_summarise(house: House) -> None:
    house.gateway.send("PUT", "/v1/tenant/config", body={"compact_summary_model": None}, token="demo-admin-token")
    reply = house.compact(house.session())
    assert (reply.status, reply.json["summary_model"]) == (200, "small")


def test_off_is_off(house: House) -> None:
    session = house.session(compact_strategy="off")
    refused = house.compact(session)
    assert (refused.status, refused.code) == (409, "compaction_disabled")
    assert house.get(session)["archived_at"] is None


def test_an_archived_session_says_where_it_goes_on(house: House) -> None:
    session = house.session()
    successor = house.compacted(session)
    refused = house.compact(session)
    assert (refused.status, refused.code) == (409, "session_archived")
    assert refused.json["error"]["details"] == {"successor_session_id": successor}


def test_while_a_job_holds_it_a_session_takes_nothing_else(house: House) -> None:
    session = house.session()
    house.machine.stopped = True
    job = house.compact(session, ASYNC).json["job_id"]
    before = house.seen(session)
    at = f"{PLAIN}/{session}"
    for refused in (
        house.say(session, "x"),
        house.gateway.send("DELETE", at),
        house.compact(session),
        house.compact(session, KEY),
    ):
        assert (refused.status, refused.code) == (409, "compaction_in_progress")
        assert refused.json["error"]["details"] == {"job_id": job}
        assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert house.seen(session) == before
    house.machine.go_on()
    assert house.job(job).json["status"] == "succeeded"
    assert house.say(session, "x").status == 308


def test_a_turn_that_runs_holds_a_compaction_off(house: House) -> None:
    session = house.session()
    replies: list[Reply] = []

    async def meanwhile() -> None:
        house.script.during = None
        replies.append(await house.gateway.post_meanwhile(f"{PLAIN}/{session}/compact", {}, {}))

    house.script.during = meanwhile
    assert house.say(session, "question 3").status == 200
    (refused,) = replies
    assert (refused.status, refused.code) == (409, "session_busy")
    assert int(refused.headers["retry-after"]) >= 1
    assert house.compact(session).status == 200


def test_whose_session_it_is_decides_who_may_compact_it(house: House) -> None:
    session = house.session()
    at = f"{PLAIN}/{session}/compact"
    before = house.seen(session)
    expected: list[tuple[dict[str, Any], int, str]] = [
        ({"user": "eve"}, 404, "session_not_found"),
        ({"token": "other-token"}, 404, "session_not_found"),
        ({"token": "sibling-token"}, 404, "session_not_found"),
        ({"token": "nonsense"}, 401, "invalid_token"),
        ({"user": None}, 400, "user_id_required"),
    ]
    for who, status, code in expected:
        refused = house.gateway.send("POST", at, **who)
        assert (refused.status, refused.code) == (status, code)
    mismatch = house.compact(session, agent="counting")
    assert (mismatch.status, mismatch.code) == (400, "session_agent_mismatch")
    assert house.compact(session, agent="nobody").code == "agent_not_found"
    assert house.compact("ses_" + "0" * 26).code == "session_not_found"
    assert house.seen(session) == before
    assert house.script.summaries == []


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"[]", 400), (b"null", 400), (b"7", 400), (b"{", 400), (b'{"keep": 3}', 400), (b'{"user_id": "eve"}', 400),
        (b'{"tenant": "other"}', 400), (b"\xff", 400), (b'{"a":' * 50_000, 400), (b" " * (4 * 2**20 + 1), 413),
    ],
)  # fmt: skip
def test_a_body_of_junk_compacts_nothing(house: House, raw: bytes, status: int) -> None:
    session = house.session()
    before = house.gateway.stored()
    refused = house.compact(session, raw=raw)
    assert refused.status == status, refused
    assert refused.code is not None
    assert house.gateway.stored() == before


@pytest.mark.parametrize("raw", [b"", b"{}"])
def test_a_body_may_be_missing_or_empty(house: House, raw: bytes) -> None:
    assert house.compact(house.session(), raw=raw).status == 200


@pytest.mark.parametrize("prefer", ["", "respond-sync", "wait=5", '"', "handling=lenient", "x" * 2000])
def test_a_preference_that_is_none_of_ours_is_as_if_it_were_not_there(house: House, prefer: str) -> None:
    assert house.compact(house.session(), {"Prefer": prefer}).status == 200


@pytest.mark.parametrize("prefer", ["Respond-Async", "wait=5, respond-async", "respond-async; x=1", " respond-async ,wait=10"])
def test_a_preference_is_read_as_it_may_be_written(house: House, prefer: str) -> None:
    session = house.session()
    reply = house.compact(session, {"Prefer": prefer})
    assert reply.status == 202
    house.machine.go_on()
    assert house.job(reply.json["job_id"]).json["status"] == "succeeded"
