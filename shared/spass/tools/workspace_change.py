"""Change a workspace for a tool: plan the change, check it against the agent's file, show it, and commit it.

This is the only way in which tools change a workspace. So a change that needs a person's approval is stored here instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from spass.core.errors import SpassError, WorkspaceConflict
from spass.core.ids import MessageId, WorkspaceId
from spass.core.messages import Json
from spass.store.swap import Participant
from spass.store.writes import Write
from spass.tools.base import ToolContext, ToolError, ToolReply
from spass.tools.deletes import find_loss
from spass.tools.grants import DELETES
from spass.tools.workspace_diffs import compare_files, compare_whole, edit_result, rich_diffs
from spass.workspaces.change import MAX_MESSAGE_CHARACTERS, Author, Change, ChangedFile, Committed
from spass.workspaces.commit import check_result
from spass.workspaces.diff import FileDiff
from spass.workspaces.paths import WorkspacePath, show
from spass.workspaces.tree import TreeAt

if TYPE_CHECKING:  # only a gated call needs it
    from spass.approvals.ending import Ending

PATH_NOT_ALLOWED: Final = "path_not_allowed"


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change as it was previewed. ``change`` is pinned: it does exactly what ``diffs`` show, or nothing.

    ``answer`` is what the tool says about it.
    """

    change: Change
    author: Author
    diffs: tuple[FileDiff, ...]
    answer: str

    def reply(self, version: int | None) -> ToolReply:
        """Return the reply of the tool, after the change has made ``version``."""
        versions = (version,) if version is not None else ()
        return ToolReply(edit_result(version, self.diffs, self.answer), rich_diffs(self.diffs), versions=versions)

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
    context: ToolContext, change: Change, *, message: str, answer: str, brings_back: bool = False
) -> ToolReply:
    """Make ``change`` in the workspace of the call. Return the reply of the tool, with the diffs and ``answer``. A change that
    needs a person's approval is stored instead.

    ``message`` is the text that asked for the change. ``brings_back`` says that the change restores an older version.

    Raises:
        ToolError: a path is outside the agent's globs, the agent has no workspace, or an approval is needed without a session.
        WorkspaceConflict: a path is not as the change expects.
        InvalidPath, WorkspaceLimit: the resulting tree would be invalid, or the change is too large to be approved.
        WorkspaceFileNotFound, VersionNotFound: a file or version to restore does not exist.
    """
    at = await context.workspaces().newest(context.scope.store, context.require_workspace())
    plan = change.plan(at)
    _check_paths(context, [file.path for file in plan.files])
    check_result(at.tree, plan)
    pinned, author = plan.pin(), _author(context, message)
    if not plan.files:
        return PlannedChange(pinned, author, (), answer).reply(None)
    why = await _why_it_waits(context, at, plan.files, brings_back=brings_back)
    if why is None:
        diffs = await compare_files(context, at.generation, plan.files)
        return await commit_planned(context, PlannedChange(pinned, author, diffs, answer))
    from spass.tools.gate import check_can_wait

    check_can_wait(context.scope)
    diffs = await compare_whole(context, at.generation, plan.files)
    return await _request_approval(context, PlannedChange(pinned, author, diffs, answer), why)


async def commit_planned(
    context: ToolContext, planned: PlannedChange, participant: Participant[Committed] | None = None
) -> ToolReply:
    """Make a planned change, if no path that it touches has changed since, together with the participant's writes. Raises the
    same errors as ``apply_change``, and the participant's refusal."""
    _check_paths(context, planned.paths)
    scope = context.scope
    committed = await context.workspaces().commit(
        scope.store, context.require_workspace(), planned.change, planned.author, scope.deadline, participant
    )
    return planned.reply(committed.version)


async def run_approved_change(context: ToolContext, effect: Mapping[str, Json], ending: "Ending") -> ToolReply:
    """Make the change that was stored as ``effect``, within the agent's globs of now, and end its approval with it.

    Raises:
        ToolError: a path is outside the agent's globs, or the agent has no workspace any more.
        WorkspaceConflict: a path has changed since the preview.
        ApprovalDecided: another decision ended the approval.
    """
    context.require_workspace()
    workspace = WorkspaceId(str(effect["workspace"]))  # a session may have another one than its agent's file
    context = replace(context, grants=replace(context.grants, workspace=workspace))
    planned = PlannedChange.from_json(effect)
    try:
        return await commit_planned(context, planned, _ApprovedChange(ending, planned))
    except WorkspaceConflict as conflict:
        raise _changed_since_preview(conflict) from None


def _changed_since_preview(conflict: WorkspaceConflict) -> WorkspaceConflict:
    """Return the conflict in words for the person who approves."""
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


async def _why_it_waits(context: ToolContext, at: TreeAt, files: Sequence[ChangedFile], *, brings_back: bool) -> str | None:
    """Return a sentence for people that says why the change needs an approval, or None if it needs none."""
    gates, call = context.grants.approval, context.call
    if call is not None and call.tool_name in gates:
        return f"Every call of {call.tool_name} by this agent waits."
    if DELETES not in gates:
        return None
    return "It brings back an older version." if brings_back else await find_loss(context, at, files)


async def _request_approval(context: ToolContext, planned: PlannedChange, why: str) -> ToolReply:
    """Store the planned change until a person decides."""
    from spass.approvals.record import StoredCall
    from spass.tools.gate import request_approval
    from spass.tools.previews import preview_change

    call, workspace = context.call, context.require_workspace()
    if call is None:
        raise RuntimeError("only a call that a model made can be gated")
    arguments = call.model_dump(mode="json", exclude_unset=True)
    stored = StoredCall(arguments, {"workspace": workspace, **planned.to_json()})
    preview = preview_change(workspace, planned.diffs, planned.answer, arguments, why)
    return await request_approval(context, call.tool_name, stored, preview)


def _check_paths(context: ToolContext, paths: Sequence[WorkspacePath]) -> None:
    grants = context.grants
    refused = [path for path in paths if not grants.write.matches(path)]
    if refused:  # a command about a whole version may touch paths that the agent may not even know
        raise path_not_allowed(next(filter(grants.read.matches, refused), None), grants.paths.write, "change")


def path_not_allowed(path: str | None, patterns: Sequence[str], verb: str) -> ToolError:
    """Return the error for a path outside ``patterns``. None is a path that the agent may not read."""
    allowed = f"the paths {', '.join(patterns[:20])}" if patterns else "no path"
    named = show(path) if path is not None else "one of the paths of this change"
    return ToolError(f"This agent may not {verb} {named}. It may {verb} {allowed}.", code=PATH_NOT_ALLOWED)


def _author(context: ToolContext, message: str) -> Author:
    scope = context.scope
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
