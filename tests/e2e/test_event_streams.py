"""Streams of agents over HTTP, from a gateway process with a scripted upstream: progress, failures, disconnects and replays."""

import hashlib
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from spass.agents.kinds import KINDS
from spass.testing.http_server import HttpAnswer
from spass.testing.model_server import Body, Completion, serve_model
from tests.e2e.conftest import Gateway, running_gateway
from tests.stream_grammar import Event, answer_text, check_collected, collect_ask, collect_reply, of_type, parse_events

TOKEN: Final = "streams-token"
RUN_HERE: Final = [kind for kind in list(KINDS.keys()) if KINDS.get(kind).needs in (None, "code")]
"""The kinds whose models the gateway calls."""
PAUSE: Final = 0.3
"""Seconds before each word of the upstream's answers to a question with "slowly"."""

CONFIG: Final = """
llm:
  retries: 0
  backends:
    - {{name: script, provider: openai, base_url: "{url}/v1", supported_models: [scripted]}}
    - {{name: embedded, provider: embedded, supported_models: [all-minilm-l6-v2]}}
models:
  - {{name: scripted, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
defaults: {{compact_summary_model: scripted}}
tenants:
  - id: streams
    tokens: [{{id: streams, sha256: {digest}}}]
"""


def script(body: Body) -> Completion | HttpAnswer | None:
    """Call the calculator once, as the agent's kind writes it, and then answer. Fail if the question contains "fail"."""
    texts = [str(message["content"]) for message in body["messages"]]
    if "fail" in texts[-1]:
        return HttpAnswer(b'{"error": {"message": "No."}}', status=500, content_type="application/json")
    pause = PAUSE if any("slowly" in text for text in texts) else 0.0
    has_result = body["messages"][-1]["role"] == "tool" or "Observation:" in texts[-1]
    if any("Action Input:" in text for text in texts if "calculator" in text):
        said = "Final Answer: It is 42 now." if has_result else 'Action: calculator\nAction Input: {"expression": "6*7"}'
        return Completion({"content": said}, pause=pause)
    if "FINAL(value)" in texts[0]:
        said = "It is 42 now." if "Output:" in texts[-1] else "```python\nprint(calculator(expression='6*7'))\n```"
        return Completion({"content": said}, pause=pause)
    if body.get("tools") and not has_result:
        call = {"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'}}
        return Completion({"content": "I compute.", "tool_calls": [call]}, pause=pause)
    return Completion({"content": "It is 42 now."}, pause=pause)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    agents = {
        kind: f"name: of-{kind}\nmodel: scripted\nkind: {kind}\n"
        + ("tools: [calculator]\n" if KINDS.get(kind).accepts_tools else "")
        for kind in RUN_HERE
    }
    files = {f"of-{kind}": text for kind, text in agents.items()}
    with serve_model(script) as url:
        config = CONFIG.format(url=url, digest=hashlib.sha256(TOKEN.encode()).hexdigest())
        with running_gateway(tmp_path_factory.mktemp("streams"), config, files) as gateway:
            yield gateway


@pytest.fixture
def client(gateway: Gateway) -> Iterator[httpx.Client]:
    with gateway.client(TOKEN) as client:
        yield client


@dataclass(frozen=True)
class Question:
    """A request to one of the routes, without ``stream``."""

    path: str
    body: dict[str, Any]


def question(client: httpx.Client, route: str, kind: str = "orchestrator", text: str = "How much is 6*7?") -> Question:
    if route == "ask":
        return Question("/v1/ask", {"input": text, "agent": f"of-{kind}"})
    if route == "chat":
        return Question(f"/a1/agents/of-{kind}/chat", {"message": text})
    session = client.post(f"/a1/agents/of-{kind}/sessions").json()["id"]
    return Question(f"/a1/agents/of-{kind}/sessions/{session}/messages", {"message": text})


def ask(client: httpx.Client, question: Question, *, stream: bool, key: str | None = None) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return client.post(question.path, json=question.body | {"stream": stream}, headers=headers)


@contextmanager
def streamed(client: httpx.Client, question: Question) -> Iterator[Iterator[Event]]:
    """Send the question and yield its events as they arrive."""
    with client.stream("POST", question.path, json=question.body | {"stream": True}) as response:
        assert response.status_code == 200
        yield (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: "))


ROUTES = pytest.mark.parametrize("route", ["chat", "messages", "ask"])


@pytest.mark.parametrize(
    ("kind", "route"),
    [
        (kind, route)
        for kind in RUN_HERE
        for route in ("chat", "messages", "ask")
        if route != "messages" or not KINDS.get(kind).remembers  # nobody creates the session of an operator
    ],
)
def test_the_stream_of_every_kind_equals_its_blocking_answer(client: httpx.Client, kind: str, route: str) -> None:
    answers: list[httpx.Response] = []
    for stream in (False, True):
        client.delete(f"/v1/operators/of-{kind}").raise_for_status()  # an operator begins anew
        answers.append(ask(client, question(client, route, kind), stream=stream))
    blocking, events = answers[0], parse_events(answers[1].text)
    assert blocking.status_code == 200, blocking.text
    assert answer_text(events) == "It is 42 now."
    calls = [call for call in of_type(events, "tool_call") if call["parent_id"] is None]
    assert len(calls) == (0 if kind == "simple" else 1)
    check_collected(events, blocking.json())


@ROUTES
def test_tokens_arrive_while_the_model_writes(client: httpx.Client, route: str) -> None:
    with streamed(client, question(client, route, "simple", "Say it slowly.")) as events:
        assert next(events)["status"] == "planning"
        assert next(events)["type"] == "token"
        began = time.monotonic()
        assert [event["type"] for event in events][-1] == "done"
        assert time.monotonic() - began >= PAUSE, "the first token must not wait for the last"


@ROUTES
def test_an_upstream_that_fails_ends_the_stream_with_an_error(client: httpx.Client, route: str) -> None:
    asked = question(client, route, text="Please fail.")
    response = ask(client, asked, stream=True)
    *_, status, error = parse_events(response.text)
    assert (response.status_code, status["status"], error["type"]) == (200, "error", "error")
    assert error["request_id"] == response.headers["spass-request-id"]
    if route == "messages":
        assert client.get(asked.path).json()["messages"] == []


def test_a_turn_whose_client_disconnects_is_in_the_history(client: httpx.Client) -> None:
    asked = question(client, "messages", "simple", "Say it slowly.")
    with streamed(client, asked) as events:
        assert any(event["type"] == "token" for event in events)
    deadline = time.monotonic() + 20
    while not (messages := client.get(asked.path).json()["messages"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [message["content"] for message in messages] == ["Say it slowly.", "It is 42 now."]


@ROUTES
def test_a_repeated_key_replays_the_outcome_in_the_form_of_the_first_answer(client: httpx.Client, route: str) -> None:
    for stream in (True, False):
        asked = question(client, route)
        first, replay = (ask(client, asked, stream=stream, key=f"{route}-{stream}") for _ in range(2))
        assert replay.headers["idempotency-replayed"] == "true"
        if stream:
            collect = collect_ask if route == "ask" else collect_reply
            assert collect(parse_events(replay.text)) == collect(parse_events(first.text))
        else:
            assert replay.json() == first.json()


def test_a_gateway_that_stops_ends_its_streams_with_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serve_model(lambda _: Completion({"content": "word " * 100}, pause=0.2)) as url:
        config = CONFIG.format(url=url, digest=hashlib.sha256(TOKEN.encode()).hexdigest())
        files = {"of-simple": "name: of-simple\nmodel: scripted\nkind: simple\n"}
        with running_gateway(tmp_path_factory.mktemp("stop"), config, files) as gateway, gateway.client(TOKEN) as client:
            with streamed(client, question(client, "messages", "simple")) as events:
                assert next(event for event in events if event["type"] == "token")
                assert gateway.process is not None
                gateway.process.send_signal(signal.SIGINT)
                *_, status, error = events
            assert (status["status"], error["type"], error["error"]["code"]) == ("error", "error", "internal_error")
            gateway.process.wait(60)
