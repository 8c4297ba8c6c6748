"""Removing what no version of an index needs: retired paths after an hour, and what was put and never listed after a day.

Nothing here stands in a writer's way: a manifest is changed only where it lists what was retired, and only if that still reads
as it did. And the manifest is read after the objects are listed: one that is a day old and in no version by then was left behind
by a writer that died, lost a race or had more to retire than a manifest holds.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spass.aws import keys
from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.aws.table import ConditionFailed
from spass.aws.writes import Equals, Update
from spass.core.ids import IndexId
from spass.core.jobs import MergeSegments
from spass.core.time import Deadline
from spass.rag.index.manifest import Manifest, decode_manifest, encode_garbage, read_manifest
from spass.rag.write.merge_policy import merge_due

GARBAGE_SECONDS: Final = 3600
"""How long a reader may still want what its version listed."""

ORPHAN_SECONDS: Final = 24 * 3600
"""How long a writer may take between putting an object and swapping it in, by far."""

_MANIFESTS_AT_ONCE: Final = 25
_FOLDER: Final = "rag/"
_OBJECT_DEPTH: Final = 4  # slashes in rag/<index>/<generation>/<segment>/<object>


@dataclass(frozen=True, slots=True)
class SweepResult:
    """How many objects were removed, that had been ``retired`` or were ``orphans``, and how many ``merges`` were asked for."""

    retired: int = 0
    orphans: int = 0
    merges: int = 0


async def sweep(store: TenantStore, at: int, deadline: Deadline) -> SweepResult:
    """Sweep one tenant's indices as of second ``at``, as far as the deadline lets; the next sweep goes on. An index that a merge
    has been due in for so long that its request must be lost gets a new one.

    Raises:
        StorageUnavailable: the table or bucket does not answer; what was removed by then is gone.
    """
    retired = merges = 0
    async for index, item in _manifests(store):
        if not deadline.remaining():
            break
        retired += await _sweep_garbage(store, index, item, at)
        if merge_due(decode_manifest(item)):
            await store.jobs.send(MergeSegments(store.tenant, index))
            merges += 1
    return SweepResult(retired, await _sweep_orphans(store, at, deadline), merges)


async def _manifests(store: TenantStore) -> AsyncIterator[tuple[IndexId, Item]]:
    after: str | None = None
    while True:
        items = await store.table.query(
            keys.rag_partition(store.tenant), prefix=keys.RAG_INDEX_PREFIX, after=after, limit=_MANIFESTS_AT_ONCE
        )
        for item in items:
            after = str(item["sk"])
            yield IndexId(after.removeprefix(keys.RAG_INDEX_PREFIX)), item
        if len(items) < _MANIFESTS_AT_ONCE:
            return


async def _sweep_garbage(store: TenantStore, index: IndexId, item: Item, at: int) -> int:
    """Remove what was retired an hour ago, then its entries. Nothing that was retired is ever listed again, so that it does not
    matter what becomes of the manifest in between."""
    manifest = decode_manifest(item)
    due = [entry for entry in manifest.retired if entry.at + GARBAGE_SECONDS <= at]
    if not due:
        return 0
    found = [key for entry in due for key in await _objects(store, f"{_FOLDER}{index}/{entry.path}")]
    await store.objects.delete(found)
    left = [entry for entry in manifest.retired if entry not in due]
    unlist = Update(
        keys.rag_manifest(store.tenant, index),
        set={"retired": encode_garbage(left)},
        when=Equals("retired", item["retired"]),
    )
    with suppress(ConditionFailed):  # a writer retired more meanwhile: the next sweep takes these out too
        await store.table.write(unlist)
    return len(found)


async def _objects(store: TenantStore, path: str) -> Sequence[str]:
    """The objects that a retired path stands for: of a generation, of a segment, or itself."""
    return [path] if path.count("/") == _OBJECT_DEPTH else await store.objects.list_keys(f"{path}/")


async def _sweep_orphans(store: TenantStore, at: int, deadline: Deadline) -> int:
    removed = 0
    async for name, listed in store.objects.list_folders(_FOLDER):
        index = IndexId(name)
        if not deadline.remaining():
            break
        old = [entry.key for entry in listed if entry.modified + ORPHAN_SECONDS <= at]
        if old:
            manifest = await read_manifest(store, index)
            orphans = [key for key in old if not _is_referenced(manifest, key.removeprefix(f"{_FOLDER}{index}/"))]
            await store.objects.delete(orphans)
            removed += len(orphans)
    return removed


def _is_referenced(manifest: Manifest, path: str) -> bool:
    """Whether ``path`` is of the version in force, or was retired: then it has its hour."""
    generation, segment, part = path.split("/", 2)
    names = {generation, f"{generation}/{segment}", path}
    if any(entry.path in names for entry in manifest.retired):
        return True
    if generation != manifest.generation:
        return False
    listed = {segment.id: segment for segment in manifest.segments}.get(segment)
    return listed is not None and (not part.startswith("dead-") or part == listed.dead_object)
