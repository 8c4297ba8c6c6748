"""Gated changes of a workspace, and what must still hold when a person approves."""

import asyncio
from dataclasses import replace

import pytest

from spass.agents.registry import AgentRegistry
from spass.approvals.record import DECIDE_SECONDS, ApprovalStatus
from spass.core import errors
from spass.core.errors import ApprovalDecided, ApprovalNotFound, SpassError
from spass.core.ids import WorkspaceId
from spass.core.time import Deadline
from spass.tools.grants import NO_GRANTS, PathPatterns
from spass.workspaces.head import read_live_head
from spass.workspaces.versions import read_version
from tests.unit.agents.approval_desk import DEFAULT, GRANTS, SPEC, Desk

pytestmark = pytest.mark.anyio

NAMED = replace(GRANTS, approval=("write_files",))
EDIT = ("write_files", {"files": {"src/a.py": "a\nb\n", "src/new/c.py": "c\n"}})
REMOVAL = ("write_files", {"files": {"src/a.py": None}})


@pytest.fixture
async def desk() -> Desk:
    return await Desk.open()


async def test_a_removed_file_waits_whichever_tool_removes_it(desk: Desk) -> None:
    approval = await desk.read(await desk.wait_for(*REMOVAL))
    assert await desk.files() == {"src/a.py": "a\n", "src/b.py": "b\n"}
    assert (approval.tool, approval.arguments, approval.message_id) == (*REMOVAL, "m1")
    (block,) = approval.rich
    assert isinstance(block, dict)
    assert (block["kind"], block["path"], block["status"], block["removed"]) == ("diff", "src/a.py", "deleted", 1)
    assert isinstance(approval.preview, dict)
    assert approval.preview["workspace"] == "default"
    view = await desk.decide(approval.id)
    assert (view.status, view.error) == (ApprovalStatus.EXECUTED, None)
    assert (view.result["version"], view.result["files"]) == (2, approval.preview["files"])
    assert await desk.files() == {"src/b.py": "b\n"}


async def test_bringing_an_older_version_back_waits(desk: Desk) -> None:
    await desk.write({"src/a.py": "changed\n"})
    approval = await desk.wait_for("write_files", {"version": 1})
    assert (await desk.files())["src/a.py"] == "changed\n"
    assert (await desk.decide(approval)).status is ApprovalStatus.EXECUTED
    assert (await desk.files())["src/a.py"] == "a\n"


async def test_other_changes_of_the_same_tool_are_made_at_once(desk: Desk) -> None:
    outcome = await desk.ask(*EDIT)
    assert (outcome.ok, outcome.approval, outcome.waiting) == (True, None, ())
    assert (await desk.files())["src/new/c.py"] == "c\n"


async def test_a_gated_tool_waits_with_every_change_and_with_none_for_nothing(desk: Desk) -> None:
    approval = await desk.wait_for(*EDIT, NAMED)
    assert await desk.files() == {"src/a.py": "a\n", "src/b.py": "b\n"}
    nothing = await desk.ask("write_files", {"files": {"src/a.py": "a\n"}}, NAMED)
    assert (nothing.ok, nothing.approval) == (True, None)
    assert (await desk.decide(approval)).status is ApprovalStatus.EXECUTED
    assert await desk.files() == {"src/a.py": "a\nb\n", "src/b.py": "b\n", "src/new/c.py": "c\n"}


async def test_the_version_names_the_turn_that_asked_for_it(desk: Desk) -> None:
    await desk.decide(await desk.wait_for(*EDIT, NAMED))
    store = desk.scope().store
    head = await read_live_head(store, DEFAULT)
    author = await read_version(store, DEFAULT, head.generation, head.version)
    assert (author.user, author.agent, author.message_id, author.run_id) == ("ana", "clerk", "m1", "turn_1")
    assert author.parent_log_id is not None


@pytest.mark.parametrize(
    ("between", "paths"),
    [
        ({"src/a.py": "mine\n"}, ["src/a.py"]),
        ({"src/a.py": None}, ["src/a.py"]),
        ({"src/new/c.py": "mine\n"}, ["src/new/c.py"]),
        ({"src/a.py": "a\nb\n", "src/new/c.py": "c\n"}, ["src/a.py", "src/new/c.py"]),
    ],
    ids=["changed", "deleted", "added", "the same change"],
)
async def test_a_touched_path_that_changed_is_a_conflict(desk: Desk, between: dict[str, str | None], paths: list[str]) -> None:
    approval = await desk.wait_for(*EDIT, NAMED)
    await desk.write(between)
    before = await desk.state()
    view = await desk.decide(approval)
    assert view.status is ApprovalStatus.FAILED
    assert view.error is not None
    assert view.error["code"] == "workspace_conflict"
    assert all(path in view.error["message"] for path in paths)
    assert await desk.state() == before


async def test_other_paths_may_change_before_the_decision(desk: Desk) -> None:
    approval = await desk.wait_for(*EDIT, NAMED)
    await desk.write({"src/b.py": "mine\n", "docs/x.md": "x\n"})
    assert (await desk.decide(approval)).status is ApprovalStatus.EXECUTED
    assert (await desk.files()).keys() == {"docs/x.md", "src/a.py", "src/b.py", "src/new/c.py"}
    assert (await desk.files())["src/b.py"] == "mine\n"


@pytest.mark.parametrize("created_again", [True, False])
@pytest.mark.parametrize("files", [{"src/new.py": "new\n"}, {"src/a.py": "changed\n"}, {"src/a.py": None}])
async def test_after_the_workspace_was_deleted_the_call_fails(
    desk: Desk, files: dict[str, str | None], created_again: bool
) -> None:
    approval = await desk.wait_for("write_files", {"files": files}, replace(GRANTS, approval=("write_files", "deletes")))
    await desk.workspaces.open(desk.scope().store, DEFAULT).delete(Deadline.after(30))
    if created_again:
        await desk.write({"src/a.py": "a\n", "src/b.py": "b\n"})
    before = await desk.files()
    view = await desk.decide(approval)
    assert view.status is ApprovalStatus.FAILED
    assert view.error is not None
    assert view.error["code"] == "workspace_conflict"
    assert await desk.files() == before


async def test_a_change_that_creates_the_workspace_can_wait(desk: Desk) -> None:
    await desk.workspaces.open(desk.scope().store, DEFAULT).delete(Deadline.after(30))
    approval = await desk.wait_for("write_files", {"files": {"src/new.py": "new\n"}}, NAMED)
    assert await desk.files() == {}
    assert (await desk.decide(approval)).status is ApprovalStatus.EXECUTED
    assert await desk.files() == {"src/new.py": "new\n"}


async def test_the_globs_of_now_bound_an_approved_change(desk: Desk) -> None:
    inside, outside, nowhere = [await desk.wait_for(*EDIT, NAMED) for _ in range(3)]
    for grants, code in (
        (replace(NAMED, paths=PathPatterns(write=("src/", "!src/new/"))), "path_not_allowed"),
        (NO_GRANTS, "tool_unavailable"),
    ):
        desk.agents = AgentRegistry([replace(SPEC, grants=grants)])
        view = await desk.decide(outside if code == "path_not_allowed" else nowhere)
        assert view.status is ApprovalStatus.FAILED
        assert view.error is not None
        assert view.error["code"] == code
    assert await desk.files() == {"src/a.py": "a\n", "src/b.py": "b\n"}
    desk.agents = AgentRegistry([replace(SPEC, grants=replace(NAMED, workspace=WorkspaceId("another")))])
    assert (await desk.decide(inside)).status is ApprovalStatus.EXECUTED  # a session keeps its workspace
    assert "src/new/c.py" in await desk.files()


async def test_a_path_outside_the_globs_is_refused_before_it_is_stored(desk: Desk) -> None:
    outcome = await desk.ask("write_files", {"files": {"docs/x.md": "x\n"}}, NAMED)
    assert isinstance(outcome.result, dict)
    assert outcome.result["error"]["code"] == "path_not_allowed"
    assert await desk.stored() == []


async def test_a_large_edit_is_stored_in_the_bucket_and_executed_as_it_was_stored(desk: Desk) -> None:
    arguments = {"files": {"src/a.py": "0123456789abcde\n", "src/b.py": None}, "times": 60_000}
    approval = await desk.wait_for("write_files", arguments)
    assert any(key.endswith(f"/apr/{approval}") for key in desk.aws.bucket.keys)
    assert (await desk.read(approval)).arguments == arguments
    assert (await desk.decide(approval)).status is ApprovalStatus.EXECUTED
    assert await desk.files() == {"src/a.py": 60_000 * "0123456789abcde\n"}


async def test_a_large_call_whose_object_is_gone_fails(desk: Desk) -> None:
    approval = await desk.wait_for("write_files", {"files": {"src/a.py": "0123456789abcde\n"}, "times": 60_000}, NAMED)
    await desk.scope().store.objects.delete([f"apr/{approval}"])
    view = await desk.decide(approval, seen="nothing")
    assert (view.status, view.error and view.error["code"]) == (ApprovalStatus.FAILED, "tool_failed")
    assert await desk.files() == {"src/a.py": "a\n", "src/b.py": "b\n"}


@pytest.mark.parametrize(
    "call", [EDIT, ("rag_doc_delete", {"index_id": "notes", "doc_id": "a"}), ("memory_write", {"note": "x"})]
)
async def test_of_eight_decisions_at_once_one_counts(desk: Desk, call: tuple[str, dict[str, object]]) -> None:
    approval = await desk.wait_for(*call, replace(GRANTS, approval=(*GRANTS.approval, "write_files")))
    before = await desk.state()
    decisions = ["approve", "deny", "approve", "approve", "deny", "approve", "approve", "approve"]
    answers = await asyncio.gather(*(desk.decide(approval, decision) for decision in decisions), return_exceptions=True)
    views = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert [type(answer) for answer in answers if isinstance(answer, BaseException)] == [ApprovalDecided] * 7
    (counted,) = views
    assert await desk.status(approval) is counted.status
    assert counted.status in (ApprovalStatus.EXECUTED, ApprovalStatus.DENIED)
    assert (await desk.state() != before) == (counted.status is ApprovalStatus.EXECUTED)


async def test_another_user_and_a_late_one_change_nothing(desk: Desk) -> None:
    approval, before = await desk.wait_for(*REMOVAL), await desk.state()
    with pytest.raises(ApprovalNotFound):
        await desk.decide(approval, user="bob")
    desk.ahead = DECIDE_SECONDS + 1
    with pytest.raises(ApprovalDecided):
        await desk.decide(approval)
    assert await desk.state() == before
    assert await desk.status(approval) is ApprovalStatus.PENDING


async def test_an_error_that_a_repetition_may_avoid_leaves_the_approval_waiting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    approval = await desk.wait_for(*REMOVAL)
    for error in (
        errors.StorageUnavailable("x"),
        errors.NoBackendAvailable("x"),
        errors.UpstreamError("x"),
        errors.RateLimited("x"),
        errors.UpstreamTimeout("x"),
        errors.InternalError("x"),
    ):

        async def fail(*_: object, error: SpassError = error) -> None:
            raise error

        with monkeypatch.context() as patch, pytest.raises(type(error)):
            patch.setattr("spass.tools.workspace_change.commit_planned", fail)
            await desk.decide(approval)
    assert await desk.status(approval) is ApprovalStatus.PENDING
    assert (await desk.decide(approval)).status is ApprovalStatus.EXECUTED
