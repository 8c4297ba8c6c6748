"""The versions of a workspace as the commands of ``aider_edit`` name, compare and describe them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spass.core.errors import VersionNotFound
from spass.tools.agent_workspace import AgentWorkspace
from spass.workspaces.change import ChangedFile
from spass.workspaces.paths import show
from spass.workspaces.tree import EMPTY_TREE, TreeAt, changed_paths
from spass.workspaces.versions import Version, list_versions, read_version

_VERSION: Final = re.compile(r"v?(?P<number>[1-9]\d{0,8})|(?:HEAD|@)(?P<back>~\d{0,4}|\^{0,9})")


@dataclass(frozen=True, slots=True)
class History:
    """The versions up to the newest one, whose tree is ``newest``. Methods raise VersionNotFound for any other."""

    workspace: AgentWorkspace
    newest: TreeAt

    def number(self, word: str) -> int:
        """Return the number of the version that ``word`` names: 7, v7, HEAD, HEAD~1 or HEAD^. Version 0 is the empty tree."""
        match = _VERSION.fullmatch(word)
        if match is None:
            raise VersionNotFound(
                f"{show(word)} is not a version. Use its number, or HEAD for the newest one and HEAD~1 for the one before."
            )
        if match["number"]:
            return int(match["number"])
        back = match["back"]
        number = self.newest.version - (int(back[1:] or "1") if back.startswith("~") else len(back))
        if number < 0:
            raise VersionNotFound(f"{show(word)} is not a version, because the newest one is version {self.newest.version}.")
        return number

    async def tree(self, number: int) -> TreeAt:
        """Return the tree of a version; version 0 is empty."""
        if number == self.newest.version:
            return self.newest
        if number == 0:
            return TreeAt(0, self.newest.generation, EMPTY_TREE)
        return await self.workspace.stored.tree(number)

    async def tree_before(self, number: int) -> TreeAt:
        """Return the tree of the version before ``number``. It is empty before the first version since the workspace was
        created."""
        try:
            return await self.tree(max(0, number - 1))
        except VersionNotFound:
            return TreeAt(number - 1, self.newest.generation, EMPTY_TREE)

    async def changes(self, number: int) -> Sequence[ChangedFile]:
        """Return what a version changed."""
        return changed_files(await self.tree_before(number), await self.tree(number))

    async def version(self, number: int) -> Version:
        """Return the record of a version. Raise VersionNotFound if there is none."""
        return await read_version(self.workspace.stored.store, self.workspace.stored.id, self.newest.generation, number)

    async def versions(self, limit: int) -> Sequence[Version]:
        """Return the newest versions, the newest first."""
        if not self.newest.generation:
            return []
        store, workspace = self.workspace.stored.store, self.workspace.stored.id
        return await list_versions(store, workspace, self.newest.generation, limit=limit, newest_first=True)


def is_version(word: str) -> bool:
    """Return True if ``word`` is the name of a version, which need not exist."""
    return _VERSION.fullmatch(word) is not None


def changed_files(old: TreeAt, new: TreeAt) -> Sequence[ChangedFile]:
    """Return the files that differ between two trees, by path."""
    paths = changed_paths(old.tree, new.tree)
    return [ChangedFile(path, old.tree.files.get(path), new.tree.files.get(path)) for path in paths]


def describe_version(version: Version) -> str:
    """Return one line about a version."""
    who = " ".join(filter(None, (version.user, version.agent and f"({version.agent})")))
    counts = f"+{version.added} ~{version.changed} -{version.deleted}"
    return "  ".join(filter(None, (f"version {version.version}", version.created_at, who, counts, version.message)))


def describe_tree(at: TreeAt) -> str:
    """Return one line about the newest tree."""
    if not at.version:
        return "The workspace is empty: it has no version yet."
    size = f"{count_files(len(at.tree.files))}, {at.tree.total_bytes} bytes"
    return f"Version {at.version}: {size}. Each edit is a version at once, so nothing waits to be committed."


def count_files(files: int) -> str:
    """Return a number of files in words."""
    return "1 file" if files == 1 else f"{files} files"
