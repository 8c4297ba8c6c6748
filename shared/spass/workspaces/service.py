"""Workspaces: versioned trees of files, as routes and tools read and change them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio.to_thread

from spass.core.errors import WorkspaceLimit, WorkspaceNotFound
from spass.core.ids import WorkspaceId, new_id
from spass.core.time import Clock, Deadline, timestamp
from spass.store.keys import deleted_generation
from spass.store.swap import Participant, Swap, swap
from spass.store.tenant_store import TenantStore
from spass.store.writes import Put
from spass.workspaces.archive_out import stream_archive
from spass.workspaces.change import Author, Body, Change, Committed, Plan, bodies_to_store
from spass.workspaces.head import (
    WorkspaceHead,
    read_head,
    read_live_head,
    swap_write,
    unchanged_check,
    version_not_found,
    workspace_not_found,
)
from spass.workspaces.objects import Pack, TreeCache, WorkspaceObjects, encode_pack, object_name
from spass.workspaces.older_contents import find_older
from spass.workspaces.paths import MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES, WorkspacePath, check_together
from spass.workspaces.tree import EMPTY_TREE, Tree, TreeAt, TreeFile, encode_tree, find_file
from spass.workspaces.versions import Version, encode_contents, read_version, version_put


class _Newest(NamedTuple):
    """The head of a workspace and its tree. The tree of a workspace that does not exist is empty."""

    head: WorkspaceHead
    at: TreeAt


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace of a tenant. What reads a tree or a body raises ``WorkspaceNotFound`` if the workspace was deleted in the
    meantime. ``clock`` gives the times of versions."""

    store: TenantStore
    id: WorkspaceId
    cache: TreeCache
    clock: Clock

    def objects(self, generation: str) -> WorkspaceObjects:
        return WorkspaceObjects(self.store, self.id, generation, self.cache)

    async def read_newest(self) -> _Newest:
        """Return the newest version."""
        while True:
            head = await read_head(self.store, self.id)
            try:
                tree = await self.objects(head.generation).tree(head.tree) if head.exists else EMPTY_TREE
                return _Newest(head, TreeAt(head.version, head.generation, tree))
            except WorkspaceNotFound:  # deleted and swept since the head was read
                continue

    async def newest(self) -> TreeAt:
        """Return the newest tree. It is empty, with an empty generation, if the workspace does not exist yet."""
        return (await self.read_newest()).at

    async def tree(self, version: int | None = None) -> TreeAt:
        """Return the tree of ``version``, or the newest one. Raise WorkspaceNotFound or VersionNotFound if there is none."""
        if version is None:
            newest = await self.read_newest()
            if not newest.head.exists:
                raise workspace_not_found(self.id)
            return newest.at
        head = await read_live_head(self.store, self.id)
        if not 0 < version <= head.version:
            raise version_not_found(self.id, version)
        name = head.tree
        if version != head.version:
            name = (await read_version(self.store, self.id, head.generation, version)).tree
        return TreeAt(version, head.generation, await self.objects(head.generation).tree(name))

    async def read(self, at: TreeAt, path: WorkspacePath) -> bytes:
        """Return the body of the file at ``path``. Raise InvalidPath or WorkspaceFileNotFound if there is no such file."""
        return await self.objects(at.generation).body(find_file(at, path))

    async def read_many(self, at: TreeAt, paths: Iterable[WorkspacePath]) -> Mapping[WorkspacePath, bytes]:
        """Return the bodies of the files at ``paths``. The caller bounds their sizes. Raises the same errors as ``read``."""
        files = {path: find_file(at, path) for path in paths}
        bodies = await self.objects(at.generation).bodies(files.values())
        return {path: bodies[file.sha256] for path, file in files.items()}

    async def find_older(self, at: TreeAt, bodies: Mapping[WorkspacePath, Body]) -> WorkspacePath | None:
        """Return a path of ``bodies`` that had the same content in one of the 200 versions before ``at``, or None. Blanks and
        invisible characters do not count."""
        return await find_older(self.objects(at.generation), at, bodies)

    def archive(self, at: TreeAt) -> AsyncGenerator[bytes, None]:
        """Return a generator of a zip of the tree, in chunks."""
        return stream_archive(self.objects(at.generation), at.tree.files)

    async def commit(
        self, change: Change, author: Author, deadline: Deadline, participant: Participant[Committed] | None = None
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
        return await swap(self.store, _Commit(self, change, author).attempt, deadline, participant)

    async def delete(self, deadline: Deadline, participant: Participant[bool] | None = None) -> bool:
        """Delete the workspace with all its versions. Return False if there was none. Raise StorageUnavailable if the table does
        not answer, or the deadline passed among too many other writers."""

        async def attempt() -> Swap[bool]:
            tenant, head = self.store.tenant, await read_head(self.store, self.id)
            if not head.exists:
                return Swap(False, unchanged_check(tenant, self.id, head))
            seconds = self.clock()
            tombstone = swap_write(tenant, self.id, head, head.tombstone(timestamp(seconds)))
            key = deleted_generation(tenant, self.id, head.generation)
            return Swap(True, tombstone, (Put(key, {"deleted_at": int(seconds)}),))

        return await swap(self.store, attempt, deadline, participant)


class Workspaces:
    """The workspaces of all tenants. A process has one and keeps decoded trees in memory."""

    def __init__(self, clock: Clock = time.time, cache: TreeCache | None = None) -> None:
        self._clock = clock
        self._cache = cache or TreeCache()

    def open(self, store: TenantStore, workspace_id: WorkspaceId) -> Workspace:
        """Return a workspace, which may not exist yet."""
        return Workspace(store, workspace_id, self._cache, self._clock)


@dataclass(frozen=True, slots=True)
class _StoredPack:
    """A pack in the bucket. The sweep does not remove it before the swap of a writer that read ``fences`` in the head."""

    generation: str
    fences: int
    pack: Pack

    def serves(self, generation: str, fences: int, bodies: list[Body]) -> bool:
        same_place = (self.generation, self.fences) == (generation, fences)
        return same_place and all(body.sha256 in self.pack.files for body in bodies)


@dataclass(slots=True)
class _Commit:
    """One commit: plan a change on the newest version, put its objects, and swap the head, until no other writer is faster. An
    attempt puts the bodies again only if the one before cannot be used."""

    workspace: Workspace
    change: Change
    author: Author
    _new_generation: str = field(default_factory=lambda: new_id("gen"))
    _stored: _StoredPack | None = None

    async def attempt(self) -> Swap[Committed]:
        """Return the swap of one attempt, after its objects are in the bucket.

        Raises:
            InvalidPath, WorkspaceLimit: the resulting tree would be invalid.
            SpassError: as ``Change.plan``.
        """
        newest = await self.workspace.read_newest()
        head, tenant, workspace_id = newest.head, self.workspace.store.tenant, self.workspace.id
        plan = self.change.plan(newest.at)
        if not plan.files and not (self.change.always if head.exists else self.change.creates):
            unchanged = Committed(None, head.version, head.generation, ())
            return Swap(unchanged, unchanged_check(tenant, workspace_id, head))
        objects = self.workspace.objects(head.generation or self._new_generation)
        check_result(newest.at.tree, plan)
        pack = await self._encode_bodies(objects, head, plan, newest.at.tree)
        tree = plan.apply(newest.at.tree, pack.files if pack else {})
        name = object_name(head.version + 1, "tree")
        await asyncio.gather(self._put_pack(objects, head, pack), self._put_tree(objects, name, tree))
        at = timestamp(self.workspace.clock())
        after = head.next(objects.generation, name, tree, at)
        committed = Committed(after.version, after.version, after.generation, plan.files)
        contents = await anyio.to_thread.run_sync(encode_contents, plan.files)
        pack_name = pack.name if pack and pack.content else None
        version = Version.of(committed, self.author, tree=name, pack=pack_name, at=at, contents=contents)
        put = version_put(tenant, workspace_id, after.generation, version)
        return Swap(committed, swap_write(tenant, workspace_id, head, after), (put,))

    async def _encode_bodies(self, objects: WorkspaceObjects, head: WorkspaceHead, plan: Plan, tree: Tree) -> Pack | None:
        """Return a pack with the bodies that ``tree`` lacks, or None if it has them all."""
        bodies = [*bodies_to_store(plan, tree)]
        if not bodies:
            return None
        if self._stored is not None and self._stored.serves(objects.generation, head.fences, bodies):
            return self._stored.pack
        return await anyio.to_thread.run_sync(encode_pack, object_name(head.version + 1, "pack"), bodies)

    async def _put_pack(self, objects: WorkspaceObjects, head: WorkspaceHead, pack: Pack | None) -> None:
        if pack is None or not pack.content or (self._stored is not None and self._stored.pack is pack):
            return
        await objects.put(pack.name, pack.content)
        self._stored = _StoredPack(objects.generation, head.fences, pack)

    async def _put_tree(self, objects: WorkspaceObjects, name: str, tree: Tree) -> None:
        await objects.put(name, await anyio.to_thread.run_sync(encode_tree, tree))
        objects.cache_tree(name, tree)


def check_result(tree: Tree, plan: Plan) -> None:
    """Check the limits and the paths of ``tree`` after the plan.

    Raises:
        WorkspaceLimit: it has too many files or bytes, or one of the changed files is too large.
        InvalidPath: two paths differ only in case, or one is the other's folder.
    """
    for path, _, after in plan.files:
        if after is not None and after.size > MAX_FILE_BYTES:
            raise WorkspaceLimit(f"{path!r} has {after.size} bytes; a file may have at most {MAX_FILE_BYTES}.")
    deleted = {file.path for file in plan.files if file.after is None}
    added = [file.path for file in plan.files if file.before is None]
    count = len(tree.files) + len(added) - len(deleted)
    if count > MAX_FILES:
        raise WorkspaceLimit(f"The workspace would hold {count} files; it may hold at most {MAX_FILES}.")
    size = tree.total_bytes + sum(_size(file.after) - _size(file.before) for file in plan.files)
    if size > MAX_TOTAL_BYTES:
        raise WorkspaceLimit(f"The workspace would hold {size} bytes; it may hold at most {MAX_TOTAL_BYTES}.")
    if added:
        check_together([*added, *(path for path in tree.files if path not in deleted)])


def _size(file: Body | TreeFile | None) -> int:
    return file.size if file else 0
