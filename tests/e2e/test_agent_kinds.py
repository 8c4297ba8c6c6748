"""The agent kinds against a started gateway, whose only backend is a scripted OpenAI-compatible upstream."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from spass.testing.model_server import Body, Completion, serve_model
from tests.e2e.conftest import running_gateway
from tests.stream_grammar import parse_events

TOKEN = "kinds-token"
TIMEOUT = 2
"""Seconds of silence after which the backend's answer is lost."""
KINDS = ("simple", "orchestrator", "native_react", "rlm")
AGENTS = {
    "thinker": "name: thinker\nkind: orchestrator\nmodel: talker\n",
    "reasoner": "name: reasoner\nkind: react\nmodel: talker\ntools: [calculator]\n",
    **{f"musing-{kind}": f"name: musing-{kind}\nkind: {kind}\nmodel: muser\n" for kind in KINDS},
}


@dataclass
class Upstream:
    """The scripted model: it gives ``replies`` in order and repeats the last one."""

    replies: list[Completion] = field(default_factory=list)
    requests: list[Body] = field(default_factory=list)

    def script(self, *replies: str | Completion) -> None:
        self.requests.clear()
        self.replies = [reply if isinstance(reply, Completion) else say(reply) for reply in replies]

    def __call__(self, body: Body) -> Completion:
        self.requests.append(body)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@dataclass
class World:
    upstream: Upstream
    client: httpx.Client

    def ask(self, input: str, **body: Any) -> dict[str, Any]:
        """Return the answer of ``/v1/ask``, which must succeed."""
        response = self.client.post("/v1/ask", json={"input": input, **body})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the events of a stream."""
        response = self.client.post(path, json={**body, "stream": True})
        assert response.status_code == 200, response.text
        return parse_events(response.content)


def say(text: str, *calls: str, pieces: Sequence[str] | None = None, pause: float = 0.0) -> Completion:
    """Return a reply with ``text`` and native calls of the calculator with these expressions."""
    tool_calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "calculator", "arguments": json.dumps({"expression": expression})},
        }
        for number, expression in enumerate(calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text} | ({"tool_calls": tool_calls} if calls else {})
    return Completion(message, pieces=pieces, pause=pause)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    upstream = Upstream()
    with serve_model(upstream) as url:
        config = f"""
llm:
  retries: 0
  backends:
    - {{name: script, provider: openai, base_url: "{url}/v1", timeout: {TIMEOUT}, supported_models: [talker, muser, vectors]}}
models:
  - {{name: vectors, kind: embedding, dimensions: 8, context_window: 1000}}
  - {{name: talker, context_window: 100000, usd_per_mtok_in: 1, usd_per_mtok_out: 2}}
  - {{name: muser, context_window: 100000, begins_thinking: true}}
defaults: {{embedding_model: vectors, compact_summary_model: talker, compact_keep_last_n: 0}}
tenants:
  - id: kinds
    tokens: [{{id: kinds, sha256: {hashlib.sha256(TOKEN.encode()).hexdigest()}}}]
"""
        with running_gateway(tmp_path_factory.mktemp("kinds"), config, AGENTS) as gateway, gateway.client(TOKEN) as client:
            yield World(upstream, client)


def test_react_reads_markers_in_any_case(world: World) -> None:
    world.upstream.script('thought: I need it\nACTION: calculator\nAction input: {"expression": "sqrt(256)"}', "final answer: 16")
    answer = world.ask("What is sqrt(256)?", agent="react", tools=["calculator"])
    assert (answer["content"], answer["turns"], answer["kind"]) == ("16", 2, "native_react")
    (result,) = answer["tool_results"]
    assert (result["tool_name"], result["success"]) == ("calculator", True)
    assert "16" in result["content"]
    first, second = world.upstream.requests
    assert "Observation:" in second["messages"][-1]["content"]
    assert "16" in second["messages"][-1]["content"]
    system = first["messages"][0]["content"]
    tool = next(tool for tool in world.client.get("/v1/tools").json()["tools"] if tool["function"]["name"] == "calculator")
    for word in ("calculator", *tool["function"]["parameters"]["properties"], tool["category"]):
        assert word in system
    assert not any("tools" in request for request in (first, second))


def test_simple_ignores_tools(world: World) -> None:
    world.upstream.script("Hello.")
    assert world.ask("Hi", agent="simple", tools=["calculator"])["turns"] == 1
    (request,) = world.upstream.requests
    assert "tools" not in request


def test_the_defaults_of_each_kind_reach_the_upstream(world: World) -> None:
    table = {
        "simple": (False, False, {"temperature": 0.7, "max_tokens": 1024, "max_turns": 1}),
        "orchestrator": (
            *(True, True),
            {"temperature": 0.7, "max_tokens": 1024, "max_turns": 10, "mode": "function_calling"},
        ),
        "native_react": (True, True, {"temperature": 0.7, "max_tokens": 1024, "max_turns": 10}),
        "react": (True, True, {"temperature": 0.7, "max_tokens": 1024, "max_turns": 10}),
        "rlm": (
            *(True, True),
            {
                "temperature": 0.7,
                "max_tokens": 2048,
                "max_turns": 10,
                "max_sub_calls": 100,
                "max_output_chars": 10_000,
                "sub_model": None,
                "sub_temperature": 0.3,
                "sub_max_tokens": 1024,
            },
        ),
    }
    kinds = world.client.get("/v1/kinds").json()["kinds"]
    assert [kind["key"] for kind in kinds if kind["key"] in table] == list(table)
    for kind in kinds:
        if kind["key"] not in table:
            continue
        accepts_tools, multi_turn, defaults = table[kind["key"]]
        assert (kind["accepts_tools"], kind["multi_turn"], kind["available"]) == (accepts_tools, multi_turn, True)
        properties = kind["params"]["properties"]
        assert {name: schema["default"] for name, schema in properties.items() if name != "system_prompt"} == defaults
        world.upstream.script("Hello.")
        world.ask("Hi", agent=kind["key"])
        (request,) = world.upstream.requests
        sent = (request["temperature"], request.get("max_tokens") or request["max_completion_tokens"])
        assert sent == (defaults["temperature"], defaults["max_tokens"])
        assert request["stream"] is True


def test_an_upstream_that_always_calls_a_tool_is_stopped(world: World) -> None:
    world.upstream.script(say("I calculate.", "1+1"))
    answer = world.ask("What?", agent="orchestrator", tools=["calculator"], params={"max_turns": 2})
    assert len(world.upstream.requests) == 2
    assert (answer["finish_reason"], answer["content"], answer["turns"]) == ("max_turns", "I calculate.", 2)
    assert answer["metadata"]["max_turns_exceeded"] is True


def test_the_structured_mode_speaks_text(world: World) -> None:
    world.upstream.script("tool: calculator\ninput: 2+2", "FINAL_ANSWER: It is 4.")
    answer = world.ask("What is 2+2?", tools=["calculator"], params={"mode": "structured"})
    assert (answer["content"], answer["turns"]) == ("It is 4.", 2)
    assert [result["success"] for result in answer["tool_results"]] == [True]
    assert not any("tools" in request for request in world.upstream.requests)
    world.upstream.script("Just four.")
    assert world.ask("What is 2+2?", tools=["calculator"], params={"mode": "structured"})["content"] == "Just four."


def joined_tokens(events: Sequence[dict[str, Any]]) -> str:
    tokens = [event for event in events if event["type"] == "token"]
    last = max((token["step"] for token in tokens), default=0)
    return "".join(token["content"] for token in tokens if token["step"] == last)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("begins_thinking", "text"), [(False, "<think>hm</think>It is 42."), (True, "hm</think>It is 42.")])
def test_think_text_leaks_nowhere_however_it_is_cut(world: World, kind: str, begins_thinking: bool, text: str) -> None:
    model = "muser" if begins_thinking else "talker"
    for cut in range(len(text) + 1):
        pieces = [piece for piece in (text[:cut], text[cut:]) if piece]
        world.upstream.script(say(text, pieces=pieces))
        assert world.ask("What?", agent=kind, model=model)["content"] == "It is 42."
        events = world.stream("/v1/ask", {"input": "What?", "agent": kind, "model": model})
        assert joined_tokens(events) == "It is 42."
        assert "hm" not in "".join(event["content"] for event in events if event["type"] == "token")


@pytest.mark.parametrize("kind", KINDS)
def test_think_text_is_not_in_the_history(world: World, kind: str) -> None:
    world.upstream.script(say("hm</think>It is 42.", pieces=["hm</thi", "nk>It is 42."]))
    session = world.client.post(f"/a1/agents/musing-{kind}/sessions", json={}).json()["id"]
    path = f"/a1/agents/musing-{kind}/sessions/{session}/messages"
    assert world.client.post(path, json={"message": "What?"}).json()["message"]["content"] == "It is 42."
    assert [message["content"] for message in world.client.get(path).json()["messages"]] == ["What?", "It is 42."]


def test_a_long_answer_outlives_the_timeout_between_bytes(world: World) -> None:
    pieces = [f"{number} " for number in range(10)]
    world.upstream.script(say("".join(pieces), pieces=pieces, pause=TIMEOUT / 7))
    assert world.ask("Count.", agent="simple")["content"] == "".join(pieces)


def test_a_silent_upstream_is_a_clear_error(world: World) -> None:
    world.upstream.script(say("Late.", pieces=["Late."], pause=TIMEOUT + 1))
    response = world.client.post("/v1/ask", json={"input": "Hi", "agent": "simple"})
    assert response.status_code in (502, 504)
    assert response.json()["error"]["code"] in ("upstream_error", "upstream_timeout")
    world.upstream.script("Hello.")


def new_session(world: World, agent: str) -> str:
    session: str = world.client.post(f"/a1/agents/{agent}/sessions", json={}).json()["id"]
    return f"/a1/agents/{agent}/sessions/{session}"


def test_a_react_session_keeps_tool_pairs_and_speaks_text(world: World) -> None:
    path = new_session(world, "reasoner")
    world.upstream.script("Thought: simple\nAction: calculator\nAction Input: 6*7", "Final Answer: 42")
    reply = world.client.post(f"{path}/messages", json={"message": "What is 6*7?"}).json()
    assert (reply["message"]["content"], reply["turns"]) == ("42", 2)
    messages = world.client.get(f"{path}/messages").json()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    (call,) = messages[1]["tool_calls"]
    assert messages[2]["tool_call_id"] == call["id"]
    assert json.loads(call["function"]["arguments"]) == {"expression": "6*7"}
    assert messages[1]["content"] == "simple"
    world.upstream.script("Final Answer: You asked for 6*7.")
    assert world.client.post(f"{path}/messages", json={"message": "What did I ask?"}).status_code == 200
    (request,) = world.upstream.requests
    assert {message["role"] for message in request["messages"]} == {"system", "user", "assistant"}
    past = "\n".join(str(message["content"]) for message in request["messages"][1:])
    assert "Action: calculator" in past
    assert "Observation:" in past
    assert "42" in past


def test_the_compaction_of_a_react_session_summarizes_all_of_it(world: World) -> None:
    path = new_session(world, "reasoner")
    world.upstream.script("Action: calculator\nAction Input: 6*7", "Final Answer: forty-two")
    world.client.post(f"{path}/messages", json={"message": "What is 6*7?"})
    world.upstream.script("They asked for 6*7, which is forty-two.")
    result = world.client.post(f"{path}/compact", json={})
    assert result.status_code == 200, result.text
    assert result.json()["compacted_message_count"] == 4
    summarized = json.dumps(world.upstream.requests[0]["messages"])
    for fact in ("What is 6*7?", "calculator", "42", "forty-two"):
        assert fact in summarized
    moved = world.client.post(f"{path}/messages", json={"message": "And?"})
    assert moved.status_code == 308
    world.upstream.script("Final Answer: forty-two")
    followed = world.client.post(moved.headers["location"], json={"message": "And?"})
    assert followed.json()["message"]["content"] == "forty-two"
    assert "forty-two" in json.dumps(world.upstream.requests[0]["messages"])


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"agent": "nobody"}, 404, "agent_not_found", "agent"),
        *[
            ({"agent": "thinker", name: value}, 400, "invalid_request", name)
            for name, value in {"model": "talker", "tools": [], "system_prompt": "x", "params": {}}.items()
        ],
        ({"params": {"max_turn": 2}}, 400, "invalid_request", "params.max_turn"),
        ({"params": {"max_turns": "2"}}, 400, "invalid_request", "params.max_turns"),
        ({"params": {"max_turns": 0}}, 400, "invalid_request", "params.max_turns"),
        ({"agent": "simple", "params": {"mode": "structured"}}, 400, "invalid_request", "params.mode"),
        ({"tools": ["nothing"]}, 404, "tool_not_found", None),
        ({"model": "nothing"}, 404, "model_not_found", None),
        ({"context": {"conversation": [{"role": "system", "content": "x"}]}}, 400, "invalid_request", None),
        ({"input": " \n"}, 400, "invalid_request", "input"),
        ({"input": "x" * (256 * 1024 + 1)}, 400, "invalid_request", "input"),
        ({"question": "x"}, 400, "invalid_request", "question"),
        ({"context": {"metadata": {"a": "x" * 5000}}}, 400, "invalid_request", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_question_calls_nothing(
    world: World, body: dict[str, Any], status: int, code: str, param: str | None, stream: bool
) -> None:
    world.upstream.script("Hello.")
    response = world.client.post("/v1/ask", json={"input": "Hi", "stream": stream, **body})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), response.text
    assert param is None or error["param"] == param
    assert world.upstream.requests == []


def check_equal(blocking: dict[str, Any], events: Sequence[dict[str, Any]], content: str) -> None:
    assert joined_tokens(events) == content
    done = events[-1]
    assert done["type"] == "done"
    assert "content" not in json.dumps(done)
    assert (done["turns"], done["finish_reason"]) == (blocking["turns"], blocking["finish_reason"])
    (usage,) = (event for event in events if event["type"] == "usage")
    assert usage["usage"] == blocking["usage"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_has_the_content_of_the_answer(world: World, kind: str) -> None:
    scripts: dict[str, list[str | Completion]] = {
        "simple": ["It is 42."],
        "orchestrator": [say("I calculate.", "6*7"), "It is 42."],
        "native_react": ["Thought: hm\nAction: calculator\nAction Input: 6*7", "Final Answer: It is 42."],
        "rlm": [
            "```python\nresult = calculator(expression='6*7')['result']\n```",
            "```python\nFINAL(f'It is {result}.')\n```",
        ],
    }
    body: dict[str, Any] = {"input": "What is 6*7?", "agent": kind, "tools": ["calculator"]}
    world.upstream.script(*scripts[kind])
    blocking = world.ask(**body)
    world.upstream.script(*scripts[kind])
    check_equal(blocking, world.stream("/v1/ask", body), "It is 42.")


def test_an_error_after_the_first_event_ends_the_stream(world: World) -> None:
    world.upstream.script(say("Late.", pieces=["Late."], pause=TIMEOUT + 1))
    events = world.stream("/v1/ask", {"input": "Hi", "agent": "simple"})
    assert [(event["type"], event.get("status")) for event in events] == [
        ("status_update", "planning"),
        ("status_update", "error"),
        ("error", None),
    ]
    world.upstream.script("Hello.")
