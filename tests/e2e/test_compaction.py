"""Compact sessions through the queue and the state machine of the emulated AWS, over sockets, and with clients that race.

``tests/functions/test_compaction*.py`` have the rest of the contract, without them.
"""

import concurrent.futures
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from spass.testing.http_server import HttpAnswer, json_answer
from spass.testing.model_server import Body, Completion, model_handler
from tests.e2e.conftest import Gateway
from tests.e2e.raw_http import exchange, request_bytes
from tests.e2e.scripted_gateway import TEXT, reply
from tests.e2e.sites import Site, chat_model, share, tenant, token

CONDENSER: Final = "condenser"
SUMMARY: Final = "Marty moves to Berlin on 3 May and pays 1200 Euro."
TIMEOUT: Final = 1.0
SECONDS: Final = 30.0
SENDERS: Final = 2
PAUSE: Final = 0.1
"""Seconds before a client that was refused asks again, and between two messages of a sender."""
_USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
_NAMES_A_KEY: Final = {"error": {"message": "Incorrect API key provided: sk-secret."}}


@dataclass
class Moods:
    """A provider whose model ``condenser`` writes summaries. The next one is ``fine``, comes too late (``slow``) or is refused
    (``refused``). It records the requests that it receives."""

    summary: str = "fine"
    delay: float = 0
    asked: list[Body] = field(default_factory=list)

    def answer(self, body: Body) -> Completion | HttpAnswer | None:
        self.asked.append(body)
        if body["model"] != CONDENSER:
            return Completion(reply(body), usage=_USAGE)
        time.sleep(self.delay)
        if self.summary == "slow":
            time.sleep(TIMEOUT + 1)
            return None
        return Completion({"content": SUMMARY}, usage=_USAGE) if self.summary == "fine" else json_answer(_NAMES_A_KEY, 401)

    @property
    def summaries(self) -> list[Body]:
        return [request for request in self.asked if request["model"] == CONDENSER]


MOODS: Final = Moods()
share(
    Site(
        "condensed",
        model_handler(MOODS.answer),
        [chat_model(CONDENSER), chat_model("condensed")],
        [{"name": "plain", "model": "condensed", "system_prompt": "Answer."}],
        [tenant(name, token(f"{name}-token", allowed_models=["condensed"])) for name in ("acme", "rival")],
        [{"timeout": TIMEOUT}],
    )
)


def at(session: str, below: str = "") -> str:
    return f"/a1/agents/plain/sessions/{session}{below}"


def create_session(client: httpx.Client, *, turns: int = 2, keep: int = 2, first: str = "I pay 1200 Euro.") -> str:
    """Create a session of ``turns`` turns and return its id. ``first`` is its first message."""
    body = {"title": "Moving", "compact_keep_last_n": keep}
    session = str(client.post("/a1/agents/plain/sessions", json=body).raise_for_status().json()["id"])
    for message in [first, *(f"question {number}" for number in range(1, turns))]:
        send_message(client, session, message).raise_for_status()
    return session


def send_message(client: httpx.Client, session: str, message: str, **headers: str) -> httpx.Response:
    return client.post(at(session, "/messages"), json={"message": message}, headers=headers)


def compact(client: httpx.Client, session: str, **headers: str) -> httpx.Response:
    return client.post(at(session, "/compact"), headers=headers)


def code(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


def visible_state(client: httpx.Client, session: str) -> list[Any]:
    """Return a session, its messages and its lineage as the API shows them."""
    return [client.get(at(session, below)).raise_for_status().json() for below in ("", "/messages", "/lineage")]


def wait_for_job(client: httpx.Client, location: str) -> dict[str, Any]:
    deadline = time.monotonic() + SECONDS
    while True:
        job: dict[str, Any] = client.get(location).raise_for_status().json()
        if job["status"] in ("succeeded", "failed"):
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)


def chain_of(client: httpx.Client, members: int) -> list[str]:
    chain = [create_session(client)]
    while len(chain) < members:
        chain.append(str(compact(client, chain[-1]).raise_for_status().json()["successor_session_id"]))
        send_message(client, chain[-1], f"question {len(chain)}").raise_for_status()
    return chain


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    MOODS.__dict__ |= Moods().__dict__
    with gateway.client("acme-token") as client:
        yield client


def test_a_session_is_compacted_while_the_client_waits(client: httpx.Client) -> None:
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
    assert "I pay 1200 Euro." in json.dumps(MOODS.summaries[0]["messages"])
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


def test_the_job_of_an_asynchronous_compaction_reports_its_result(client: httpx.Client, gateway: Gateway) -> None:
    session = create_session(client)
    reply = compact(client, session, Prefer="respond-async")
    job = reply.json()["job_id"]
    assert (reply.status_code, reply.headers["Location"]) == (202, f"/a1/jobs/{job}")
    finished_job = wait_for_job(client, reply.headers["Location"])
    assert (finished_job["status"], finished_job["kind"], finished_job["error"]) == ("succeeded", "compaction", None)
    assert finished_job["result"]["source_session_id"] == session
    for other, user in (("acme-token", "eve"), ("rival-token", "ada")):
        with gateway.client(other, user) as other_client:
            assert code(other_client.get(reply.headers["Location"])) == "job_not_found"


def test_a_session_refuses_other_requests_during_its_compaction(client: httpx.Client) -> None:
    session = create_session(client)
    MOODS.delay = 0.7
    reply = compact(client, session, Prefer="respond-async")
    answers = [send_message(client, session, "And then?"), client.delete(at(session)), compact(client, session)]
    for answer in answers:
        assert (answer.status_code, code(answer)) == (409, "compaction_in_progress")
        assert answer.json()["error"]["details"] == {"job_id": reply.json()["job_id"]}
        assert int(answer.headers["Retry-After"]) >= 1
    assert wait_for_job(client, reply.headers["Location"])["status"] == "succeeded"


@pytest.mark.parametrize("mood", ["slow", "refused"])
def test_a_failed_summary_leaves_the_session_unchanged_and_usable(client: httpx.Client, mood: str) -> None:
    session = create_session(client)
    before = visible_state(client, session)
    MOODS.summary = mood
    failed = compact(client, session)
    assert (failed.status_code, code(failed)) == (502, "summary_failed")
    assert "sk-secret" not in failed.text
    assert "127.0.0.1" not in failed.text
    job = client.get(f"/a1/jobs/{failed.json()['error']['details']['job_id']}").json()
    assert (job["status"], job["error"]["code"]) == ("failed", "summary_failed")
    assert visible_state(client, session) == before
    MOODS.summary = "fine"
    assert send_message(client, session, "And then?").status_code == 200
    assert compact(client, session).status_code == 200


def test_clients_follow_the_redirects_of_a_chain_with_their_body(client: httpx.Client, gateway: Gateway, tmp_path: Path) -> None:
    chain = chain_of(client, 6)
    for source, successor in pairwise(chain):
        headers = [(b"Authorization", b"Bearer acme-token"), (b"SPASS-User-Id", b"ada"), (b"Content-Type", b"application/json")]
        data = request_bytes(b"POST", at(source, "/messages").encode(), headers, b'{"message": "x"}')
        redirect = exchange(gateway.url, data, method="POST")
        assert redirect is not None
        assert (redirect.status, redirect.json()) == (308, {"successor_session_id": successor})
        assert redirect.header("Location") == at(successor, "/messages")
    reply = client.post(at(chain[0], "/messages"), json={"message": "Grüße von httpx"}, follow_redirects=True)
    assert (reply.status_code, len(reply.history), reply.json()["session_id"]) == (200, 5, chain[-1])
    (tmp_path / "body.json").write_text('{"message": "Grüße von curl"}', encoding="utf-8")
    command = ["curl", "-sSL", "--data-binary", "@body.json", f"{gateway.url}{at(chain[0], '/messages')}"]
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


class ConversationClients:
    """Clients that send messages to one session and its successors, and one that compacts it twice meanwhile."""

    def __init__(self, gateway: Gateway, first: str) -> None:
        self.gateway = gateway
        self.first = first
        self.answered: list[str] = []
        self.is_compacted = threading.Event()

    def send_messages(self, sender: int) -> None:
        """Send messages, each after the answer to the previous one, until the session was compacted."""
        session = self.first
        with self.gateway.client("acme-token") as client:
            number = 0
            while number < 3 or not self.is_compacted.wait(PAUSE):
                assert number < 100, "the session was not compacted during 100 messages"
                message = f"{sender} says {number}"
                while (reply := send_message(client, session, message)).status_code != 200:
                    if reply.status_code == 308:
                        session = reply.json()["successor_session_id"]
                    else:
                        assert code(reply) in ("session_busy", "compaction_in_progress"), reply.text
                        time.sleep(PAUSE)
                self.answered.append(message)
                number += 1

    def compact_twice(self) -> None:
        session = self.first
        try:
            with self.gateway.client("acme-token") as client:
                for _ in range(2):
                    while (reply := compact(client, session)).status_code != 200:
                        assert code(reply) in ("session_busy", "nothing_to_compact"), reply.text
                        time.sleep(PAUSE)
                    session = reply.json()["successor_session_id"]
        finally:
            self.is_compacted.set()


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


def test_concurrent_turns_and_compactions_neither_lose_nor_repeat_messages(client: httpx.Client, gateway: Gateway) -> None:
    clients = ConversationClients(gateway, create_session(client, turns=1, keep=3, first="begun"))
    with concurrent.futures.ThreadPoolExecutor(SENDERS + 1) as pool:
        conversations = [pool.submit(clients.send_messages, sender) for sender in range(SENDERS)]
        pool.submit(clients.compact_twice).result()
        for conversation in conversations:
            conversation.result()
    contents = history_of(client, clients.first)
    questions = contents[::2]
    assert sorted(questions) == sorted(["begun", *clients.answered])
    assert set(contents[1::2]) == {TEXT}, "each question must be followed by its answer"
    for sender in range(SENDERS):
        own = [question for question in questions if question.startswith(f"{sender} ")]
        assert own == [f"{sender} says {number}" for number in range(len(own))]
