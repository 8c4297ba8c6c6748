"""Mark rows as deleted, and store the deletion bitmaps. This does not need numpy."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spass.rag.index.locations import DocumentLocation, LiveIds
from spass.rag.index.manifest import MAX_INLINE_BITMAP_BYTES, Segment
from spass.rag.index.objects import SegmentObjects


def mark_deleted(loaded: Sequence[LiveIds], rows: Iterable[DocumentLocation]) -> list[LiveIds]:
    """Mark ``rows`` of ``loaded`` as deleted. Return the segments that still have live rows, with their new bitmaps. A segment
    whose bitmap has changed does not refer to a stored bitmap until ``store_bitmaps`` stores it."""
    by_segment: dict[str, list[DocumentLocation]] = {}
    for row in rows:
        by_segment.setdefault(row.segment.id, []).append(row)
    remaining: list[LiveIds] = []
    for live in loaded:
        if deleted := by_segment.get(live.segment.id):
            segment = replace(
                live.segment,
                deleted_rows=live.segment.deleted_rows + len(deleted),
                text_bytes=live.segment.text_bytes - sum(row.stored.text_bytes for row in deleted),
                inline_bitmap=b"",
                bitmap_object="",
            )
            live = LiveIds(segment, live.ids, live.deleted.with_rows(row.row for row in deleted))  # noqa: PLW2901
        if live.segment.live_rows:
            remaining.append(live)
    return remaining


async def store_bitmaps(objects: SegmentObjects, marked: Iterable[LiveIds], swap: str) -> tuple[Segment, ...]:
    """Return the segments of ``marked``, each with a reference to its bitmap. A new bitmap is stored in the manifest if it is
    small, or else in an object named by ``swap``."""

    async def store(live: LiveIds) -> Segment:
        segment = live.segment
        if not segment.deleted_rows or segment.inline_bitmap or segment.bitmap_object:
            return segment
        packed = live.deleted.packed()
        if len(packed) <= MAX_INLINE_BITMAP_BYTES:
            return replace(segment, inline_bitmap=packed)
        name = f"dead-{swap}"
        await objects.write(segment.id, {name: packed})
        return replace(segment, bitmap_object=name)

    return tuple(await asyncio.gather(*map(store, marked)))
