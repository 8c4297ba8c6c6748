"""Compare two versions of a workspace, as clients see it."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import anyio.to_thread

from spass.core.errors import InvalidRequest, VersionNotFound
from spass.core.paging import PageSizeLimit
from spass.workspaces.diff import DiffLimit
from spass.workspaces.paths import WorkspacePath
from spass.workspaces.responses import ComparedFile, Comparison
from spass.workspaces.service import Workspace
from spass.workspaces.tree import EMPTY_TREE, Tree, TreeAt, changed_paths, check_folders_above

_BATCH_BYTES = 16 * 2**20  # of bodies in memory at the same time


async def compare_versions(workspace: Workspace, before: int | None, after: int | None, folder: str) -> Comparison:
    """Return what changed between the versions ``before`` and ``after`` in the file or folder ``folder``.

    ``after`` is None for the newest version, and ``before`` for the one before ``after``. Version 0 is the empty tree.

    Raises:
        WorkspaceNotFound, VersionNotFound: there is no such workspace or version.
        InvalidPath: the folder is below a file.
        InvalidRequest: the answer would be too large even without diffs.
    """
    new = await workspace.tree(after)
    old = await _tree_before(workspace, before, new)
    paths = changed_paths(old.tree, new.tree, folder)
    if not paths:
        check_folders_above(new, folder)
    page, limit = _ComparisonPage(), DiffLimit()
    for batch in _batches(paths, old.tree, new.tree):
        before_bodies, after_bodies = await asyncio.gather(
            *(workspace.read_many(at, [path for path in batch if path in at.tree.files]) for at in (old, new))
        )
        page.add(await anyio.to_thread.run_sync(_diff, limit, batch, before_bodies, after_bodies))
    return Comparison(from_version=old.version, to=new.version, files=tuple(page.files))


async def _tree_before(workspace: Workspace, number: int | None, new: TreeAt) -> TreeAt:
    """Return the tree of version ``number``, or of the one before ``new``, which may have been deleted with its workspace."""
    wanted = new.version - 1 if number is None else number
    empty = TreeAt(wanted, "", EMPTY_TREE)
    if wanted == 0:
        return empty
    try:
        return await workspace.tree(wanted)
    except VersionNotFound:
        if number is None:
            return empty
        raise


def _batches(paths: Sequence[WorkspacePath], old: Tree, new: Tree) -> Iterator[Sequence[WorkspacePath]]:
    """Yield the paths in groups whose bodies fit into memory."""
    batch: list[WorkspacePath] = []
    size = 0
    for path in paths:
        both = sum(tree.files[path].size for tree in (old, new) if path in tree.files)
        if batch and size + both > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += both
    if batch:
        yield batch


def _diff(
    limit: DiffLimit, paths: Sequence[WorkspacePath], old: Mapping[WorkspacePath, bytes], new: Mapping[WorkspacePath, bytes]
) -> Sequence[ComparedFile]:
    diffs = (limit.diff(path, old.get(path), new.get(path)) for path in paths)
    return [ComparedFile.model_validate(diff, from_attributes=True) for diff in diffs]


class _ComparisonPage:
    """The files of an answer, which may take 6 MiB in the form in which a short route returns it."""

    def __init__(self) -> None:
        self.files: list[ComparedFile] = []
        self._size = PageSizeLimit()

    def add(self, files: Sequence[ComparedFile]) -> None:
        """Add ``files``, without the diffs for which there is no room."""
        for file in files:
            kept = file
            if not self._size.add(file.to_json()):
                kept = file.model_copy(update={"unified": "", "truncated": True})
                if not self._size.add(kept.to_json()):
                    raise InvalidRequest("Too many files differ for one answer. Name a folder in path.", param="path")
            self.files.append(kept)
