"""Agent kinds from outside: a gateway process whose only backend is a scripted OpenAI-compatible upstream."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest

from spass.testing.http_server import HttpAnswer
from spass.testing.model_server import Body, Completion, serve_model
from tests.e2e.conftest import running_gateway

TOKEN: Final = "kinds-token"
TIMEOUT: Final = 2
"""Seconds of silence between two bytes after which the backend is given up."""
KEYS: Final = ("simple", "orchestrator", "native_react", "react")

# kind, max_turns, temperature, max_tokens: the table of the page, for the kinds that exist
DEFAULTS: Final = [
    ("simple", 1, 0.7, 1024),
    ("orchestrator", 10, 0.7, 1024),
    ("native_react", 10, 0.7, 1024),
    ("react", 10, 0.7, 1024),
]

CONFIG: Final = """
llm:
  retries: 0
  backends:
    - {{name: script, provider: openai, base_url: "{url}/v1", supported_models: [scripted, thinker], timeout: {timeout}}}
    - {{name: embedded, provider: embedded, supported_models: [all-minilm-l6-v2]}}
models:
  - {{name: scripted, context_window: 100000}}
  - {{name: thinker, context_window: 100000, begins_thinking: true}}
  - {{name: all-minilm-l6-v2, kind: embedding, dimensions: 384, context_window: 256}}
tenants:
  - id: kinds
    tokens: [{{id: kinds, sha256: {digest}}}]
"""


@dataclass
class Outside:
    """The gateway as its client sees it, and its upstream, which answers by ``script`` and keeps the bodies of the requests."""

    script: Callable[[Body], Completion | HttpAnswer | None] = lambda _: Completion({"content": "Hello."})
    bodies: list[Body] = field(default_factory=list)
    client: httpx.Client = field(default_factory=httpx.Client)

    def respond(self, body: Body) -> Completion | HttpAnswer | None:
        self.bodies.append(body)
        return self.script(body)

    def will_say(self, *messages: str | Body) -> None:
        """Answer with these messages in order, and repeat the last one."""
        self.bodies.clear()
        replies = [Completion({"content": one} if isinstance(one, str) else one) for one in messages]
        self.script = lambda _: replies[min(len(self.bodies), len(replies)) - 1]

    def ask(self, text: str = "What is sqrt(256)?", **body: Any) -> dict[str, Any]:
        reply = self.client.post("/v1/ask", json={"input": text, **body})
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer


def agent_file(kind: str, model: str) -> str:
    return f"name: {kind}-{model}\nkind: {kind}\nmodel: {model}\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    outside = Outside()
    agents = {f"{kind}-{model}": agent_file(kind, model) for kind in KEYS for model in ("scripted", "thinker")}
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    with serve_model(outside.respond) as url:
        config = CONFIG.format(url=url, timeout=TIMEOUT, digest=digest)
        with running_gateway(tmp_path_factory.mktemp("kinds"), config, agents) as gateway, gateway.client(TOKEN) as client:
            outside.client = client
            yield outside


@pytest.fixture
def outside(running: Outside) -> Outside:
    running.will_say("Hello.")
    return running


def calls_calculator(expression: str = "sqrt(256)", said: str | None = None) -> Body:
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return {"content": said, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


def test_react_calls_a_tool_in_text_and_answers(outside: Outside) -> None:
    action = 'thought: I need it\nACTION: calculator\nAction input: {"expression": "sqrt(256)"}'
    outside.will_say(action, "final answer: 16")
    answer = outside.ask(agent="react", tools=["calculator"])
    assert (answer["content"], answer["turns"], answer["kind"]) == ("16", 2, "native_react")
    assert [(tool["tool_name"], tool["success"]) for tool in answer["tool_results"]] == [("calculator", True)]
    first, second = outside.bodies
    assert "tools" not in first
    assert "tools" not in second
    observation = str(second["messages"][-1]["content"])
    assert "Observation:" in observation
    assert "16" in observation
    system = first["messages"][0]
    assert system["role"] == "system"
    tool = next(one for one in outside.client.get("/v1/tools").json()["tools"] if one["function"]["name"] == "calculator")
    expected = ["calculator", tool["category"], *tool["function"]["parameters"]["properties"]]
    assert [word for word in expected if word not in system["content"]] == []


def test_simple_sends_no_tools_and_has_one_turn(outside: Outside) -> None:
    answer = outside.ask(agent="simple", tools=["calculator"])
    assert answer["turns"] == 1
    (body,) = outside.bodies
    assert "tools" not in body


@pytest.mark.parametrize(("kind", "max_turns", "temperature", "max_tokens"), DEFAULTS)
def test_the_defaults_of_the_table_are_listed_and_reach_the_upstream(
    outside: Outside, kind: str, max_turns: int, temperature: float, max_tokens: int
) -> None:
    (listed,) = [one for one in outside.client.get("/v1/kinds").json()["kinds"] if one["key"] == kind]
    defaults = {name: parameter["default"] for name, parameter in listed["params"]["properties"].items()}
    assert (defaults["max_turns"], defaults["temperature"], defaults["max_tokens"]) == (max_turns, temperature, max_tokens)
    action = 'Thought: more\nAction: calculator\nAction Input: {"expression": "1"}'
    outside.will_say(action if "react" in kind else calls_calculator())
    answer = outside.ask(agent=kind, tools=["calculator"])
    assert len(outside.bodies) == answer["turns"] == max_turns
    assert {(body["temperature"], body.get("max_tokens", body.get("max_completion_tokens"))) for body in outside.bodies} == {
        (temperature, max_tokens)
    }


def test_the_table_has_every_kind_in_its_order(outside: Outside) -> None:
    assert [one["key"] for one in outside.client.get("/v1/kinds").json()["kinds"]] == [row[0] for row in DEFAULTS]


def test_a_model_that_always_calls_a_tool_is_stopped_at_max_turns(outside: Outside) -> None:
    outside.will_say(calls_calculator(said="One moment."))
    answer = outside.ask(agent="orchestrator", tools=["calculator"], params={"max_turns": 2})
    assert len(outside.bodies) == 2
    assert (answer["finish_reason"], answer["metadata"]) == ("max_turns", {"max_turns_exceeded": True})
    assert answer["content"] == "One moment."


def test_mode_structured_runs_a_bare_input_and_sends_no_tools(outside: Outside) -> None:
    outside.will_say("tool: calculator\ninput: 2+2", "FINAL_ANSWER: It is 4.")
    answer = outside.ask(agent="orchestrator", tools=["calculator"], params={"mode": "structured"})
    assert (answer["content"], answer["tool_results"][0]["success"]) == ("It is 4.", True)
    assert [body for body in outside.bodies if "tools" in body] == []
    outside.will_say("It is 4, I am sure.")
    plain = outside.ask(agent="orchestrator", tools=["calculator"], params={"mode": "structured"})
    assert (plain["content"], plain["turns"]) == ("It is 4, I am sure.", 1)


def in_two(text: str, cut: int) -> Completion:
    return Completion({"content": text}, pieces=[piece for piece in (text[:cut], text[cut:]) if piece])


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize(
    ("model", "text"), [("scripted", "<think>2 and 2</think>It is 4."), ("thinker", "2 and 2</think>It is 4.")]
)
def test_think_text_cut_anywhere_is_in_no_answer_and_no_history(outside: Outside, kind: str, model: str, text: str) -> None:
    agent = f"/a1/agents/{kind}-{model}"
    session = outside.client.post(f"{agent}/sessions", json={}).json()["id"]
    for cut in range(len(text)):
        outside.script = lambda _, cut=cut: in_two(text, cut)  # type: ignore[misc]
        assert outside.ask(agent=kind, model=model)["content"] == "It is 4."
        turn = outside.client.post(f"{agent}/sessions/{session}/messages", json={"message": "What is 2+2?"}).json()
        assert turn["message"]["content"] == "It is 4."
    history = outside.client.get(f"{agent}/sessions/{session}/messages").json()["messages"]
    assert {message["content"] for message in history if message["role"] == "assistant"} == {"It is 4."}
    assert "2 and 2" not in json.dumps(outside.bodies[-1])


def test_an_answer_that_takes_longer_than_the_timeout_between_bytes_arrives_whole(outside: Outside) -> None:
    words = [f"word{number} " for number in range(8)]
    outside.script = lambda _: Completion({"content": "".join(words)}, pieces=words, pause=0.4)
    started = time.monotonic()
    answer = outside.ask(agent="simple")
    assert time.monotonic() - started > TIMEOUT
    assert answer["content"] == "".join(words)


def test_an_upstream_that_falls_silent_is_a_clear_error(outside: Outside) -> None:
    def fall_silent(_: Body) -> Completion:
        return Completion({"content": "Hello there"}, pieces=["Hello ", "there"], pause=TIMEOUT + 1)

    outside.script = fall_silent
    reply = outside.client.post("/v1/ask", json={"input": "Hi", "agent": "simple"})
    assert reply.status_code in {502, 504}
    error = reply.json()["error"]
    assert error["code"] in {"upstream_error", "upstream_timeout"}
    assert "Hello" not in reply.text


def test_a_second_turn_of_react_gives_the_model_the_first_as_text(outside: Outside) -> None:
    reply = outside.client.post("/a1/agents/react-scripted/sessions", json={})
    sessions = f"/a1/agents/react-scripted/sessions/{reply.json()['id']}/messages"
    outside.will_say("Hello.")
    assert outside.client.post(sessions, json={"message": "I am Ada."}).status_code == 200
    outside.will_say("You are Ada.")
    assert outside.client.post(sessions, json={"message": "Who am I?"}).status_code == 200
    said = [message["content"] for message in outside.bodies[0]["messages"] if message["role"] != "system"]
    assert said == ["I am Ada.", "Final Answer: Hello.", "Who am I?"]
