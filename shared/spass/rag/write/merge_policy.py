"""The merge policy: choose the segments to merge, so that their number stays small.

Merges are log-structured (https://en.wikipedia.org/wiki/Log-structured_merge-tree). An append merges small segments with its own
rows, like a binary counter: a row is rewritten only to a segment at least twice as large, up to the size that one request can
write. A merge job merges larger segments by tiers, several of one tier to one of the next. An append merges large segments only
if the index runs out of segments because no job has run for long.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Final

from spass.core.errors import StorageUnavailable, TooManyDocuments
from spass.rag.index.manifest import MAX_SEGMENTS, Manifest, Segment

MERGE_ROWS: Final = 4096
MERGE_BYTES: Final = 32 * 2**20  # of texts and vectors that are read
HEADROOM: Final = 8  # segments left free by a merge, for writers that cannot merge

# The most that an append reads if few segments are free, and if none is. A merge needs twice that memory, besides the cache.
_MANY_SEGMENTS_BYTES: Final = 128 * 2**20
_FULL_BYTES: Final = 256 * 2**20

# The most that a job reads for one merge. It grows with the index, so that a large one has few segments, up to a worker's memory.
_JOB_BYTES: Final = 256 * 2**20
_JOB_MAX_BYTES: Final = 640 * 2**20
_JOB_SHARE: Final = 12

_MERGE_FACTOR: Final = 4  # segments of one tier that are merged to one of the next
_MANY_SMALL_SEGMENTS: Final = 24  # fewer are left to appends
_MANY_SEGMENTS: Final = 40
_MIN_DELETED_ROWS: Final = 1024  # fewer are not worth a job
_DELETED_SHARE: Final = 4  # a quarter: three rows are rewritten for each one that is dropped

_FLOAT_BYTES: Final = 4


def stored_bytes(segment: Segment, dimensions: int) -> int:
    """Return the bytes of texts and vectors that a merge of ``segment`` reads."""
    return segment.docs_bytes + segment.rows * dimensions * _FLOAT_BYTES


def choose_merge(segments: Sequence[Segment], new_rows: int, dimensions: int) -> list[Segment]:
    """Choose the ``segments`` to merge with the ``new_rows`` rows of an append: small ones, as long as each is not larger than
    those before it together, and the result is not too large for one request. If few segments are free, choose more, smallest
    first.

    Raises:
        StorageUnavailable: no segment is free, and they are too large for a request to merge; a job must run first.
        TooManyDocuments: they are too large for a job too: the index is full.
    """
    chosen: list[Segment] = []
    others: list[Segment] = []
    rows, size = new_rows, 0
    for segment in sorted(segments, key=lambda segment: (segment.live_rows, segment.id)):
        stored = stored_bytes(segment, dimensions)
        fits = rows + segment.live_rows <= MERGE_ROWS and size + stored <= MERGE_BYTES
        if segment.live_rows <= rows and fits:
            chosen.append(segment)
            rows += segment.live_rows
            size += stored
        else:
            others.append(segment)
    if len(others) + 1 <= MAX_SEGMENTS - HEADROOM:
        return chosen
    return chosen + _choose_for_free_slots(others, size, dimensions)


def _choose_for_free_slots(segments: Sequence[Segment], size: int, dimensions: int) -> list[Segment]:
    """Choose the smallest of ``segments``: enough to leave the headroom and one more free, if that is not too much to read, and
    at least enough for the new segment."""
    required = max(0, len(segments) + 1 - MAX_SEGMENTS)
    preferred = len(segments) + 2 - (MAX_SEGMENTS - HEADROOM)
    smallest_first = sorted(segments, key=lambda segment: (stored_bytes(segment, dimensions), segment.id))
    chosen: list[Segment] = []
    for segment in smallest_first[:preferred]:
        size += stored_bytes(segment, dimensions)
        if size > (_FULL_BYTES if len(chosen) < required else _MANY_SEGMENTS_BYTES):
            break
        chosen.append(segment)
    if len(chosen) >= required:
        return chosen
    if choose_job_inputs(segments, dimensions):
        raise StorageUnavailable("The index is being merged; try again.", retry_after=10)
    raise TooManyDocuments("The index is full. Write to another index.", param="documents")


def merge_due(manifest: Manifest) -> bool:
    """Return whether there is work for a merge job."""
    return bool(choose_job_inputs(manifest.segments, manifest.dimensions))


def choose_job_inputs(segments: Sequence[Segment], dimensions: int) -> list[Segment]:
    """Choose the ``segments`` that a job merges to one: enough of a tier, or many small ones, or one with many deleted rows, or
    several if there are too many in all. Return none if nothing is due. A few small segments are left to appends, which would
    rewrite the result of a job."""
    sizes = {segment.id: stored_bytes(segment, dimensions) for segment in segments}
    max_bytes = min(max(_JOB_BYTES, sum(sizes.values()) // _JOB_SHARE), _JOB_MAX_BYTES)
    small: list[Segment] = []
    large: list[Segment] = []
    for segment in sorted(segments, key=lambda segment: (segment.live_rows, segment.id)):
        if 2 * segment.live_rows < MERGE_ROWS and 2 * sizes[segment.id] < MERGE_BYTES:
            small.append(segment)
        elif 2 * sizes[segment.id] <= max_bytes:
            large.append(segment)

    def fitting(candidates: Sequence[Segment]) -> list[Segment]:
        running = accumulate(sizes[segment.id] for segment in candidates)
        return [segment for segment, size in zip(candidates, running, strict=True) if size <= max_bytes]

    for _, members in groupby(large, _tier):
        tier = list(members)
        if len(tier) >= _MERGE_FACTOR:
            return fitting(tier)
    if len(small) >= _MANY_SMALL_SEGMENTS:
        return fitting(small)
    mostly_deleted = [s for s in segments if s.deleted_rows >= _MIN_DELETED_ROWS and s.deleted_rows * _DELETED_SHARE >= s.rows]
    if mostly_deleted:
        return [max(mostly_deleted, key=lambda segment: segment.deleted_rows)]
    return fitting(large) if len(segments) > _MANY_SEGMENTS and len(large) > 1 else []


def _tier(segment: Segment) -> int:
    tier, rows = 0, MERGE_ROWS
    while segment.live_rows >= rows:
        tier, rows = tier + 1, rows * _MERGE_FACTOR
    return tier
