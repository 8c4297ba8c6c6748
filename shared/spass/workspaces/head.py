"""The head of a workspace: the one item in the table that names its newest version.

A workspace gets a random generation at its first write. A deleted workspace leaves a tombstone: a head with an empty generation
that keeps the version, so that the next write gets the next number.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from spass.core.errors import VersionNotFound, WorkspaceNotFound
from spass.core.ids import TenantId, WorkspaceId
from spass.core.time import Timestamp
from spass.store.codec import decode, encode
from spass.store.keys import WORKSPACE_PREFIX, workspace, workspaces_partition
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Check, Condition, Equals, Item, Update
from spass.workspaces.tree import Tree

_NEVER: Final = Timestamp("")


@dataclass(frozen=True, slots=True)
class WorkspaceHead:
    """The newest version of a workspace. One that never existed has version 0, and a deleted one keeps its version; both have an
    empty generation.

    ``tree`` names the object of the version's tree. ``fences`` counts the times that the sweep stopped all running writers.
    ``checked_at`` (seconds since the epoch): a version names every object that was put until then.
    """

    generation: str = ""
    version: int = 0
    tree: str = ""
    file_count: int = 0
    total_bytes: int = 0
    created_at: Timestamp = _NEVER
    updated_at: Timestamp = _NEVER
    fences: int = 0
    checked_at: int = 0
    is_stored: bool = False

    @property
    def exists(self) -> bool:
        return bool(self.generation)

    def next(self, generation: str, tree_name: str, tree: Tree, at: Timestamp) -> "WorkspaceHead":
        """Return the head of the next version, whose tree is in the object ``tree_name``."""
        return replace(
            self,
            generation=generation,
            version=self.version + 1,
            tree=tree_name,
            file_count=len(tree.files),
            total_bytes=tree.total_bytes,
            created_at=self.created_at if self.exists else at,
            updated_at=at,
        )

    def tombstone(self, at: Timestamp) -> "WorkspaceHead":
        return WorkspaceHead(version=self.version, updated_at=at, fences=self.fences)


async def read_head(store: TenantStore, workspace_id: WorkspaceId) -> WorkspaceHead:
    """Return the head, consistently. It may be a tombstone."""
    return _decode(await store.table.get(workspace(store.tenant, workspace_id)))


async def read_live_head(store: TenantStore, workspace_id: WorkspaceId) -> WorkspaceHead:
    """Return the head of a workspace that exists. Raise WorkspaceNotFound if it does not exist."""
    head = await read_head(store, workspace_id)
    if not head.exists:
        raise workspace_not_found(workspace_id)
    return head


async def list_heads(
    store: TenantStore, *, after: str | None = None, page_size: int
) -> AsyncIterator[tuple[WorkspaceId, WorkspaceHead]]:
    """Yield the tenant's workspaces in the order of their ids, deleted ones included. Begin after the id ``after``, and read
    ``page_size`` heads with each query."""
    start = None if after is None else WORKSPACE_PREFIX + after
    pages = store.table.pages(workspaces_partition(store.tenant), prefix=WORKSPACE_PREFIX, after=start, size=page_size)
    async for items in pages:
        for item in items:
            yield WorkspaceId(str(item["sk"]).removeprefix(WORKSPACE_PREFIX)), _decode(item)


def swap_write(tenant: TenantId, workspace_id: WorkspaceId, before: WorkspaceHead, after: WorkspaceHead) -> Update:
    """Return the write that replaces the head ``before`` by ``after``, on condition that ``before`` is still the head. It keeps
    attributes that a later release has stored."""
    attributes = encode(after, without=("is_stored",))
    return Update(workspace(tenant, workspace_id), set=attributes, when=_is_current(before))


def unchanged_check(tenant: TenantId, workspace_id: WorkspaceId, before: WorkspaceHead) -> Check:
    """Return the condition that ``before`` is still the head."""
    return Check(workspace(tenant, workspace_id), _is_current(before))


def fence_write(tenant: TenantId, workspace_id: WorkspaceId) -> Update:
    """Return the write that makes the swap of every writer fail that has read the head already."""
    return Update(workspace(tenant, workspace_id), default={"generation": "", "version": 0}, add={"fences": 1})


def workspace_not_found(workspace_id: WorkspaceId) -> WorkspaceNotFound:
    return WorkspaceNotFound(f"There is no workspace {workspace_id!r}.", param="id")


def version_not_found(workspace_id: WorkspaceId, version: int) -> VersionNotFound:
    return VersionNotFound(f"The workspace {workspace_id!r} has no version {version}.", param="version")


def _decode(item: Item | None) -> WorkspaceHead:
    return WorkspaceHead() if item is None else decode(WorkspaceHead, item, is_stored=True)


def _is_current(before: WorkspaceHead) -> Condition:
    if not before.is_stored:
        return ITEM_ABSENT
    return Equals("generation", before.generation) & Equals("version", before.version) & Equals("fences", before.fences)
