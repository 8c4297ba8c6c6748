"""The background merge: what makes few large segments of many, beside all requests and in nobody's way.

It takes its time to read and to write, and swaps at the end. Whoever swapped meanwhile has won, but has not made the work void:
as long as all its inputs are still listed, in the same life of the index, the rows that died since are dead in the new segment
too.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from spass.aws.attributes import Value
from spass.aws.clients import TenantStore
from spass.aws.keys import rag_merge
from spass.aws.leases import LEASE_SECONDS, renewing
from spass.aws.objects import ObjectMissing
from spass.aws.table import TTL, ConditionFailed
from spass.aws.writes import ITEM_ABSENT, AtMost, Delete, Equals, Put, Update
from spass.core.errors import SpassError, StorageUnavailable
from spass.core.ids import IndexId, random_suffix
from spass.core.jobs import MergeSegments
from spass.core.time import Deadline, now_s
from spass.rag.index.bitmap import Bitmap
from spass.rag.index.cache import ObjectCache
from spass.rag.index.locations import LiveIds, load_live_ids
from spass.rag.index.manifest import Manifest, Segment, read_manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.write.deleted_rows import garbage_paths, write_deleted_rows
from spass.rag.write.merge_policy import choose_job_inputs, merge_due
from spass.rag.write.segment_merge import MergedSegment, MergeInput, evict_for_merge, put_merged_segment
from spass.rag.write.swap import NextVersion, swap

_MIN_REMAINING_SECONDS: Final = 60.0  # for a large merge


async def merge(store: TenantStore, cache: ObjectCache, index_id: IndexId, deadline: Deadline) -> bool:
    """Merge segments of an index until no merge is due or the time is nearly up, in which case somebody is asked to go on. One
    worker at a time does: whoever finds another one at it leaves it to that one. True if segments were merged.

    Raises:
        StorageUnavailable: the table or bucket does not answer, or a segment is not whole; what was merged by then stays merged.
        LeaseLost: a worker that was thought dead by another one stopped.
    """
    merged = False
    gone: list[str] = []
    async with _merge_lease(store, index_id) as alone:
        while alone and deadline.remaining() > _MIN_REMAINING_SECONDS:
            before = await read_manifest(store, index_id)
            inputs = choose_job_inputs(before.segments, before.dimensions)
            if not inputs:
                return merged
            try:
                merged |= await _merge(store, cache, index_id, deadline, before.generation, before.dimensions, inputs)
            except ObjectMissing:  # inputs were retired, and swept; unless they are listed still
                names = [segment.id for segment in inputs]
                if names == gone:
                    raise StorageUnavailable("The index has a segment that is not whole.", retry_after=60) from None
                gone = names
    if alone and merge_due(await read_manifest(store, index_id)):
        await store.jobs.send(MergeSegments(store.tenant, index_id))
    return merged


async def _merge(
    store: TenantStore,
    cache: ObjectCache,
    index_id: IndexId,
    deadline: Deadline,
    generation: str,
    dimensions: int,
    inputs: Sequence[Segment],
) -> bool:
    """Make one segment of ``inputs``; False if another writer took one of them out first. What was put then is left to the
    sweep."""
    through = SegmentObjects(store, index_id, generation, ObjectCache(0))  # what is read once only would push all else out
    objects = SegmentObjects(store, index_id, generation, cache)
    evict_for_merge(objects, inputs, dimensions)
    loaded = await load_live_ids(objects, inputs)
    joined = await put_merged_segment(through, [MergeInput.of(through, live) for live in loaded])

    async def plan(before: Manifest, name: str) -> NextVersion[bool]:
        listed = {segment.id: segment for segment in before.segments}
        if before.generation != generation or not all(live.segment.id in listed for live in loaded):
            return NextVersion(False, None)
        merged = await _apply_recent_deletes(objects, joined, loaded, listed, name)
        taken = {live.segment.id for live in loaded}
        segments = [segment for segment in before.segments if segment.id not in taken] + merged
        after = before.with_segments(segments, before.updated_at)
        retired = garbage_paths(generation, before.segments, segments)
        return NextVersion(True, before.next_revision(after, retired=retired, at=now_s()))

    return await swap(store, index_id, deadline, plan)


async def _apply_recent_deletes(
    objects: SegmentObjects, joined: MergedSegment, loaded: Sequence[LiveIds], listed: Mapping[str, Segment], name: str
) -> list[Segment]:
    """The new segment as the version in force makes it: without the rows that died in its inputs since they were ``loaded``; none
    if no row is left."""
    died = [row for live in loaded for row in await _rows_deleted_since(objects, joined, live, listed[live.segment.id])]
    if len(died) == joined.segment.rows:
        return []
    if not died:
        return [joined.segment]
    return [await write_deleted_rows(objects, joined.without(died), Bitmap().with_rows(died), name)]


async def _rows_deleted_since(objects: SegmentObjects, joined: MergedSegment, live: LiveIds, now: Segment) -> list[int]:
    """The rows of the new segment that died in one of its inputs. A dead row never lives again, and the ids of a segment never
    change, so that an id says which row it has become."""
    if now.dead_rows == live.segment.dead_rows:
        return []
    dead = await objects.dead(now)
    return [joined.row_of(live.ids[row]) for row in range(now.rows) if row in dead and row not in live.dead]


@asynccontextmanager
async def _merge_lease(store: TenantStore, index_id: IndexId) -> AsyncIterator[bool]:
    """Whether nobody else merges this index, for as long as the body runs."""
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
        with suppress(ConditionFailed, SpassError):  # it runs out by itself
            await store.table.write(Delete(key, mine))
