"""Find the documents of an index that are nearest to a vector. Vectors that are not cached are read in groups; the next group is
read while one is scanned."""

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import anyio.to_thread

from spass.rag.index.filters import Filter
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import Block, SegmentObjects, blocks, map_limited
from spass.rag.index.segments import Vectors, decode_rows
from spass.rag.search.scan import ScanBlock, ScoredRow, keep_top_k, scan_top_k
from spass.rag.search.selection import ALL, Selection, select

_MAX_GROUP_BYTES: Final = 24 * 2**20  # of vectors that one group reads; the group before it is in memory at the same time
_MAX_CONCURRENT_READS: Final = 16
_MAX_INLINE_NUMBERS: Final = 2_000_000  # float32 numbers; a smaller scan takes less time than a switch to a thread


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
    """The ``selected`` rows of a block. ``number`` is the index of its segment in the list of segments."""

    number: int
    block: Block
    selected: Selection


async def find_nearest(objects: SegmentObjects, segments: Sequence[Segment], query: VectorQuery) -> list[Neighbor]:
    """Return the ``top_k`` neighbors, best first. Equal scores are in the order of ids."""
    groups = _group_units(objects, await _select_units(objects, segments, query))
    top_rows = _TopRows(query)
    next_blocks = asyncio.ensure_future(_load_blocks(objects, groups[0])) if groups else None
    try:
        for next_group in [*groups[1:], None]:
            if next_blocks is None:
                break
            scan_blocks = await next_blocks
            next_blocks = asyncio.ensure_future(_load_blocks(objects, next_group)) if next_group else None
            top_rows.add(await _scan(scan_blocks, query, top_rows.floor))
            del scan_blocks
    finally:
        if next_blocks is not None:
            next_blocks.cancel()
            await asyncio.gather(next_blocks, return_exceptions=True)  # a read that is not needed any more may fail
    return await _resolve_ids(objects, segments, top_rows.found, query.top_k)


@dataclass(slots=True)
class _TopRows:
    """The best rows of the groups that have been scanned. Another row must have a score of at least ``floor`` to be one of
    them."""

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


async def _select_units(objects: SegmentObjects, segments: Sequence[Segment], query: VectorQuery) -> list[_ScanUnit]:
    """Return the rows to scan, without blocks that have no selected rows."""
    filtered = [n for n, segment in enumerate(segments) if query.filter is not None or segment.deleted_rows]
    selections = await map_limited(lambda n: select(objects, segments[n], query.filter), filtered, limit=_MAX_CONCURRENT_READS)
    selected = dict(zip(filtered, selections, strict=True))
    units = []
    for number, segment in enumerate(segments):
        selection_of_segment = selected.get(number, ALL)
        for block in blocks(segment, len(query.vector)):
            selection = selection_of_segment.within(block)
            if not selection.is_empty(block.rows):
                units.append(_ScanUnit(number, block, selection))
    return units


def _group_units(objects: SegmentObjects, units: Sequence[_ScanUnit]) -> list[list[_ScanUnit]]:
    """Group ``units`` so that each group reads at most 24 MiB of vectors, or one block."""
    groups: list[list[_ScanUnit]] = []
    size = 0
    for unit in units:
        bytes_to_read = 0 if objects.is_cached(unit.block) else unit.block.end - unit.block.start
        if not groups or (bytes_to_read and size + bytes_to_read > _MAX_GROUP_BYTES):
            groups.append([])
            size = 0
        groups[-1].append(unit)
        size += bytes_to_read
    return groups


async def _load_blocks(objects: SegmentObjects, group: Sequence[_ScanUnit]) -> list[ScanBlock]:
    """Load the vectors of ``group``. Read concurrently those that are not cached."""
    bodies = [objects.cached_block(unit.block) for unit in group]
    missing = [n for n, body in enumerate(bodies) if body is None]
    for n, body in zip(missing, await asyncio.gather(*(objects.block(group[n].block) for n in missing)), strict=True):
        bodies[n] = body
    return [_scan_block(unit, body or b"") for unit, body in zip(group, bodies, strict=True)]


def _scan_block(unit: _ScanUnit, body: bytes) -> ScanBlock:
    block = unit.block
    vectors = decode_rows(body, block.rows, header=block.first == 0)
    return ScanBlock(unit.number, block.first, vectors, unit.selected.excluded, unit.selected.included)


async def _scan(scan_blocks: Sequence[ScanBlock], query: VectorQuery, floor: float) -> list[ScoredRow]:
    if sum(block.vectors.size for block in scan_blocks) <= _MAX_INLINE_NUMBERS:
        return scan_top_k(scan_blocks, query.vector, query.top_k, floor)
    return await anyio.to_thread.run_sync(scan_top_k, scan_blocks, query.vector, query.top_k, floor)


async def _resolve_ids(
    objects: SegmentObjects, segments: Sequence[Segment], found: Sequence[ScoredRow], top_k: int
) -> list[Neighbor]:
    """Return the ``top_k`` best of ``found`` with their ids. Only the ids of segments with a row in ``found`` are read."""
    numbers = sorted({scored.segment for scored in found})
    loaded = await map_limited(lambda number: objects.ids(segments[number]), numbers, limit=_MAX_CONCURRENT_READS)
    ids = dict(zip(numbers, loaded, strict=True))
    neighbors = (Neighbor(score, ids[number][row], segments[number], row) for score, number, row in found)
    return heapq.nsmallest(top_k, neighbors, key=lambda neighbor: (-neighbor.score, neighbor.id))
