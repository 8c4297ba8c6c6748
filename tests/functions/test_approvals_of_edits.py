"""Edits and commands that wait for a person: what was shown is what is committed."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from spass.calls.datamark import remove_marks
from spass.calls.scope import ReportProgress
from spass.core.messages import FinishReason, Role, ToolCallDelta
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.model import Answer
from spass.tools.editor.protocol import Ask, EditRequest, EditResult
from tests.functions.gateway import Gateway, Reply
from tests.functions.waiting_agents import APPROVALS
from tests.stream_grammar import of_type, read_events

FILES: Final = "/a1/workspaces/default/file?path="
RAW: Final = {"Content-Type": "application/octet-stream"}
AGENT: Final = "name: coder\nmodel: small\nworkspace: default\npaths: {write: [src/]}\ntools: [aider_edit]\napproval: [%s]\n"
EDIT: Final = {"message": "Add a docstring.", "files": ["src/main.py"]}


@dataclass
class Appending:
    """An editor that appends a line to each file or creates it, or writes it in capitals or as ``text``. ``requests`` are its
    edits."""

    requests: list[EditRequest] = field(default_factory=list)
    capitals: bool = False
    suffix: str = "# edited\n"
    text: str | None = None

    async def edit(self, request: EditRequest, ask: Ask, may_edit: Callable[[str], bool], report: ReportProgress) -> EditResult:
        self.requests.append(request)
        texts = {**request.files, **dict.fromkeys(request.create, "")}
        if self.capitals:
            return EditResult({path: text.upper() for path, text in texts.items()}, "x" * 20_000)
        if self.text is not None:
            return EditResult(dict.fromkeys(texts, self.text), "Done.")
        return EditResult({path: f"{text}{self.suffix}" for path, text in texts.items()}, "Done.")


@dataclass
class Coder:
    """The agent, a workspace with two files, and a session."""

    gateway: Gateway
    gate: str
    editor: Appending = field(default_factory=Appending)
    session: str = ""

    def __post_init__(self) -> None:
        services = self.gateway.services
        services.settings.agents.joinpath("coder.yaml").write_text(AGENT % self.gate)
        services.__dict__["editor"] = self.editor
        for path in ("src/main.py", "src/old.py"):
            self.put(path, b"print(1)\n")
        self.session = self.gateway.send("POST", "/a1/agents/coder/sessions").json["id"]

    def put(self, path: str, body: bytes) -> None:
        assert self.gateway.send("PUT", FILES + path, raw=body, headers=RAW).status == 200

    def file(self, path: str = "src/main.py") -> str | None:
        reply = self.gateway.send("GET", FILES + path)
        return reply.text if reply.status == 200 else None

    def ask(self, arguments: dict[str, Any], path: str = "", **more: object) -> Reply:
        """Run a turn in which the model edits once, or send the same to another ``path``."""
        call = ToolCallDelta(0, "call_1", "aider_edit", json.dumps(arguments))

        def answer(request: ChatRequest, _: CallContext) -> Answer:
            if request.messages[-1].role is Role.TOOL:
                return "It waits."
            return [ChatDelta(tool_calls=(call,), finish_reason=FinishReason.TOOL_CALLS)]

        self.gateway.model.script = answer
        path = path or f"/a1/agents/coder/sessions/{self.session}/messages"
        reply = self.gateway.send("POST", path, body={"message": "Do it.", **more})
        assert reply.status == 200, reply.text
        return reply

    def result(self, arguments: dict[str, Any], path: str = "") -> dict[str, Any]:
        return dict(self.ask(arguments, path).json["tool_calls"][0]["result"])

    def wait_for(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the approval of a call."""
        result = self.result(arguments)
        assert result["approval_required"] is True, result
        return dict(self.gateway.send("GET", f"{APPROVALS}/{result['approval_id']}").json)

    def decide(self, approval: dict[str, Any], decision: str = "approve") -> dict[str, Any]:
        seen = {"seen": self.read_changes(approval)[1]} if approval["preview"]["complete"] is False else {}
        reply = self.gateway.send("POST", f"{APPROVALS}/{approval['id']}", body={"decision": decision, **seen})
        assert reply.status == 200, reply.text
        return dict(reply.json)

    def read_changes(self, approval: dict[str, Any], limit: int = 100) -> tuple[list[dict[str, Any]], str]:
        """Return all changes of an approval, and the last cursor."""
        changes: list[dict[str, Any]] = []
        cursor = ""
        while True:
            query = f"?limit={limit}&cursor={cursor}"
            page = self.gateway.send("GET", f"{APPROVALS}/{approval['id']}/changes{query}").json
            changes += page["changes"]
            if page["next_cursor"] is None:
                return changes, cursor
            cursor = page["next_cursor"]


@pytest.fixture
def gated(gateway: Gateway) -> Coder:
    return Coder(gateway, "aider_edit")


@pytest.fixture
def guarded(gateway: Gateway) -> Coder:
    return Coder(gateway, "deletes")


def test_an_edit_is_computed_and_shown_first_and_committed_when_approved(gated: Coder) -> None:
    waiting = gated.wait_for(EDIT)
    assert gated.file() == "print(1)\n"
    (block,) = waiting["rich"]
    assert (block["kind"], block["path"], block["added"], block["removed"]) == ("diff", "src/main.py", 1, 0)
    assert "+# edited" in block["unified"]
    done = gated.decide(waiting)
    assert (done["status"], done["result"]["version"], done["result"]["answer"]) == ("executed", 3, "Done.")
    assert gated.file() == "print(1)\n# edited\n"
    assert len(gated.editor.requests) == 1
    newest = gated.gateway.send("GET", "/a1/workspaces/default/versions").json["versions"][0]
    (request,) = gated.editor.requests
    assert (newest["run_id"], newest["parent_log_id"]) == (request.run_id, request.parent_log_id)
    assert (newest["user"], newest["agent"], newest["message"]) == ("ada", "coder", "Add a docstring.")
    gated.ask(EDIT)
    seen = [message for message in gated.gateway.model.requests[-2].messages if message.role is Role.TOOL]
    assert json.loads(remove_marks(seen[0].content)) == done["result"]


def test_the_editors_model_is_asked_before_and_never_after(gated: Coder) -> None:
    waiting = gated.wait_for(EDIT)
    requests = len(gated.gateway.model.requests)
    gated.decide(waiting)
    assert (len(gated.gateway.model.requests), len(gated.editor.requests)) == (requests, 1)


def test_the_largest_approval_fits_in_a_stream_and_in_its_journal(gated: Coder) -> None:
    gated.editor.capitals = True
    gated.put("src/main.py", b'say("\\n")\n' * 30_000)
    events = read_events(gated.ask({"message": '"' * 30_000, "files": ["src/main.py"]}, stream=True))
    (event,) = of_type(events, "approval")
    (call,) = of_type(events, "tool_call")
    assert events[-1]["type"] == "done"
    assert 200_000 < len(json.dumps(event)) < 350_000
    assert call["result"]["approval_id"] == event["approval"]["id"]
    assert call["rich"] == event["approval"]["rich"]
    followed = gated.gateway.send("GET", f"/c1/agents/coder/chat/{events[0]['message_id']}")
    assert read_events(followed) == events
    assert gated.decide(event["approval"])["status"] == "executed"
    assert gated.file() == 'SAY("\\N")\n' * 30_000


def test_an_edit_of_a_file_that_changed_since_is_not_committed(gated: Coder) -> None:
    waiting = gated.wait_for(EDIT)
    gated.put("src/main.py", b"print(2)\n")
    failed = gated.decide(waiting)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "workspace_conflict")
    assert gated.file() == "print(2)\n"


def test_an_edit_of_a_deleted_workspace_is_not_committed(gated: Coder) -> None:
    waiting = gated.wait_for({"message": "Add it.", "files": ["src/new.py"]})
    assert gated.gateway.send("DELETE", "/a1/workspaces/default").json == {"deleted": True}
    assert gated.decide(waiting)["error"]["code"] == "workspace_conflict"
    assert gated.gateway.send("GET", "/a1/workspaces/default").code == "workspace_not_found"


def test_a_single_shot_is_refused_before_the_edit_is_computed(gated: Coder) -> None:
    assert gated.result(EDIT, "/a1/agents/coder/chat")["error"]["code"] == "approval_unavailable"
    assert gated.editor.requests == []
    assert gated.file() == "print(1)\n"


def test_commands_that_change_nothing_do_not_wait(gated: Coder) -> None:
    for path in ("", "/a1/agents/coder/chat"):
        result = gated.result({"message": "/diff", "files": ["src/old.py"]}, path)
        assert "approval_required" not in result
        assert "error" not in result, result


@pytest.mark.parametrize(
    ("message", "files", "after"),
    [
        ("/git rm src/old.py", ["src/old.py"], None),
        ("/git mv src/old.py src/new.py", ["src/old.py", "src/new.py"], None),
        ("/undo", ["src/old.py"], "print(1)\n"),
    ],
)
def test_commands_that_remove_or_bring_back_wait(guarded: Coder, message: str, files: list[str], after: str | None) -> None:
    if message == "/undo":
        guarded.put("src/old.py", b"print(2)\n")
    before = guarded.file("src/old.py")
    waiting = guarded.wait_for({"message": message, "files": files})
    assert guarded.file("src/old.py") == before
    assert waiting["arguments"] == {"message": message, "files": files}
    assert guarded.decide(waiting)["status"] == "executed"
    assert guarded.file("src/old.py") == after


def test_an_edit_that_removes_nothing_does_not_wait_for_deletes(guarded: Coder) -> None:
    assert guarded.result(EDIT)["version"] == 3
    assert guarded.file() == "print(1)\n# edited\n"
    result = guarded.result({"message": "/git rm src/old.py", "files": ["src/old.py"]}, "/a1/agents/coder/chat")
    assert result["error"]["code"] == "approval_unavailable"
    assert guarded.file("src/old.py") == "print(1)\n"
