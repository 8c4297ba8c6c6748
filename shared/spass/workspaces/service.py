"""Workspaces: versioned trees of files. This file has what routes and tools call."""

import time
from collections.abc import AsyncGenerator, Iterable, Mapping

from spass.core.ids import WorkspaceId
from spass.core.time import Clock, Deadline, timestamp
from spass.store.keys import deleted_generation
from spass.store.swap import Participant, Swap, swap
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put
from spass.workspaces.archive_out import stream_archive
from spass.workspaces.change import Author, Body, Change, Committed
from spass.workspaces.commit import Commit, read_newest
from spass.workspaces.head import (
    WorkspaceHead,
    read_head,
    read_live_head,
    swap_write,
    unchanged_check,
    version_not_found,
    workspace_not_found,
)
from spass.workspaces.lookup import find_file
from spass.workspaces.objects import TreeCache, WorkspaceObjects
from spass.workspaces.older_contents import find_older
from spass.workspaces.paths import WorkspacePath
from spass.workspaces.tree import TreeAt
from spass.workspaces.versions import read_version


class Workspaces:
    """The workspaces of all tenants. A process has one and keeps decoded trees in memory. ``clock`` gives the times of
    versions."""

    def __init__(self, clock: Clock = time.time, cache: TreeCache | None = None) -> None:
        self._clock = clock
        self._cache = cache or TreeCache()

    async def head(self, store: TenantStore, workspace_id: WorkspaceId) -> WorkspaceHead:
        """Return the head of a workspace.

        Raises:
            WorkspaceNotFound: it does not exist.
        """
        return await read_live_head(store, workspace_id)

    async def newest(self, store: TenantStore, workspace_id: WorkspaceId) -> TreeAt:
        """Return the newest tree. It is empty, with an empty generation, if the workspace does not exist yet."""
        return (await read_newest(store, workspace_id, self._cache)).at

    async def tree(self, store: TenantStore, workspace_id: WorkspaceId, version: int | None = None) -> TreeAt:
        """Return the tree of ``version``, or the newest one.

        Raises:
            WorkspaceNotFound, VersionNotFound: there is none.
        """
        newest = await read_newest(store, workspace_id, self._cache) if version is None else None
        if newest is not None:
            if not newest.head.exists:
                raise workspace_not_found(workspace_id)
            return newest.at
        head = await read_live_head(store, workspace_id)
        return await self._tree_of(store, workspace_id, head, version or 0)

    async def _tree_of(self, store: TenantStore, workspace_id: WorkspaceId, head: WorkspaceHead, version: int) -> TreeAt:
        if not 0 < version <= head.version:
            raise version_not_found(workspace_id, version)
        name = head.tree
        if version != head.version:
            name = (await read_version(store, workspace_id, head.generation, version)).tree
        objects = self._objects(store, workspace_id, head.generation)
        return TreeAt(version, head.generation, await objects.tree(name))

    async def read(self, store: TenantStore, workspace_id: WorkspaceId, at: TreeAt, path: WorkspacePath) -> bytes:
        """Return the body of the file at ``path``.

        Raises:
            InvalidPath, WorkspaceFileNotFound: there is no such file.
            WorkspaceNotFound: the workspace was deleted in the meantime.
        """
        return await self._objects(store, workspace_id, at.generation).body(find_file(at, path))

    async def read_many(
        self, store: TenantStore, workspace_id: WorkspaceId, at: TreeAt, paths: Iterable[WorkspacePath]
    ) -> Mapping[WorkspacePath, bytes]:
        """Return the bodies of the files at ``paths``. The caller bounds their sizes. Raises the same errors as ``read``."""
        files = {path: find_file(at, path) for path in paths}
        bodies = await self._objects(store, workspace_id, at.generation).bodies(files.values())
        return {path: bodies[file.sha256] for path, file in files.items()}

    async def find_older(
        self, store: TenantStore, workspace_id: WorkspaceId, at: TreeAt, bodies: Mapping[WorkspacePath, Body]
    ) -> WorkspacePath | None:
        """Return a path of ``bodies`` that had the same content in one of the 200 versions before ``at``, or None. Blanks and
        invisible characters do not count.

        Raises:
            WorkspaceNotFound: the workspace was deleted in the meantime.
        """
        return await find_older(self._objects(store, workspace_id, at.generation), at, bodies)

    def archive(self, store: TenantStore, workspace_id: WorkspaceId, at: TreeAt) -> AsyncGenerator[bytes, None]:
        """Return a generator of a zip of the tree, in chunks.

        Raises:
            WorkspaceNotFound: the workspace was deleted in the meantime.
        """
        return stream_archive(self._objects(store, workspace_id, at.generation), at.tree.files)

    async def commit(
        self,
        store: TenantStore,
        workspace_id: WorkspaceId,
        change: Change,
        author: Author,
        deadline: Deadline,
        participant: Participant[Committed] | None = None,
    ) -> Committed:
        """Make ``change`` on the newest version, together with the participant's writes. If another writer is faster, apply it to
        the new version. A change that does nothing makes no version, but the participant's writes take effect.

        Raises:
            WorkspaceConflict: a path that the change expects is different; nothing was changed.
            InvalidPath, WorkspaceLimit: the resulting tree would be invalid.
            WorkspaceFileNotFound, VersionNotFound: a file or version to restore does not exist.
            StorageUnavailable: the table or bucket does not answer, or the deadline passed among too many other writers.
            SpassError: the participant's refusal.
        """
        commit = Commit(store, workspace_id, change, author, self._cache, self._clock)
        return await swap(store, commit.attempt, deadline, participant)

    async def delete(
        self, store: TenantStore, workspace_id: WorkspaceId, deadline: Deadline, participant: Participant[bool] | None = None
    ) -> bool:
        """Delete a workspace with all its versions. Return False if there was none.

        Raises:
            StorageUnavailable: the table does not answer, or the deadline passed among too many other writers.
        """

        async def attempt() -> Swap[bool]:
            head = await read_head(store, workspace_id)
            if not head.exists:
                return Swap(False, unchanged_check(store.tenant, workspace_id, head))
            seconds = self._clock()
            tombstone = swap_write(store.tenant, workspace_id, head, head.tombstone(timestamp(seconds)))
            key = deleted_generation(store.tenant, workspace_id, head.generation)
            return Swap(True, tombstone, (Put(key, {"deleted_at": int(seconds)}),))

        return await swap(store, attempt, deadline, participant)

    def _objects(self, store: TenantStore, workspace_id: WorkspaceId, generation: str) -> WorkspaceObjects:
        return WorkspaceObjects(store, workspace_id, generation, self._cache)
