"""Mark rows as deleted, and write the deletion bitmaps."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spass.rag.index.bitmap import Bitmap
from spass.rag.index.locations import DocumentLocation, LiveIds
from spass.rag.index.manifest import MAX_INLINE_BITMAP_BYTES, Segment
from spass.rag.index.objects import SegmentObjects


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The segments that still have live rows, and the new deletion bitmaps, by segment."""

    remaining: tuple[Segment, ...]
    bitmaps: Mapping[str, Bitmap]


def mark_deleted(loaded: Sequence[LiveIds], rows: Iterable[DocumentLocation]) -> DeleteResult:
    """Mark ``rows`` of ``loaded`` as deleted. Nothing is written, and the segments do not refer to the new bitmaps yet."""
    by_segment: dict[str, list[DocumentLocation]] = {}
    for row in rows:
        by_segment.setdefault(row.segment.id, []).append(row)
    remaining: list[Segment] = []
    bitmaps: dict[str, Bitmap] = {}
    for live in loaded:
        deleted = by_segment.get(live.segment.id, [])
        after = replace(
            live.segment,
            deleted_rows=live.segment.deleted_rows + len(deleted),
            text_bytes=live.segment.text_bytes - sum(row.stored.text_bytes for row in deleted),
        )
        if after.live_rows:
            remaining.append(after)
            if deleted:
                bitmaps[after.id] = live.deleted.with_rows(row.row for row in deleted)
    return DeleteResult(tuple(remaining), bitmaps)


async def write_deleted_rows(objects: SegmentObjects, segment: Segment, deleted: Bitmap, swap: str) -> Segment:
    """Return ``segment`` with the bitmap ``deleted``: in the manifest if it is small, or else in an object named by ``swap``."""
    packed = deleted.packed()
    if len(packed) <= MAX_INLINE_BITMAP_BYTES:
        return replace(segment, inline_bitmap=packed, bitmap_object="")
    name = f"dead-{swap}"
    await objects.write(segment.id, {name: packed})
    return replace(segment, inline_bitmap=b"", bitmap_object=name)


async def write_all_deleted_rows(
    objects: SegmentObjects, segments: Iterable[Segment], bitmaps: Mapping[str, Bitmap], swap: str
) -> tuple[Segment, ...]:
    """Return ``segments``, with their new bitmaps written."""

    async def write(segment: Segment) -> Segment:
        deleted = bitmaps.get(segment.id)
        return segment if deleted is None else await write_deleted_rows(objects, segment, deleted, swap)

    return tuple(await asyncio.gather(*map(write, segments)))


def garbage_paths(generation: str, before: Sequence[Segment], after: Sequence[Segment]) -> list[str]:
    """Return the paths that ``after`` no longer lists: whole segments, and bitmaps that were replaced."""
    kept = {segment.id: segment for segment in after}
    paths = []
    for segment in before:
        if segment.id not in kept:
            paths.append(f"{generation}/{segment.id}")
        elif segment.bitmap_object and segment.bitmap_object != kept[segment.id].bitmap_object:
            paths.append(f"{generation}/{segment.id}/{segment.bitmap_object}")
    return paths
