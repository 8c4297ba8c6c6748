"""A director that delegates, on every route that runs agents: one stream, one usage, one stop, one answer."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, Final

import pytest

from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec, file_model
from spass.calls.datamark import remove_marks
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import Answer, calls
from tests.functions.gateway import Gateway, Reply
from tests.functions.test_call_trees import flatten, get_calls, shape
from tests.stream_grammar import answer_text, check_collected, of_type, read_events

CHAT: Final = "/c1/agents/boss/chat"
DOCUMENTS: Final = [{"id": "a", "text": "alpha", "metadata": {}}]


def agent(name: str, *delegates: str, **fields: object) -> AgentSpec:
    own = {"name": name, "model": "small", "system_prompt": name, "workspace": "default", "delegates": [*delegates]}
    tools = ["delegate"] if delegates else ["calculator", "rag_query", "rag_index_create"]
    return file_model("orchestrator").model_validate({**own, "tools": tools, **fields}).spec()


AGENTS: Final = (
    agent("boss", "coder", "writer"),
    agent("coder", rag_index="notes", rag_top_k=1),
    agent("writer", approval=["rag_index_create"]),
    agent("deep", "boss"),
)


def task(name: str) -> tuple[str, dict[str, Any]]:
    return "delegate", {"agent": name, "task": f"A task for the {name}."}


SUM: Final = ("calculator", {"expression": "6*7"})
CREATE: Final = ("rag_index_create", {"index_id": "more", "documents": DOCUMENTS})
FIRST: Final = {
    "boss": calls(task("coder"), task("writer"), text="I ask both."),
    "coder": calls(SUM, ("rag_query", {"index_id": "notes", "query": "alpha"}), text="A secret thought."),
    "writer": calls(CREATE),
    "deep": calls(task("boss")),
}


@pytest.fixture
def company(gateway: Gateway) -> Gateway:
    gateway.send("POST", "/a1/rag/indices/notes/documents", body={"documents": DOCUMENTS})
    gateway.services.agents = AgentRegistry(AGENTS)
    gateway.model.script = answer
    return gateway


def answer(request: ChatRequest, _: CallContext) -> Answer:
    """Answer as each agent does: with its calls, and when it has results, with a text."""
    name = request.messages[0].content.split()[0]
    return FIRST[name] if request.messages[-1].tool_call_id is None else f"This is the answer of {name}."


def chat(gateway: Gateway, message_id: str = "m1", agent: str = "boss", **changes: object) -> Reply:
    body = {"message_id": message_id, "messages": [{"role": "user", "content": "Please."}], **changes}
    return gateway.send("POST", f"/c1/agents/{agent}/chat", body=body)


def audited_usage(gateway: Gateway, reply: Reply) -> dict[str, int]:
    audited = flatten(get_calls(gateway, reply.headers["spass-request-id"]))
    prompt, completion = (sum(call[f"{name}_tokens"] or 0 for call in audited) for name in ("prompt", "completion"))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def test_a_director_delegates_to_two_agents_in_one_stream(company: Gateway) -> None:
    reply = chat(company)
    events = read_events(reply)
    outer = {call["args"]["agent"]: call for call in of_type(events, "tool_call") if call["parent_id"] is None}
    nested = [call for call in of_type(events, "tool_call") if call["parent_id"] is not None]
    assert sorted((call["agent"], call["tool"], call["parent_id"] == outer[call["agent"]]["id"]) for call in nested) == [
        ("coder", "calculator", True),
        ("coder", "rag_query", True),
        ("writer", "rag_index_create", True),
    ]
    (waiting,) = (call["result"] for call in nested if call["agent"] == "writer")
    assert {name: call["result"] for name, call in outer.items()} == {
        name: {
            "agent": name,
            "answer": f"This is the answer of {name}.",
            "finish_reason": "stop",
            "versions": [],
            "approvals": approvals,
        }
        for name, approvals in (("coder", []), ("writer", [waiting]))
    }
    (approval,) = of_type(events, "approval")
    assert approval["approval"]["id"] == waiting["approval_id"]
    assert (approval["approval"]["agent"], approval["approval"]["message_id"]) == ("writer", "m1")
    assert answer_text(events) == "This is the answer of boss."
    assert "secret thought" not in reply.text
    assert company.send("GET", f"{CHAT}/m1").text == chat(company).text == reply.text


def test_the_usage_is_the_sum_of_the_audit_tree_with_its_delegates(company: Gateway) -> None:
    reply = chat(company)
    (usage,) = of_type(read_events(reply), "usage")
    tree = get_calls(company, reply.headers["spass-request-id"])
    assert usage["usage"] == audited_usage(company, reply)
    assert usage["cost"]["sub_calls"] == sum(call["kind"] != "tool" for call in flatten(tree)) == 8
    assert usage["cost"]["usd"] == f"{sum(int(float(call['cost_usd'] or 0) * 1e9) for call in flatten(tree)) / 1e9:f}"
    by_agent = {call["calls"][0]["agent"]: shape(call["calls"]) for call in tree if call["tool"] == "delegate"}
    assert by_agent == {
        "coder": [("embedding", []), ("chat", []), ("calculator", []), ("rag_query", [("embedding", [])]), ("chat", [])],
        "writer": [("chat", []), ("rag_index_create", []), ("chat", [])],
    }
    assert {call["session"] for call in flatten(tree)} == {of_type(read_events(reply), "done")[0]["session_id"]}
    assert {call["user"] for call in flatten(tree)} == {"ada"}


def test_the_history_has_the_delegation_and_the_model_learns_the_decision(company: Gateway) -> None:
    events = read_events(chat(company))
    session = of_type(events, "done")[0]["session_id"]
    history = company.send("GET", f"/a1/agents/boss/sessions/{session}/messages").json["messages"]
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "tool", "assistant"]
    (approval,) = company.send("GET", "/a1/approvals").json["approvals"]
    decided = company.send("POST", f"/a1/approvals/{approval['id']}", body={"decision": "deny", "reason": "Not now."})
    assert decided.json["status"] == "denied"
    company.model.requests.clear()
    chat(company, "m2", session_id=session)
    results = [
        json.loads(remove_marks(message.content)) for message in company.model.requests[0].messages if message.tool_call_id
    ]
    assert [result["agent"] for result in results] == ["coder", "writer"]
    (outcome,) = results[1]["approvals"]
    assert "Not now." in json.dumps(outcome)
    assert "approval_required" not in outcome


@pytest.mark.parametrize("route", ["chat", "ask"])
def test_a_stream_with_delegates_equals_the_answer_without(company: Gateway, route: str) -> None:
    path, body = (
        ("/a1/agents/boss/chat", {"message": "Please."}) if route == "chat" else ("/v1/ask", {"input": "?", "agent": "boss"})
    )
    blocking = company.send("POST", path, body=body)
    streamed = read_events(company.send("POST", path, body={**body, "stream": True}))
    assert blocking.json["usage"] == audited_usage(company, blocking)
    check_collected(streamed, blocking.json)
    (call,) = (call for call in of_type(streamed, "tool_call") if call["agent"] == "writer")
    assert call["result"]["error"]["code"] == "approval_unavailable"


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_with_delegates_is_a_model_of_chat_completions(company: Gateway, stream: bool) -> None:
    body = {"model": "agent/boss", "messages": [{"role": "user", "content": "Please."}], "stream": stream}
    reply = company.send("POST", "/v1/chat/completions", body=body)
    last = json.loads(reply.text.split("data: ")[-2]) if stream else reply.json
    usage = {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert usage == audited_usage(company, reply)
    assert "secret thought" not in reply.text
    assert "calculator" not in reply.text


def test_delegates_at_depth_3_are_refused_in_the_stream(company: Gateway) -> None:
    company.services.agents = AgentRegistry([*AGENTS[1:], agent("boss", "coder"), agent("top", "deep")])

    def script(request: ChatRequest, context: CallContext) -> Answer:
        is_first = request.messages[-1].tool_call_id is None
        name = request.messages[0].content.split()[0]
        if name == "top" and is_first:
            return calls(task("deep"))
        return calls(task("coder")) if name == "boss" and is_first else answer(request, context)

    company.model.script = script
    events = read_events(chat(company, agent="top"))
    ends = [(call["agent"], call["result"].get("error", {}).get("code")) for call in of_type(events, "tool_call")]
    assert ends == [("boss", "recursion_depth_exceeded"), ("deep", None), (None, None)]
    parents = [call["parent_id"] for call in of_type(events, "tool_call")]
    ids = [call["id"] for call in of_type(events, "tool_call")]
    assert parents == [ids[1], ids[2], None]


def test_the_tool_over_http_is_unavailable(company: Gateway) -> None:
    reply = company.send("POST", "/v1/tools/execute", body={"name": "delegate", "arguments": {"agent": "coder", "task": "x"}})
    assert (reply.status, reply.json["result"]["error"]["code"]) == (200, "tool_unavailable")


def test_a_stop_ends_the_delegates_too(company: Gateway) -> None:
    closed: list[str] = []

    async def hang(name: str) -> AsyncGenerator[ChatDelta, None]:
        try:
            yield ChatDelta("I be")
            await asyncio.Event().wait()
        finally:
            closed.append(name)

    def script(request: ChatRequest, context: CallContext) -> Answer | AsyncGenerator[ChatDelta, None]:
        name = request.messages[0].content.split()[0]
        return answer(request, context) if name == "boss" or request.messages[-1].tool_call_id is None else hang(name)

    async def stop() -> None:
        while len(company.model.requests) < 5:
            await asyncio.sleep(0.01)
        assert (await company.send_async("DELETE", f"{CHAT}/m1")).status == 202

    company.model.script = script
    body = {"message_id": "m1", "messages": [{"role": "user", "content": "Please."}]}
    reply = company.send_during(company.send_async("POST", CHAT, body=body), stop())
    events = read_events(reply)
    (done,), (usage,) = of_type(events, "done"), of_type(events, "usage")
    assert done["finish_reason"] == "cancelled"
    assert sorted(closed) == ["coder", "writer"]
    outer = [call for call in of_type(events, "tool_call") if call["parent_id"] is None]
    assert [call["result"]["error"]["code"] for call in outer] == ["cancelled"] * 2
    assert usage["usage"] == audited_usage(company, reply)
    history = company.send("GET", f"/a1/agents/boss/sessions/{done['session_id']}/messages").json["messages"]
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "tool", "assistant"]
