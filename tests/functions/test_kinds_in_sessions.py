"""Sessions with agents of a kind: what the history has of think text and of calls that are written as text."""

import json
from pathlib import Path
from typing import Final

import pytest

from spass.agents.registry import AgentRegistry
from spass.agents.spec import file_model
from spass.testing.model import in_turn
from tests.functions.compaction_harness import SUMMARY, CompactionHarness
from tests.functions.gateway import Gateway
from tests.stream_grammar import of_type, parse_events

THOUGHT: Final = "hm</think>It is 42."
"""What a model writes whose answers begin with think text."""
ACTION: Final = "Thought: simple\nAction: calculator\nAction Input: 6*7"


def with_agent(gateway: Gateway, kind: str, *tools: str) -> str:
    """Give the gateway an agent of this kind and return the path of a session with it."""
    file = {"name": "one", "model": "small", "kind": kind, **({"tools": tools} if tools else {})}
    gateway.services.agents = AgentRegistry([file_model(kind).model_validate(file).spec()])
    created = gateway.send("POST", "/a1/agents/one/sessions", body={"compact_keep_last_n": 0})
    return f"/a1/agents/one/sessions/{created.json['id']}"


@pytest.mark.parametrize("kind", ["simple", "orchestrator", "native_react", "rlm"])
def test_think_text_is_neither_in_the_stream_nor_in_the_history(gateway: Gateway, tmp_path: Path, kind: str) -> None:
    thinking = gateway.reconfigure(tmp_path / "thinking", "name: small,", "name: small, begins_thinking: true,")
    session = with_agent(thinking, kind)
    thinking.model.script = in_turn([THOUGHT, THOUGHT])
    answer = thinking.send("POST", f"{session}/messages", body={"message": "What?"})
    assert answer.json["message"]["content"] == "It is 42."
    streamed = thinking.send("POST", f"{session}/messages", body={"message": "What?", "stream": True})
    assert "".join(token["content"] for token in of_type(parse_events(streamed.text), "token")) == "It is 42."
    messages = thinking.send("GET", f"{session}/messages").json["messages"]
    assert [message["content"] for message in messages] == ["What?", "It is 42."] * 2


def test_a_react_session_keeps_calls_and_shows_them_to_the_model_as_text(gateway: Gateway) -> None:
    session = with_agent(gateway, "react", "calculator")
    gateway.model.script = in_turn([ACTION, "Final Answer: 42", "Final Answer: You asked for 6*7."])
    reply = gateway.send("POST", f"{session}/messages", body={"message": "What is 6*7?"}).json
    assert (reply["message"]["content"], reply["turns"]) == ("42", 2)
    messages = gateway.send("GET", f"{session}/messages").json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    (call,) = messages[1]["tool_calls"]
    assert messages[2]["tool_call_id"] == call["id"]
    assert json.loads(call["function"]["arguments"]) == {"expression": "6*7"}
    assert messages[1]["content"] == "simple"
    assert gateway.send("POST", f"{session}/messages", body={"message": "What did I ask?"}).status == 200
    past = gateway.model.requests[-1].messages
    assert {message.role.value for message in past} == {"system", "user", "assistant"}
    text = "\n".join(message.content for message in past[1:])
    assert all(word in text for word in ("Action: calculator", "Observation:", "42"))


def test_the_compaction_of_a_react_session_summarizes_all_of_it(harness: CompactionHarness) -> None:
    gateway = harness.gateway
    session = with_agent(gateway, "react", "calculator")
    harness.model.script = in_turn([ACTION, "Final Answer: forty-two", "Final Answer: forty-two"])
    assert gateway.send("POST", f"{session}/messages", body={"message": "What is 6*7?"}).status == 200
    compacted = gateway.send("POST", f"{session}/compact")
    assert (compacted.status, compacted.json["compacted_message_count"]) == (200, 4)
    summarized = "\n".join(message.content for message in harness.model.summaries[0].messages)
    assert all(fact in summarized for fact in ("What is 6*7?", "calculator", "42", "forty-two"))
    moved = gateway.send("POST", f"{session}/messages", body={"message": "And?"})
    assert moved.status == 308
    assert gateway.send("POST", moved.headers["location"], body={"message": "And?"}).json["message"]["content"] == "forty-two"
    assert SUMMARY in "\n".join(message.content for message in harness.model.requests[-1].messages)


def test_a_structured_agent_takes_a_reply_without_markers_as_its_answer(gateway: Gateway) -> None:
    gateway.model.script = in_turn(["Just four."])
    body = {"input": "What is 2+2?", "agent": "orchestrator", "tools": ["calculator"], "params": {"mode": "structured"}}
    assert gateway.send("POST", "/v1/ask", body=body).json["content"] == "Just four."
