"""Streams of agents over sockets: tokens that arrive while the model writes, silences, failures and disconnects. Every kind once.

``tests/functions/test_event_streams.py`` has the rest of the contract, without sockets.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final

import httpx
import pytest

from spass.agents.kinds import KINDS
from spass.testing.model_server import Body, Completion, model_handler
from tests.e2e.conftest import Gateway
from tests.e2e.sites import Site, chat_model, share
from tests.stream_grammar import Event, answer_text, check_collected, of_type, parse_events

TOKEN: Final = "streams-token"
ROUTES: Final = ("chat", "messages", "ask")
RUN_HERE: Final = [kind for kind in list(KINDS.keys()) if KINDS.get(kind).needs in (None, "code")]
"""The kinds whose models the gateway calls."""
PAUSE: Final = 0.3
"""Seconds before each word of the upstream's answers to a question with "slowly"."""
TIMEOUT: Final = 1.0
"""Seconds of silence after which the backend's answer is lost."""


def script(body: Body) -> Completion:
    """Call the calculator once, as the agent's kind writes it, and then answer. Be silent after a question with "silent"."""
    texts = [str(message["content"]) for message in body["messages"]]
    if "silent" in texts[-1]:
        return Completion({"content": "Late."}, pause=TIMEOUT + 1)
    if "Count" in texts[-1]:
        return Completion({"content": "one two three four five six "}, pause=PAUSE)
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


def agent(kind: str) -> dict[str, object]:
    tools = {"tools": ["calculator"]} if KINDS.get(kind).accepts_tools else {}
    return {"name": f"of-{kind}", "model": "scripted", "kind": kind, **tools}


share(Site("streams", model_handler(script), [chat_model("scripted")], [*map(agent, RUN_HERE)], backends=[{"timeout": TIMEOUT}]))


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


def ask(client: httpx.Client, question: Question, *, stream: bool) -> httpx.Response:
    return client.post(question.path, json=question.body | {"stream": stream})


@contextmanager
def streamed(client: httpx.Client, question: Question) -> Iterator[Iterator[Event]]:
    """Send the question and yield its events as they arrive."""
    with client.stream("POST", question.path, json=question.body | {"stream": True}) as response:
        assert response.status_code == 200
        yield (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: "))


def kinds_and_routes() -> list[tuple[str, str]]:
    """Return each kind with one of the routes, in turn. Nobody creates the session of an operator."""
    routes = cycle(ROUTES)
    return [(kind, "ask" if (route := next(routes)) == "messages" and KINDS.get(kind).remembers else route) for kind in RUN_HERE]


@pytest.mark.parametrize(("kind", "route"), kinds_and_routes())
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


@pytest.mark.parametrize("route", ROUTES)
def test_tokens_arrive_while_the_model_writes(client: httpx.Client, route: str) -> None:
    with streamed(client, question(client, route, "simple", "Say it slowly.")) as events:
        assert next(events)["status"] == "planning"
        assert next(events)["type"] == "token"
        began = time.monotonic()
        assert [event["type"] for event in events][-1] == "done"
        assert time.monotonic() - began >= PAUSE, "the first token must not wait for the last"


def test_a_long_answer_outlives_the_timeout_between_bytes(client: httpx.Client) -> None:
    answer = ask(client, question(client, "ask", "simple", "Count."), stream=False)
    assert answer.json()["content"] == "one two three four five six "


def test_a_silent_upstream_is_a_clear_error_also_of_a_stream(client: httpx.Client) -> None:
    asked = question(client, "messages", "simple", "Be silent.")
    refused = ask(client, asked, stream=False)
    assert refused.status_code in (502, 504)
    assert refused.json()["error"]["code"] in ("upstream_error", "upstream_timeout")
    streamed = ask(client, asked, stream=True)
    *_, status, error = parse_events(streamed.text)
    assert (streamed.status_code, status["status"], error["type"]) == (200, "error", "error")
    assert error["error"]["code"] in ("upstream_error", "upstream_timeout")
    assert error["request_id"] == streamed.headers["spass-request-id"]
    assert client.get(asked.path).json()["messages"] == []


def test_a_turn_whose_client_disconnects_is_in_the_history(client: httpx.Client) -> None:
    asked = question(client, "messages", "simple", "Say it slowly.")
    with streamed(client, asked) as events:
        assert any(event["type"] == "token" for event in events)
    deadline = time.monotonic() + 20
    while not (messages := client.get(asked.path).json()["messages"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [message["content"] for message in messages] == ["Say it slowly.", "It is 42 now."]
