"""The sweep: remove generations without a head after an hour, and objects that no version names after a day.

The sweep does not rely on writers being fast. Before it removes an object that no version names, it fences the workspace: every
writer that read the head before must read it again and put its objects again. So no version names a removed object later.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from spass.core.ids import WorkspaceId
from spass.core.time import Deadline
from spass.store.keys import (
    DELETED_GENERATION_PREFIX,
    Key,
    deleted_generation,
    workspace,
    workspace_versions_partition,
    workspaces_partition,
)
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Equals, Update
from spass.workspaces.head import WorkspaceHead, fence_write, read_head
from spass.workspaces.objects import FOLDER, version_of
from spass.workspaces.versions import list_versions

DELETED_SECONDS: Final = 3600
"""A reader of a deleted workspace is certainly done after this time, and so is the first writer of a new one."""

ORPHAN_SECONDS: Final = 24 * 3600
"""Much longer than a writer takes from its first object to the swap."""

_PAGE_SIZE: Final = 100  # versions in memory
_CONCURRENT_DELETES: Final = 25


@dataclass(frozen=True, slots=True)
class WorkspaceSweep:
    """The numbers of ``generations`` and of ``orphans`` (objects) that a sweep removed."""

    generations: int = 0
    orphans: int = 0


class _Place(NamedTuple):
    """An object of the bucket: ``<workspace>/<generation>/<name>`` in the folder of workspaces."""

    workspace: WorkspaceId
    generation: str
    name: str

    @classmethod
    def of(cls, key: str) -> Self:
        workspace_id, generation, name = key.removeprefix(FOLDER).split("/", 2)
        return cls(WorkspaceId(workspace_id), generation, name)

    @property
    def key(self) -> str:
        return FOLDER + "/".join(self)


async def sweep_workspaces(store: TenantStore, now: int, deadline: Deadline) -> WorkspaceSweep:
    """Sweep the workspaces of one tenant at the time ``now`` (seconds since the epoch). Stop at the deadline; the next sweep
    continues. Raise StorageUnavailable if the table or bucket does not answer. What was removed so far stays removed."""
    generations = await _remove_deleted_generations(store, now, deadline)
    orphans = 0
    async for unchecked in _list_unchecked(store, now):
        if not deadline.remaining():
            break
        orphans += await _remove_orphans(store, unchecked, now - ORPHAN_SECONDS)
    return WorkspaceSweep(generations, orphans)


async def _remove_deleted_generations(store: TenantStore, now: int, deadline: Deadline) -> int:
    """Remove the versions and objects of each generation that was deleted at least an hour ago, then the item that names it."""
    removed = 0
    for item in await store.table.query(workspaces_partition(store.tenant), prefix=DELETED_GENERATION_PREFIX):
        deleted_at, sk = item["deleted_at"], str(item["sk"])
        if not isinstance(deleted_at, int) or deleted_at + DELETED_SECONDS > now:
            continue
        workspace_id, _, generation = sk.removeprefix(DELETED_GENERATION_PREFIX).partition("#")
        if not await _remove_versions(store, WorkspaceId(workspace_id), generation, deadline):
            break
        await store.objects.delete(await store.objects.list_keys(f"{FOLDER}{workspace_id}/{generation}/"))
        await store.table.write(Delete(Key(str(item["pk"]), sk)))
        removed += 1
    return removed


async def _remove_versions(store: TenantStore, workspace_id: WorkspaceId, generation: str, deadline: Deadline) -> bool:
    """Remove the versions of a generation. Return False if the deadline came first."""
    partition = workspace_versions_partition(store.tenant, workspace_id, generation)
    while deadline.remaining():
        items = await store.table.query(partition, limit=_CONCURRENT_DELETES)
        if not items:
            return True
        await store.table.delete(items)
    return False


async def _list_unchecked(store: TenantStore, now: int) -> AsyncIterator[Sequence[_Place]]:
    """Yield the objects of each workspace that may be orphans: in the live generation if they are a day old and not checked
    yet, in other generations if they are an hour old."""
    found: list[_Place] = []
    workspace_id, head = None, WorkspaceHead()
    async for key, modified in store.objects.list_objects(FOLDER):
        if modified > now - DELETED_SECONDS:
            continue
        place = _Place.of(key)
        if place.workspace != workspace_id:
            if found:
                yield found
            workspace_id, head, found = place.workspace, await read_head(store, place.workspace), []
        if place.generation != head.generation or head.checked_at < modified <= now - ORPHAN_SECONDS:
            found.append(place)
    if found:
        yield found


async def _remove_orphans(store: TenantStore, unchecked: Sequence[_Place], until: int) -> int:
    """Remove the objects of one workspace that no version names, and record that those up to ``until`` are checked."""
    workspace_id = unchecked[0].workspace
    orphans = await _choose_orphans(store, workspace_id, unchecked)
    if orphans:
        await store.table.write(fence_write(store.tenant, workspace_id))
        orphans = await _choose_orphans(store, workspace_id, unchecked)  # a writer may have swapped before the fence
        await store.objects.delete([place.key for place in orphans])
    head = await read_head(store, workspace_id)
    if any(place.generation == head.generation for place in unchecked):
        update = Update(
            workspace(store.tenant, workspace_id), set={"checked_at": until}, when=Equals("generation", head.generation)
        )
        with suppress(ConditionFailed):  # deleted in the meantime
            await store.table.write(update)
    return len(orphans)


async def _choose_orphans(store: TenantStore, workspace_id: WorkspaceId, places: Sequence[_Place]) -> Sequence[_Place]:
    """Return the objects that no version of the workspace names, except in a deleted generation that waits for its end."""
    orphans: list[_Place] = []
    live = (await read_head(store, workspace_id)).generation
    for generation in {place.generation for place in places}:
        here = [place for place in places if place.generation == generation]
        if generation == live:
            named = await _read_names(store, workspace_id, generation, min(version_of(place.name) for place in here))
            orphans += [place for place in here if place.name not in named]
        elif await store.table.get(deleted_generation(store.tenant, workspace_id, generation)) is None:
            orphans += here
    return orphans


async def _read_names(store: TenantStore, workspace_id: WorkspaceId, generation: str, first: int) -> set[str]:
    """Return the names of the objects of all versions from ``first`` on."""
    names: set[str] = set()
    after = first - 1
    while versions := await list_versions(store, workspace_id, generation, after=after, limit=_PAGE_SIZE):
        names.update(name for version in versions for name in version.objects)
        after = versions[-1].version
    return names
