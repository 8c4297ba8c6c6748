"""The demo fails if a director does not do what it is asked, or if something is deleted without an approval."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from local.demo_calls import DemoFailed, Walk
from local.demo_workspace import show_workspace
from local.example_workspace import FILES

DOCSTRING = '+    """Run the program."""\n'


@dataclass
class FakeGateway:
    """Routes of workspaces, chats and approvals, as far as the demo uses them."""

    lists: bool = True
    edits: bool = True
    gates: bool = True
    obeys: bool = True
    files: set[str] = field(default_factory=lambda: {*FILES})
    decided: int = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/a1/workspaces/demo-walk")
        body = json.loads(request.content) if request.headers.get("Content-Type") == "application/json" else {}
        match request.method, path:
            case "POST", "/c1/agents/dir-code/chat":
                return self._chat(body["messages"][0]["content"])
            case "GET", "/a1/approvals":
                answer: Any = {"approvals": [{"id": f"apr_{self.decided}"}]}
            case "POST", "/restore":
                self.files, answer = {*FILES}, {"version": 4}
            case "POST", _:
                self.decided += 1
                approved = body["decision"] == "approve"
                self.files -= {"docs/old-notes.md"} if approved and self.obeys else set()
                answer = {"status": "executed" if approved else "denied"}
            case "GET", "/tree":
                answer = {"entries": [{"path": name} for name in sorted(self.files)]}
            case "GET", "/diff":
                answer = {"files": [{"path": "src/main.py", "removed": 0, "unified": DOCSTRING if self.edits else ""}]}
            case "GET", "/versions":
                answer = {"versions": [{"version": 1, "message": None}]}
            case _:
                answer = {"version": 1, "deleted": True}
        return httpx.Response(200, json=answer)

    def _chat(self, question: str) -> httpx.Response:
        waiting = {"approval_required": True, "approval_id": f"apr_{self.decided}"} if self.gates else {"version": 3}
        if not self.gates and question.startswith("Delete"):
            self.files.discard("docs/old-notes.md")
        tool, result, kind = {
            "What": ("list_directory", {}, "file_tree"),
            "What's": ("read_file", {}, "file"),
            "Add": ("aider_edit", {}, "diff"),
            "Delete": ("aider_edit", waiting, "diff"),
        }[question.split(maxsplit=1)[0]]
        if tool == "list_directory" and not self.lists:
            tool = "search_files"
        rich = [{"kind": kind, "unified": DOCSTRING}]
        events = [
            {"type": "tool_call", "tool": tool, "ok": True, "result": result, "rich": rich},
            {"type": "token", "content": "Yes."},
        ]
        return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events))


def run(gateway: FakeGateway) -> None:
    show_workspace(Walk(httpx.Client(transport=httpx.MockTransport(gateway.answer), base_url="http://gateway")))


def test_a_gateway_that_waits_for_people_passes(capsys: pytest.CaptureFixture[str]) -> None:
    run(FakeGateway())
    shown = capsys.readouterr().out
    assert "application/zip, " in shown
    assert '"type": "token"' not in shown
    assert "» Yes." in shown


@pytest.mark.parametrize(
    ("gateway", "reason"),
    [
        (FakeGateway(lists=False), "should call its tool list_directory"),
        (FakeGateway(edits=False), "should add a docstring"),
        (FakeGateway(gates=False), "should wait for an approval"),
        (FakeGateway(obeys=False), "should no longer be in the workspace"),
    ],
    ids=["lists", "edits", "gates", "obeys"],
)
def test_a_gateway_that_does_not_do_its_part_fails(gateway: FakeGateway, reason: str) -> None:
    with pytest.raises(DemoFailed, match=reason):
        run(gateway)
