"""The merge job: make one large segment of many, in the background and without blocking writers.

It reads and writes for up to minutes, and swaps at the end. A writer that swapped in the meantime does not make the work useless:
if the same generation still lists all inputs, the rows deleted since then are marked as deleted in the new segment too.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

from spass.core.errors import SpassError, StorageUnavailable
from spass.core.ids import DocumentId, IndexId, random_suffix
from spass.core.jobs import MergeSegments
from spass.core.time import Deadline, now_s
from spass.rag.index.cache import ObjectCache
from spass.rag.index.locations import LiveIds, load_live_ids, locate_documents, mark_deleted, store_bitmaps
from spass.rag.index.manifest import Manifest, Segment, read_manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.write.merge_policy import choose_job_inputs, needs_merge_job
from spass.rag.write.segment_merge import MergeInput, evict_for_merge, put_merged_segment
from spass.rag.write.swap import NextVersion, swap
from spass.store.bucket import ObjectMissing
from spass.store.keys import rag_manifest, rag_merge
from spass.store.leases import LEASE_SECONDS, renewing
from spass.store.restored import is_marked
from spass.store.table import TTL, ConditionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, AtMost, Delete, Equals, Put, Update, Value

_MIN_REMAINING_SECONDS: Final = 60.0  # for a large merge


async def merge(store: TenantStore, cache: ObjectCache, index_id: IndexId, deadline: Deadline) -> bool:
    """Merge segments of an index until no merge is due. Shortly before the deadline, request another job instead. If another
    worker has the lease, do nothing. Return whether segments were merged.

    Raises:
        StorageUnavailable: the table or bucket does not answer, or a segment is incomplete. Earlier merges stay.
        LeaseLost: the lease expired, and another worker may have it.
    """
    merged = False
    missing_inputs: list[str] = []
    async with _merge_lease(store, index_id) as has_lease:
        while has_lease and deadline.remaining() > _MIN_REMAINING_SECONDS:
            before = await read_manifest(store, index_id)
            inputs = choose_job_inputs(before.segments, before.dimensions)
            if not inputs:
                return merged
            try:
                merged |= await _merge(store, cache, index_id, deadline, before, inputs)
            except ObjectMissing:  # another writer replaced inputs, and they were swept: plan again, unless they are still listed
                names = [segment.id for segment in inputs]
                if names == missing_inputs:
                    if await is_marked(store, rag_manifest(store.tenant, index_id), generation=before.generation):
                        return merged  # no later attempt can find what a restore could not
                    raise StorageUnavailable("A segment of the index is incomplete.", retry_after=60) from None
                missing_inputs = names
    if has_lease and needs_merge_job(await read_manifest(store, index_id)):
        await store.jobs.send(MergeSegments(store.tenant, index_id))
    return merged


async def _merge(
    store: TenantStore,
    cache: ObjectCache,
    index_id: IndexId,
    deadline: Deadline,
    planned: Manifest,
    inputs: Sequence[Segment],
) -> bool:
    """Merge ``inputs``, segments of the version ``planned``, to one segment. Return False if another writer replaced one of them
    first; then the sweep deletes the new objects."""
    uncached = SegmentObjects(store, index_id, planned.generation, ObjectCache(0))  # the inputs are read only once
    objects = SegmentObjects(store, index_id, planned.generation, cache)
    evict_for_merge(objects, inputs, planned.dimensions)
    loaded = await load_live_ids(objects, inputs)
    merged = await put_merged_segment(uncached, [MergeInput.of(uncached, live) for live in loaded])

    async def plan(before: Manifest, attempt_name: str) -> NextVersion[bool]:
        listed = {segment.id: segment for segment in before.segments}
        if before.generation != planned.generation or not all(live.segment.id in listed for live in loaded):
            return NextVersion(False, None)
        deleted = [document for live in loaded for document in await _deleted_since(objects, live, listed[live.segment.id])]
        marked = mark_deleted([merged], locate_documents([merged], deleted).values())
        replaced = {live.segment.id for live in loaded}
        others = [segment for segment in before.segments if segment.id not in replaced]
        segments = (*others, *await store_bitmaps(objects, marked, attempt_name))
        return NextVersion(True, before.next_revision(replace(before, segments=segments)))

    return await swap(store, index_id, deadline, plan)


async def _deleted_since(objects: SegmentObjects, live: LiveIds, now: Segment) -> list[DocumentId]:
    """Return the documents of a segment that were deleted after ``live`` was loaded. The version ``now`` of the segment has the
    same bitmap if it has the same number of deleted rows, because a deleted row stays deleted."""
    if now.deleted_rows == live.segment.deleted_rows:
        return []
    deleted = await objects.deletion_bitmap(now)
    return [DocumentId(live.ids[row]) for row in range(now.rows) if row in deleted and row not in live.deleted]


@asynccontextmanager
async def _merge_lease(store: TenantStore, index_id: IndexId) -> AsyncIterator[bool]:
    """Hold the merge lease of the index while the body runs. Yield False if another worker has it."""
    key, owner, at = rag_merge(store.tenant, index_id), random_suffix(), now_s()
    attributes: dict[str, Value] = {"owner": owner, "expires_at": at + LEASE_SECONDS, TTL: at + 2 * LEASE_SECONDS}
    free, mine = ITEM_ABSENT | AtMost("expires_at", at), Equals("owner", owner)
    try:
        await store.table.write(Put(key, attributes, free))
    except ConditionFailed as failure:
        if not failure.item or failure.item.get("owner") != owner:
            yield False
            return

    async def renew() -> None:
        until = now_s() + LEASE_SECONDS
        await store.table.write(Update(key, set={"expires_at": until, TTL: until + LEASE_SECONDS}, when=mine))

    try:
        async with renewing(renew):
            yield True
    finally:
        with suppress(ConditionFailed, SpassError):  # the lease expires
            await store.table.write(Delete(key, mine))
