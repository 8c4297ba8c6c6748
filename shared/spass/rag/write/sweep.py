"""The sweep: delete garbage after one hour, and orphans after one day.

It does not block writers: it changes only the garbage list of a manifest, and only if that is unchanged. It reads the manifest
after it has listed the objects, so an object that is a day old and not in the manifest is an orphan: its writer died, lost a
race, or had more garbage than a manifest lists.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spass.core.ids import IndexId
from spass.core.jobs import MergeSegments
from spass.core.time import Deadline
from spass.rag.index.manifest import Manifest, encode_garbage, list_manifests, read_manifest
from spass.rag.write.merge_policy import needs_merge_job
from spass.store import keys
from spass.store.bucket import ObjectSummary
from spass.store.table import ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Equals, Update

GARBAGE_SECONDS: Final = 3600
"""A reader of an earlier version is certainly done after this time."""

ORPHAN_SECONDS: Final = 24 * 3600
"""Much longer than a writer may take from the first object to the swap."""

_PAGE_SIZE: Final = 25  # manifests in memory
_FOLDER: Final = "rag/"
_OBJECT_DEPTH: Final = 4  # slashes in rag/<index>/<generation>/<segment>/<object>


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The numbers of objects deleted as ``garbage`` and as ``orphans``, and of ``merges`` requested."""

    garbage: int = 0
    orphans: int = 0
    merges: int = 0


async def sweep(store: TenantStore, now: int, deadline: Deadline) -> SweepResult:
    """Sweep the indices of one tenant at the time ``now`` (seconds since the epoch). Stop at the deadline; the next sweep
    continues. If a merge is due, send its message again, because the first one may be lost. Raise ``StorageUnavailable`` if the
    table or bucket does not answer. Objects deleted so far stay deleted."""
    garbage = merges = 0
    async for index, manifest in list_manifests(store, page_size=_PAGE_SIZE):
        if not deadline.remaining():
            break
        garbage += await _sweep_garbage(store, index, manifest, now)
        if needs_merge_job(manifest):
            await store.jobs.send(MergeSegments(store.tenant, index))
            merges += 1
    return SweepResult(garbage, await _sweep_orphans(store, now, deadline), merges)


async def _sweep_garbage(store: TenantStore, index: IndexId, manifest: Manifest, now: int) -> int:
    """Delete the garbage that is at least an hour old, and then its entries. No later version lists these paths again, so it does
    not matter if the manifest has changed since it was read."""
    due = [entry for entry in manifest.garbage if entry.removed_at + GARBAGE_SECONDS <= now]
    if not due:
        return 0
    object_keys: list[str] = []
    for path in (f"{_FOLDER}{index}/{entry.path}" for entry in due):  # a generation, a segment or one object
        object_keys += [path] if path.count("/") == _OBJECT_DEPTH else await store.objects.list_keys(f"{path}/")
    await store.objects.delete(object_keys)
    remaining = [entry for entry in manifest.garbage if entry not in due]
    update = Update(
        keys.rag_manifest(store.tenant, index),
        set={"retired": encode_garbage(remaining)},
        when=Equals("retired", encode_garbage(manifest.garbage)),
    )
    with suppress(ConditionFailed):  # a writer added garbage in the meantime: the next sweep removes these entries
        await store.table.write(update)
    return len(object_keys)


async def _sweep_orphans(store: TenantStore, now: int, deadline: Deadline) -> int:
    async def unlisted(index: str, objects: Sequence[ObjectSummary]) -> list[str]:
        manifest = await read_manifest(store, IndexId(index))
        return [one.key for one in objects if not _is_referenced(manifest, one.key.removeprefix(f"{_FOLDER}{index}/"))]

    return await store.objects.remove_orphans(_FOLDER, lambda one: one.modified + ORPHAN_SECONDS <= now, unlisted, deadline)


def _is_referenced(manifest: Manifest, path: str) -> bool:
    """Return whether the current version lists ``path`` as part of a segment or as garbage, which ``_sweep_garbage`` deletes."""
    generation, segment_id, object_name = path.split("/", 2)
    names = {generation, f"{generation}/{segment_id}", path}
    if any(entry.path in names for entry in manifest.garbage):
        return True
    if generation != manifest.generation:
        return False
    segment = {segment.id: segment for segment in manifest.segments}.get(segment_id)
    return segment is not None and (not object_name.startswith("dead-") or object_name == segment.bitmap_object)
