"""The chapters of the demo about workspaces: a director lists, reads and edits files; people see and decide."""

import io
import zipfile
from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

from local.demo_calls import DemoFailed, Walk
from local.example_workspace import FILES

_NAME: Final = "demo-walk"
_WORKSPACE: Final = f"/a1/workspaces/{_NAME}"
_CHAT: Final = "/c1/agents/dir-code/chat"
_NOTES: Final = "docs/old-notes.md"


def show_workspace(step: Walk) -> None:
    """Let a director work in a workspace of its own, which is deleted at the end.

    Raises:
        DemoFailed: a tool was not called, a change is missing, or something changed without an approval.
    """
    step.title("18. An archive becomes a workspace: one version")
    step.call("DELETE", _WORKSPACE)
    first = step.send_file("PUT", f"{_WORKSPACE}/archive", "application/zip", _archive())["version"]
    session = f"demo-{uuid4()}"

    step.title("19. A director lists and reads the files")
    (listed,) = _ask(step, session, "What files are in src/?", "list_directory")
    if listed["rich"][0]["kind"] != "file_tree":
        raise DemoFailed("The listing should come with its tree")
    _ask(step, session, "What's in src/main.py?", "read_file")

    step.title("20. The director edits a file: the change is a new version, with a diff")
    edits = _ask(step, session, "Add a docstring to main()", "aider_edit")
    step.note(edits[-1]["rich"][0]["unified"])
    (changed,) = step.call("GET", f"{_WORKSPACE}/diff")["files"]
    if (changed["path"], changed["removed"]) != ("src/main.py", 0) or '"""' not in changed["unified"]:
        raise DemoFailed("The newest version should add a docstring to src/main.py, and nothing else")

    step.title("21. A deletion waits for a person, who denies it")
    approval = _delete_notes(step, session)
    step.call("POST", f"/a1/approvals/{approval}", {"decision": "deny", "reason": "Somebody still needs the notes."})
    _expect_notes(step, expected=True)

    step.title("22. The next one is approved, and then it happens")
    approval = _delete_notes(step, session)
    _expect_notes(step, expected=True)
    decided = step.call("POST", f"/a1/approvals/{approval}", {"decision": "approve"})
    if decided["status"] != "executed":
        raise DemoFailed(f"The approved call should be executed; it is {decided['status']}")
    _expect_notes(step, expected=False)

    step.title("23. A restore brings the first version back, as a new version")
    step.call("POST", f"{_WORKSPACE}/restore", {"version": first})
    _expect_notes(step, expected=True)
    versions = step.call("GET", f"{_WORKSPACE}/versions")["versions"]
    step.note("\n  ".join(f"version {one['version']}: {one['message'] or 'no message'}" for one in versions))
    step.call("DELETE", _WORKSPACE)


def _archive() -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in FILES.items():
            archive.writestr(path, text)
    return body.getvalue()


def _ask(step: Walk, session: str, question: str, tool: str) -> Sequence[dict[str, Any]]:
    """Ask the director, and return the calls of ``tool`` with their results.

    Raises:
        DemoFailed: the director did not call it, or the call failed.
    """
    body: dict[str, Any] = {"message_id": f"demo-{uuid4()}", "session_id": session, "workspace": _NAME}
    body |= {"messages": [{"role": "user", "content": question}]}
    events = [event.data for event in step.stream("POST", _CHAT, body, prints_tokens=False)]
    calls = [event for event in events if event["type"] == "tool_call" and event["tool"] == tool]
    step.note(f"{question}\n  » {''.join(event['content'] for event in events if event['type'] == 'token')}")
    if not calls or not all(call["ok"] for call in calls):
        raise DemoFailed(f"The director should call its tool {tool}, and the call should succeed")
    return calls


def _delete_notes(step: Walk, session: str) -> str:
    """Ask the director to delete a file. Return the id of the approval that now waits."""
    (call,) = _ask(step, session, f"Delete {_NOTES}", "aider_edit")
    if not call["result"].get("approval_required"):
        raise DemoFailed("The deletion should wait for an approval")
    waiting = step.call("GET", "/a1/approvals?status=pending")["approvals"]
    identity: str = call["result"]["approval_id"]
    if identity not in [approval["id"] for approval in waiting]:
        raise DemoFailed("The approval should be in the list of those that wait")
    return identity


def _expect_notes(step: Walk, *, expected: bool) -> None:
    tree = step.call("GET", f"{_WORKSPACE}/tree")
    if (_NOTES in [entry["path"] for entry in tree["entries"]]) != expected:
        raise DemoFailed(f"{_NOTES} should {'still' if expected else 'no longer'} be in the workspace")
