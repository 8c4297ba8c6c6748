"""Which segments are merged, so that their number stays small: by an append into its own rows, and beside all requests.

Both are log-structured merges (https://en.wikipedia.org/wiki/Log-structured_merge-tree). An append counts in binary: a row is
rewritten only into a segment at least twice as large, until that is as large as one request can make. From there on segments go
up in tiers, several of one tier into one of the next, and that is the work of a job: an append takes part in it only when no job
has come for long.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Final

from spass.core.errors import StorageUnavailable, TooManyDocuments
from spass.rag.index.manifest import MAX_SEGMENTS, Manifest, Segment

MERGE_ROWS: Final = 4096
MERGE_BYTES: Final = 32 * 2**20  # of texts and vectors read
HEADROOM: Final = 8  # places left free by a merge, for writers that have no time for one

# What an append reads when places run short, and at most, when none is left: a merge holds about twice as much, beside the cache.
_MANY_SEGMENTS_BYTES: Final = 128 * 2**20
_FULL_BYTES: Final = 256 * 2**20

# What a job reads for one merge: it grows with the index, so that a large one has few segments, up to what a worker can hold.
_JOB_BYTES: Final = 256 * 2**20
_JOB_MAX_BYTES: Final = 640 * 2**20
_JOB_SHARE: Final = 12

_MERGE_FACTOR: Final = 4  # segments of one tier that make one of the next
_MANY_SMALL_SEGMENTS: Final = 24  # that appends may still take up themselves, and mostly do
_MANY_SEGMENTS: Final = 40
_MIN_DELETED_ROWS: Final = 1024  # dead ones; less is not worth a job
_DELETED_SHARE: Final = 4  # a quarter dead: three rows are rewritten for each that is dropped

_FLOAT_BYTES: Final = 4


def stored_bytes(segment: Segment, dimensions: int) -> int:
    """What a merge of ``segment`` reads, texts and vectors."""
    return segment.docs_bytes + segment.rows * dimensions * _FLOAT_BYTES


def choose_merge(segments: Sequence[Segment], new_rows: int, dimensions: int) -> list[Segment]:
    """Those of ``segments`` to rewrite together with ``new_rows`` rows of an append: small ones as long as each is no larger than
    what is collected so far and the result stays within what one request can do; more, smallest first, when places run short.

    Raises:
        StorageUnavailable: all places are taken by segments too large for a request; a job has to come first.
        TooManyDocuments: or for a job either: the index is full.
    """
    chosen: list[Segment] = []
    left: list[Segment] = []
    rows, size = new_rows, 0
    for segment in sorted(segments, key=lambda segment: (segment.live_rows, segment.id)):
        stored = stored_bytes(segment, dimensions)
        fits = rows + segment.live_rows <= MERGE_ROWS and size + stored <= MERGE_BYTES
        if segment.live_rows <= rows and fits:
            chosen.append(segment)
            rows += segment.live_rows
            size += stored
        else:
            left.append(segment)
    if len(left) + 1 <= MAX_SEGMENTS - HEADROOM:
        return chosen
    return chosen + _choose_for_free_slots(left, size, dimensions)


def _choose_for_free_slots(left: Sequence[Segment], size: int, dimensions: int) -> list[Segment]:
    """The smallest of ``left``: as many as leave the headroom and a place for the next segments to count in, if that is not
    too much; at any rate so many that there is a place."""
    must = max(0, len(left) + 1 - MAX_SEGMENTS)
    wanted = len(left) + 2 - (MAX_SEGMENTS - HEADROOM)
    smallest_first = sorted(left, key=lambda segment: (stored_bytes(segment, dimensions), segment.id))
    taken: list[Segment] = []
    for segment in smallest_first[:wanted]:
        size += stored_bytes(segment, dimensions)
        if size > (_FULL_BYTES if len(taken) < must else _MANY_SEGMENTS_BYTES):
            break
        taken.append(segment)
    if len(taken) >= must:
        return taken
    if choose_job_inputs(left, dimensions):
        raise StorageUnavailable("The index is being rearranged; try again.", retry_after=10)
    raise TooManyDocuments("The index is full; use another one beside it.", param="documents")


def merge_due(manifest: Manifest) -> bool:
    """Whether there is work for a job."""
    return bool(choose_job_inputs(manifest.segments, manifest.dimensions))


def choose_job_inputs(segments: Sequence[Segment], dimensions: int) -> list[Segment]:
    """Those of ``segments`` that a job is to make one of: enough of a tier, or one with many dead rows, or small ones of too many
    in all. None when there is nothing to do. What appends may take up themselves is left to them while it is not too many: a job
    would work for nothing."""
    sizes = {segment.id: stored_bytes(segment, dimensions) for segment in segments}
    most = min(max(_JOB_BYTES, sum(sizes.values()) // _JOB_SHARE), _JOB_MAX_BYTES)
    counted: list[Segment] = []
    settled: list[Segment] = []
    for segment in sorted(segments, key=lambda segment: (segment.live_rows, segment.id)):
        if 2 * segment.live_rows < MERGE_ROWS and 2 * sizes[segment.id] < MERGE_BYTES:
            counted.append(segment)
        elif 2 * sizes[segment.id] <= most:
            settled.append(segment)

    def fitting(candidates: Sequence[Segment]) -> list[Segment]:
        running = accumulate(sizes[segment.id] for segment in candidates)
        return [segment for segment, size in zip(candidates, running, strict=True) if size <= most]

    for _, members in groupby(settled, _tier):
        several = list(members)
        if len(several) >= _MERGE_FACTOR:
            return fitting(several)
    if len(counted) >= _MANY_SMALL_SEGMENTS:
        return fitting(counted)
    rotten = [s for s in segments if s.dead_rows >= _MIN_DELETED_ROWS and s.dead_rows * _DELETED_SHARE >= s.rows]
    if rotten:
        return [max(rotten, key=lambda segment: segment.dead_rows)]
    return fitting(settled) if len(segments) > _MANY_SEGMENTS and len(settled) > 1 else []


def _tier(segment: Segment) -> int:
    tier, rows = 0, MERGE_ROWS
    while segment.live_rows >= rows:
        tier, rows = tier + 1, rows * _MERGE_FACTOR
    return tier
