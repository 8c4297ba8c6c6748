"""POST /v1/ask runs any kind without a file, and refuses what is wrong before it calls a model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from spass.agents.kinds import KINDS, AgentContext, BaseAgent, parameter
from spass.core.effects import Answer, Infer, Steps
from spass.core.messages import Role
from spass.models.types import ChatDelta
from spass.testing.model import calls, in_turn
from tests.functions.gateway import Gateway, Reply

ASK = "/v1/ask"
SQRT = '{"expression": "sqrt(256)"}'
ACTS = f"thought: I need it\nACTION: calculator\nAction input: {SQRT}"


def ask(gateway: Gateway, token: str = "demo-token", headers: dict[str, str] | None = None, **body: Any) -> Reply:
    return gateway.send("POST", ASK, token=token, headers=headers, body={"input": "What is sqrt(256)?", **body})


def ok(reply: Reply) -> Any:
    assert reply.status == 200, reply.text
    return reply.json


def calls_tool(arguments: str = SQRT, said: str = "") -> Sequence[ChatDelta]:
    return calls(("calculator", arguments), text=said)


def test_the_answer_of_a_kind_has_every_field_and_the_cost_headers(gateway: Gateway) -> None:
    gateway.model.script = in_turn([calls_tool(), "It is 16."])
    reply = ask(gateway, tools=["calculator"])
    answer = ok(reply)
    (tool,) = answer.pop("tool_results")
    assert answer == {
        "request_id": reply.headers["spass-request-id"],
        "agent": "orchestrator",
        "kind": "orchestrator",
        "model": "small",
        "content": "It is 16.",
        "turns": 2,
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30},
        "metadata": {},
    }
    assert json.loads(tool["content"])["result"] == 16
    assert (tool["tool_name"], tool["success"]) == ("calculator", True)
    assert tool["duration_ms"] >= 0
    assert (reply.headers["spass-cost-sub-calls"], reply.headers["spass-cost-usd"]) == ("2", "0.00004")


def test_the_first_call_of_a_kind_has_its_defaults_and_its_tools(gateway: Gateway) -> None:
    ok(ask(gateway, tools=["calculator"]))
    (request,) = gateway.model.requests
    assert (request.model, request.temperature, request.max_tokens) == ("small", 0.7, 1024)
    assert [tool.name for tool in request.tools] == ["calculator"]
    assert [(message.role, message.content) for message in request.messages] == [(Role.USER, "What is sqrt(256)?")]


def test_a_model_without_sampling_gets_no_temperature(gateway: Gateway, tmp_path: Path) -> None:
    other = gateway.reconfigure(tmp_path / "other", "name: small,", "name: small, sampling: false,")
    ok(ask(other))
    ok(ask(other, params={"temperature": 0.2}))
    assert [(request.temperature, request.max_tokens) for request in other.model.requests] == [(None, 1024)] * 2


def test_params_and_the_system_prompt_reach_the_model(gateway: Gateway) -> None:
    params = {"temperature": 0, "max_tokens": 77, "max_turns": 1}
    ok(ask(gateway, agent="simple", model="small", system_prompt="Be brief.", params=params))
    (request,) = gateway.model.requests
    assert (request.temperature, request.max_tokens) == (0, 77)
    assert (request.messages[0].role, request.messages[0].content) == (Role.SYSTEM, "Be brief.")


def test_react_reads_its_markers_in_any_case_and_reports_its_canonical_key(gateway: Gateway) -> None:
    gateway.model.script = in_turn([ACTS, "final answer: 16"])
    answer = ok(ask(gateway, agent="react", tools=["calculator"]))
    assert (answer["content"], answer["turns"], answer["agent"], answer["kind"]) == ("16", 2, "native_react", "native_react")
    assert [(tool["tool_name"], tool["success"]) for tool in answer["tool_results"]] == [("calculator", True)]
    first, second = gateway.model.requests
    assert (first.tools, second.tools) == ((), ())
    prompt = first.messages[0].content
    assert all(text in prompt for text in ("calculator", "expression", "category"))
    assert "Observation:" in second.messages[-1].content
    assert "16" in second.messages[-1].content


def test_simple_ignores_tools_and_calls_the_model_once(gateway: Gateway) -> None:
    gateway.model.script = in_turn([calls_tool(said="I would calculate."), "never"])
    answer = ok(ask(gateway, agent="simple", tools=["calculator"]))
    assert (answer["turns"], answer["content"], answer["tool_results"]) == (1, "I would calculate.", [])
    (request,) = gateway.model.requests
    assert request.tools == ()


def test_max_turns_ends_the_run_with_the_text_the_model_wrote(gateway: Gateway) -> None:
    gateway.model.script = lambda *_: calls_tool(said="One moment.")
    answer = ok(ask(gateway, tools=["calculator"], params={"max_turns": 2}))
    assert (answer["finish_reason"], answer["metadata"]) == ("max_turns", {"max_turns_exceeded": True})
    assert (answer["content"], answer["turns"], len(gateway.model.requests)) == ("One moment.", 2, 2)


@pytest.mark.parametrize("call", ["tool: calculator\ninput: 2+2", 'THOUGHT: sum\nTOOL: calculator\nINPUT: {"expression": "2+2"}'])
def test_mode_structured_reads_calls_in_text_and_sends_no_tools(gateway: Gateway, call: str) -> None:
    gateway.model.script = in_turn([call, "FINAL_ANSWER: It is 4."])
    answer = ok(ask(gateway, tools=["calculator"], params={"mode": "structured"}))
    (tool,) = answer["tool_results"]
    assert (answer["content"], answer["turns"], tool["success"]) == ("It is 4.", 2, True)
    assert [request.tools for request in gateway.model.requests] == [(), ()]


def test_a_failed_tool_is_a_result_without_success(gateway: Gateway) -> None:
    gateway.model.script = in_turn([calls_tool('{"expression": "1/0"}'), "I cannot."])
    (tool,) = ok(ask(gateway, tools=["calculator"]))["tool_results"]
    assert not tool["success"]
    assert "error" in json.loads(tool["content"])


def test_the_agent_of_a_file_answers_under_its_name(gateway: Gateway) -> None:
    answer = ok(ask(gateway, agent="plain"))
    assert (answer["agent"], answer["kind"], answer["content"]) == ("plain", "orchestrator", "Hello there.")
    assert gateway.model.requests[0].messages[0].content == "Answer."


@pytest.mark.parametrize(
    ("param", "value"), [("model", "small"), ("tools", []), ("system_prompt", ""), ("params", {}), ("params", {"volume": 3})]
)
def test_a_file_sets_what_only_a_kind_takes(gateway: Gateway, param: str, value: Any) -> None:
    reply = ask(gateway, agent="plain", **{param: value})
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, "invalid_request", param)
    assert "the file of the agent 'plain' sets this" in reply.json["error"]["message"].lower()
    assert gateway.model.requests == []


def test_null_is_the_same_as_an_absent_field(gateway: Gateway) -> None:
    ok(ask(gateway, agent="plain", model=None, tools=None, system_prompt=None, params=None, context=None))
    ok(ask(gateway, agent="orchestrator", model=None, tools=None, system_prompt=None, params=None))


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input": ""}, "input", "at least 1"),
        ({"input": " \n"}, "input", "more than blanks"),
        ({"input": "x" * (256 * 1024 + 1)}, "input", "at most"),
        ({"input": "ü" * (128 * 1024 + 1)}, "input", "bytes"),
        ({"input": None}, "input", "must be text"),
        ({"inptu": "x"}, "inptu", "did you mean 'input'?"),
        ({"agent": 3}, "agent", "must be text"),
        ({"agent": None}, "agent", "must be text"),
        ({"tools": "calculator"}, "tools", "must be a list"),
        ({"tools": [3]}, "tools.0", "must be text"),
        ({"tools": ["x" * 65]}, "tools.0", "at most 64"),
        ({"model": "x" * 129}, "model", "at most 128"),
        ({"model": ""}, "model", "at least 1"),
        ({"tools": ["calculator", "calculator"]}, "tools", "twice"),
        ({"system_prompt": 3}, "system_prompt", "must be text"),
        ({"params": []}, "params", "must be an object"),
        ({"params": {"max_turn": 3}}, "params.max_turn", "did you mean 'max_turns'?"),
        ({"params": {"max_turns": 0}}, "params.max_turns", "greater than or equal to 1"),
        ({"params": {"max_turns": 101}}, "params.max_turns", "less than or equal to 100"),
        ({"params": {"max_turns": "3"}}, "params.max_turns", "must be a whole number"),
        ({"params": {"max_turns": True}}, "params.max_turns", "must be a whole number"),
        ({"params": {"temperature": 2.5}}, "params.temperature", "less than or equal to 2"),
        ({"params": {"temperature": None}}, "params.temperature", "must be a number"),
        ({"params": {"max_tokens": 0}}, "params.max_tokens", "greater than or equal to 1"),
        ({"params": {"mode": "structurd"}}, "params.mode", "'structured'"),
        ({"agent": "simple", "params": {"mode": "structured"}}, "params.mode", "unknown parameter"),
        ({"params": {"system_prompt": "x"}}, "params.system_prompt", "unknown parameter"),
        ({"params": {"": 1}}, "params.", "unknown parameter"),
        ({"context": 3}, "context", "must be an object"),
        ({"context": {"memory": []}}, "context.memory", "unknown parameter"),
        ({"context": {"conversation": [{"role": "system", "content": "x"}]}}, "context.conversation.0.role", "'user'"),
        ({"context": {"conversation": [{"role": "tool", "content": "x"}]}}, "context.conversation.0.role", "'user'"),
        ({"context": {"conversation": [{"role": "user", "content": " "}]}}, "context.conversation.0", "more than blanks"),
        ({"context": {"conversation": [{"role": "user"}]}}, "context.conversation.0.content", "is missing"),
        (
            {"context": {"conversation": [{"role": "user", "content": "x", "name": "a"}]}},
            "context.conversation.0.name",
            "unknown",
        ),
        ({"context": {"conversation": [{"role": "user", "content": ["x"]}]}}, "context.conversation.0.content", "must be text"),
        ({"context": {"memory_results": "x"}}, "context.memory_results", "must be a list"),
        ({"context": {"metadata": []}}, "context.metadata", "must be an object"),
        ({"context": {"metadata": {"a": "x" * 4090}}}, "context.metadata", "at most 4096 bytes"),
    ],
)
def test_bad_input_is_refused_with_its_path_before_anything_is_called(
    gateway: Gateway, body: dict[str, Any], param: str, message: str
) -> None:
    reply = ask(gateway, **body)
    assert (reply.status, reply.code) == (400, "invalid_request")
    error = reply.json["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert gateway.model.requests == []


@pytest.mark.parametrize(
    ("body", "status", "code", "param", "message"),
    [
        ({"agent": "simpel"}, 404, "agent_not_found", "agent", "did you mean 'simple'?"),
        ({"agent": "plan"}, 404, "agent_not_found", "agent", "did you mean 'plain'?"),
        ({"agent": ""}, 404, "agent_not_found", "agent", "GET /v1/kinds"),
        ({"agent": "../plain"}, 404, "agent_not_found", "agent", "GET /a1/agents"),
        ({"agent": "x" * 9999, "params": {"x": 1}}, 404, "agent_not_found", "agent", "no agent or kind"),
        ({"tools": ["calculater"]}, 404, "tool_not_found", "tools", "calculater"),
        ({"agent": "simple", "tools": ["nothing"]}, 404, "tool_not_found", "tools", "nothing"),
        ({"model": "unknown"}, 404, "model_not_found", "model", "unknown"),
        ({"model": "dear"}, 403, "model_not_allowed", "model", "dear"),
        ({"model": "mini-embed"}, 400, "invalid_request", "model", "embedding"),
        ({"agent": "costly"}, 403, "model_not_allowed", None, "costly"),
    ],
)
def test_what_does_not_exist_or_is_not_allowed_is_refused_by_status(
    gateway: Gateway, body: dict[str, Any], status: int, code: str, param: str | None, message: str
) -> None:
    reply = ask(gateway, **body)
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (status, code, param)
    assert message in reply.json["error"]["message"]
    assert gateway.model.requests == []


def test_the_default_model_is_the_first_that_the_token_may_use_and_a_backend_serves(gateway: Gateway, tmp_path: Path) -> None:
    assert ok(ask(gateway, token="demo-admin-token"))["model"] == "small"
    first = gateway.reconfigure(tmp_path / "1", "[small, mini-embed]", "[dear, mini-embed]")
    assert ok(ask(first))["model"] == "dear"
    unserved = gateway.reconfigure(tmp_path / "2", "[small, dear, mini-embed]", "[dear, mini-embed]")
    assert ok(ask(unserved, token="demo-admin-token"))["model"] == "dear"
    assert ask(unserved, token="chat-only-token").code == "no_backend_available"
    none = gateway.reconfigure(tmp_path / "3", "[small, mini-embed]", "[mini-embed]")
    reply = ask(none)
    assert (reply.status, reply.code) == (403, "model_not_allowed")


def test_conversation_and_memory_results_precede_the_input(gateway: Gateway) -> None:
    conversation = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "Hey"},
    ]
    context = {"conversation": conversation, "memory_results": ["noted", {"id": "d1"}]}
    ok(ask(gateway, agent="simple", context=context))
    explanation, hi, hey, note, document, question = gateway.model.requests[0].messages
    assert (explanation.role, "Text between <data" in explanation.content) == (Role.SYSTEM, True)
    assert [(one.role, one.content) for one in (hi, hey)] == [(Role.USER, "Hi"), (Role.ASSISTANT, "Hey")]
    assert [one.content.startswith("<data") for one in (note, document)] == [True, True]
    assert ("noted" in note.content, '{"id":"d1"}' in document.content) == (True, True)
    assert question.content == "What is sqrt(256)?"


def test_a_text_as_context_is_one_memory_result(gateway: Gateway) -> None:
    ok(ask(gateway, agent="simple", context="noted"))
    ok(ask(gateway, agent="simple", context={"memory_results": ["noted"]}))
    for request in gateway.model.requests:
        _, data, question = request.messages
        assert "noted" in data.content
        assert (data.role, question.content) == (Role.USER, "What is sqrt(256)?")


def test_metadata_of_the_context_is_returned_with_that_of_the_run(gateway: Gateway) -> None:
    metadata = {"trace": [1, {"a": None}], "max_turns_exceeded": "mine"}
    assert ok(ask(gateway, context={"metadata": metadata}))["metadata"] == metadata
    gateway.model.script = lambda *_: calls_tool()
    ended = ok(ask(gateway, tools=["calculator"], params={"max_turns": 1}, context={"metadata": metadata}))
    assert ended["metadata"] == {"trace": [1, {"a": None}], "max_turns_exceeded": True}


def test_metadata_of_exactly_4_kib_is_accepted(gateway: Gateway) -> None:
    ok(ask(gateway, context={"metadata": {"a": "x" * 4088}}))


def test_the_audit_and_the_usage_name_the_kind_or_the_agent(gateway: Gateway) -> None:
    gateway.model.script = in_turn([ACTS, "final answer: 16", "Hello"])
    asked = ok(ask(gateway, agent="react", tools=["calculator"]))
    ok(ask(gateway, agent="plain"))
    tree = ok(gateway.send("GET", f"/v1/audit/{asked['request_id']}"))
    assert {call["agent"] for call in tree["calls"]} == {"native_react"}
    usage = ok(gateway.send("GET", "/v1/usage"))["usage"]
    assert {row["key"]: row["requests"] for row in usage} == {"native_react": 2, "plain": 1}


def test_a_repeated_key_returns_the_recorded_answer(gateway: Gateway) -> None:
    gateway.model.script = in_turn([calls_tool(), "It is 16.", "never"])
    key = {"Idempotency-Key": "k1"}
    body: dict[str, Any] = {"tools": ["calculator"], "context": {"metadata": {"trace": 7}}}
    first, second = ask(gateway, headers=key, **body), ask(gateway, headers=key, **body)
    assert ok(second) == ok(first)
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers["spass-cost-sub-calls"] == "2"
    assert ask(gateway, headers=key, tools=[]).code == "idempotency_key_reused"
    assert len(gateway.model.requests) == 2


def test_a_failed_question_is_not_kept_under_its_key(gateway: Gateway) -> None:
    key = {"Idempotency-Key": "k1"}
    gateway.model.failure = RuntimeError("broken")
    assert ask(gateway, headers=key).status >= 500
    gateway.model.failure = None
    assert ok(ask(gateway, headers=key))["content"] == "Hello there."


def test_a_user_is_optional_but_must_be_valid(gateway: Gateway) -> None:
    ok(ask(gateway, headers={"SPASS-User-Id": "ada"}))
    assert ask(gateway, headers={"SPASS-User-Id": "a b"}).code == "user_id_invalid"
    assert ask(gateway, headers={"SPASS-Caller-Depth": "3"}).code == "recursion_depth_exceeded"
    assert gateway.send("POST", ASK, token=None, body={"input": "x"}).code == "missing_token"


def test_nothing_of_a_question_is_stored(gateway: Gateway) -> None:
    ok(ask(gateway, context={"metadata": {"secret": "planted-metadata"}, "memory_results": ["planted-memory"]}))
    stored = json.dumps([dict(item) for item in gateway.items()], default=str)
    assert "planted" not in stored
    assert "sqrt(256)" not in stored


@dataclass(frozen=True, kw_only=True)
class Picky(BaseAgent):
    """Answer only with a goal."""

    goal: str
    tone: Literal["high", "low"] = parameter("low", "The pitch.")

    def __post_init__(self) -> None:
        if self.goal == self.tone:
            raise ValueError("the goal cannot be the tone")

    def steps(self, input: str, context: AgentContext) -> Steps:
        reply = yield Infer(self.opening(input, context))
        return Answer(f"{self.goal} {self.tone}: {reply.content}")


def test_a_required_parameter_and_the_checks_of_a_kind_are_part_of_the_request(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KINDS, "_registered", {"picky": Picky})
    missing: tuple[dict[str, Any] | None, ...] = ({}, None)
    for params in missing:
        reply = ask(gateway, agent="picky", params=params)
        assert (reply.code, reply.json["error"]["param"]) == ("invalid_request", "params.goal")
    reply = ask(gateway, agent="picky", params={"goal": "low"})
    assert (reply.code, reply.json["error"]["param"]) == ("invalid_request", "params")
    assert "the goal cannot be the tone" in reply.json["error"]["message"]
    assert gateway.model.requests == []
    assert ok(ask(gateway, agent="picky", params={"goal": "up"}))["content"] == "up low: Hello there."
