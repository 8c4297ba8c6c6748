"""A turn of a full session runs in a successor, and its answer and each replay name it."""

from collections.abc import Sequence
from typing import Any

import pytest

from spass.models.errors import AttemptFailed, BackendContextLength
from tests.functions.gateway import Gateway, Reply

PLAIN = "/a1/agents/plain/sessions"
KEY = {"Idempotency-Key": "key-1"}
HEADERS = ("SPASS-Compacted-From", "SPASS-Session-Id", "SPASS-Compaction-Error")


def full_session(gateway: Gateway, *, characters: int = 26_000) -> str:
    """Return a session. Its next turn compacts it if the first message has more than 25,600 ``characters``."""
    session = str(gateway.send("POST", PLAIN, body={"compact_keep_last_n": 2}).json["id"])
    for message in ("x" * characters, "And now?"):
        assert say(gateway, session, message).status == 200
    return session


def say(gateway: Gateway, session: str, message: str, **headers: str) -> Reply:
    return gateway.send("POST", f"{PLAIN}/{session}/messages", body={"message": message}, headers=headers)


def compaction_headers(reply: Reply) -> dict[str, str]:
    """Return the headers about a compaction."""
    return {name: reply.headers[name.lower()] for name in HEADERS if name.lower() in reply.headers}


def contents(gateway: Gateway, session: str) -> list[str]:
    return [message["content"] for message in gateway.send("GET", f"{PLAIN}/{session}/messages").json["messages"]]


def set_failures(gateway: Gateway, *, agent: Sequence[Exception] = (), summary: Exception | None = None) -> None:
    """Let the agent's next calls fail with ``agent``, and all calls for summaries with ``summary``."""
    agent_failures = list(agent)

    async def choose_failure() -> None:
        is_agent_call = gateway.model.requests[-1].messages[0].content == "Answer."
        gateway.model.failure = (agent_failures.pop(0) if agent_failures else None) if is_agent_call else summary

    gateway.model.before_chat = choose_failure


def test_the_answer_names_the_successor_and_the_whole_cost(gateway: Gateway) -> None:
    session = full_session(gateway)
    gateway.model.requests.clear()
    reply = say(gateway, session, "And then?")
    compaction: dict[str, Any] = reply.json["compaction"]
    successor = reply.json["session_id"]
    assert set(compaction) == {"source_session_id", "successor_session_id", "summary_id"}
    assert (compaction["source_session_id"], compaction["successor_session_id"]) == (session, successor)
    assert compaction["summary_id"].startswith("sum_")
    assert compaction_headers(reply) == {"SPASS-Compacted-From": session, "SPASS-Session-Id": successor}
    calls = len(gateway.model.requests)
    assert calls > 1
    assert reply.headers["spass-cost-sub-calls"] == str(calls)
    assert contents(gateway, successor) == [
        f"[compaction summary from session {session}] Hello there.",
        *("And now?", "Hello there.", "And then?", "Hello there."),
    ]
    assert reply.json["message"]["seq"] == 5
    assert contents(gateway, session) == ["x" * 26_000, "Hello there.", "And now?", "Hello there."]


def test_the_audit_has_a_record_for_the_summary_and_one_for_the_answer(gateway: Gateway) -> None:
    session = full_session(gateway)
    reply = say(gateway, session, "And then?")
    tree = gateway.send("GET", f"/v1/audit/{reply.json['request_id']}", headers={"SPASS-User-Id": "ada"}).json
    *summaries, answer = [call["session"] for call in tree["calls"]]
    assert set(summaries) == {session}
    assert answer == reply.json["session_id"]


def test_source_and_successor_replay_the_answer(gateway: Gateway) -> None:
    session = full_session(gateway)
    first = say(gateway, session, "And then?", **KEY)
    successor = first.json["session_id"]
    assert successor != session
    for where in (session, successor):
        replay = say(gateway, where, "And then?", **KEY)
        assert replay.headers["idempotency-replayed"] == "true"
        assert (replay.status, replay.json, compaction_headers(replay)) == (200, first.json, compaction_headers(first))
    assert len(contents(gateway, successor)) == 5
    other = say(gateway, session, "And then?")
    assert (other.status, other.json) == (308, {"successor_session_id": successor})
    assert other.headers["location"].endswith(f"{PLAIN}/{successor}/messages")


def test_a_failed_compaction_is_reported_and_the_turn_runs_in_its_session(gateway: Gateway) -> None:
    session = full_session(gateway)
    set_failures(gateway, summary=AttemptFailed("Down."))
    first = say(gateway, session, "And then?", **KEY)
    replay = say(gateway, session, "And then?", **KEY)
    for reply in (first, replay):
        assert (reply.status, reply.json["session_id"], reply.json["compaction"]) == (200, session, None)
        assert compaction_headers(reply) == {"SPASS-Compaction-Error": "summary_failed"}
    assert contents(gateway, session)[-2:] == ["And then?", "Hello there."]


def test_a_turn_without_compaction_does_not_mention_one(gateway: Gateway) -> None:
    session = full_session(gateway, characters=25_000)
    reply = say(gateway, session, "And then?")
    assert (reply.json["session_id"], reply.json["compaction"], compaction_headers(reply)) == (session, None, {})


def test_a_prompt_rejected_as_too_long_is_repeated_in_the_successor(gateway: Gateway) -> None:
    session = full_session(gateway, characters=20_000)
    set_failures(gateway, agent=[BackendContextLength("Too long.", status=400)])
    reply = say(gateway, session, "And then?")
    successor = reply.json["session_id"]
    assert (reply.status, reply.json["turns"], reply.json["compaction"]["source_session_id"]) == (200, 1, session)
    assert compaction_headers(reply) == {"SPASS-Compacted-From": session, "SPASS-Session-Id": successor}
    assert contents(gateway, successor)[1:] == ["And now?", "Hello there.", "And then?", "Hello there."]


@pytest.mark.parametrize("summary", [None, AttemptFailed("Down.")])
def test_a_prompt_that_stays_too_long_is_refused(gateway: Gateway, summary: Exception | None) -> None:
    session = full_session(gateway, characters=20_000)
    set_failures(gateway, agent=[BackendContextLength("Too long.", status=400)] * 2, summary=summary)
    reply = say(gateway, session, "And then?")
    assert (reply.status, reply.code) == (400, "context_length_exceeded")
    set_failures(gateway)
    after = say(gateway, session, "And then?")
    assert after.status == (200 if summary else 308), "the session is compacted, or unchanged if the summary failed"


@pytest.mark.parametrize("characters", [26_000, 20_000], ids=["before the turn", "during the turn"])
def test_the_calls_of_a_turn_are_audited_in_the_session_that_they_belong_to(gateway: Gateway, characters: int) -> None:
    session = full_session(gateway, characters=characters)
    before = {record["request_id"] for record in gateway.records()}
    if characters == 20_000:
        set_failures(gateway, agent=[BackendContextLength("Too long.", status=400)])
    successor = say(gateway, session, "And then?").json["session_id"]
    calls = [record for record in gateway.records() if record["request_id"] not in before]
    sessions = [record["session"] for record in sorted(calls, key=lambda record: str(record["at"]))]
    assert (set(sessions[:-1]), sessions[-1]) == ({session}, successor)
