"""One commit: plan a change on the newest version, put its objects, and swap the head, until no other writer is faster."""

import asyncio
from dataclasses import dataclass, field

import anyio.to_thread

from spass.core.errors import WorkspaceLimit, WorkspaceNotFound
from spass.core.ids import WorkspaceId, new_id
from spass.core.time import Clock, timestamp
from spass.store.swap import Swap
from spass.store.tenant_store import TenantStore
from spass.workspaces.change import Author, Body, Change, Committed, Plan, bodies_to_store
from spass.workspaces.head import WorkspaceHead, read_head, swap_write, unchanged_check
from spass.workspaces.limits import MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES
from spass.workspaces.objects import TreeCache, WorkspaceObjects, object_name
from spass.workspaces.pack import Pack, encode_pack
from spass.workspaces.paths import check_together
from spass.workspaces.tree import EMPTY_TREE, Tree, TreeAt, TreeFile, encode_tree
from spass.workspaces.versions import Version, encode_contents, version_put


@dataclass(frozen=True, slots=True)
class Newest:
    """The head of a workspace and its tree. The tree of a workspace that does not exist is empty."""

    head: WorkspaceHead
    tree: Tree

    @property
    def at(self) -> TreeAt:
        return TreeAt(self.head.version, self.head.generation, self.tree)


async def read_newest(store: TenantStore, workspace_id: WorkspaceId, cache: TreeCache) -> Newest:
    """Return the newest version."""
    while True:
        head = await read_head(store, workspace_id)
        if not head.exists:
            return Newest(head, EMPTY_TREE)
        try:
            return Newest(head, await WorkspaceObjects(store, workspace_id, head.generation, cache).tree(head.tree))
        except WorkspaceNotFound:  # deleted and swept since the head was read
            continue


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
class Commit:
    """One commit, through all its attempts. An attempt puts the bodies again only if the one before cannot be used."""

    store: TenantStore
    workspace: WorkspaceId
    change: Change
    author: Author
    cache: TreeCache
    clock: Clock
    _new_generation: str = field(default_factory=lambda: new_id("gen"))
    _stored: _StoredPack | None = None

    async def attempt(self) -> Swap[Committed]:
        """Return the swap of one attempt, after its objects are in the bucket.

        Raises:
            InvalidPath, WorkspaceLimit: the resulting tree would be invalid.
            SpassError: as ``Change.plan``.
        """
        newest = await read_newest(self.store, self.workspace, self.cache)
        head, tenant = newest.head, self.store.tenant
        plan = self.change.plan(newest.at)
        if not plan.files and not (self.change.always if head.exists else self.change.creates):
            unchanged = Committed(None, head.version, head.generation, ())
            return Swap(unchanged, unchanged_check(tenant, self.workspace, head))
        objects = WorkspaceObjects(self.store, self.workspace, head.generation or self._new_generation, self.cache)
        check_result(newest.tree, plan)
        pack = await self._encode_bodies(objects, head, plan, newest.tree)
        tree = plan.apply(newest.tree, pack.files if pack else {})
        name = object_name(head.version + 1, "tree")
        await asyncio.gather(self._put_pack(objects, head, pack), self._put_tree(objects, name, tree))
        at = timestamp(self.clock())
        after = head.next(objects.generation, name, tree, at)
        committed = Committed(after.version, after.version, after.generation, plan.files)
        contents = await anyio.to_thread.run_sync(encode_contents, plan.files)
        pack_name = pack.name if pack and pack.content else None
        version = Version.of(committed, self.author, tree=name, pack=pack_name, at=at, contents=contents)
        put = version_put(tenant, self.workspace, after.generation, version)
        return Swap(committed, swap_write(tenant, self.workspace, head, after), (put,))

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
