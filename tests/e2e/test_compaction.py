"""Compact sessions through a running gateway, the queue and state machine of its emulator, and a faulty provider."""

import concurrent.futures
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.e2e.compaction_client import (
    BROKEN,
    CONDENSER,
    LONG,
    SAID,
    SUMMARY,
    Moods,
    at,
    chain_of,
    code,
    compact,
    create_session,
    faulty_gateway,
    send_message,
    visible_state,
    wait_for_job,
)
from tests.e2e.conftest import Gateway
from tests.e2e.raw_http import exchange, request_bytes
from tests.e2e.scripted_gateway import TEXT


@pytest.fixture(scope="module")
def faults() -> Moods:
    return Moods()


@pytest.fixture(scope="module")
def running(faults: Moods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with faulty_gateway(tmp_path_factory.mktemp("compaction"), faults) as gateway:
        yield gateway


@pytest.fixture
def client(running: Gateway, faults: Moods) -> Iterator[httpx.Client]:
    faults.__dict__ |= Moods().__dict__
    with running.client("acme-token") as client:
        yield client


def test_a_session_is_compacted_while_the_client_waits(client: httpx.Client, faults: Moods) -> None:
    session = create_session(client)
    before = client.get(at(session, "/messages")).json()["messages"]
    reply = compact(client, session)
    assert reply.status_code == 200
    answer = reply.json()
    successor = answer["successor_session_id"]
    assert answer == {
        "job_id": answer["job_id"],
        "source_session_id": session,
        "successor_session_id": successor,
        "summary_id": answer["summary_id"],
        "summary_text": SUMMARY,
        "summary_model": CONDENSER,
        "compacted_message_count": 2,
        "kept_message_count": 2,
    }
    assert (reply.headers["SPASS-Cost-Sub-Calls"], reply.headers["SPASS-Cost-Usd"]) == ("1", "0.00012")
    assert "I pay 1200 Euro." in json.dumps(faults.summaries[0]["messages"])
    tree = client.get(f"/v1/audit/{reply.headers['SPASS-Request-Id']}").json()
    assert [(call["model"], call["session"]) for call in tree["calls"]] == [(CONDENSER, session)]
    usage = client.get("/v1/usage", params={"group_by": "model"}).json()["usage"]
    assert CONDENSER in {row["key"] for row in usage}
    (source_state, source_page, lineage), (successor_state, successor_page, _) = (
        visible_state(client, session),
        visible_state(client, successor),
    )
    assert [message["compacted_at"] for message in source_page["messages"]] == [source_state["archived_at"]] * 2 + [None] * 2
    summary, *kept = successor_page["messages"]
    assert summary["content"] == f"[compaction summary from session {session}] {SUMMARY}"
    fields = ("role", "content", "created_at")
    assert [[message[name] for name in fields] for message in kept] == [
        [message[name] for name in fields] for message in before[2:]
    ]
    assert [message["seq"] for message in successor_page["messages"]] == [1, 2, 3]
    assert (source_state["successor_session_id"], successor_state["parent_session_id"]) == (successor, session)
    assert lineage["forward"] == [successor_state]


def test_the_job_of_an_asynchronous_compaction_reports_its_result(client: httpx.Client, running: Gateway) -> None:
    session = create_session(client)
    reply = compact(client, session, Prefer="respond-async")
    job = reply.json()["job_id"]
    assert (reply.status_code, reply.headers["Location"]) == (202, f"/a1/jobs/{job}")
    finished_job = wait_for_job(client, reply.headers["Location"])
    assert (finished_job["status"], finished_job["kind"], finished_job["error"]) == ("succeeded", "compaction", None)
    assert finished_job["result"]["source_session_id"] == session
    for token, user in (("acme-token", "eve"), ("rival-token", "ada")):
        with running.client(token, user) as other_client:
            assert code(other_client.get(reply.headers["Location"])) == "job_not_found"


def test_a_session_refuses_other_requests_during_its_compaction(client: httpx.Client, faults: Moods) -> None:
    session = create_session(client)
    faults.delay = 0.7
    reply = compact(client, session, Prefer="respond-async")
    answers = [send_message(client, session, "And then?"), client.delete(at(session)), compact(client, session)]
    for answer in answers:
        assert (answer.status_code, code(answer)) == (409, "compaction_in_progress")
        assert answer.json()["error"]["details"] == {"job_id": reply.json()["job_id"]}
        assert int(answer.headers["Retry-After"]) >= 1
    assert wait_for_job(client, reply.headers["Location"])["status"] == "succeeded"


@pytest.mark.parametrize("mood", [*(mood for mood in SAID if mood != "fine"), *BROKEN])
def test_a_failed_summary_leaves_the_session_unchanged_and_usable(client: httpx.Client, faults: Moods, mood: str) -> None:
    session = create_session(client)
    before = visible_state(client, session)
    faults.summary = mood
    failed = compact(client, session)
    assert (failed.status_code, code(failed)) == (502, "summary_failed")
    assert "sk-secret" not in failed.text
    assert "127.0.0.1" not in failed.text
    job = client.get(f"/a1/jobs/{failed.json()['error']['details']['job_id']}").json()
    assert (job["status"], job["error"]["code"]) == ("failed", "summary_failed")
    assert visible_state(client, session) == before
    faults.summary = "fine"
    assert send_message(client, session, "And then?").status_code == 200
    assert compact(client, session).status_code == 200


def test_clients_follow_the_redirects_of_a_chain_with_their_body(client: httpx.Client, running: Gateway, tmp_path: Path) -> None:
    chain = chain_of(client, 6)
    for source, successor in pairwise(chain):
        headers = [(b"Authorization", b"Bearer acme-token"), (b"SPASS-User-Id", b"ada"), (b"Content-Type", b"application/json")]
        data = request_bytes(b"POST", at(source, "/messages").encode(), headers, b'{"message": "x"}')
        redirect = exchange(running.url, data, method="POST")
        assert redirect is not None
        assert (redirect.status, redirect.json()) == (308, {"successor_session_id": successor})
        assert redirect.header("Location") == at(successor, "/messages")
    reply = client.post(at(chain[0], "/messages"), json={"message": "Grüße von httpx"}, follow_redirects=True)
    assert (reply.status_code, len(reply.history), reply.json()["session_id"]) == (200, 5, chain[-1])
    (tmp_path / "body.json").write_text('{"message": "Grüße von curl"}', encoding="utf-8")
    command = ["curl", "-sSL", "--data-binary", "@body.json", f"{running.url}{at(chain[0], '/messages')}"]
    for header in ("Authorization: Bearer acme-token", "SPASS-User-Id: ada", "Content-Type: application/json"):
        command += ["-H", header]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(result.stdout)["session_id"] == chain[-1]
    contents = [message["content"] for message in client.get(at(chain[-1], "/messages")).json()["messages"]]
    assert contents[-4::2] == ["Grüße von httpx", "Grüße von curl"]
    lineage = client.get(at(chain[2], "/lineage")).json()
    assert [entry["id"] for entry in lineage["backward"]] == [chain[1], chain[0]]
    assert [entry["id"] for entry in lineage["forward"]] == chain[3:]
    assert [entry["source_session_id"] for entry in lineage["summaries"]] == chain[:-1], "summaries must be listed oldest first"


def test_a_lineage_shows_a_deleted_member_and_leaves_the_others_unchanged(client: httpx.Client) -> None:
    first, middle, last = chain_of(client, 3)
    before = [visible_state(client, session)[:2] for session in (first, last)]
    assert client.delete(at(middle)).json() == {"deleted": True}
    assert [visible_state(client, session)[:2] for session in (first, last)] == before
    answer = client.post(at(first, "/messages"), json={"message": "x"}, follow_redirects=True)
    assert (answer.status_code, code(answer)) == (404, "session_not_found")
    assert client.get(at(last, "/lineage")).json()["backward"][0] == {"id": middle, "deleted": True}
    assert send_message(client, last, "And then?").status_code == 200


def test_concurrent_requests_with_one_idempotency_key_compact_once(client: httpx.Client, faults: Moods) -> None:
    session = create_session(client)
    faults.delay = 0.3
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda _: compact(client, session, **{"Idempotency-Key": session}), range(6)))
    assert {reply.status_code for reply in replies} <= {200, 409}
    assert {code(reply) for reply in replies if reply.status_code == 409} <= {"idempotency_in_progress"}
    answers = [reply.json() for reply in replies if reply.status_code == 200]
    assert answers
    replay = compact(client, session, **{"Idempotency-Key": session})
    assert replay.headers["Idempotency-Replayed"] == "true"
    assert all(answer == replay.json() for answer in answers)
    assert len(faults.summaries) == 1
    different_request = client.post(at(session, "/compact"), json={}, headers={"Idempotency-Key": session})
    assert (different_request.status_code, code(different_request)) == (422, "idempotency_key_reused")


def test_a_turn_that_exceeds_the_context_window_continues_in_a_successor(client: httpx.Client) -> None:
    session = create_session(client, agent="narrow", keep=2, first=LONG)
    reply = send_message(client, session, "question 2", agent="narrow")
    answer = reply.json()
    successor = answer["session_id"]
    assert (reply.status_code, answer["compaction"]["successor_session_id"]) == (200, successor)
    assert answer["compaction"]["source_session_id"] == session != successor
    assert (reply.headers["SPASS-Compacted-From"], reply.headers["SPASS-Session-Id"]) == (session, successor)
    assert "SPASS-Compaction-Error" not in reply.headers
    assert reply.headers["SPASS-Cost-Sub-Calls"] == "2"
    messages = client.get(at(successor, "/messages", "narrow")).json()["messages"]
    assert messages[0]["content"].endswith(SUMMARY)
    assert [message["content"] for message in messages[1::2]] == ["question 1", "question 2"]
    assert (answer["message"]["seq"], len(messages)) == (5, 5)
    assert send_message(client, session, "question 3", agent="narrow").status_code == 308


def test_a_turn_whose_compaction_fails_is_answered_in_its_own_session(client: httpx.Client, faults: Moods) -> None:
    session = create_session(client, agent="narrow", keep=2, first=LONG)
    faults.summary = "status 500"
    reply = send_message(client, session, "question 2", agent="narrow")
    assert (reply.status_code, reply.json()["session_id"], reply.json()["compaction"]) == (200, session, None)
    assert reply.headers["SPASS-Compaction-Error"] == "summary_failed"
    assert "SPASS-Compacted-From" not in reply.headers
    assert len(client.get(at(session, "/messages", "narrow")).json()["messages"]) == 6


def test_a_prompt_that_the_provider_finds_too_long_is_retried_in_a_successor(client: httpx.Client, faults: Moods) -> None:
    session = create_session(client)
    faults.too_long = 1
    reply = send_message(client, session, "question 2")
    successor = reply.json()["session_id"]
    assert (reply.status_code, reply.json()["compaction"]["source_session_id"]) == (200, session)
    assert reply.headers["SPASS-Session-Id"] == successor != session
    contents = [message["content"] for message in faults.asked[-1]["messages"]]
    assert contents[0] == "Answer."
    assert SUMMARY in contents[1]
    assert [contents[2], contents[-1]] == ["question 1", "question 2"]


def test_a_prompt_that_stays_too_long_is_refused_and_not_recorded(client: httpx.Client, faults: Moods) -> None:
    session = create_session(client)
    faults.too_long = 1000
    refused = send_message(client, session, "question 2")
    assert (refused.status_code, code(refused)) == (400, "context_length_exceeded")
    faults.too_long = 0
    accepted = client.post(at(session, "/messages"), json={"message": "question 2"}, follow_redirects=True)
    assert accepted.status_code == 200
    contents = [message["content"] for message in client.get(at(accepted.json()["session_id"], "/messages")).json()["messages"]]
    assert contents.count("question 2") == 1, "the refused turn was recorded"


def test_lineage_search_finds_text_that_the_summary_omits(client: httpx.Client) -> None:
    session = create_session(client, agent="searching", keep=0, turns=1, first=f"Note: {LONG}")
    for _ in range(2):
        reply = send_message(client, session, "Look for 'zebra', please.", agent="searching").raise_for_status()
        (call,) = reply.json()["tool_calls"]
        assert call["name"] == "lineage_search"
        assert "Marty is a zebra" in json.dumps(call["result"])
        successor = compact(client, reply.json()["session_id"], "searching").raise_for_status().json()["successor_session_id"]
        session = str(successor)


@pytest.mark.parametrize(
    "body", [b"[]", b"7", b"{", b'{"model": "talker"}', b'{"user_id": "eve"}', b"\xff\xfe", b" " * (4 * 2**20 + 1)]
)
def test_an_invalid_body_does_not_start_a_compaction(client: httpx.Client, faults: Moods, body: bytes) -> None:
    session = create_session(client)
    before = visible_state(client, session)
    refused = client.post(at(session, "/compact"), content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code == (413 if len(body) > 4 * 2**20 else 400)
    assert refused.json()["request_id"] == refused.headers["SPASS-Request-Id"]
    assert visible_state(client, session) == before
    assert faults.summaries == []


@pytest.mark.parametrize(
    "segment", ["x", "ses_", "%2e%2e", "ses_%00", "job_" + "0" * 26, "ses_" + "z" * 3000, "%F0%9F%A6%93", "%ff"]
)
def test_an_invalid_session_or_job_id_is_refused(client: httpx.Client, segment: str) -> None:
    answers = (
        client.post(at(segment, "/compact")),
        client.get(at(segment, "/lineage")),
        client.get(f"/a1/jobs/{segment}"),
        client.post(at(segment, "/messages"), json={"message": "x"}),
    )
    for answer in answers:
        assert answer.status_code in (400, 404), answer.text
        assert code(answer) in ("session_not_found", "job_not_found", "route_not_found", "invalid_request")


class ConversationClients:
    """Clients that send messages to one session and its successors, and clients that compact it repeatedly."""

    def __init__(self, running: Gateway, first: str) -> None:
        self.running = running
        self.first = first
        self.answered: list[str] = []
        self.compactions = 0
        self.finished = threading.Event()

    def send_messages(self, sender: int) -> None:
        """Send messages, each after the answer to the previous one, until the session was compacted at least twice."""
        session = self.first
        with self.running.client("acme-token") as client:
            number = 0
            while number < 5 or self.compactions < 2:
                assert number < 200, "no second compaction succeeded during 200 messages"
                message = f"{sender} says {number}"
                while (reply := send_message(client, session, message)).status_code != 200:
                    if reply.status_code == 308:
                        session = reply.json()["successor_session_id"]
                    else:
                        assert code(reply) in ("session_busy", "compaction_in_progress"), reply.text
                        time.sleep(0.02)
                self.answered.append(message)
                number += 1
                time.sleep(0.1)

    def compact(self) -> None:
        session = self.first
        with self.running.client("acme-token") as client:
            while not self.finished.is_set():
                reply = compact(client, session)
                if reply.status_code == 200:
                    session = reply.json()["successor_session_id"]
                    self.compactions += 1
                elif code(reply) == "session_archived":
                    session = reply.json()["error"]["details"]["successor_session_id"]
                else:
                    assert code(reply) in ("session_busy", "compaction_in_progress", "nothing_to_compact"), reply.text
                    time.sleep(0.002)


def history_of(client: httpx.Client, first: str) -> list[str]:
    """Return the contents of a chain's messages, each once: the compacted ones of each session, and all of the last session."""
    chain = [first, *(entry["id"] for entry in client.get(at(first, "/lineage")).json()["forward"])]
    contents: list[str] = []
    for session in chain:
        page = client.get(at(session, "/messages"), params={"limit": 1000}).json()["messages"]
        assert [entry["seq"] for entry in page] == list(range(1, len(page) + 1))
        own = page if session == first else page[1:]
        contents += [entry["content"] for entry in own if session == chain[-1] or entry["compacted_at"]]
    return contents


def test_concurrent_turns_and_compactions_neither_lose_nor_repeat_messages(client: httpx.Client, running: Gateway) -> None:
    clients = ConversationClients(running, create_session(client, turns=1, keep=3, first="begun"))
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        compactions = [pool.submit(clients.compact) for _ in range(2)]
        conversations = [pool.submit(clients.send_messages, sender) for sender in range(4)]
        try:
            for conversation in conversations:
                conversation.result(60)
        finally:
            clients.finished.set()
        for compaction in compactions:
            compaction.result(60)
    contents = history_of(client, clients.first)
    questions = contents[::2]
    assert sorted(questions) == sorted(["begun", *clients.answered])
    assert set(contents[1::2]) == {TEXT}, "each question must be followed by its answer"
    for sender in range(4):
        own = [question for question in questions if question.startswith(f"{sender} ")]
        assert own == [f"{sender} says {number}" for number in range(len(own))]
