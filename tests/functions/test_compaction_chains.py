"""Sessions that were compacted several times: redirects and lineage."""

from itertools import pairwise

import httpx

from spass.models.errors import (
    AttemptFailed,
)
from tests.functions.compaction_harness import PLAIN, CompactionHarness, text_deltas
from tests.functions.gateway import Gateway, find_route


def chain_of(harness: CompactionHarness, members: int) -> list[str]:
    """Return sessions, each compacted into the next one."""
    chain = [harness.session()]
    while len(chain) < members:
        harness.model.summary = text_deltas(f"Summary {len(chain)}.")
        chain.append(harness.compact_to_successor(chain[-1]))
        harness.say(chain[-1], f"question {len(chain) + 1}")
    return chain


def test_redirects_lead_to_the_end_of_a_chain(harness: CompactionHarness) -> None:
    chain = chain_of(harness, 6)
    for source, successor in pairwise(chain):
        moved = harness.say(source, "And then?")
        assert (moved.status, moved.json) == (308, {"successor_session_id": successor})
        assert moved.headers["location"] == f"{PLAIN}/{successor}/messages"
    before = len(harness.messages(chain[-1]))
    reply = harness.gateway._loop.run_until_complete(
        post_with_redirects(harness.gateway, f"{PLAIN}/{chain[0]}/messages", "Grüße!")
    )
    assert reply.status_code == 200
    assert [answer.status_code for answer in reply.history] == [308] * 5
    assert reply.json()["session_id"] == chain[-1]
    assert harness.messages(chain[-1])[before]["content"] == "Grüße!"


async def post_with_redirects(gateway: Gateway, path: str, message: str) -> httpx.Response:
    route = find_route("POST", path)
    assert route is not None
    transport = httpx.ASGITransport(gateway._function(route))
    headers = {"Authorization": "Bearer demo-token", "SPASS-User-Id": "ada"}
    async with httpx.AsyncClient(transport=transport, base_url="https://gateway.test", follow_redirects=True) as client:
        return await client.post(path, json={"message": message}, headers=headers)


def test_every_member_shows_the_lineage(harness: CompactionHarness) -> None:
    chain = chain_of(harness, 3)
    lineages = [harness.get(session, "/lineage") for session in chain]
    for place, lineage in enumerate(lineages):
        assert lineage["session_id"] == chain[place]
        assert [session["id"] for session in lineage["backward"]] == chain[:place][::-1]
        assert [session["id"] for session in lineage["forward"]] == chain[place + 1 :]
        assert lineage["backward"] == [harness.get(session) for session in chain[:place][::-1]]
        assert lineage["summaries"] == lineages[0]["summaries"]
    summaries = lineages[0]["summaries"]
    assert [set(summary) for summary in summaries] == [
        {"id", "source_session_id", "successor_session_id", "text", "model", "created_at", "first_seq", "last_seq"}
    ] * 2
    assert [(summary["source_session_id"], summary["successor_session_id"]) for summary in summaries] == list(pairwise(chain))
    assert [(one["text"], one["model"], one["first_seq"], one["last_seq"]) for one in summaries] == [
        ("Summary 1.", "dear", 1, 4),
        ("Summary 2.", "dear", 1, 3),
    ]


def test_a_summary_includes_the_earlier_one_without_nesting(harness: CompactionHarness) -> None:
    chain = chain_of(harness, 3)
    read = harness.model.summaries[-1].messages[-1].content
    assert "Summary 1." in read
    assert "compaction summary from session" not in read
    first = harness.messages(chain[2])[0]["content"]
    assert first == f"[compaction summary from session {chain[1]}] Summary 2."


def test_deleting_a_member_does_not_change_the_others(harness: CompactionHarness) -> None:
    chain = chain_of(harness, 3)
    before = {session: harness.seen(session)[:2] for session in (chain[0], chain[2])}
    assert harness.gateway.send("DELETE", f"{PLAIN}/{chain[1]}").json == {"deleted": True}
    assert {session: harness.seen(session)[:2] for session in before} == before
    gone = {"id": chain[1], "deleted": True}
    first, last = harness.get(chain[0], "/lineage"), harness.get(chain[2], "/lineage")
    assert [one["id"] for one in first["forward"]] == chain[1:]
    assert first["forward"][0] == last["backward"][0] == gone
    assert last["backward"][1]["id"] == chain[0]
    for path, method in (("", "GET"), ("/messages", "GET"), ("/lineage", "GET"), ("/compact", "POST")):
        refused = harness.gateway.send(method, f"{PLAIN}/{chain[1]}{path}")
        assert (refused.status, refused.code) == (404, "session_not_found")
    lost = harness.gateway._loop.run_until_complete(
        post_with_redirects(harness.gateway, f"{PLAIN}/{chain[0]}/messages", "And then?")
    )
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "session_not_found"), "its successor is deleted"
    assert harness.say(chain[2], "And then?").status == 200


def test_a_session_with_a_deleted_successor_does_not_redirect(harness: CompactionHarness) -> None:
    chain = chain_of(harness, 3)
    harness.gateway.send("DELETE", f"{PLAIN}/{chain[1]}")
    lost = harness.say(chain[0], "And then?")
    assert (lost.status, lost.code) == (404, "session_not_found")
    assert lost.json["error"]["details"] == {"successor_session_id": chain[1]}
    assert "location" not in lost.headers
    assert len(harness.messages(chain[0])) == 6
    assert harness.compact(chain[0]).code == "session_archived"


def test_a_job_can_be_read_after_its_successor_was_deleted(harness: CompactionHarness) -> None:
    reply = harness.compact(harness.session())
    harness.gateway.send("DELETE", f"{PLAIN}/{reply.json['successor_session_id']}")
    result = harness.job(reply.json["job_id"]).json["result"]
    assert result == reply.json | {"summary_text": None}


def test_a_session_whose_compaction_failed_can_be_deleted(harness: CompactionHarness) -> None:
    session = harness.session()
    harness.model.summary = AttemptFailed("Down.")
    assert harness.compact(session).code == "summary_failed"
    assert harness.gateway.send("DELETE", f"{PLAIN}/{session}").json == {"deleted": True}
    assert harness.gateway.send("GET", PLAIN).json["sessions"] == []
