"""Change a workspace for a tool: plan the change, check it against the agent's file, show it, and commit it.

This is the only way in which tools change a workspace. So a change that needs a person's approval is stored here instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from spass.calls.scope import Scope
from spass.core.errors import SpassError, WorkspaceConflict
from spass.core.ids import MessageId, WorkspaceId
from spass.core.messages import Json
from spass.store.swap import Participant
from spass.store.writes import Write
from spass.tools.agent_workspace import AgentWorkspace, path_not_allowed
from spass.tools.base import CallResult, Tool
from spass.tools.grants import DELETES, Grants
from spass.tools.workspace_diffs import compare_files, compare_whole, edit_result, rich_diffs
from spass.workspaces.change import MAX_MESSAGE_CHARACTERS, Author, Body, Change, ChangedFile, Committed
from spass.workspaces.diff import FileDiff
from spass.workspaces.paths import WorkspacePath, show
from spass.workspaces.service import check_result
from spass.workspaces.text import has_visible
from spass.workspaces.tree import TreeAt

if TYPE_CHECKING:  # only a gated call needs it
    from spass.approvals.ending import Ending


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change as it was previewed. ``change`` is pinned: it does exactly what ``diffs`` show, or nothing.

    ``answer`` is what the tool says about it.
    """

    change: Change
    author: Author
    diffs: tuple[FileDiff, ...]
    answer: str

    def reply(self, version: int | None) -> CallResult:
        """Return the reply of the tool, after the change has made ``version``."""
        versions = (version,) if version is not None else ()
        return CallResult(edit_result(version, self.diffs, self.answer), rich_diffs(self.diffs), versions=versions)

    @property
    def paths(self) -> Sequence[WorkspacePath]:
        return [*self.change.files]

    def to_json(self) -> dict[str, Json]:
        """Return the planned change as JSON, bodies in base64."""
        return {
            "change": self.change.to_json(),
            "author": asdict(self.author),
            "diffs": [diff.to_json() for diff in self.diffs],
            "answer": self.answer,
            "removes": False,  # the release before reads it: its gateways may decide what these have stored
        }

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Self:
        """Return the planned change that ``to_json`` encoded."""
        return cls(
            Change.from_json(encoded["change"]),
            Author(**encoded["author"]),
            tuple(FileDiff(**diff) for diff in encoded["diffs"]),
            encoded["answer"],
        )


async def apply_change(
    workspace: AgentWorkspace, call: Tool, change: Change, *, message: str, answer: str, brings_back: bool = False
) -> CallResult:
    """Make the ``change`` of ``call`` in ``workspace``. Return the reply of the tool, with the diffs and ``answer``. A change
    that needs a person's approval is stored instead.

    ``message`` is the text that asked for the change. ``brings_back`` says that the change restores an older version.

    Raises:
        ToolError: a path is outside the agent's globs, or an approval is needed without a session.
        WorkspaceConflict: a path is not as the change expects.
        InvalidPath, WorkspaceLimit: the resulting tree would be invalid, or the change is too large to be approved.
        WorkspaceFileNotFound, VersionNotFound: a file or version to restore does not exist.
    """
    at = await workspace.stored.newest()
    plan = change.plan(at)
    _check_paths(workspace.grants, [file.path for file in plan.files])
    check_result(at.tree, plan)
    pinned, author = plan.pin(), _author(workspace.scope, message)
    if not plan.files:
        return PlannedChange(pinned, author, (), answer).reply(None)
    why = await _why_it_waits(workspace, call.tool_name, at, plan.files, brings_back=brings_back)
    if why is None:
        diffs = await compare_files(workspace, at.generation, plan.files)
        return await commit_planned(workspace, PlannedChange(pinned, author, diffs, answer))
    from spass.tools.gate import check_can_wait

    check_can_wait(workspace.scope)
    diffs = await compare_whole(workspace, at.generation, plan.files)
    return await _request_approval(workspace, call, PlannedChange(pinned, author, diffs, answer), why)


async def commit_planned(
    workspace: AgentWorkspace, planned: PlannedChange, participant: Participant[Committed] | None = None
) -> CallResult:
    """Make a planned change, if no path that it touches has changed since, together with the participant's writes. Raises the
    same errors as ``apply_change``, and the participant's refusal."""
    _check_paths(workspace.grants, planned.paths)
    committed = await workspace.stored.commit(planned.change, planned.author, workspace.scope.deadline, participant)
    return planned.reply(committed.version)


async def run_approved_change(workspace: AgentWorkspace, effect: Mapping[str, Json], ending: "Ending") -> CallResult:
    """Make the change that was stored as ``effect``, within the agent's globs of now, and end its approval with it.

    Raises:
        ToolError: a path is outside the agent's globs.
        WorkspaceConflict: a path has changed since the preview.
        ApprovalDecided: another decision ended the approval.
    """
    # A session may have another workspace than its agent.
    workspace = replace(workspace, stored=replace(workspace.stored, id=WorkspaceId(str(effect["workspace"]))))
    planned = PlannedChange.from_json(effect)
    try:
        return await commit_planned(workspace, planned, _ApprovedChange(ending, planned))
    except WorkspaceConflict as conflict:
        raise _changed_since_preview(conflict) from None


def _changed_since_preview(conflict: WorkspaceConflict) -> WorkspaceConflict:
    paths = conflict.details.get("paths")
    names = ", ".join(show(str(path)) for path in paths[:5]) if isinstance(paths, list) else ""
    message = f"{names or 'The workspace'} has changed since the preview, so nothing was done. Ask the agent to do it again."
    return WorkspaceConflict(message, details=conflict.details)


@dataclass(frozen=True, slots=True)
class _ApprovedChange:
    """The end of an approval as the participant of its change."""

    ending: "Ending"
    planned: PlannedChange

    async def writes(self, committed: Committed, /) -> Sequence[Write]:
        return await self.ending.execute(self.planned.reply(committed.version).result)

    def refusal(self) -> SpassError:
        from spass.tools.gate import decided_meanwhile

        return decided_meanwhile()


async def _why_it_waits(
    workspace: AgentWorkspace, tool: str, at: TreeAt, files: Sequence[ChangedFile], *, brings_back: bool
) -> str | None:
    """Return a sentence for people that says why the change needs an approval, or None if it needs none."""
    gates = workspace.grants.approval
    if tool in gates:
        return f"Every call of {tool} by this agent waits."
    if DELETES not in gates:
        return None
    return "It brings back an older version." if brings_back else await _find_loss(workspace, at, files)


async def _find_loss(workspace: AgentWorkspace, at: TreeAt, files: Sequence[ChangedFile]) -> str | None:
    """Return a sentence that names a file which a change of the tree ``at`` removes, leaves without a visible character, or gives
    a content that it had in an earlier version. None: there is no such file."""
    if named := _first_and_others(files, _removes):
        return f"It removes {named}."
    if named := _first_and_others(files, _empties):
        return f"It leaves no visible character in {named}."
    written = {file.path: file.after for file in files if isinstance(file.after, Body)}
    older = await workspace.stored.find_older(at, written)
    return f"It brings an older content of {show(older)} back." if older is not None else None


def _first_and_others(files: Sequence[ChangedFile], loses: Callable[[ChangedFile], bool]) -> str:
    """Return the first of ``files`` that ``loses`` and the number of others, or an empty text."""
    found = [file for file in files if loses(file)]
    others = {0: "", 1: " and another file"}.get(len(found) - 1, f" and {len(found) - 1} other files")
    return f"{show(found[0].path)}{others}" if found else ""


def _removes(file: ChangedFile) -> bool:
    return file.after is None


def _empties(file: ChangedFile) -> bool:
    had_content = file.before is not None and file.before.size > 0
    return had_content and isinstance(file.after, Body) and not has_visible(file.after.content)


async def _request_approval(workspace: AgentWorkspace, call: Tool, planned: PlannedChange, why: str) -> CallResult:
    """Store the planned change until a person decides."""
    from spass.approvals.record import StoredCall
    from spass.tools.gate import preview_change, request_approval

    arguments = call.model_dump(mode="json", exclude_unset=True)
    stored = StoredCall(arguments, {"workspace": workspace.stored.id, **planned.to_json()})
    preview = preview_change(workspace.stored.id, planned.diffs, planned.answer, arguments, why)
    return await request_approval(workspace.scope, call.tool_name, stored, preview)


def _check_paths(grants: Grants, paths: Sequence[WorkspacePath]) -> None:
    refused = [path for path in paths if not grants.write.matches(path)]
    if refused:  # a command about a whole version may touch paths that the agent may not even know
        raise path_not_allowed(next(filter(grants.read.matches, refused), None), grants.paths.write, "change")


def _author(scope: Scope, message: str) -> Author:
    session = scope.current_session
    return Author(
        user=scope.caller.user,
        agent=scope.agent,
        session_id=scope.session,
        message_id=MessageId(session.message_id) if session and session.message_id else None,
        run_id=scope.run_id,
        parent_log_id=scope.parent,
        message=message[:MAX_MESSAGE_CHARACTERS],
    )
