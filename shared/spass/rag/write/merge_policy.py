"""The merge policy: choose the segments to merge, so that their number stays small.

Merges are log-structured (https://en.wikipedia.org/wiki/Log-structured_merge-tree). An append merges small segments with its own
rows, like a binary counter, up to the size that one request can write. A merge job merges larger segments: when a tier (a range
of sizes) has enough segments, the job merges them to one segment of the next tier. An append merges large segments only if no job
has run for a long time and few slots are free. An index has ``MAX_SEGMENTS`` slots; each segment takes one.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Final

from spass.core.errors import StorageUnavailable, TooManyDocuments
from spass.rag.index.manifest import MAX_SEGMENTS, Manifest, Segment

MERGE_ROWS: Final = 4096  # the most rows of a segment that an append writes by merging small segments
MERGE_BYTES: Final = 32 * 2**20  # the most bytes of texts and vectors that an append reads to merge small segments
HEADROOM: Final = 8  # slots that a merge leaves free, for writers that cannot merge

# The maximum number of bytes that an append reads: ``_APPEND_BYTES`` if fewer than ``HEADROOM`` slots are free,
# ``_APPEND_MAX_BYTES`` if no slot is free. A merge needs twice as much memory, in addition to the cache.
_APPEND_BYTES: Final = 128 * 2**20
_APPEND_MAX_BYTES: Final = 256 * 2**20

# The most bytes that a job reads for one merge: the bytes of the index divided by ``_JOB_DIVISOR``, so that a large index has few
# segments, but at least ``_JOB_BYTES`` and, because of the worker's memory, at most ``_JOB_MAX_BYTES``.
_JOB_BYTES: Final = 256 * 2**20
_JOB_MAX_BYTES: Final = 640 * 2**20
_JOB_DIVISOR: Final = 12

_MERGE_FACTOR: Final = 4  # a job merges a tier that has this many segments; the next tier begins at this many times the rows
_MANY_SMALL_SEGMENTS: Final = 24  # a job merges small segments only if there are at least this many
_MANY_SEGMENTS: Final = 40  # if an index has more segments, a job merges large segments of different tiers

# A job rewrites a segment that has at least this many deleted rows, if they are at least a quarter of its rows. So it writes at
# most three rows for each row that it removes.
_MIN_DELETED_ROWS: Final = 1024
_DELETED_DIVISOR: Final = 4

_FLOAT_BYTES: Final = 4


def bytes_to_read(segment: Segment, dimensions: int) -> int:
    """Return how many bytes of texts and vectors a merge of ``segment`` reads."""
    return segment.docs_bytes + segment.rows * dimensions * _FLOAT_BYTES


def choose_merge(segments: Sequence[Segment], new_rows: int, dimensions: int) -> list[Segment]:
    """Choose the ``segments`` that an append of ``new_rows`` rows merges with its rows.

    Add up rows, beginning with ``new_rows``. Take the segments from the smallest to the largest, and choose each one that has at
    most as many rows as the sum so far, while one request can write the result. So a row that is rewritten moves to a segment
    about twice as large. If few slots are free, choose more segments, again from the smallest.

    Raises:
        StorageUnavailable: no slot is free, and the segments are too large for a request to merge. A job must run first.
        TooManyDocuments: no slot is free, and no job can merge the segments: the index is full.
    """
    chosen: list[Segment] = []
    others: list[Segment] = []
    rows, size = new_rows, 0
    for segment in sorted(segments, key=lambda segment: (segment.live_rows, segment.id)):
        segment_bytes = bytes_to_read(segment, dimensions)
        fits = rows + segment.live_rows <= MERGE_ROWS and size + segment_bytes <= MERGE_BYTES
        if segment.live_rows <= rows and fits:
            chosen.append(segment)
            rows += segment.live_rows
            size += segment_bytes
        else:
            others.append(segment)
    if len(others) + 1 <= MAX_SEGMENTS - HEADROOM:
        return chosen
    return chosen + _choose_for_free_slots(others, size, dimensions)


def _choose_for_free_slots(segments: Sequence[Segment], size: int, dimensions: int) -> list[Segment]:
    """Choose the smallest ``segments``, so that ``HEADROOM + 1`` slots are free after the append.

    Choose fewer if the append would read more than ``_APPEND_BYTES``, but enough to free a slot for its own segment (it may then
    read up to ``_APPEND_MAX_BYTES``). ``size`` is the number of bytes that the append already reads.
    """
    required = max(0, len(segments) + 1 - MAX_SEGMENTS)
    preferred = len(segments) + 2 - (MAX_SEGMENTS - HEADROOM)
    smallest_first = sorted(segments, key=lambda segment: (bytes_to_read(segment, dimensions), segment.id))
    chosen: list[Segment] = []
    for segment in smallest_first[:preferred]:
        size += bytes_to_read(segment, dimensions)
        if size > (_APPEND_MAX_BYTES if len(chosen) < required else _APPEND_BYTES):
            break
        chosen.append(segment)
    if len(chosen) >= required:
        return chosen
    if choose_job_inputs(segments, dimensions):
        raise StorageUnavailable("The index is being merged; try again.", retry_after=10)
    raise TooManyDocuments("The index is full. Write to another index.", param="documents")


def needs_merge_job(manifest: Manifest) -> bool:
    """Return True if a merge job would merge segments of the index."""
    return bool(choose_job_inputs(manifest.segments, manifest.dimensions))


def choose_job_inputs(segments: Sequence[Segment], dimensions: int) -> list[Segment]:
    """Choose the ``segments`` that a job merges to one segment. Return an empty list if no merge is needed.

    The choices in order: the segments of a tier that has enough; the small segments, if there are many; the one segment with most
    deleted rows, if they are many; large segments of any tier, if the index has many segments. A job does not merge a few small
    segments, because the next appends would rewrite its result.
    """
    sizes = {segment.id: bytes_to_read(segment, dimensions) for segment in segments}
    max_bytes = min(max(_JOB_BYTES, sum(sizes.values()) // _JOB_DIVISOR), _JOB_MAX_BYTES)
    # Small: an append can merge two of that size. Large: a job can merge two of that size. Larger segments are not merged.
    small: list[Segment] = []
    large: list[Segment] = []
    for segment in sorted(segments, key=lambda segment: (segment.live_rows, segment.id)):
        if 2 * segment.live_rows < MERGE_ROWS and 2 * sizes[segment.id] < MERGE_BYTES:
            small.append(segment)
        elif 2 * sizes[segment.id] <= max_bytes:
            large.append(segment)

    def take_up_to_max_bytes(candidates: Sequence[Segment]) -> list[Segment]:
        running = accumulate(sizes[segment.id] for segment in candidates)
        return [segment for segment, size in zip(candidates, running, strict=True) if size <= max_bytes]

    for _, members in groupby(large, _tier):
        tier = list(members)
        if len(tier) >= _MERGE_FACTOR:
            return take_up_to_max_bytes(tier)
    if len(small) >= _MANY_SMALL_SEGMENTS:
        return take_up_to_max_bytes(small)
    rewritable = [
        segment
        for segment in segments
        if segment.deleted_rows >= _MIN_DELETED_ROWS and segment.deleted_rows * _DELETED_DIVISOR >= segment.rows
    ]
    if rewritable:
        return [max(rewritable, key=lambda segment: segment.deleted_rows)]
    return take_up_to_max_bytes(large) if len(segments) > _MANY_SEGMENTS and len(large) > 1 else []


def _tier(segment: Segment) -> int:
    tier, rows = 0, MERGE_ROWS
    while segment.live_rows >= rows:
        tier, rows = tier + 1, rows * _MERGE_FACTOR
    return tier
