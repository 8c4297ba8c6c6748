"""Answers that end early: a client disconnects, or the server stops."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import httpx
import pytest

from spass.core.messages import Json
from spass.testing.http_server import HttpAnswer, HttpRequest, json_answer
from tests.e2e.conftest import Gateway, running_site, wait_until
from tests.e2e.sites import Site, chat_model, tenant

TOKEN: Final = "leaving-token"
LIMITED: Final = "limited-token"
SECONDS: Final = 20


class EndlessUpstream:
    """A provider whose answer ends only when the reader disconnects. It never answers the message "Think.". The answer of the
    model "narrow" is whole; that to "Hold." waits for ``release``."""

    def __init__(self) -> None:
        self.received = threading.Event()
        self.disconnected = threading.Event()
        self.release = threading.Event()
        self.asked: list[str] = []

    def answer(self, request: HttpRequest) -> HttpAnswer | None:
        self.received.set()
        if b'"model":"narrow"' in request.body.replace(b" ", b""):
            body = request.json
            self.asked.append(body["messages"][-1]["content"])
            assert self.asked[-1] != "Hold." or self.release.wait(SECONDS)
            return json_answer(
                {
                    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
                }
            )
        if b"Think." not in request.body:
            return HttpAnswer(self._words(), content_type="text/event-stream")
        if request.wait_for_disconnect(SECONDS):
            self.disconnected.set()
        return None

    def _words(self) -> Iterator[bytes]:
        choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "endless", "choices": [choice]}
        try:
            for _ in range(SECONDS * 20):
                yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
                time.sleep(0.05)
        except GeneratorExit:
            self.disconnected.set()
            raise


@pytest.fixture(scope="module")
def endless_upstream() -> EndlessUpstream:
    return EndlessUpstream()


@pytest.fixture(scope="module")
def gateway(endless_upstream: EndlessUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway of its own, because the last test stops it."""
    site = Site(
        "endless",
        endless_upstream.answer,
        [chat_model("endless"), chat_model("narrow")],
        [
            {"name": "counting", "model": "endless"},
            {"name": "talking", "model": "endless", "kind": "simple"},
            {"name": "waiting", "model": "narrow", "max_tokens": 400},
        ],
        [tenant("leaving"), tenant("limited", defaults={"tokens_per_minute": 1300})],
        [{"supported_models": ["endless"]}, {"name": "narrow", "supported_models": ["narrow"], "max_concurrent": 1}],
    )
    with running_site(tmp_path_factory.mktemp("streams"), site) as gateway:
        yield gateway


@pytest.fixture
def upstream(endless_upstream: EndlessUpstream) -> EndlessUpstream:
    """Return the provider, with its events cleared."""
    endless_upstream.received.clear()
    endless_upstream.disconnected.clear()
    return endless_upstream


def test_a_disconnect_before_the_first_word_reaches_the_model(gateway: Gateway, upstream: EndlessUpstream) -> None:
    body = {"model": "endless", "messages": [{"role": "user", "content": "Think."}], "stream": True}
    with socket.create_connection(("127.0.0.1", httpx.URL(gateway.url).port or 0)) as client:
        content = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += f"Content-Length: {len(content)}"
        client.sendall(head.encode() + b"\r\n\r\n" + content)
        assert upstream.received.wait(SECONDS)
    assert upstream.disconnected.wait(SECONDS / 2), "the gateway still waits for the model's answer"


def test_a_disconnect_stops_the_model_call_and_is_audited_as_cancelled(gateway: Gateway, upstream: EndlessUpstream) -> None:
    body = {"model": "endless", "messages": [{"role": "user", "content": "Count."}], "stream": True}
    with gateway.client(TOKEN) as client:
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            request_id = answer.headers["SPASS-Request-Id"]
            words = (line for line in answer.iter_lines() if '"content":"word ' in line)
            assert [next(words) for _ in range(3)]
        assert upstream.disconnected.wait(SECONDS), "the gateway still reads the model's answer"
        record = wait_for_record(client, request_id)
    assert record["status"] == "cancelled"
    assert record["completion_tokens"] > 0
    assert float(record["cost_usd"]) > 0


CHATS: Final[Mapping[str, Mapping[str, Json]]] = {
    "/v1/chat/completions": {
        "model": "narrow",
        "messages": [{"role": "user", "content": "Wait."}],
        "max_completion_tokens": 400,
    },
    "/a1/agents/waiting/chat": {"message": "Wait."},
    "/v1/ask": {"agent": "waiting", "input": "Wait."},
}


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}], ids=["without a key", "with a key"])
@pytest.mark.parametrize("path", CHATS)
def test_a_chat_whose_client_leaves_while_it_waits_for_a_limit_is_not_made(
    gateway: Gateway, upstream: EndlessUpstream, path: str, key: dict[str, str]
) -> None:
    upstream.asked.clear()
    upstream.release.clear()
    answers: list[httpx.Response] = []

    def chat(message: str, max_tokens: int) -> None:
        body = {"model": "narrow", "messages": [{"role": "user", "content": message}], "max_completion_tokens": max_tokens}
        with gateway.client(LIMITED) as client:
            answers.append(client.post("/v1/chat/completions", json=body, timeout=SECONDS))

    holding = threading.Thread(target=chat, args=["Hold.", 400])
    holding.start()
    assert upstream.received.wait(SECONDS)
    ended = gateway.output.count('"status":499')
    with gateway.client(LIMITED) as client, pytest.raises(httpx.ReadTimeout):
        client.post(path, json=CHATS[path], headers=key, timeout=1)
    if not key:
        wait_until(lambda: gateway.output.count('"status":499') == ended + 1)
    upstream.release.set()
    holding.join(SECONDS)
    if key:  # the chat goes on, so that the client's retry gets its answer
        wait_until(lambda: "Wait." in upstream.asked)
        return
    # The minute has no room for this chat if the reservation of the one before is still counted.
    chat("End.", 1000)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert upstream.asked == ["Hold.", "End."]


def test_a_server_that_stops_ends_its_streams_with_an_error(gateway: Gateway) -> None:
    """This must be the last test, because it stops the gateway."""
    question = {"role": "user", "content": "Count."}
    completion = {"model": "endless", "messages": [question], "stream": True}
    chat = {"message_id": "m1", "messages": [question]}
    with gateway.client(TOKEN) as client, ExitStack() as open_streams:
        lines = [
            _lines(open_streams.enter_context(client.stream(method, path, json=body)))
            for method, path, body in (
                ("POST", "/v1/chat/completions", completion),
                ("POST", "/c1/agents/counting/chat", chat),
                ("GET", "/c1/agents/counting/chat/m1", None),
                ("POST", "/a1/agents/talking/chat", {"message": "Count.", "stream": True}),
                ("POST", "/v1/ask", {"input": "Count.", "agent": "simple", "model": "endless", "stream": True}),
            )
        ]
        assert all(map(next, lines))
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGINT)
        ends = [list(each)[-1] for each in lines]
    codes = [json.loads(end.removeprefix("data: "))["error"]["code"] for end in ends]
    assert codes == ["internal_error"] * len(lines)
    assert gateway.process.wait(SECONDS) == 0
    assert "CancelledError" not in gateway.output


def _lines(answer: httpx.Response) -> Iterator[str]:
    return (line for line in answer.iter_lines() if line)


def wait_for_record(client: httpx.Client, request_id: str) -> dict[str, Any]:
    """Wait for the audit record of the request's only call and return it."""
    deadline = time.monotonic() + SECONDS
    while (answer := client.get(f"/v1/audit/{request_id}")).status_code == 404 and time.monotonic() < deadline:
        time.sleep(0.1)
    (only_call,) = answer.json()["calls"]
    record: dict[str, Any] = only_call
    return record
