"""Read a workspace for a tool, within the globs of its agent's file. What is outside them cannot be told from what is absent."""

from typing import Final

from spass.core.errors import WorkspaceFileNotFound
from spass.tools.base import ToolContext, ToolError
from spass.tools.workspace_change import path_not_allowed
from spass.workspaces.paths import WorkspacePath, parse_path, show
from spass.workspaces.text import decode_text
from spass.workspaces.tree import Tree, TreeAt

NOT_TEXT: Final = "not_text"
_MAX_SUGGESTIONS: Final = 3


async def read_newest(context: ToolContext) -> TreeAt:
    """Return the newest tree of the call's workspace, which is empty before the first write.

    Raises:
        ToolError: the agent has no workspace.
    """
    return await context.workspaces().newest(context.scope.store, context.require_workspace())


def parse_readable(context: ToolContext, text: str) -> WorkspacePath:
    """Return ``text`` as a path that the agent may read.

    Raises:
        InvalidPath: it is not a path.
        ToolError: the agent has no workspace, or may not read the path.
    """
    context.require_workspace()
    path = parse_path(text)
    if not context.grants.read.matches(path):
        raise path_not_allowed(path, context.grants.paths.read, "read")
    return path


async def read_text(context: ToolContext, at: TreeAt, path: WorkspacePath) -> str:
    """Return the text of the file at ``path``, which the agent may read.

    Raises:
        WorkspaceFileNotFound: there is no such file.
        ToolError: it is not text.
        WorkspaceNotFound: the workspace was deleted in the meantime.
    """
    if path not in at.tree.files:
        raise WorkspaceFileNotFound(_explain_absence(context, at.tree, path), param="path")
    text = decode_text(await context.workspaces().read(context.scope.store, context.require_workspace(), at, path))
    if text is None:
        raise ToolError(f"The file {show(path)} is not UTF-8 text, so it cannot be shown. Answer without it.", code=NOT_TEXT)
    return text


def _explain_absence(context: ToolContext, tree: Tree, path: str) -> str:
    visible = tree.matching(context.grants.read)
    if visible.is_folder(path):
        return f"{show(path)} is a folder. List it with list_directory, or read a file in it."
    name = path.rpartition("/")[2]
    similar = [other for other in visible.paths if other.rpartition("/")[2] == name]
    advice = (
        f"Did you mean {' or '.join(map(show, similar[:_MAX_SUGGESTIONS]))}?" if similar else "Find files with list_directory."
    )
    return f"There is no file {show(path)}. {advice}"
