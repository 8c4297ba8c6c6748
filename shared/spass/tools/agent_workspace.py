"""The workspace of a call, within the grants of its agent. What is outside its globs cannot be told from what is absent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self

from spass.calls.scope import Scope
from spass.core.errors import WorkspaceFileNotFound
from spass.tools.base import TOOL_UNAVAILABLE, Tool, ToolError
from spass.tools.grants import Grants
from spass.workspaces.paths import WorkspacePath, parse_path, show
from spass.workspaces.text import decode_text
from spass.workspaces.tree import Tree, TreeAt

if TYPE_CHECKING:
    from spass.workspaces.service import Workspace, Workspaces

NOT_TEXT: Final = "not_text"
PATH_NOT_ALLOWED: Final = "path_not_allowed"
_MAX_SUGGESTIONS: Final = 3


@dataclass(frozen=True, slots=True)
class AgentWorkspace:
    """The workspace ``stored``, in which a call of ``scope`` works with ``grants``."""

    scope: Scope
    grants: Grants
    stored: "Workspace"

    @classmethod
    def open(cls, scope: Scope, grants: Grants, workspaces: "Workspaces") -> Self:
        """Return the workspace of the turn. Raise ToolError if the agent has none."""
        if grants.workspace is None:
            raise ToolError("This tool needs an agent with a workspace. Answer without it.", code=TOOL_UNAVAILABLE)
        return cls(scope, grants, workspaces.open(scope.store, grants.workspace))

    def parse_readable(self, text: str) -> WorkspacePath:
        """Return ``text`` as a path that the agent may read.

        Raises:
            InvalidPath: it is not a path.
            ToolError: the agent may not read the path.
        """
        path = parse_path(text)
        if not self.grants.read.matches(path):
            raise path_not_allowed(path, self.grants.paths.read, "read")
        return path

    async def read_text(self, at: TreeAt, path: WorkspacePath) -> str:
        """Return the text of the file at ``path``, which the agent may read.

        Raises:
            WorkspaceFileNotFound: there is no such file.
            ToolError: it is not text.
        """
        if path not in at.tree.files:
            raise WorkspaceFileNotFound(self._explain_absence(at.tree, path), param="path")
        text = decode_text(await self.stored.read(at, path))
        if text is None:
            raise ToolError(f"The file {show(path)} is not UTF-8 text, so it cannot be shown. Answer without it.", code=NOT_TEXT)
        return text

    def _explain_absence(self, tree: Tree, path: str) -> str:
        visible = tree.matching(self.grants.read)
        if visible.is_folder(path):
            return f"{show(path)} is a folder. List it with list_directory, or read a file in it."
        name = path.rpartition("/")[2]
        similar = [other for other in visible.paths if other.rpartition("/")[2] == name]
        advice = (
            f"Did you mean {' or '.join(map(show, similar[:_MAX_SUGGESTIONS]))}?"
            if similar
            else "Find files with list_directory."
        )
        return f"There is no file {show(path)}. {advice}"


class WorkspaceTool(Tool):
    """A tool that reads the workspace."""

    category: ClassVar[str] = "workspace"
    timeout: ClassVar[float] = 30.0


def path_not_allowed(path: str | None, patterns: Sequence[str], verb: str) -> ToolError:
    """Return the error for a path outside ``patterns``. None is a path that the agent may not read."""
    allowed = f"the paths {', '.join(patterns[:20])}" if patterns else "no path"
    named = show(path) if path is not None else "one of the paths of this change"
    return ToolError(f"This agent may not {verb} {named}. It may {verb} {allowed}.", code=PATH_NOT_ALLOWED)
