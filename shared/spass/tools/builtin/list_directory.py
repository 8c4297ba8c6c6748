"""The tool ``list_directory``."""

from itertools import islice
from typing import Annotated, Final

from pydantic import Field

from spass.calls.scope import Scope
from spass.core.errors import WorkspaceFileNotFound
from spass.core.messages import Json
from spass.tools.agent_workspace import AgentWorkspace, WorkspaceTool, path_not_allowed
from spass.tools.base import CallResult
from spass.tools.grants import Grants
from spass.tools.results import fit_items
from spass.workspaces.paths import MAX_SEGMENTS, parse_folder, show
from spass.workspaces.tree import Tree

MAX_ENTRIES: Final = 500


class ListDirectory(WorkspaceTool):
    """Lists the files and folders of the workspace, by path and with the sizes of files in bytes.

    Use it to find out what there is before you read or change anything. Without a path it lists the root. With depth 1 it lists
    what is directly in the folder; a larger depth also lists what is in its subfolders. It returns at most 500 entries: if
    "truncated" is true, list a subfolder, or use a smaller depth.
    Example: {"path": "src", "depth": 2} returns {"path": "src", "entries": [{"path": "src/app", "type": "directory",
    "size": null}, {"path": "src/app/main.py", "type": "file", "size": 812}], "truncated": false}.
    """

    path: Annotated[str, Field(description="The folder, e.g. src; left out for the root of the workspace.")] = ""
    depth: Annotated[int, Field(ge=1, le=MAX_SEGMENTS, description="How many levels of folders to list.")] = 1

    async def run(self, _scope: Scope, workspace: AgentWorkspace, /) -> CallResult:
        folder = parse_folder(self.path)
        visible = (await workspace.newest()).tree.matching(workspace.grants.read)
        _check_folder(workspace.grants, visible, folder)
        found = [*islice(visible.list(folder, self.depth), MAX_ENTRIES + 1)]
        entries: list[Json] = [{"path": entry.path, "type": entry.type, "size": entry.size} for entry in found[:MAX_ENTRIES]]
        fitting = fit_items(entries)
        is_cut = len(found) > MAX_ENTRIES
        return CallResult(
            {"path": folder, "entries": fitting, "truncated": is_cut or len(fitting) < len(entries)},
            ({"kind": "file_tree", "root": folder, "entries": entries, "truncated": is_cut},),
        )


def _check_folder(grants: Grants, visible: Tree, folder: str) -> None:
    """Check that ``folder`` is one that the agent may see, with the tree of the files that it may read.

    Raises:
        ToolError: the agent may read nothing in it.
        WorkspaceFileNotFound: the agent sees no file in it. The root is a folder even if it is empty.
    """
    if folder in visible.files:
        raise WorkspaceFileNotFound(f"{show(folder)} is a file. Read it with read_file, or list its folder.", param="path")
    if not grants.read.may_contain(folder):
        raise path_not_allowed(f"{folder}/" if folder else "**", grants.paths.read, "read")
    if not visible.is_folder(folder):
        raise WorkspaceFileNotFound(f"There is no folder {show(folder)}. List the folder above it.", param="path")
