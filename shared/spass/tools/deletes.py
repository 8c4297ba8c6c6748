"""The gate ``deletes``: changes that take from people what they have, whichever tool makes them."""

from collections.abc import Callable, Sequence

from spass.tools.agent_workspace import AgentWorkspace
from spass.workspaces.change import Body, ChangedFile
from spass.workspaces.paths import show
from spass.workspaces.text import has_visible
from spass.workspaces.tree import TreeAt


async def find_loss(workspace: AgentWorkspace, at: TreeAt, files: Sequence[ChangedFile]) -> str | None:
    """Return a sentence that names a file which a change of the tree ``at`` removes, leaves without a visible character, or gives
    a content that it had in an earlier version. None: there is no such file.

    Raises:
        WorkspaceNotFound: the workspace was deleted in the meantime.
    """
    if named := _name(files, _removes):
        return f"It removes {named}."
    if named := _name(files, _empties):
        return f"It leaves no visible character in {named}."
    written = {file.path: file.after for file in files if isinstance(file.after, Body)}
    older = await workspace.workspaces.find_older(workspace.scope.store, workspace.id, at, written)
    return f"It brings an older content of {show(older)} back." if older is not None else None


def _name(files: Sequence[ChangedFile], loses: Callable[[ChangedFile], bool]) -> str:
    """Return the first of ``files`` that ``loses`` and the number of others, or an empty text."""
    found = [file for file in files if loses(file)]
    others = {0: "", 1: " and another file"}.get(len(found) - 1, f" and {len(found) - 1} other files")
    return f"{show(found[0].path)}{others}" if found else ""


def _removes(file: ChangedFile) -> bool:
    return file.after is None


def _empties(file: ChangedFile) -> bool:
    had_content = file.before is not None and file.before.size > 0
    return had_content and isinstance(file.after, Body) and not has_visible(file.after.content)
