"""Find the documents of an index that are nearest to a vector. Vectors that are not cached are read in groups; the next group is
read while one is scanned."""

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import anyio.to_thread

from spass.rag.index.filters import Filter
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import Block, SegmentObjects, blocks, map_limited
from spass.rag.index.segments import Vectors, decode_rows
from spass.rag.search.scan import MIN_SCORE, ScanBlock, ScoredRow, keep_top_k, scan_top_k
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
    """A row that a query found."""

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
    rows: list[ScoredRow] = []
    next_blocks = asyncio.ensure_future(_load_blocks(objects, groups[0])) if groups else None
    try:
        for next_group in [*groups[1:], None]:
            if next_blocks is None:
                break
            scan_blocks = await next_blocks
            next_blocks = asyncio.ensure_future(_load_blocks(objects, next_group)) if next_group else None
            rows = keep_top_k(rows + await _scan(scan_blocks, query, _floor(rows, query)), query.top_k)
            del scan_blocks
    finally:
        if next_blocks is not None:
            next_blocks.cancel()
            await asyncio.gather(next_blocks, return_exceptions=True)  # a read that is not needed any more may fail
    return await _resolve_ids(objects, segments, rows, query.top_k)


def _floor(rows: Sequence[ScoredRow], query: VectorQuery) -> float:
    """Return the score that another row needs to be among the best, given the best ``rows`` of the groups before it."""
    floor = MIN_SCORE if query.min_score is None else query.min_score
    return max(floor, rows[query.top_k - 1].score) if len(rows) >= query.top_k else floor


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
    scan_blocks = []
    for (number, block, selected), stored in zip(group, bodies, strict=True):
        vectors = decode_rows(stored or b"", block.rows, header=block.first == 0)
        scan_blocks.append(ScanBlock(number, block.first, vectors, selected.excluded, selected.included))
    return scan_blocks


async def _scan(scan_blocks: Sequence[ScanBlock], query: VectorQuery, floor: float) -> list[ScoredRow]:
    if sum(block.vectors.size for block in scan_blocks) <= _MAX_INLINE_NUMBERS:
        return scan_top_k(scan_blocks, query.vector, query.top_k, floor)
    return await anyio.to_thread.run_sync(scan_top_k, scan_blocks, query.vector, query.top_k, floor)


async def _resolve_ids(
    objects: SegmentObjects, segments: Sequence[Segment], rows: Sequence[ScoredRow], top_k: int
) -> list[Neighbor]:
    """Return the ``top_k`` best of ``rows`` with their ids. Only the ids of segments with a row in ``rows`` are read."""
    numbers = sorted({scored.segment for scored in rows})
    loaded = await map_limited(lambda number: objects.ids(segments[number]), numbers, limit=_MAX_CONCURRENT_READS)
    ids = dict(zip(numbers, loaded, strict=True))
    neighbors = (Neighbor(score, ids[number][row], segments[number], row) for score, number, row in rows)
    return heapq.nsmallest(top_k, neighbors, key=lambda neighbor: (-neighbor.score, neighbor.id))
