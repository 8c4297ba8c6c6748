"""What the page promises about the runs of managed agents: how they are stopped, changed and left."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import pytest

from functions.workers import runs
from spass.core.ids import ManagedAgentId, RunId, TenantId
from spass.core.jobs import RunAgent, body_of
from spass.core.messages import FinishReason, Role, TokenUsage
from spass.core.time import Deadline
from spass.models.errors import AttemptFailed, BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import Answer, calls, in_turn
from tests.functions.gateway import Reply
from tests.functions.managed_agents import ADA, AGENTS, ManagedClient, execute, queue, read_frames
from tests.functions.operator_runs import add_operators

DONE: Final[object] = {"batchItemFailures": []}
SUM: Final = ("calculator", {"expression": "6*7"})
BOSS: Final = (
    "name: boss\nmodel: small\nsystem_prompt: Lead.\ntools: [calculator, delegate]\ndelegates: [plain]\nworkspace: default\n"
)


def stream(client: ManagedClient, agent: str, content: str = "Hello") -> Reply:
    return client.send("POST", f"/{agent}/messages", {"content": content, "stream": True})


async def start(client: ManagedClient, agent: str, trigger: str) -> None:
    """Run the agent to its end: by a streamed message, or by a queued run and its worker."""
    gateway = client.gateway
    if trigger == "message":
        await gateway.send_async("POST", f"{AGENTS}/{agent}/messages", headers=ADA, body={"content": "Own.", "stream": True})
        return
    made = await gateway.send_async("POST", f"{AGENTS}/{agent}/run", headers=ADA, body={"input": "Own."})
    body = body_of(RunAgent(TenantId("demo"), ManagedAgentId(agent), RunId(made.json["id"])))
    record = {"messageId": "m0", "body": body, "attributes": {"ApproximateReceiveCount": "1"}}
    assert await runs.work(gateway.services, {"Records": [record]}, Deadline.after(60)) == DONE


def pairs(messages: Sequence[Mapping[str, Any]]) -> list[tuple[list[str], list[str]]]:
    """Return for each message with tool calls their ids, and those of the results that follow it."""
    found = list[tuple[list[str], list[str]]]()
    for message in messages:
        if message["tool_calls"]:
            found.append(([call["id"] for call in message["tool_calls"]], []))
        elif message["role"] == "tool":
            found[-1][1].append(message["tool_call_id"])
    return found


def shown_pairs(request: ChatRequest) -> list[tuple[list[str], list[str]]]:
    """Return the pairs of the messages that a model was shown."""
    return pairs(
        [
            {
                "role": message.role.value,
                "tool_calls": [{"id": call.id} for call in message.tool_calls],
                "tool_call_id": message.tool_call_id,
            }
            for message in request.messages
        ]
    )


@pytest.mark.parametrize("trigger", ["message", "run"])
@pytest.mark.parametrize("where", ["in a tool", "after a tool"])
def test_a_run_stopped_beside_its_tools_keeps_valid_pairs(client: ManagedClient, trigger: str, where: str) -> None:
    gateway = add_operators(client.gateway, boss=BOSS)
    agent, waits = client.create(agent="boss"), asyncio.Event()
    client.send("POST", f"/{agent}/messages", {"content": "Pending."})

    async def hang() -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta("So far ")
        waits.set()
        await asyncio.sleep(3600)

    def answer(request: ChatRequest, _: CallContext) -> Answer | AsyncGenerator[ChatDelta, None]:
        is_boss = "Lead." in request.messages[0].content
        if is_boss and request.messages[-1].role is Role.USER:
            second = ("delegate", {"agent": "plain", "task": "Help."}) if where == "in a tool" else SUM
            return calls(SUM, second)
        return hang()

    async def stop() -> None:
        await waits.wait()
        (run,) = (await gateway.send_async("GET", f"{AGENTS}/{agent}/runs", headers=ADA)).json["runs"]
        seen.append((run["status"], run["trigger"]))
        reply = await gateway.send_async("DELETE", f"{AGENTS}/{agent}/runs/{run['id']}", headers=ADA)
        seen.append((reply.status, reply.json))

    seen = list[object]()
    gateway.model.script = answer

    async def both() -> None:
        await asyncio.gather(start(client, agent, trigger), stop())

    gateway.run(both())
    assert seen == [("running", trigger), (202, {"status": "cancelling"})]
    (run,) = client.runs(agent)
    assert (run["status"], run["error"]) == ("succeeded", None)
    *asked, answered = client.messages(agent)
    assert [(message["status"], message["run_id"]) for message in asked] == [("delivered", run["id"])] * len(asked)
    assert (answered["direction"], answered["content"]) == ("agent_to_user", "" if where == "in a tool" else "So far ")
    frames = read_frames(client.send("GET", f"/{agent}/runs/{run['id']}/stream"))
    assert [data["call_id"] for name, data in frames if name == "tool_result"] == ["call_0", "call_1"]
    end = frames[-2][1]
    assert (end["choices"][0]["finish_reason"], end["cancelled"], frames[-1]) == ("stop", True, (None, "[DONE]"))
    over = client.send("DELETE", f"/{agent}/runs/{run['id']}")
    assert (over.status, over.json) == (200, {"status": "succeeded"})
    session = gateway.send("GET", f"/v1/operators/{agent}", headers=ADA).json["session_id"]
    kept = gateway.send("GET", f"/a1/agents/boss/sessions/{session}/messages").json["messages"]
    assert pairs(kept) == [(["call_0", "call_1"], ["call_0", "call_1"])]
    gateway.model.script = "I go on."
    stream(client, agent, "Go on.")
    shown = gateway.model.requests[-1]
    assert shown_pairs(shown) == pairs(kept)
    assert shown.messages[-1].content == "Go on."


def test_a_run_stopped_in_the_queue_is_skipped_and_its_messages_wait(client: ManagedClient) -> None:
    agent = client.create()
    client.send("POST", f"/{agent}/messages", {"content": "Wait for me."})
    run = queue(client, agent)
    stopped = client.send("DELETE", f"/{agent}/runs/{run}")
    assert (stopped.status, stopped.json) == (200, {"status": "skipped"})
    assert client.send("DELETE", f"/{agent}/runs/{run}").json == {"status": "skipped"}
    found = client.send("GET", f"/{agent}/runs/{run}").json
    assert (found["status"], found["turns"], found["error"]) == ("skipped", 0, None)
    assert found["finished_at"]
    assert client.get(agent)["status"] == "idle"
    assert execute(client.gateway, agent, run) == DONE, "its message in the queue has no effect"
    assert client.send("GET", f"/{agent}/runs/{run}/stream").code == "stream_not_found"
    assert client.gateway.model.requests == []
    assert [message["status"] for message in client.messages(agent)] == ["pending"]
    execute(client.gateway, agent, queue(client, agent, None))
    assert client.gateway.model.requests[-1].messages[-1].content == "Wait for me."
    assert [message["status"] for message in client.messages(agent)] == ["delivered"] * 2


@pytest.mark.parametrize("trigger", ["message", "run"])
def test_a_change_or_deletion_during_a_run_does_not_reach_that_run(client: ManagedClient, trigger: str) -> None:
    gateway = client.gateway
    agent = client.create(agent="orchestrator", system_prompt="Old prompt.", tools=["calculator"], params={"max_turns": 5})
    change = {"system_prompt": "New prompt.", "tools": ["calculator", "think"], "params": {"max_turns": 1}, "name": "New"}
    seen = list[Reply]()

    async def disturb() -> None:
        if seen:
            return
        path = f"{AGENTS}/{agent}"
        seen.append(await gateway.send_async("PATCH", path, headers=ADA, body=change))
        for method, tail, body in (
            ("DELETE", "", None),
            ("POST", "/run", {"input": "x"}),
            ("POST", "/messages", {"content": "x", "stream": True}),
            ("POST", "/messages", {"content": "In between."}),
        ):
            seen.append(await gateway.send_async(method, f"{path}{tail}", headers=ADA, body=body))

    gateway.model.before_chat = disturb
    gateway.model.script = in_turn([calls(SUM), "42.", "New."])
    gateway.run(start(client, agent, trigger))
    assert [(reply.status, reply.code) for reply in seen] == [(200, None), *[(409, "session_busy")] * 3, (202, None)]
    assert (seen[0].json["status"], seen[0].json["system_prompt"]) == ("running", "New prompt.")
    (run,) = client.runs(agent)
    assert {reply.json["error"]["details"]["run_id"] for reply in seen[1:4]} == {run["id"]}
    assert (run["status"], run["turns"]) == ("succeeded", 2)
    for request in gateway.model.requests:
        assert "Old prompt." in request.messages[0].content
        assert [tool.name for tool in request.tools] == ["calculator"]
        assert not [message for message in request.messages if message.content == "In between."]
    stream(client, agent, "And now?")
    last = gateway.model.requests[-1]
    assert "New prompt." in last.messages[0].content
    assert {tool.name for tool in last.tools} == {"calculator", "think"}
    assert last.messages[-1].content == "In between.\n\nAnd now?"
    assert client.send("DELETE", f"/{agent}").json == {"deleted": True}


@pytest.mark.parametrize("after", ["at once", "the first token"])
def test_a_client_that_leaves_changes_nothing(client: ManagedClient, after: str) -> None:
    agent, began = client.create(model="small"), asyncio.Event()

    async def talk(_request: ChatRequest, _context: CallContext) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta("The whole ")
        began.set()
        await asyncio.sleep(0.1)
        yield ChatDelta("answer.", finish_reason=FinishReason.STOP, usage=TokenUsage(10, 5))

    client.gateway.model.script = lambda request, context: talk(request, context)
    when = began if after == "the first token" else None
    client.gateway.leave(f"{AGENTS}/{agent}/messages", {}, {"content": "Hello", "stream": True}, when=when)
    (run,) = client.runs(agent)
    assert run["status"] == "succeeded"
    assert [message["content"] for message in client.messages(agent)] == ["Hello", "The whole answer."]
    frames = read_frames(client.send("GET", f"/{agent}/runs/{run['id']}/stream"))
    assert frames[-1] == (None, "[DONE]")


def test_a_failed_run_leaves_state_and_mailbox_as_they_were(client: ManagedClient) -> None:
    """Only the notes that it stored under their own keys stay."""
    gateway = client.gateway
    agent = client.create(agent="operative", tools=["memory_store"])
    stream(client, agent, "First.")
    path = f"/v1/operators/{agent}"
    before = gateway.send("GET", path, headers=ADA).json
    note = ("memory_store", {"key": "ship", "content": "The Anna is in."})
    state = ("memory_store", {"key": "state", "content": "Never."})
    gateway.model.script = in_turn([calls(note, state), AttemptFailed("The provider is down.")])
    stream(client, agent, "Second.")
    assert [run["status"] for run in client.runs(agent)] == ["failed", "succeeded"]
    after = gateway.send("GET", path, headers=ADA).json
    assert after == {**before, "notes": 1}
    assert [message["status"] for message in client.messages(agent)] == ["delivered", "delivered", "pending"]
    gateway.model.script = "Third."
    execute(gateway, agent, queue(client, agent, None))
    texts = " ".join(message.content.replace("ˆ", " ") for message in gateway.model.requests[-1].messages)
    assert ("Never." in texts, "First." in texts) == (False, True)
    assert gateway.send("GET", path, headers=ADA).json["state"]["input"] == "Second."


def test_the_session_of_an_agent_is_listed_and_the_next_run_replaces_a_deleted_one(client: ManagedClient) -> None:
    gateway = client.gateway
    for name in ("simple", "plain"):
        agent, sessions = client.create(agent=name), f"/a1/agents/{name}/sessions"
        stream(client, agent, "One.")
        (session,) = gateway.send("GET", sessions).json["sessions"]
        assert gateway.send("GET", f"/v1/operators/{agent}", headers=ADA).json["session_id"] == session["id"]
        assert gateway.send("GET", f"{sessions}/{session['id']}").json["message_count"] == 2
        refused = gateway.send("POST", f"{sessions}/{session['id']}/messages", body={"message": "Two."})
        assert refused.status in (400, 404), "it is the run's"
        assert gateway.send("DELETE", f"{sessions}/{session['id']}").json == {"deleted": True}
        stream(client, agent, "Three.")
        (another,) = gateway.send("GET", sessions).json["sessions"]
        assert another["id"] != session["id"]
        assert [message.content for message in gateway.model.requests[-1].messages if message.role is Role.USER] == ["Three."]
        assert len(client.messages(agent)) == 4, "the mailbox is not the session"


@pytest.mark.parametrize("kind", ["simple", "operative"])
def test_a_run_that_compacts_its_session_continues_in_the_successor(client: ManagedClient, kind: str) -> None:
    gateway, agent = client.gateway, client.create(agent=kind)
    for number in range(6):
        stream(client, agent, f"Question {number}.")
    path = f"/v1/operators/{agent}"
    before = gateway.send("GET", path, headers=ADA).json["session_id"]
    long = "An answer that does not fit in an item. " * 500
    gateway.model.script = in_turn([BackendContextLength("Too long.", status=400), "A summary.", long])
    execute(gateway, agent, queue(client, agent))
    assert client.runs(agent)[0]["status"] == "succeeded"
    assert client.messages(agent)[-1]["content"] == long
    moved = gateway.send("GET", path, headers=ADA).json["session_id"]
    assert gateway.send("GET", f"/a1/agents/{kind}/sessions/{before}").json["successor_session_id"] == moved
    gateway.model.script = "Short."
    stream(client, agent, "And now?")
    assert "A summary." in " ".join(message.content.replace("ˆ", " ") for message in gateway.model.requests[-1].messages)
    assert gateway.send("GET", path, headers=ADA).json["session_id"] == moved
    assert [message["seq"] for message in client.messages(agent)] == [*range(1, 16)], "the mailbox keeps everything"
    assert client.send("DELETE", f"/{agent}").json == {"deleted": True}
    assert [key for key in gateway.stored() if "#USAGE#" not in key] == []
