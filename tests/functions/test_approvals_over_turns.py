"""Approvals and the turns around them: decided while a turn runs, after it failed, after a compaction, and of a delegate."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from spass.calls.datamark import remove_marks
from spass.core.messages import FinishReason, Role, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import Answer
from tests.functions.compaction_harness import CompactionHarness
from tests.functions.gateway import Reply
from tests.functions.waiting_agents import AGENT, APPROVALS, DELETE_ALPHA, Clerk
from tests.stream_grammar import of_type, read_events

BOSS = "name: boss\nmodel: small\ntools: [delegate]\ndelegates: [clerk]\nworkspace: default\n"


def tool_results(request: ChatRequest) -> list[Any]:
    return [json.loads(remove_marks(message.content)) for message in request.messages if message.role is Role.TOOL]


def decide_during_the_turn(clerk: Clerk, decision: str) -> list[Reply]:
    """Let a person decide, from another process, when the model has read that its call waits."""
    replies: list[Reply] = []

    async def decide() -> None:
        waiting = [result for result in tool_results(clerk.gateway.model.requests[-1]) if "approval_id" in result]
        for result in waiting:
            body = {"decision": decision}
            path = f"{APPROVALS}/{result['approval_id']}"
            replies.append(await clerk.gateway.send_async("POST", path, body=body, token=clerk.token))

    clerk.gateway.model.before_chat = decide
    return replies


@pytest.mark.parametrize(("decision", "left"), [("approve", ["b"]), ("deny", ["a", "b"])])
def test_an_approval_can_be_decided_while_its_turn_runs(clerk: Clerk, decision: str, left: list[str]) -> None:
    replies = decide_during_the_turn(clerk, decision)
    turn = clerk.ask(DELETE_ALPHA).json
    clerk.gateway.model.before_chat = None
    assert [reply.status for reply in replies] == [200]
    assert turn["tool_calls"][0]["result"]["approval_required"] is True
    assert clerk.documents() == left
    (seen,) = clerk.read_by_model()
    assert seen == {"deleted": True} if decision == "approve" else seen["error"]["code"] == "approval_denied"


def test_an_approval_can_be_decided_after_its_turn_failed(clerk: Clerk) -> None:
    clerk.script(DELETE_ALPHA)
    call = clerk.gateway.model.script

    def call_and_fail(request: ChatRequest, context: CallContext) -> Answer:
        assert callable(call)
        answer = call(request, context)
        assert not isinstance(answer, str) or tool_results(request)
        return ConnectionError("the provider is gone") if answer == "It waits." else answer  # type: ignore[return-value]

    clerk.gateway.model.script = call_and_fail
    failed = clerk.gateway.send("POST", f"{clerk.path}/messages", body={"message": "Do it."}, token=clerk.token)
    assert failed.status >= 500
    assert clerk.gateway.send("GET", f"{clerk.path}/messages").json["messages"] == []
    (waiting,) = clerk.approvals()
    assert clerk.decide(waiting["id"]).json["status"] == "executed"
    assert clerk.documents() == ["b"]


def test_a_model_that_has_read_the_id_cannot_decide(clerk: Clerk) -> None:
    """Whatever the model says or calls, only a request of the user decides."""
    waiting = clerk.wait_for()
    orders = [
        ("approve", {"approval_id": waiting["id"]}),
        ("rag_doc_delete", {**DELETE_ALPHA[1], "approval_id": waiting["id"]}),
        ("rag_doc_delete", {**DELETE_ALPHA[1], "confirm_token": waiting["id"]}),
        ("calculator", {"expression": f"approve {waiting['id']}"}),
    ]
    clerk.ask(*orders)
    clerk.gateway.send("POST", "/v1/tools/execute", body={"name": "approve", "arguments": {"approval_id": waiting["id"]}})
    token = {"index_id": "notes", "doc_id": "a", "confirm_token": waiting["id"]}
    refused = clerk.gateway.send("POST", "/v1/tools/execute", body={"name": "rag_doc_delete", "arguments": token})
    assert refused.code == "confirm_token_invalid"
    assert {approval["status"] for approval in clerk.approvals()} == {"pending"}
    assert clerk.documents() == ["a", "b"]


def test_a_summary_tells_the_outcome_and_a_kept_call_still_gets_its_own(harness: CompactionHarness) -> None:
    clerk = Clerk(harness.gateway)
    options = {"compact_strategy": "manual", "compact_keep_last_n": 4, "compact_observation_mask": False}
    clerk.session = harness.gateway.send("POST", "/a1/agents/clerk/sessions", body=options).json["id"]
    summarised, denied = clerk.wait_for(), clerk.wait_for("rag_doc_delete", {"index_id": "notes", "doc_id": "b"})
    kept = clerk.wait_for("memory_write", {"note": "The team meets on Mondays."})
    clerk.decide(summarised["id"])
    clerk.decide(denied["id"], "deny", reason="Beta stays.")
    compacted = harness.compact(clerk.session, agent="clerk")
    assert compacted.status == 200, compacted.text
    (request,) = harness.model.summaries
    transcript = request.messages[-1].content
    assert r"{\"deleted\":true}" in transcript
    assert "Beta stays." in transcript
    assert "approval_required" not in transcript
    clerk.session = compacted.json["successor_session_id"]
    assert [result["approval_id"] for result in clerk.read_by_model()] == [kept["id"]]
    clerk.decide(kept["id"])
    assert clerk.read_by_model() == [{"memory_size_bytes": 26}]


def delegate(clerk: Clerk, *calls: tuple[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Run a turn of ``boss``, which delegates once to ``clerk``, whose model makes ``calls``. Return the events."""
    deltas = tuple(ToolCallDelta(place, f"inner_{place}", name, json.dumps(values)) for place, (name, values) in enumerate(calls))
    task = ToolCallDelta(0, f"outer_{clerk.turns}", "delegate", json.dumps({"agent": "clerk", "task": "Do it."}))

    def answer(request: ChatRequest, _: CallContext) -> Answer:
        is_boss = any(tool.name == "delegate" for tool in request.tools)
        if request.messages[-1].role is Role.TOOL:
            return "It waits."
        return [ChatDelta(tool_calls=(task,) if is_boss else deltas, finish_reason=FinishReason.TOOL_CALLS)]

    clerk.gateway.model.script = answer
    body = {"message": "Let it be done.", "stream": True}
    reply = clerk.gateway.send("POST", f"{clerk.path}/messages", body=body, token=clerk.token)
    assert reply.status == 200, reply.text
    return read_events(reply)


def test_a_delegates_call_waits_and_the_outcome_is_in_the_delegates_result(clerk: Clerk) -> None:
    clerk.write_file(f"{AGENT}workspace: default\n")
    clerk.gateway.services.settings.agents.joinpath("boss.yaml").write_text(BOSS)
    clerk.session = clerk.gateway.send("POST", "/a1/agents/boss/sessions").json["id"]
    clerk.agent = "boss"
    events = delegate(clerk, DELETE_ALPHA, ("rag_doc_delete", {"index_id": "notes", "doc_id": "b"}))
    shown = [event["approval"] for event in of_type(events, "approval")]
    assert [approval["agent"] for approval in shown] == ["clerk", "clerk"]
    assert [approval["session_id"] for approval in shown] == [clerk.session] * 2
    *inner, outer = of_type(events, "tool_call")
    assert [call["parent_id"] for call in inner] == [outer["id"]] * 2
    mentioned = outer["result"]["approvals"]
    assert mentioned == [call["result"] for call in inner]
    assert clerk.decide(mentioned[0]["approval_id"]).json["status"] == "executed"
    assert clerk.documents() == ["b"]
    (seen,) = clerk.read_by_model()
    assert seen["approvals"] == [{"approval_id": mentioned[0]["approval_id"], "result": {"deleted": True}}, mentioned[1]]
    assert {name: seen[name] for name in ("agent", "answer")} == {"agent": "clerk", "answer": "It waits."}
