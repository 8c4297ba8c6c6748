"""The tool ``aider_edit`` reads files of the workspace, lets an editor change them, and commits one version or none."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from spass.calls.scope import ReportProgress
from spass.core.messages import FinishReason, Json, Message, Role
from spass.core.time import Deadline
from spass.models.types import ChatDelta
from spass.testing.model import ScriptedModel
from spass.tools.editor.protocol import Ask, EditRequest, EditResult
from spass.tools.editor.texts import MAX_EDIT_LINES
from spass.tools.grants import EditorSettings
from tests.unit.calls.planted_secrets import SECRETS
from tests.unit.calls.scripted_provider import audit_of
from tests.unit.tools.editor.edit_harness import (
    EditHarness,
    ScriptedEditor,
    error_of,
    grants,
    replace_text,
    result_of,
    write_texts,
)

pytestmark = pytest.mark.anyio

MAIN = "def main():\n    print('hello')\n"


@pytest.fixture
async def harness() -> EditHarness:
    harness = EditHarness()
    await harness.files.write({"src/main.py": MAIN.encode(), "README.md": b"# Demo\n", "logo.png": b"\x89PNG\x00\xff"})
    return harness


async def ask_once(request: EditRequest, ask: Ask, *_: object) -> EditResult:
    return EditResult({}, await ask([Message(Role.USER, request.message)]))


async def test_an_edit_commits_one_version_with_its_diff(harness: EditHarness) -> None:
    harness.editor.work = replace_text("hello", "world")
    outcome = await harness.call("Say world.", ["src/main.py", "README.md"])
    result = result_of(outcome)
    assert (result["version"], result["answer"]) == (2, "Done.")
    (file,) = result["files"]
    assert (file["path"], file["status"], file["added"], file["removed"]) == ("src/main.py", "changed", 1, 1)
    assert "-    print('hello')\n+    print('world')\n" in file["unified"]
    assert outcome.rich == ({"kind": "diff", **file},)
    assert (await harness.files.contents())["src/main.py"] == MAIN.replace("hello", "world").encode()


async def test_a_version_names_who_asked_for_it(harness: EditHarness) -> None:
    harness.editor.work = replace_text("hello", "world")
    await harness.call("Say world. " + "x" * 300)
    version = (await harness.versions())[0]
    assert (version.user, version.agent, version.session_id, version.message_id) == ("anna", "dir-code", "ses_1", "m-1")
    assert version.run_id == "trn_1"
    assert version.message == ("Say world. " + "x" * 300)[:200]
    (tool,) = [record for record in await audit_of(harness.files.store) if record["kind"] == "tool"]
    assert version.parent_log_id == tool["request_id"]


async def test_the_editor_gets_the_files_and_what_the_agent_grants(harness: EditHarness) -> None:
    harness.grants = grants(write=["src/"], editor=EditorSettings(timeout=20, format="whole"))
    await harness.call("Edit.", ["src/main.py", "src/new.py"], read_only_files=["README.md", "src/main.py"])
    (request,) = harness.editor.requests
    assert (request.message, request.files, request.read_only) == ("Edit.", {"src/main.py": MAIN}, {"README.md": "# Demo\n"})
    assert (request.create, request.format, request.seconds, request.run_id) == (("src/new.py",), "whole", 20, "trn_1")
    assert request.tenant_id == harness.files.store.tenant


async def test_an_edit_leaves_time_to_commit_before_the_deadline(harness: EditHarness) -> None:
    scope = replace(harness.scope(), deadline=Deadline.after(60))
    await harness.run({"message": "Edit.", "files": ["src/main.py"]}, scope=scope)
    assert 50 < harness.editor.requests[0].seconds <= 55


async def test_absent_files_are_created_and_the_workspace_too() -> None:
    harness = EditHarness()
    harness.editor.work = write_texts({"src/new.py": "x = 1\n", "empty": ""})
    result = result_of(await harness.call("Create it.", ["src/new.py", "empty"]))
    assert result["version"] == 1
    assert [(file["path"], file["status"]) for file in result["files"]] == [("empty", "added"), ("src/new.py", "added")]
    assert await harness.files.contents() == {"src/new.py": b"x = 1\n", "empty": b""}


async def test_nothing_changed_is_a_version_of_null(harness: EditHarness) -> None:
    harness.editor.work = write_texts({"src/main.py": MAIN}, "It is fine as it is.")
    result = result_of(await harness.call("Look at it."))
    assert result == {"version": None, "files": [], "answer": "It is fine as it is."}
    assert await harness.version() == 1


async def test_only_named_files_change_whatever_the_editor_returns(harness: EditHarness) -> None:
    texts = {"src/main.py": "x\n", "README.md": "y\n", "../x": "z", "/tmp/x": "z", "other.py": "z"}
    harness.editor.work = write_texts(texts)
    result = result_of(await harness.call("Edit.", read_only_files=["README.md"]))
    assert [file["path"] for file in result["files"]] == ["src/main.py"]
    contents = await harness.files.contents()
    assert contents["README.md"] == b"# Demo\n"
    assert contents.keys() == {"src/main.py", "README.md", "logo.png"}


async def test_the_editor_may_change_named_files_only(harness: EditHarness) -> None:
    answers: dict[str, bool] = {}

    async def work(_: EditRequest, __: Ask, may_edit: object, ___: ReportProgress) -> EditResult:
        assert callable(may_edit)
        names = ["src/main.py", "src/new.py", "README.md", "other.py", "../x", "SRC/main.py"]
        answers.update({name: may_edit(name) for name in names})
        return EditResult({}, "")

    harness.editor.work = work
    await harness.call("Edit.", ["src/main.py", "src/new.py"], read_only_files=["README.md"])
    assert [name for name, allowed in answers.items() if allowed] == ["src/main.py", "src/new.py"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"files": []}, "invalid_arguments"),
        ({"files": [f"f{number}" for number in range(101)]}, "invalid_arguments"),
        ({"files": "src/main.py"}, "invalid_arguments"),
        ({"files": ["src/main.py"], "read_only_files": [f"f{number}" for number in range(101)]}, "invalid_arguments"),
        ({"files": ["src/main.py"], "message": " \n"}, "invalid_arguments"),
        ({"files": ["src/main.py"], "force": True}, "invalid_arguments"),
        ({"files": ["src"]}, "invalid_path"),
        ({"files": ["src/main.py/x"]}, "invalid_path"),
        ({"files": ["SRC/MAIN.py"]}, "invalid_path"),
        ({"files": ["../x"]}, "invalid_path"),
        ({"files": ["/etc/passwd"]}, "invalid_path"),
        ({"files": [".git/config"]}, "invalid_path"),
        ({"files": ["src/main.py"], "read_only_files": ["src\\main.py"]}, "invalid_path"),
        ({"files": ["src/main.py"], "read_only_files": ["absent.py"]}, "file_not_found"),
        ({"files": ["logo.png"]}, "not_text"),
        ({"files": ["src/main.py"], "read_only_files": ["logo.png"]}, "not_text"),
    ],
)
async def test_a_wrong_call_is_an_error_that_the_model_reads(
    harness: EditHarness, arguments: Mapping[str, Json], code: str
) -> None:
    outcome = await harness.run({"message": "Edit.", **arguments})
    assert error_of(outcome)[0] == code
    assert not harness.editor.requests
    assert await harness.version() == 1


@pytest.mark.parametrize(("files", "read_only"), [(["README.md"], []), (["src/secret.py"], []), (["src/main.py"], ["README.md"])])
async def test_a_path_outside_the_globs_is_refused(harness: EditHarness, files: list[str], read_only: list[str]) -> None:
    harness.grants = grants(read=["src/", "docs/"], write=["src/", "!src/secret*"])
    code, message = error_of(await harness.call("Edit.", files, read_only_files=read_only))
    assert code == "path_not_allowed"
    assert "src/" in message
    assert not harness.editor.requests


async def test_files_of_more_than_2_mib_together_are_refused(harness: EditHarness) -> None:
    await harness.files.write({"a.txt": b"a" * 2**20, "b.txt": b"b" * 2**20, "c.txt": b"c"})
    assert error_of(await harness.call("Edit.", ["a.txt", "b.txt"], read_only_files=["c.txt"]))[0] == "workspace_limit"
    assert result_of(await harness.call("Edit.", ["a.txt", "b.txt"]))["version"] is None


@pytest.mark.parametrize(("text", "times"), [("x", 4 * 2**20 + 1), ("x", 16 * 2**20), ("\n", MAX_EDIT_LINES + 1)])
async def test_an_edit_cannot_make_a_file_too_large(harness: EditHarness, text: str, times: int) -> None:
    harness.editor.work = write_texts({"src/main.py": text * times})
    assert error_of(await harness.call("Edit."))[0] == "workspace_limit"
    assert await harness.version() == 1


@pytest.mark.parametrize("line", ["\n", "\r", "\u2028", "a\n"])
async def test_an_edit_has_a_limit_for_its_lines(harness: EditHarness, line: str) -> None:
    await harness.files.write({"src/main.py": (line * (MAX_EDIT_LINES + 1)).encode()})
    code, message = error_of(await harness.call("Edit."))
    assert (code, harness.editor.requests) == ("workspace_limit", [])
    assert str(MAX_EDIT_LINES) in message


async def test_an_agent_without_a_workspace_has_no_editor(harness: EditHarness) -> None:
    harness.grants = grants(workspace=False)
    assert error_of(await harness.call("Edit."))[0] == "tool_unavailable"


async def test_over_http_the_tool_is_unavailable(harness: EditHarness) -> None:
    answer = await harness.toolbox().execute_direct(harness.scope(), "aider_edit", {"message": "Edit.", "files": ["src/main.py"]})
    assert isinstance(answer.body.result, dict)
    error = answer.body.result["error"]
    assert isinstance(error, dict)
    assert error["code"] == "tool_unavailable"


async def test_a_file_that_changed_during_the_edit_is_a_conflict(harness: EditHarness) -> None:
    async def work(request: EditRequest, *_: object) -> EditResult:
        await harness.files.write({"src/main.py": b"theirs\n"})
        return EditResult({"src/main.py": "ours\n"}, "Done.")

    harness.editor.work = work
    code, message = error_of(await harness.call("Edit."))
    assert (code, "src/main.py" in message) == ("workspace_conflict", True)
    assert (await harness.files.contents())["src/main.py"] == b"theirs\n"


async def test_a_change_of_another_file_during_the_edit_is_kept(harness: EditHarness) -> None:
    async def work(request: EditRequest, *_: object) -> EditResult:
        await harness.files.write({"README.md": b"theirs\n"})
        return EditResult({"src/main.py": "ours\n"}, "Done.")

    harness.editor.work = work
    assert result_of(await harness.call("Edit.", ["src/main.py", "README.md"]))["version"] == 3
    contents = await harness.files.contents()
    assert (contents["src/main.py"], contents["README.md"]) == (b"ours\n", b"theirs\n")


async def test_model_calls_are_one_level_deeper_and_belong_to_the_call(harness: EditHarness) -> None:
    harness.editor.work = ask_once
    harness.model = ScriptedModel("I would not change it.")
    assert result_of(await harness.call("Edit it."))["answer"] == "I would not change it."
    (request,) = harness.model.requests
    assert (request.model, request.max_tokens, request.temperature, request.tools) == ("small", None, 0.0, ())
    records = {record["kind"]: record for record in await audit_of(harness.files.store)}
    assert records["chat"]["parent_request_id"] == records["tool"]["request_id"]
    assert harness.model.contexts[0].headers["SPASS-Caller-Depth"] == "2"


async def test_an_edit_is_refused_where_no_deeper_call_is_allowed(harness: EditHarness) -> None:
    harness.editor.work = ask_once
    outcome = await harness.run({"message": "Edit.", "files": ["src/main.py"]}, scope=harness.scope(depth=2))
    assert error_of(outcome)[0] == "recursion_depth_exceeded"
    assert not harness.model.requests


@pytest.mark.parametrize(
    "answer",
    [
        (ChatDelta("half of a fi"), ChatDelta(finish_reason=FinishReason.LENGTH)),
        (ChatDelta("half of"), ChatDelta(finish_reason=FinishReason.CONTENT_FILTER)),
        (ChatDelta(refusal="I cannot help with that."), ChatDelta(finish_reason=FinishReason.STOP)),
    ],
)
async def test_an_answer_that_is_not_complete_fails_the_edit(harness: EditHarness, answer: tuple[ChatDelta, ...]) -> None:
    harness.editor.work = ask_once
    harness.model = ScriptedModel(answer)
    assert error_of(await harness.call("Edit."))[0] == "edit_failed"
    assert await harness.version() == 1


async def test_a_stopped_edit_closes_its_model_call(harness: EditHarness) -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    harness.editor.work = ask_once
    harness.model = ScriptedModel(before_chat=wait_for_ever)
    task = asyncio.create_task(harness.call("Edit."))
    while not harness.model.requests:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert harness.model.closed == 1
    assert await harness.version() == 1


async def test_progress_is_reported_while_an_editor_is_silent(harness: EditHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.tools.builtin.aider_edit.MAX_SILENCE", 0.05)

    async def work(_: EditRequest, __: Ask, ___: object, report: ReportProgress) -> EditResult:
        report("Asking the model…")
        await asyncio.sleep(0.3)
        return EditResult({}, "")

    harness.editor.work = work
    lines: list[str] = []
    await harness.call("Edit.", report=lines.append)
    assert lines[0] == "Asking the model…"
    assert len([line for line in lines if line.startswith("Asking the model… ") and line.endswith(" s")]) >= 2


async def test_a_call_may_take_as_long_as_the_agent_allows(harness: EditHarness) -> None:
    async def work(*_: object) -> EditResult:
        await asyncio.Event().wait()
        raise AssertionError

    harness.editor.work = work
    scope = replace(harness.scope(), deadline=Deadline.after(0.2))
    outcome = await harness.run({"message": "Edit.", "files": ["src/main.py"]}, scope=scope)
    assert error_of(outcome)[0] == "tool_timeout"


async def test_what_the_defence_rewrites_is_restored(harness: EditHarness) -> None:
    body = f"\ufeffa = '<s>'\r\nkey = '{SECRETS['github']}'\r\nb\u200bc = 1\r\nlast".encode()
    await harness.files.write({"src/main.py": body})
    harness.editor.work = replace_text("last", "new\nlast")
    result_of(await harness.call("Add a line."))
    assert harness.editor.requests[0].files["src/main.py"] == "a = '‹s›'\nkey = 'ghp[…]'\nbc = 1\nlast\n"
    assert (await harness.files.contents())["src/main.py"] == body.replace(b"last", b"new\r\nlast")


async def test_a_path_that_the_defence_rewrites_has_another_name_for_the_editor(harness: EditHarness) -> None:
    await harness.files.write({"<s>/a.py": b"x = 1\n"})
    harness.editor.work = replace_text("x = 1", "x = 2")
    result = result_of(await harness.call("Edit.", ["<s>/a.py"]))
    assert [*harness.editor.requests[0].files] == ["‹s›/a.py"]
    assert result["files"][0]["path"] == "<s>/a.py"
    assert error_of(await harness.call("Edit.", ["<s>/a.py", "‹s›/a.py"]))[0] == "invalid_path"


async def test_a_long_result_is_cut_for_the_model_and_less_for_people(harness: EditHarness) -> None:
    paths = [f"docs/{'ä' * 100}/{'ä' * 100}{number:03}.md" for number in range(100)]
    harness.editor.work = write_texts(dict.fromkeys(paths, "line \x01\n" * 200), "x" * 100_000)
    outcome = await harness.call("Write them.", paths)
    result = result_of(outcome)
    assert len(json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode()) <= 64 * 1024
    assert sum(len(file["unified"].encode()) for file in result["files"]) <= 32 * 1024
    assert len(result["files"]) == 100
    assert all(file["added"] == 200 for file in result["files"])
    assert result["files"][-1]["truncated"]
    assert len(json.dumps(outcome.rich, ensure_ascii=False).encode()) > 64 * 1024


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        *((name, "more than 255 bytes.*shorter name") for name in (["n" * 256], ["ü" * 128], ["folder" * 43 + "/a.py"])),
        (["<s>/a.py", "‹S›/a.py"], "differ only in case"),  # macOS ignores case: the second file would replace the first
    ],
)
async def test_names_that_not_every_file_system_takes_are_refused(harness: EditHarness, names: list[str], reason: str) -> None:
    code, message = error_of(await harness.call("Edit.", names))
    assert code == "invalid_path"
    assert re.search(reason, message)
    assert harness.editor.requests == []


async def test_the_longest_name_is_edited(harness: EditHarness) -> None:
    result_of(await harness.call("Edit.", ["n" * 255]))
    assert harness.editor.requests[0].create == ("n" * 255,)


async def test_an_error_of_the_editor_reaches_the_model() -> None:
    harness = EditHarness(editor=ScriptedEditor())

    async def work(*_: object) -> EditResult:
        raise harness_error

    from spass.tools.base import ToolError

    harness_error = ToolError("The edit took longer than 2 s.", code="edit_timeout")
    harness.editor.work = work
    assert error_of(await harness.call("Edit.")) == ("edit_timeout", "The edit took longer than 2 s.")


async def test_a_gated_edit_waits_with_its_diff_and_changes_nothing(harness: EditHarness) -> None:
    await harness.hold_session()
    harness.grants = replace(harness.grants, approval=("aider_edit",))
    harness.editor.work = replace_text("hello", "world")
    outcome = await harness.call("Say world.")
    result = result_of(outcome)
    assert result["approval_required"]
    assert "+    print('world')" in result["preview"]["files"][0]["unified"]
    assert outcome.waiting == (result["approval_id"],)
    assert await harness.version() == 1
    assert result_of(await harness.call("/git status"))["version"] is None


async def test_a_gated_edit_outside_of_a_session_is_refused_before_any_work(harness: EditHarness) -> None:
    harness.grants = replace(harness.grants, approval=("aider_edit",))
    outcome = await harness.run(
        {"message": "Edit.", "files": ["src/main.py"]}, scope=replace(harness.scope(), current_session=None)
    )
    assert error_of(outcome)[0] == "approval_unavailable"
    assert not harness.editor.requests


@pytest.mark.parametrize(
    "message", ["/undo", "/git rm README.md", "/git mv README.md x.md", "/git restore README.md", "/git revert 2"]
)
async def test_changes_that_remove_or_bring_back_wait_where_deletes_are_gated(harness: EditHarness, message: str) -> None:
    await harness.hold_session()
    await harness.files.write({"README.md": b"# New\n"})
    harness.grants = replace(harness.grants, approval=("deletes",))
    assert result_of(await harness.call(message))["approval_required"]
    assert await harness.version() == 2
    harness.editor.work = replace_text("hello", "world")
    assert result_of(await harness.call("Say world."))["version"] == 3


@pytest.mark.parametrize("left", ["", "\n", " \r\n\t", "\ufeff\n"])
async def test_an_edit_that_empties_a_file_waits_where_deletes_are_gated(harness: EditHarness, left: str) -> None:
    await harness.hold_session()
    harness.grants = replace(harness.grants, approval=("deletes",))
    harness.editor.work = replace_text(MAIN, left)
    result = result_of(await harness.call("Empty it."))
    assert result["approval_required"]
    assert [file["path"] for file in result["preview"]["files"]] == ["src/main.py"]
    assert await harness.version() == 1


async def test_an_edit_may_fill_or_create_an_empty_file_where_deletes_are_gated(harness: EditHarness) -> None:
    await harness.hold_session()
    harness.grants = replace(harness.grants, approval=("deletes",))
    harness.editor.work = write_texts({"src/__init__.py": ""})
    assert result_of(await harness.call("Make it.", ["src/__init__.py"]))["version"] == 2
    harness.editor.work = write_texts({"src/__init__.py": "x = 1\n"})
    assert result_of(await harness.call("Fill it.", ["src/__init__.py"]))["version"] == 3
