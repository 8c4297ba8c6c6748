"""An operator's session while it is compacted, stopped and lost, and what other agents than its first one can do in it."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from spass.core.messages import FinishReason, Role, TokenUsage
from spass.models.errors import BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.store.leases import LEASE_SECONDS
from spass.testing.faults import Fault
from spass.testing.model import Answer, calls, in_turn
from tests.functions.compaction_harness import CompactionHarness
from tests.functions.gateway import Gateway
from tests.functions.operator_runs import (
    add_operators,
    ask,
    chat,
    history,
    session_items,
    shown,
    state_of,
    states,
    stream_chat,
)
from tests.functions.waiting_agents import APPROVALS, DELETE_ALPHA, NOTES
from tests.simulated.chats import Chats, Process, virtual_clocks
from tests.stream_grammar import of_type, parse_events

_KEPT: Final = {"compact_summary_model": "dear", "compact_keep_last_n": 2}
_DELETER: Final = (
    "name: {name}\nkind: operative\nmodel: small\nsystem_prompt: Delete.\noperator_id: deleters\n"
    "tools: [rag_doc_delete]\napproval: [rag_doc_delete]\nworkspace: {name}\n"
)


@pytest.fixture
async def chats(tmp_path: Path) -> AsyncIterator[Chats]:
    watch = "name: watch\nkind: operative\nmodel: small\nsystem_prompt: Watch.\ntools: [memory_store]\n"
    with virtual_clocks():
        yield Chats(tmp_path, {"watch": watch})


@pytest.mark.parametrize("name", ["watch", "operative"])
def test_a_session_that_its_user_compacts_is_continued_by_its_successor(harness: CompactionHarness, name: str) -> None:
    gateway = add_operators(harness.gateway)
    gateway.send("PUT", "/v1/tenant/config", body=_KEPT, token="demo-admin-token")

    def run(text: str) -> str:
        if name == "watch":
            return str(chat(gateway, text).json["session_id"])
        return str(ask(gateway, text).json["metadata"]["session_id"])

    def session_shown() -> str:
        headers = {"SPASS-User-Id": "ada"}
        return str(gateway.send("GET", f"/v1/operators/{operator}", headers=headers).json["session_id"])

    operator = "watch" if name == "watch" else "asked"
    session, *_ = [run(f"run {number}") for number in range(3)]
    reply = harness.compact(session, agent=name)
    assert reply.status == 200, reply.text
    successor = reply.json["successor_session_id"]
    assert state_of(gateway, operator)["input"] == "run 2", "a compaction changes no state"
    assert (session_shown(), states(gateway)[f"ada#{operator}"]["session"]) == (successor, session)
    assert run("and now") == successor
    assert states(gateway)[f"ada#{operator}"]["session"] == successor
    assert (harness.model.summaries[0].messages[0].role, len(harness.model.summaries)) == (Role.SYSTEM, 1)
    texts = shown(gateway)
    assert [text for text in texts if text.startswith("run ")] == ["run 2"]
    assert harness.get(successor, "/lineage", agent=name)["backward"][0]["id"] == session

    assert gateway.send("DELETE", f"/a1/agents/{name}/sessions/{successor}").status == 200
    another = run("a new beginning")
    assert another not in (session, successor)
    assert "and now" not in [message.content for message in gateway.model.requests[-1].messages if message.role is Role.USER]


def test_another_agent_searches_the_sessions_before_a_compaction(gateway: Gateway) -> None:
    operators = add_operators(gateway)
    for number in range(6):
        chat(operators, f"The code of crate {number} is K-{number}.", "guard")
    search = calls(("lineage_search", {"query": "crate 0"}))

    def answer(request: ChatRequest, _: CallContext) -> Answer:
        if not request.tools:
            return "Some crates."
        if "Some crates." not in str(request.messages):
            return BackendContextLength("Too long.", status=400)
        return search if request.messages[-1].role is Role.USER else "K-0."

    operators.model.script = answer
    reply = chat(operators, "What is the code of crate 0?", "tower")
    assert reply.json["compaction"] is not None
    (found,) = reply.json["tool_calls"]
    assert "K-0" in json.dumps(found["result"])
    assert found["result"].keys() != {"error"}
    assert operators.send("GET", f"/a1/agents/guard/sessions/{reply.json['session_id']}").json["agent"] == "guard"


def test_approvals_and_the_workspace_are_those_of_the_running_agent_and_the_session(gateway: Gateway) -> None:
    operators = add_operators(gateway, digger=_DELETER.format(name="digger"), shredder=_DELETER.format(name="shredder"))
    assert operators.send("POST", f"{NOTES}/documents", body={"documents": [{"id": "a", "text": "alpha"}]}).status == 200
    session = chat(operators, "one", "digger").json["session_id"]
    operators.model.script = in_turn([calls(DELETE_ALPHA), "It waits."])
    waiting = chat(operators, "delete it", "shredder", token="demo-admin-token")
    approval = waiting.json["tool_calls"][0]["result"]["approval_id"]
    (listed,) = operators.send("GET", APPROVALS).json["approvals"]
    assert (listed["id"], listed["agent"], listed["session_id"]) == (approval, "shredder", session)
    decided = operators.send("POST", f"{APPROVALS}/{approval}", body={"decision": "approve"}, token="demo-admin-token")
    assert decided.json["status"] == "executed"
    operators.model.script = "Done."
    chat(operators, "is it gone?", "digger")
    results = [message.content for message in operators.model.requests[-1].messages if message.role is Role.TOOL]
    assert ["approval_required" in result for result in results] == [False], "the model reads what came of it"
    assert operators.send("GET", f"/a1/agents/digger/sessions/{session}").json["workspace"] == "digger"


def test_no_person_can_approve_what_a_token_asks_for(gateway: Gateway) -> None:
    operators = add_operators(gateway, digger=_DELETER.format(name="digger"))
    assert operators.send("POST", f"{NOTES}/documents", body={"documents": [{"id": "a", "text": "alpha"}]}).status == 200
    operators.model.script = in_turn([calls(DELETE_ALPHA), "I may not."])
    reply = operators.send("POST", "/v1/ask", body={"input": "delete it", "agent": "digger"}, token="demo-admin-token")
    (result,) = reply.json["tool_results"]
    assert json.loads(result["content"])["error"]["code"] == "approval_unavailable"
    assert not [item for item in operators.items() if "APPROVAL" in f"{item['pk']}{item['sk']}".upper()]


def test_a_restarted_gateway_continues_the_session(gateway: Gateway, tmp_path: Path) -> None:
    add_operators(gateway)
    first = chat(gateway, "one")
    other = add_operators(gateway.reconfigure(tmp_path / "restarted", "usd_to_eur: 0.5", "usd_to_eur: 0.6"))
    again = chat(other, "two")
    assert again.json["session_id"] == first.json["session_id"]
    assert [text for text in shown(other) if text in ("one", "two")] == ["one", "two"]


async def speak_slowly(request: ChatRequest, _: CallContext) -> AsyncGenerator[ChatDelta, None]:
    """Say "Hel", and "lo." ten seconds later. Store the state first if the message asks for that."""
    last = request.messages[-1]
    if last.content == "store":
        for delta in calls(("memory_store", {"key": "state", "content": "Two ships."})):
            yield delta
        return
    yield ChatDelta("Hel")
    await asyncio.sleep(10)
    yield ChatDelta("lo.", finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))


def state_item(chats: Chats) -> Any:
    (item,) = [item for item in chats.items() if item["sk"] == "STATE"]
    return json.loads(str(item["state"])) if "state" in item else None


def chat_body(message_id: str, text: str) -> dict[str, Any]:
    return {"message_id": message_id, "messages": [{"role": "user", "content": text}]}


@pytest.mark.anyio
@pytest.mark.parametrize("text", ["hello", "store"])
async def test_a_stopped_run_is_kept_with_its_state(chats: Chats, text: str) -> None:
    chats.model.script = speak_slowly
    path = "/c1/agents/watch/chat"
    running = asyncio.create_task(chats.send("POST", path, chat_body("m-1", text)))
    await asyncio.sleep(3)
    stopped = await chats.send("DELETE", f"{path}/m-1")
    assert (stopped.status, stopped.json) == (202, {"status": "cancelling"})
    answer = await running
    (done,) = of_type(parse_events(answer.body), "done")
    assert done["finish_reason"] == "cancelled"
    at = done["message"]["created_at"]
    expected: Any = {"input": "hello", "answer": "Hel", "at": at} if text == "hello" else "Two ships."
    assert state_item(chats) == expected
    (session,) = chats.sessions()
    assert (session.hold, session.message_count) == (None, 2 if text == "hello" else 4)


@pytest.mark.anyio
async def test_a_run_whose_worker_died_leaves_the_state_to_the_next_attempt(chats: Chats) -> None:
    path = "/c1/agents/watch/chat"
    await chats.send("POST", path, chat_body("m-1", "one"))
    before = state_item(chats)
    clean = Process()
    await chats.send("POST", path, chat_body("m-2", "two"), process=clean)
    commit = max(number for number, call in enumerate(clean.calls) if call.operation == "TransactWriteItems")
    dead = Process(Fault.CRASH_BEFORE, at=commit)
    await chats.send("POST", path, chat_body("m-3", "three"), process=dead)
    assert dead.crashed
    assert state_item(chats)["input"] == "two" != before["input"]
    await asyncio.sleep(LEASE_SECONDS + 1)
    answer = await chats.send("POST", path, chat_body("m-3", "three"))
    (done,) = of_type(parse_events(answer.body), "done")
    assert state_item(chats) == {"input": "three", "answer": "Hello there.", "at": done["message"]["created_at"]}


def test_a_stream_of_a_lost_session_is_gone_and_its_operator_begins_anew(gateway: Gateway) -> None:
    operators = add_operators(gateway)
    stream_chat(operators, "m-1", "one")
    (session,) = session_items(operators)
    operators.send("DELETE", f"/a1/agents/watch/sessions/{session}")
    assert state_of(operators, "watch")["input"] == "one", "the state outlives the session"
    stream_chat(operators, "m-2", "two")
    (another,) = session_items(operators)
    assert [text for _, text in history(operators, another)] == ["two", "Hello there."]
    assert "## Previous state" in " ".join(shown(operators))
