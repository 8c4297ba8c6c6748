"""Directors that edit one workspace for another one: versions, approvals, usage and stops of edits within delegates."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import pytest

from spass.agents.registry import AgentRegistry
from spass.agents.spec import AgentSpec, file_model
from spass.calls.scope import ReportProgress
from spass.core.messages import Message, Role
from spass.models.errors import BackendUnavailable
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import Answer, calls
from spass.tools.editor.protocol import Ask, EditRequest, EditResult, MayEdit
from tests.functions.gateway import Gateway, Reply
from tests.functions.test_call_trees import flatten, get_calls
from tests.stream_grammar import of_type, read_events

CHAT: Final = "/c1/agents/boss/chat"
LANES: Final = ("coder", "writer", "ops")


def agent(name: str, **fields: object) -> AgentSpec:
    own = {"name": name, "model": "small", "system_prompt": name, "workspace": "other"}
    return file_model("orchestrator").model_validate({**own, **fields}).spec()


AGENTS: Final = (
    agent("boss", tools=["delegate"], delegates=[*LANES], workspace="default"),
    agent("coder", tools=["aider_edit"], paths={"write": ["src/"]}),
    agent("writer", tools=["aider_edit"], paths={"write": ["docs/"]}),
    agent("ops", tools=["aider_edit"], paths={"write": ["**"]}, approval=["aider_edit"]),
)
FILES: Final = {"coder": "src/main.py", "writer": "docs/index.md", "ops": "Dockerfile"}


class AppendingEditor:
    """Asks the model once and adds its answer to each file. With ``hangs``, it then waits until it is cancelled."""

    def __init__(self) -> None:
        self.requests: list[EditRequest] = []
        self.hangs = False
        self.cancelled = 0

    async def edit(self, request: EditRequest, ask: Ask, may_edit: MayEdit, report: ReportProgress) -> EditResult:
        self.requests.append(request)
        report("Asking.")
        answer = await ask([Message(Role.USER, request.message)])
        try:
            if self.hangs:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        texts = {**dict.fromkeys(request.create, ""), **request.files}
        return EditResult({path: f"{text}{answer}\n" for path, text in texts.items() if may_edit(path)}, answer)


def answer(request: ChatRequest, _: CallContext) -> Answer:
    """The boss asks all lanes at the same time, and each edits its file. Any other request is that of an edit."""
    name = request.messages[0].content.split()[0]
    if request.messages[-1].tool_call_id is not None:
        return f"{name} is done."
    if name == "boss":
        return calls(*(("delegate", {"agent": lane, "task": "Add a line."}) for lane in LANES))
    return calls(("aider_edit", {"message": "Edit.", "files": [FILES[name]]})) if name in FILES else "a line"


@pytest.fixture
def editor(gateway: Gateway) -> AppendingEditor:
    editor = AppendingEditor()
    gateway.services.editor = editor
    gateway.services.agents = AgentRegistry(AGENTS)
    gateway.model.script = answer
    return editor


def chat(gateway: Gateway, **changes: object) -> Reply:
    body = {"message_id": "m1", "messages": [{"role": "user", "content": "Please."}], **changes}
    return gateway.send("POST", CHAT, body=body)


def test_three_lanes_edit_the_workspace_of_the_caller_and_one_waits(gateway: Gateway, editor: AppendingEditor) -> None:
    reply = chat(gateway, workspace="team")
    events = read_events(reply)
    results = {call["args"]["agent"]: call["result"] for call in of_type(events, "tool_call") if call["parent_id"] is None}
    edits = {call["agent"]: call for call in of_type(events, "tool_call") if call["parent_id"] is not None}
    assert sorted([*results["coder"]["versions"], *results["writer"]["versions"]]) == [1, 2]
    assert results["coder"]["versions"] == [edits["coder"]["result"]["version"]]
    assert (results["ops"]["versions"], results["ops"]["approvals"]) == ([], [edits["ops"]["result"]])
    assert edits["writer"]["rich"][0]["path"] == "docs/index.md"
    assert len(editor.requests) == 3
    progress = [event["tool_call_id"] for event in events if "progress" in event]
    assert {*progress} == {edit["id"] for edit in edits.values()}

    audited = flatten(get_calls(gateway, reply.headers["spass-request-id"]))
    ids = {call["agent"]: call["request_id"] for call in audited if call["tool"] == "aider_edit"}
    versions = gateway.send("GET", "/a1/workspaces/team/versions").json["versions"]
    assert {(version["agent"], version["parent_log_id"]) for version in versions} == {
        (name, ids[name]) for name in ("coder", "writer")
    }
    session = of_type(events, "done")[0]["session_id"]
    assert {(version["session_id"], version["message_id"], version["user"]) for version in versions} == {(session, "m1", "ada")}
    assert len({version["run_id"] for version in versions}) == 1

    (usage,) = of_type(events, "usage")
    assert usage["usage"]["prompt_tokens"] == sum(call["prompt_tokens"] or 0 for call in audited)
    assert usage["usage"]["completion_tokens"] == sum(call["completion_tokens"] or 0 for call in audited)
    assert usage["cost"]["sub_calls"] == sum(call["kind"] == "chat" for call in audited) == 11
    assert {call["agent"] for call in audited if call["kind"] == "chat"} == {"boss", *LANES}


def test_the_waiting_edit_of_a_lane_is_made_in_the_workspace_of_the_caller(gateway: Gateway, editor: AppendingEditor) -> None:
    chat(gateway, workspace="team")
    (approval,) = gateway.send("GET", "/a1/approvals").json["approvals"]
    asked = len(gateway.model.requests)
    decided = gateway.send("POST", f"/a1/approvals/{approval['id']}", body={"decision": "approve"})
    assert (decided.json["status"], decided.json["agent"], decided.json["result"]["version"]) == ("executed", "ops", 3)
    assert gateway.send("GET", "/a1/workspaces/team/file?path=Dockerfile").status == 200
    assert gateway.send("GET", "/a1/workspaces/other").code == "workspace_not_found"
    assert (len(gateway.model.requests), len(editor.requests)) == (asked, 3)


def test_a_lane_that_fails_after_its_edit_tells_which_version_it_made(gateway: Gateway, editor: AppendingEditor) -> None:
    def fail(request: ChatRequest, context: CallContext) -> Answer:
        if request.messages[0].content.startswith("coder") and request.messages[-1].tool_call_id is not None:
            raise BackendUnavailable("The model is down.")
        return answer(request, context)

    gateway.model.script = fail
    events = read_events(chat(gateway))
    results = {call["args"]["agent"]: call for call in of_type(events, "tool_call") if call["parent_id"] is None}
    assert [results[lane]["ok"] for lane in LANES] == [False, True, True]
    (version,) = {1, 2} - {*results["writer"]["result"]["versions"]}
    message = results["coder"]["result"]["error"]["message"]
    assert f"Before that it had made these versions of the workspace: {version}." in message
    assert len(editor.requests) == 3


def test_the_model_learns_the_decision_about_an_edit_of_a_lane_that_failed(gateway: Gateway, editor: AppendingEditor) -> None:
    def fail(request: ChatRequest, context: CallContext) -> Answer:
        if request.messages[0].content.startswith("ops") and request.messages[-1].tool_call_id is not None:
            raise BackendUnavailable("The model is down.")
        return answer(request, context)

    gateway.model.script = fail
    done = of_type(read_events(chat(gateway)), "done")[0]
    (approval,) = gateway.send("GET", "/a1/approvals").json["approvals"]
    gateway.send("POST", f"/a1/approvals/{approval['id']}", body={"decision": "approve"})
    gateway.model.requests.clear()
    chat(gateway, message_id="m2", session_id=done["session_id"])
    history = gateway.model.requests[0].messages
    (told,) = [message.content for message in history if message.tool_call_id is not None and approval["id"] in message.content]
    assert '"version":3' in told


def test_the_model_learns_the_decision_about_an_edit_of_a_lane_that_was_stopped(
    gateway: Gateway, editor: AppendingEditor
) -> None:
    has_stored = asyncio.Event()

    async def hang() -> AsyncGenerator[ChatDelta, None]:
        await asyncio.Event().wait()
        yield ChatDelta("")

    def answer_until_the_edits(request: ChatRequest, context: CallContext) -> Answer | AsyncGenerator[ChatDelta, None]:
        name = request.messages[0].content.split()[0]
        if name not in LANES or request.messages[-1].tool_call_id is None:
            return answer(request, context)
        if name == "ops":
            has_stored.set()
        return hang()

    async def stop() -> None:
        await has_stored.wait()
        assert (await gateway.send_async("DELETE", f"{CHAT}/m1")).status == 202

    gateway.model.script = answer_until_the_edits
    body = {"message_id": "m1", "messages": [{"role": "user", "content": "Please."}]}
    done = of_type(read_events(gateway.send_during(gateway.send_async("POST", CHAT, body=body), stop())), "done")[0]
    assert done["finish_reason"] == "cancelled"
    (approval,) = gateway.send("GET", "/a1/approvals").json["approvals"]
    gateway.send("POST", f"/a1/approvals/{approval['id']}", body={"decision": "deny"})
    gateway.model.script = answer
    gateway.model.requests.clear()
    chat(gateway, message_id="m2", session_id=done["session_id"])
    results = [message.content for message in gateway.model.requests[0].messages if message.tool_call_id is not None]
    assert [approval["id"] in result and "approval_denied" in result for result in results] == [False, False, True]


def test_a_stop_ends_the_edits_of_the_lanes_without_a_version(gateway: Gateway, editor: AppendingEditor) -> None:
    editor.hangs = True

    async def stop() -> None:
        while len(editor.requests) < 3:
            await asyncio.sleep(0.01)
        assert (await gateway.send_async("DELETE", f"{CHAT}/m1")).status == 202

    body = {"message_id": "m1", "messages": [{"role": "user", "content": "Please."}]}
    events = read_events(gateway.send_during(gateway.send_async("POST", CHAT, body=body), stop()))
    assert of_type(events, "done")[0]["finish_reason"] == "cancelled"
    assert editor.cancelled == 3
    assert {(call["tool"], call["ok"]) for call in of_type(events, "tool_call")} == {("delegate", False), ("aider_edit", False)}
    assert gateway.send("GET", "/a1/workspaces/default").code == "workspace_not_found"
    assert gateway.send("GET", "/a1/approvals").json["approvals"] == []
