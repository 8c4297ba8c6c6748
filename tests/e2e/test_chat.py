"""Chats with a started gateway: each row of the event table, clients that reload, drop and stop, and a worker that is killed."""

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import httpx
import pytest

from spass.core.ids import AgentName, TenantId, UserId
from spass.journal.head import stream_digest
from spass.store import keys
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer
from tests.e2e.conftest import WAIT_SECONDS, Gateway, second_gateway, wait_until
from tests.e2e.sites import Site, chat_model, share
from tests.sampling import SOAK
from tests.stream_grammar import Event, answer_text, of_type, parse_events, receive
from tests.unit.models.wire_forms import WIRE_FORMS, WIRE_PATHS, WireScript, call

TOKEN: Final = "chat-token"
PROVIDERS: Final = sorted(WIRE_FORMS)
MODELS: Final = {name: f"chat-{name}" for name in PROVIDERS}
PAUSE: Final = 0.1
"""Seconds before each word of an answer to a message that says how many words it wants."""
LONG: Final = 200
"""Words of an answer that takes 20 seconds."""
DROP_SECONDS: Final = 0.2
LOST_SECONDS: Final = 90.0
"""Seconds within which followers learn that a worker has died."""


@dataclass
class Upstream:
    """A provider in three forms. A message says what to answer: "use tools", "fail", or "12 words", which take their time when
    they are asked for first."""

    answered: set[str] = field(default_factory=set)

    def respond(self, request: HttpRequest) -> HttpAnswer:
        if request.method == "GET":
            return json_answer({"models": [{"name": MODELS["ollama"]}]})  # the gateway asks Ollama for its models
        (provider,) = [name for name, path in WIRE_PATHS.items() if path == request.path]
        body = request.json
        if "tools" not in body:  # the tool llm
            return _played(provider, WireScript(["A thought."]))
        written = json.dumps(body["messages"])
        if "please fail" in written:
            return HttpAnswer(b'{"error": {"message": "No."}}', status=500)
        if "use tools" in written and "42" not in written:
            calls = [call("calculator", {"expression": "6*7"}), call("llm", {"prompt": "Think."})]
            return _played(provider, WireScript(["I look. ", calls]))
        if counts := re.findall(r"(\w+): (\d+) words", written):
            question, count = counts[-1]
            pause = 0.0 if question in self.answered else PAUSE
            self.answered.add(question)
            return _played(provider, WireScript([f"word{number} " for number in range(int(count))]), pause)
        return _played(provider, WireScript(["It is ", "42."]))


def _played(provider: str, script: WireScript, pause: float = 0.0) -> HttpAnswer:
    def pieces() -> Iterator[bytes]:
        for piece in WIRE_FORMS[provider](script):
            time.sleep(pause)
            yield piece

    return HttpAnswer(pieces(), content_type="application/x-ndjson" if provider == "ollama" else "text/event-stream")


share(
    Site(
        "chat",
        Upstream().respond,
        [chat_model(MODELS[name]) for name in PROVIDERS],
        [{"name": "helper", "model": MODELS["openai"], "tools": ["calculator", "llm"]}],
        backends=[{"name": f"chat-{name}", "provider": name, "supported_models": [MODELS[name]]} for name in PROVIDERS],
    )
)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@dataclass
class Chat:
    """One message, and all requests to its stream."""

    gateway: Gateway
    message_id: str
    text: str
    session: str | None = None
    model: str = MODELS["openai"]

    @property
    def path(self) -> str:
        return f"/c1/agents/helper/chat/{self.message_id}"

    @property
    def body(self) -> dict[str, Any]:
        session = {"session_id": self.session} if self.session is not None else {}
        messages = [{"role": "user", "content": self.text}]
        return {"message_id": self.message_id, "messages": messages, "model": self.model, **session}

    def post(self, gateway: Gateway | None = None) -> httpx.Response:
        with (gateway or self.gateway).client(TOKEN) as client:
            return client.post("/c1/agents/helper/chat", json=self.body)

    def follow(self, last: str | None = None) -> httpx.Response:
        with self.gateway.client(TOKEN) as client:
            return client.get(self.path, headers={"Last-Event-ID": last} if last else {})

    def follow_until(self, seen: threading.Event) -> bytes:
        """Read the stream to its end. Set ``seen`` at its first token."""
        body = b""
        with self.gateway.client(TOKEN) as client, client.stream("GET", self.path) as answer:
            for piece in answer.iter_bytes():
                body += piece
                if b'"token"' in body:
                    seen.set()
        return body

    def find(self) -> str:
        """Wait until the stream is there. Return its session."""
        with self.gateway.client(TOKEN) as client:
            wait_until(lambda: client.head(self.path).status_code == 200)
            with client.stream("GET", self.path) as answer:
                first = next(line for line in answer.iter_lines() if line.startswith("data:"))
        return str(json.loads(first.removeprefix("data:"))["session_id"])

    def session_page(self, session: str, page: str = "") -> Any:
        with self.gateway.client(TOKEN) as client:
            return client.get(f"/a1/agents/helper/sessions/{session}{page}").raise_for_status().json()


@pytest.fixture(scope="module", autouse=True)
def long_chat(gateway: Gateway, pool: ThreadPoolExecutor) -> tuple[Chat, Future[list[bytes]]]:
    """Return a chat of 20 seconds, and what a client reads of it that drops its connections. It runs beside the other tests."""
    chat = Chat(gateway, "long", f"long: {LONG} words")
    return chat, pool.submit(anyio.run, read_and_drop, chat)


async def read_and_drop(chat: Chat) -> list[bytes]:
    """Send the message and read its stream as a browser does. Drop each connection 0.2 s after its headers."""
    connections = list[bytes]()
    last: str | None = None
    headers = {"Authorization": f"Bearer {TOKEN}", "SPASS-User-Id": "ada"}
    async with httpx.AsyncClient(base_url=chat.gateway.url, headers=headers, timeout=30, trust_env=False) as client:
        while True:
            request = (
                client.build_request("POST", "/c1/agents/helper/chat", json=chat.body)
                if last is None
                else client.build_request("GET", chat.path, headers={"Last-Event-ID": last})
            )
            answer = await client.send(request, stream=True)
            if answer.status_code == 204:
                return connections
            assert answer.status_code == 200
            connections.append(b"")
            with anyio.move_on_after(DROP_SECONDS):
                async for piece in answer.aiter_raw():
                    connections[-1] += piece
            with anyio.CancelScope(shield=True):
                await answer.aclose()
            if ids := receive(connections[-1]).ids:
                last = str(ids[-1])


def shape(event: Event) -> object:
    """Return what is the same in each run of a script."""
    match event:
        case {"type": "status_update", "tool_call": tool}:
            return "executing", tool["tool"], tool["args"]
        case {"type": "status_update", "progress": _}:
            return "progress"
        case {"type": "status_update"}:
            return event["status"]
        case {"type": "tool_call"}:
            return "tool_call", event["tool"], event["args"], event["result"], event["ok"]
        case _:
            return event["type"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_event_of_a_turn_has_an_id_whatever_form_the_provider_speaks(gateway: Gateway, provider: str) -> None:
    chat = Chat(gateway, f"tools-{provider}", "use tools", model=MODELS[provider])
    answer = chat.post()
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = parse_events(answer.content)
    received = receive(answer.content)
    assert (len(received.ids), received.retry) == (len(events), 1000)
    sums, thought = {"expression": "6*7"}, {"prompt": "Think."}
    assert [shape(event) for event in events if event["type"] not in ("token", "tool_call")] == [
        "planning",
        ("executing", "calculator", sums),
        ("executing", "llm", thought),
        "progress",
        "complete",
        "usage",
        "done",
    ]
    tokens = [(token["step"], token["content"]) for token in of_type(events, "token")]
    assert "".join(text for step, text in tokens if step == 1).strip() == "I look."
    assert "".join(text for step, text in tokens if step == 2) == "It is 42."
    assert sorted((shape(event) for event in of_type(events, "tool_call")), key=str) == [
        ("tool_call", "calculator", sums, {"expression": "6*7", "result": 42}, True),
        ("tool_call", "llm", thought, {"text": "A thought."}, True),
    ]
    assert (events[0]["message_id"], events[0]["attempt"]) == (chat.message_id, 1)
    assert events[-2]["cost"]["sub_calls"] == 3, "two steps of the agent, and the tool llm"
    assert chat.follow().content == answer.content


def test_a_failed_turn_ends_its_stream_with_an_error_and_may_be_repeated(gateway: Gateway) -> None:
    chat = Chat(gateway, "fail", "please fail")
    for attempt in (1, 2):
        answer = chat.post()
        planning, status, error = parse_events(answer.content)
        assert (planning["attempt"], status["status"], error["error"]["code"]) == (attempt, "error", "upstream_error")
        assert len(receive(answer.content).ids) == 3
        assert chat.follow().content == answer.content
        assert chat.session_page(planning["session_id"], "/messages")["messages"] == []


def test_a_reloaded_client_and_a_second_tab_find_the_running_turn(gateway: Gateway, pool: ThreadPoolExecutor) -> None:
    chat = Chat(gateway, "reload", "reload: 20 words")
    posted = pool.submit(chat.post)
    session = chat.find()
    assert chat.session_page(session)["active_turn"] == {"message_id": "reload"}
    tabs = [pool.submit(chat.follow) for _ in range(2)]
    second = Chat(gateway, "second", "Hi.", session=session).post()
    assert (second.status_code, second.json()["error"]["code"]) == (409, "session_busy")
    assert second.json()["error"]["details"]["message_id"] == "reload"
    assert {tab.result().content for tab in tabs} == {posted.result().content}
    assert answer_text(parse_events(posted.result().content)).split() == [f"word{number}" for number in range(20)]
    assert chat.session_page(session)["active_turn"] is None
    over = chat.follow(last=str(receive(posted.result().content).ids[-1]))
    assert (over.status_code, over.content) == (204, b"")


def test_curl_stops_a_turn_which_keeps_what_was_said(gateway: Gateway, pool: ThreadPoolExecutor) -> None:
    chat = Chat(gateway, "stop", "stop: 500 words")
    posted = pool.submit(chat.post)
    session = chat.find()
    seen = threading.Event()
    followed = pool.submit(chat.follow_until, seen)
    assert seen.wait(WAIT_SECONDS)
    headers = [f"-HAuthorization: Bearer {TOKEN}", "-HSPASS-User-Id: ada"]
    command = ["curl", "-sS", "--noproxy", "*", "-w", " %{http_code}", "-X", "DELETE", *headers, f"{gateway.url}{chat.path}"]
    stopped = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert stopped == '{"status":"cancelling"} 202'
    events = parse_events(posted.result().content)
    assert followed.result() == posted.result().content
    assert events[-1]["finish_reason"] == "cancelled"
    messages = chat.session_page(session, "/messages")["messages"]
    assert [message["content"] for message in messages] == ["stop: 500 words", answer_text(events)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == '{"status":"done"} 200'


def test_the_turn_of_a_killed_worker_is_lost_and_runs_again_once(gateway: Gateway, pool: ThreadPoolExecutor) -> None:
    """The lease of the dead worker ends after a minute. Only soak runs wait for that; others end it in the table."""
    chat = Chat(gateway, "lost", "lost: 500 words")
    with second_gateway(gateway, gateway.home.parent / "worker") as worker:
        posted = pool.submit(chat.post, worker)
        session = chat.find()
        seen = [threading.Event() for _ in range(2)]
        followers = [pool.submit(chat.follow_until, event) for event in seen]
        assert all(event.wait(WAIT_SECONDS) for event in seen)
        worker.stop(signal.SIGKILL)
    assert isinstance(posted.exception(), httpx.TransportError)
    if not SOAK:
        end_lease(gateway, chat)
    assert not wait(followers, LOST_SECONDS).not_done
    for follower in followers:
        *before, status, error = parse_events(follower.result())
        assert (status["status"], error["error"]["code"]) == ("error", "turn_lost")
        assert len(receive(follower.result()).ids) == len(before), "the journal does not have the end of a lost turn"
        assert answer_text(before).startswith("word0 word1 ")
    assert chat.session_page(session, "/messages")["messages"] == []
    repeated = chat.post()
    events = parse_events(repeated.content)
    assert (events[0]["attempt"], events[0]["session_id"], events[-1]["finish_reason"]) == (2, session, "stop")
    messages = chat.session_page(session, "/messages")["messages"]
    assert [message["content"] for message in messages] == [chat.text, answer_text(events)]
    assert chat.follow(last="1-3").content == chat.post().content == repeated.content
    assert len(chat.session_page(session, "/messages")["messages"]) == 2


def end_lease(gateway: Gateway, chat: Chat) -> None:
    """Let the lease of the stream's attempt end now."""
    key = keys.stream_head(TenantId("chat"), stream_digest(UserId("ada"), AgentName("helper"), chat.message_id))
    table = gateway.aws_client("dynamodb")
    (name,) = table.list_tables()["TableNames"]
    table.update_item(
        TableName=name,
        Key={"pk": {"S": key.pk}, "sk": {"S": key.sk}},
        UpdateExpression="SET expires_at = :now",
        ConditionExpression="attribute_exists(pk)",
        ExpressionAttributeValues={":now": {"N": str(int(time.time()) - 1)}},
    )


def test_a_client_that_drops_every_connection_reads_a_long_stream(long_chat: tuple[Chat, Future[list[bytes]]]) -> None:
    """This test is the last one, because the stream takes 20 seconds."""
    chat, reading = long_chat
    connections = reading.result(2 * WAIT_SECONDS)
    events = parse_events(*connections)
    assert len(connections) > LONG * PAUSE / DROP_SECONDS / 4
    assert answer_text(events).split() == [f"word{number}" for number in range(LONG)]
    assert events == parse_events(chat.follow().content)
