"""Mark rows as deleted, and write the deletion bitmaps."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spass.rag.index.bitmap import Bitmap
from spass.rag.index.locations import DocumentLocation, LiveIds
from spass.rag.index.manifest import INLINE_DEAD_BYTES, Segment
from spass.rag.index.objects import SegmentObjects


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Segments after some of their rows died: those with live rows left, with the bitmap of each that changed, and those
    without."""

    left: tuple[Segment, ...]
    changed: Mapping[str, Bitmap]
    emptied: tuple[Segment, ...]


def mark_deleted(loaded: Sequence[LiveIds], victims: Iterable[DocumentLocation]) -> DeleteResult:
    """``loaded`` without ``victims``. Nothing is written: the bitmaps are not yet in the segments."""
    rows: dict[str, list[DocumentLocation]] = {}
    for victim in victims:
        rows.setdefault(victim.segment.id, []).append(victim)
    left: list[Segment] = []
    emptied: list[Segment] = []
    changed: dict[str, Bitmap] = {}
    for live in loaded:
        dying = rows.get(live.segment.id, [])
        after = replace(
            live.segment,
            dead_rows=live.segment.dead_rows + len(dying),
            text_bytes=live.segment.text_bytes - sum(victim.stored.text_bytes for victim in dying),
        )
        if not after.live_rows:
            emptied.append(after)
            continue
        left.append(after)
        if dying:
            changed[after.id] = live.dead.with_rows(victim.row for victim in dying)
    return DeleteResult(tuple(left), changed, tuple(emptied))


async def write_deleted_rows(objects: SegmentObjects, segment: Segment, dead: Bitmap, swap: str) -> Segment:
    """``segment`` with ``dead`` as its dead rows: in the manifest when tiny, else in an object of its own named by the swap."""
    packed = dead.packed()
    if len(packed) <= INLINE_DEAD_BYTES:
        return replace(segment, dead_inline=packed, dead_object="")
    name = f"dead-{swap}"
    await objects.write(segment.id, {name: packed})
    return replace(segment, dead_inline=b"", dead_object=name)


async def write_all_deleted_rows(
    objects: SegmentObjects, segments: Iterable[Segment], changed: Mapping[str, Bitmap], swap: str
) -> tuple[Segment, ...]:
    """``segments``, those in ``changed`` with their new dead rows."""

    async def after(segment: Segment) -> Segment:
        dead = changed.get(segment.id)
        return segment if dead is None else await write_deleted_rows(objects, segment, dead, swap)

    return tuple(await asyncio.gather(*map(after, segments)))


def garbage_paths(generation: str, before: Sequence[Segment], after: Sequence[Segment]) -> list[str]:
    """The paths that ``after`` lists no more: whole segments, and bitmaps that were replaced."""
    kept = {segment.id: segment for segment in after}
    paths = []
    for segment in before:
        if segment.id not in kept:
            paths.append(f"{generation}/{segment.id}")
        elif segment.dead_object and segment.dead_object != kept[segment.id].dead_object:
            paths.append(f"{generation}/{segment.id}/{segment.dead_object}")
    return paths
