"""The gate ``deletes``: changes that take from people what they have, whichever tool makes them."""

from collections.abc import Sequence

from spass.tools.base import ToolContext
from spass.workspaces.change import Body, ChangedFile
from spass.workspaces.text import has_visible
from spass.workspaces.tree import TreeAt


async def deletes(context: ToolContext, at: TreeAt, files: Sequence[ChangedFile]) -> bool:
    """Return True if a change of the tree ``at`` removes a file, leaves one without a visible character, or brings back a content
    that the same path had in an earlier version.

    Raises:
        WorkspaceNotFound: the workspace was deleted in the meantime.
    """
    if any(map(_removes, files)):
        return True
    written = {file.path: file.after.sha256 for file in files if isinstance(file.after, Body)}
    return await context.workspaces().held_before(context.scope.store, context.require_workspace(), at, written)


def _removes(file: ChangedFile) -> bool:
    match file.after:
        case None:
            return True
        case Body(content=content):
            return file.before is not None and file.before.size > 0 and not has_visible(content)
        case _:
            return False
