"""The documents of an index nearest to a vector, whether its vectors are in memory or stream through it."""

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

_STREAMED_BYTES: Final = 24 * 2**20  # of vectors read at once; as many again are being scanned meanwhile
_MAX_CONCURRENT_READS: Final = 16
_INLINE_SCAN: Final = 2_000_000  # numbers that are scanned faster than a worker thread is reached and heard of


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """The ``top_k`` documents nearest to ``vector``, (d,) float32, normalised; of those that meet the ``filter``, and only with a
    score of at least ``min_score``."""

    vector: Vectors
    top_k: int
    filter: Filter | None = None
    min_score: float | None = None


class Neighbor(NamedTuple):
    """A row that was found."""

    score: float
    id: str
    segment: Segment
    row: int


class _ScanUnit(NamedTuple):
    """Rows to be scanned of the segment with this ``number``."""

    number: int
    block: Block
    selected: Selection


async def find_nearest(objects: SegmentObjects, segments: Sequence[Segment], question: VectorQuery) -> list[Neighbor]:
    """The answer to ``question``, best first, equal scores in the order of ids."""
    groups = _groups(objects, await _scan_units(objects, segments, question))
    best_yet = _TopRows(question)
    ahead = asyncio.ensure_future(_load_blocks(objects, groups[0])) if groups else None
    try:
        for following in [*groups[1:], None]:
            if ahead is None:
                break
            parts = await ahead
            ahead = asyncio.ensure_future(_load_blocks(objects, following)) if following else None
            best_yet.add(await _scan(parts, question, best_yet.floor))
            del parts
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)  # also what it may have failed with meanwhile
    return await _with_ids(objects, segments, best_yet.found, question.top_k)


@dataclass(slots=True)
class _TopRows:
    """What is best of the groups so far; a later row has to reach ``floor`` to be among the best of all."""

    question: VectorQuery
    found: list[ScoredRow] = field(default_factory=list)
    floor: float = -2.0

    def __post_init__(self) -> None:
        if self.question.min_score is not None:
            self.floor = self.question.min_score

    def add(self, found: list[ScoredRow]) -> None:
        self.found = keep_top_k(self.found + found, self.question.top_k)
        if len(self.found) >= self.question.top_k:
            self.floor = max(self.floor, self.found[self.question.top_k - 1].score)


async def _scan_units(objects: SegmentObjects, segments: Sequence[Segment], question: VectorQuery) -> list[_ScanUnit]:
    """What has to be scanned; a block without a row that may be found is not."""
    asked = [n for n, segment in enumerate(segments) if question.filter is not None or segment.dead_rows]
    selections = await gather_limited(
        (select(objects, segments[n], question.filter) for n in asked), at_once=_MAX_CONCURRENT_READS
    )
    selected = dict(zip(asked, selections, strict=True))
    pieces = []
    for number, segment in enumerate(segments):
        of_segment = selected.get(number)
        for block in blocks(segment, len(question.vector)):
            selection = ALL if of_segment is None else of_segment.within(block)
            if not selection.empty(block.rows):
                pieces.append(_ScanUnit(number, block, selection))
    return pieces


def _groups(objects: SegmentObjects, pieces: Sequence[_ScanUnit]) -> list[list[_ScanUnit]]:
    """``pieces`` as they are loaded together: what is held costs nothing, of the rest some at a time."""
    groups: list[list[_ScanUnit]] = []
    size = 0
    for piece in pieces:
        cold = 0 if objects.holds(piece.block) else piece.block.end - piece.block.start
        if not groups or (cold and size + cold > _STREAMED_BYTES):
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += cold
    return groups


async def _load_blocks(objects: SegmentObjects, group: Sequence[_ScanUnit]) -> list[ScanBlock]:
    """The vectors of ``group``: what is not held is read side by side."""
    bodies = [objects.held(piece.block) for piece in group]
    missing = [n for n, body in enumerate(bodies) if body is None]
    for n, body in zip(missing, await asyncio.gather(*(objects.block(group[n].block) for n in missing)), strict=True):
        bodies[n] = body
    return [_scan_block(piece, body or b"") for piece, body in zip(group, bodies, strict=True)]


def _scan_block(piece: _ScanUnit, body: bytes) -> ScanBlock:
    block = piece.block
    vectors = decode_rows(body, block.rows, header=block.first == 0)
    return ScanBlock(piece.number, block.first, vectors, piece.selected.but, piece.selected.only)


async def _scan(parts: Sequence[ScanBlock], question: VectorQuery, floor: float) -> list[ScoredRow]:
    if sum(part.vectors.size for part in parts) <= _INLINE_SCAN:
        return scan_top_k(parts, question.vector, question.top_k, floor)
    return await anyio.to_thread.run_sync(scan_top_k, parts, question.vector, question.top_k, floor)


async def _with_ids(
    objects: SegmentObjects, segments: Sequence[Segment], found: Sequence[ScoredRow], top_k: int
) -> list[Neighbor]:
    """The best of ``found``, with their ids; only the ids of segments that hold one of them are read."""
    numbers = sorted({scored.segment for scored in found})
    loaded = await gather_limited((objects.ids(segments[number]) for number in numbers), at_once=_MAX_CONCURRENT_READS)
    ids = dict(zip(numbers, loaded, strict=True))
    named = (Neighbor(score, ids[number][row], segments[number], row) for score, number, row in found)
    return heapq.nsmallest(top_k, named, key=lambda one: (-one.score, one.id))
