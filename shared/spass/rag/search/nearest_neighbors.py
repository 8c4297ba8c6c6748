"""Find the documents of an index nearest to a vector. The vectors may be cached, or be read in groups and dropped."""

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import anyio.to_thread

from spass.rag.index.filters import Filter
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import Block, SegmentObjects, blocks, gather_limited
from spass.rag.index.segments import Vectors, decode_rows
from spass.rag.search.scan import ScanBlock, ScoredRow, keep_top_k, scan_top_k
from spass.rag.search.selection import ALL, Selection, select

_STREAMED_BYTES: Final = 24 * 2**20  # of vectors in one read group; another group is scanned at the same time
_MAX_CONCURRENT_READS: Final = 16
_INLINE_SCAN: Final = 2_000_000  # numbers; a scan of fewer takes less time than handing it to a thread


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """A query for the ``top_k`` documents nearest to ``vector``, (d,) float32, normalised, that match ``filter`` and have a score
    of at least ``min_score``."""

    vector: Vectors
    top_k: int
    filter: Filter | None = None
    min_score: float | None = None


class Neighbor(NamedTuple):
    """A row found by a query."""

    score: float
    id: str
    segment: Segment
    row: int


class _ScanUnit(NamedTuple):
    """The rows to scan in a block of the segment with this ``number``."""

    number: int
    block: Block
    selected: Selection


async def find_nearest(objects: SegmentObjects, segments: Sequence[Segment], query: VectorQuery) -> list[Neighbor]:
    """Return the neighbors, best first, equal scores in the order of ids."""
    groups = _groups(objects, await _scan_units(objects, segments, query))
    best_yet = _TopRows(query)
    ahead = asyncio.ensure_future(_load_blocks(objects, groups[0])) if groups else None
    try:
        for following in [*groups[1:], None]:
            if ahead is None:
                break
            parts = await ahead
            ahead = asyncio.ensure_future(_load_blocks(objects, following)) if following else None
            best_yet.add(await _scan(parts, query, best_yet.floor))
            del parts
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)  # its error does not matter any more
    return await _with_ids(objects, segments, best_yet.found, query.top_k)


@dataclass(slots=True)
class _TopRows:
    """The best rows of the groups so far. A later row must reach ``floor`` to be among the best of all."""

    query: VectorQuery
    found: list[ScoredRow] = field(default_factory=list)
    floor: float = -2.0

    def __post_init__(self) -> None:
        if self.query.min_score is not None:
            self.floor = self.query.min_score

    def add(self, found: list[ScoredRow]) -> None:
        self.found = keep_top_k(self.found + found, self.query.top_k)
        if len(self.found) >= self.query.top_k:
            self.floor = max(self.floor, self.found[self.query.top_k - 1].score)


async def _scan_units(objects: SegmentObjects, segments: Sequence[Segment], query: VectorQuery) -> list[_ScanUnit]:
    """Return the rows to scan. A block without selected rows is left out."""
    partial = [n for n, segment in enumerate(segments) if query.filter is not None or segment.dead_rows]
    selections = await gather_limited(
        (select(objects, segments[n], query.filter) for n in partial), at_once=_MAX_CONCURRENT_READS
    )
    selected = dict(zip(partial, selections, strict=True))
    units = []
    for number, segment in enumerate(segments):
        of_segment = selected.get(number, ALL)
        for block in blocks(segment, len(query.vector)):
            selection = of_segment.within(block)
            if not selection.is_empty(block.rows):
                units.append(_ScanUnit(number, block, selection))
    return units


def _groups(objects: SegmentObjects, units: Sequence[_ScanUnit]) -> list[list[_ScanUnit]]:
    """Group ``units`` so that the vectors that each group has to read are at most 24 MiB."""
    groups: list[list[_ScanUnit]] = []
    size = 0
    for unit in units:
        missing = 0 if objects.is_cached(unit.block) else unit.block.end - unit.block.start
        if not groups or (missing and size + missing > _STREAMED_BYTES):
            groups.append([])
            size = 0
        groups[-1].append(unit)
        size += missing
    return groups


async def _load_blocks(objects: SegmentObjects, group: Sequence[_ScanUnit]) -> list[ScanBlock]:
    """Load the vectors of ``group``. Those that are not cached are read concurrently."""
    bodies = [objects.cached_block(unit.block) for unit in group]
    missing = [n for n, body in enumerate(bodies) if body is None]
    for n, body in zip(missing, await asyncio.gather(*(objects.block(group[n].block) for n in missing)), strict=True):
        bodies[n] = body
    return [_scan_block(unit, body or b"") for unit, body in zip(group, bodies, strict=True)]


def _scan_block(unit: _ScanUnit, body: bytes) -> ScanBlock:
    block = unit.block
    vectors = decode_rows(body, block.rows, header=block.first == 0)
    return ScanBlock(unit.number, block.first, vectors, unit.selected.excluded, unit.selected.included)


async def _scan(parts: Sequence[ScanBlock], query: VectorQuery, floor: float) -> list[ScoredRow]:
    if sum(part.vectors.size for part in parts) <= _INLINE_SCAN:
        return scan_top_k(parts, query.vector, query.top_k, floor)
    return await anyio.to_thread.run_sync(scan_top_k, parts, query.vector, query.top_k, floor)


async def _with_ids(
    objects: SegmentObjects, segments: Sequence[Segment], found: Sequence[ScoredRow], top_k: int
) -> list[Neighbor]:
    """Return the best of ``found`` with their ids. Only the ids of segments that contain one of them are read."""
    numbers = sorted({scored.segment for scored in found})
    loaded = await gather_limited((objects.ids(segments[number]) for number in numbers), at_once=_MAX_CONCURRENT_READS)
    ids = dict(zip(numbers, loaded, strict=True))
    named = (Neighbor(score, ids[number][row], segments[number], row) for score, number, row in found)
    return heapq.nsmallest(top_k, named, key=lambda one: (-one.score, one.id))
