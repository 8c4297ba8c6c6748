"""Find the documents of an index that are nearest to a vector.

A query scans codes, and scores only those rows in full precision that the bounds of their scores do not exclude. Their vectors
are in memory, or are read by range, the most promising first.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

import anyio.to_thread
import numpy as np

from spass.core.tasks import map_concurrently
from spass.core.time import now
from spass.rag.index.filters import Filter
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import CODES, SegmentObjects, vector_block, vector_block_rows
from spass.rag.index.segments import Vectors
from spass.rag.search.blocks import MAX_CONCURRENT_READS, MAX_GROUP_BYTES, BlockReader, ScanUnit, choose_residency
from spass.rag.search.code_scan import NO_CANDIDATES, Candidates, CodeBlock, CodedQuery, bound_again, scan_codes
from spass.rag.search.scan import MIN_SCORE, ScanBlock, ScoredRow, keep_top_k, kth_largest_at_least, scan_top_k
from spass.rag.search.selection import FieldTypes, Selection
from spass.redaction.log import write_line

T = TypeVar("T")

_MAX_INLINE_BYTES: Final = 8 * 2**20  # a smaller scan takes less time than a switch to a thread
_FIRST_ROWS: Final = 8  # candidates that are read first, in addition to twice ``top_k``: their scores spare most of the others
_MORE_ROWS: Final = 512
_FEW_SELECTED: Final = 256  # rows of a filter; the codes of more are read
_MANY_ROWS: Final = 64  # of a block of vectors: it is read whole
_MAX_RANGES: Final = 2048  # with more open candidates, blocks are read whole from fewer candidates on: each range costs a request
_ENOUGH_ROWS: Final = 8
_MAX_OPEN: Final = 2**17  # candidates of which only bounds are known, to bound the memory
_DOUBLE_BYTES: Final = 8


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


async def find_nearest(
    objects: SegmentObjects, segments: Sequence[Segment], query: VectorQuery, types: FieldTypes | None = None
) -> list[Neighbor]:
    """Return the ``top_k`` neighbors, best first. Equal scores are in the order of ids. Add to ``types`` what the fields of the
    query's filter have."""
    dimensions = len(query.vector)
    residency = choose_residency(segments, dimensions, objects.cache.budget)
    reader = BlockReader(objects, segments, dimensions, residency)
    search = _Search(reader, query, types)
    await search.run()
    if reader.code_reads:
        line = {"at": now(), "level": "info", "event": "index_read", **objects.log_fields}
        write_line({**line, "residency": residency.value, "blocks": reader.code_reads})
    return await _resolve_ids(objects, segments, search.rows, query.top_k)


@dataclass
class _Search:
    """The search of one query: ``rows`` are the best of those that have a score, ``open`` those that have only bounds."""

    reader: BlockReader
    query: VectorQuery
    types: FieldTypes | None = None
    rows: list[ScoredRow] = field(default_factory=list)
    open: Candidates = NO_CANDIDATES
    _has_scanned: bool = False

    async def run(self) -> None:
        """Scan all blocks. If very many candidates are open, as with near-duplicates, score them before the next blocks."""
        units = self._leave_selected_open(await self.reader.select(self.query.filter, self.types))
        async with aclosing(self.reader.load(units)) as groups:
            async for group in groups:
                await self._score([block for block in group if isinstance(block, ScanBlock)])
                await self._scan_codes([block for block in group if isinstance(block, CodeBlock)])
                del group
                if len(self.open.rows) > _MAX_OPEN:
                    await self._score_open()
        if self.open:
            await self._score_open()

    def _leave_selected_open(self, units: Sequence[ScanUnit]) -> Sequence[ScanUnit]:
        """Leave open what a filter selects in blocks of codes that are not cached, if it is little: the vectors of a few rows are
        read faster than the codes of all. Return the other units."""
        selected: list[Candidates] = []
        others: list[ScanUnit] = []
        for unit in units:
            rows = unit.selected.included
            if rows is None or unit.block.part != CODES or self.reader.objects.is_cached(unit.block):
                others.append(unit)
            else:
                unknown = np.full(len(rows), np.inf)
                selected.append(Candidates(np.full(len(rows), unit.number), rows + unit.block.first, -unknown, unknown))
        if not selected or sum(len(candidates.rows) for candidates in selected) > _FEW_SELECTED:
            return units
        self.open = Candidates.joined(selected)
        return others

    @cached_property
    def _coded_query(self) -> CodedQuery:
        return CodedQuery(self.query.vector)

    @property
    def _floor(self) -> float:
        """The score that another row needs to be among the best."""
        floor = MIN_SCORE if self.query.min_score is None else self.query.min_score
        reached = np.array([scored.score for scored in self.rows[: self.query.top_k]])
        return max(floor, kth_largest_at_least(np.concatenate([reached, self.open.lower]), self.query.top_k))

    async def _score(self, blocks: Sequence[ScanBlock]) -> None:
        """Score the rows of ``blocks`` in full precision."""
        if blocks:
            size = sum(map(len, blocks)) * blocks[0].vectors[:1].nbytes
            found = await _run(size, lambda: scan_top_k(blocks, self.query.vector, self.query.top_k, self._floor))
            self.rows = keep_top_k(self.rows + found, self.query.top_k)

    async def _scan_codes(self, blocks: Sequence[CodeBlock]) -> None:
        """Score the candidates of ``blocks`` whose vectors are in memory, and leave the others open."""
        if not blocks:
            return
        self._has_scanned = True
        size = sum(map(len, blocks)) * self.reader.dimensions
        floor = self._floor
        found = await _run(size, lambda: scan_codes(blocks, self._coded_query, self.query.top_k, floor))
        others: list[Candidates] = []
        for part in found.best_first(self.query.top_k):
            cached: list[ScanUnit] = []
            for unit, candidates in self._by_vector_block(part.pick(part.upper >= self._floor)):
                if self.reader.objects.is_cached(unit.block):
                    cached.append(unit)
                else:
                    others.append(candidates)
            await self._read_and_score(cached)
        if others:
            joined = Candidates.joined(others)
            size = len(joined.rows) * self.reader.dimensions * _DOUBLE_BYTES
            bounded = await _run(size, lambda: bound_again(blocks, self._coded_query, joined))
            self.open = Candidates.joined([self.open, bounded])
            self.open = self.open.pick(self.open.upper >= self._floor)

    def _by_vector_block(self, candidates: Candidates) -> Iterator[tuple[ScanUnit, Candidates]]:
        """Yield the blocks of vectors that have ``candidates``, with these, in the order of segments and rows."""
        dimensions = self.reader.dimensions
        for segment, number, within in candidates.by_block(vector_block_rows(dimensions)):
            block = vector_block(self.reader.segments[segment], dimensions, number)
            yield ScanUnit(segment, block, Selection.of(within.rows - block.first, block.rows)), within

    async def _read_and_score(self, units: Sequence[ScanUnit]) -> None:
        """Score the selected rows of blocks of vectors. Blocks that are not cached are read whole."""
        async with aclosing(self.reader.load(units)) as groups:
            async for group in groups:
                await self._score([block for block in group if isinstance(block, ScanBlock)])
                del group

    async def _score_open(self) -> None:
        """Score the open candidates, the best bounds first, until no other can be among the best."""
        if self.reader.residency.keeps_vectors and self._has_scanned and not self.reader.code_reads:
            await self._keep_wanted_blocks()
        if self.open:
            await self._read_rows(2 * self.query.top_k + _FIRST_ROWS)
        many_rows = _MANY_ROWS if len(self.open.rows) <= _MAX_RANGES else _ENOUGH_ROWS
        many: list[ScanUnit] = []
        few = [NO_CANDIDATES]
        for unit, candidates in self._by_vector_block(self.open):
            if len(candidates.rows) >= many_rows:
                many.append(unit)
            else:
                few.append(candidates)
        self.open = Candidates.joined(few)
        await self._read_and_score(many)
        while self.open:
            await self._read_rows(_MORE_ROWS)

    async def _keep_wanted_blocks(self) -> None:
        """Read the blocks of vectors with the most candidates, 24 MiB at most, and keep them in memory. So an index whose codes
        have been read becomes resident with its next queries, and none of them waits for all of it."""
        wanted = sorted(self._by_vector_block(self.open), key=lambda item: len(item[1].rows), reverse=True)
        kept: list[ScanUnit] = []
        others = [NO_CANDIDATES]
        size = 0
        for unit, candidates in wanted:
            end = size + unit.block.end - unit.block.start
            if (not kept or end <= MAX_GROUP_BYTES) and self.reader.objects.cache.has_room(end):
                kept.append(unit)
                size = end
            else:
                others.append(candidates)
        self.open = Candidates.joined(others)
        await self._read_and_score(kept)
        self.open = self.open.pick(self.open.upper >= self._floor)

    async def _read_rows(self, count: int) -> None:
        """Read the vectors of the ``count`` open candidates with the best bounds by range, and score them."""
        order = np.argsort(-self.open.upper, kind="stable")
        chosen, self.open = self.open.pick(order[:count]), self.open.pick(order[count:])
        dimensions = self.reader.dimensions

        async def read(number: int) -> ScanBlock:
            rows = np.sort(chosen.rows[chosen.segments == number])
            vectors = await self.reader.objects.vectors(self.reader.segments[number], rows.tolist(), dimensions)
            return ScanBlock(number, 0, np.frombuffer(b"".join(vectors), np.float32).reshape(len(rows), dimensions), numbers=rows)

        numbers = np.unique(chosen.segments).tolist()
        await self._score(await map_concurrently(read, numbers, limit=MAX_CONCURRENT_READS))
        self.open = self.open.pick(self.open.upper >= self._floor)


async def _run(size: int, work: Callable[[], T]) -> T:
    """Return the result of ``work``, which reads ``size`` bytes: in a thread if they are many."""
    return work() if size <= _MAX_INLINE_BYTES else await anyio.to_thread.run_sync(work)


async def _resolve_ids(
    objects: SegmentObjects, segments: Sequence[Segment], rows: Sequence[ScoredRow], top_k: int
) -> list[Neighbor]:
    """Return the ``top_k`` best of ``rows`` with their ids. Only the ids of segments with a row in ``rows`` are read."""
    numbers = sorted({scored.segment for scored in rows})
    loaded = await map_concurrently(lambda number: objects.ids(segments[number]), numbers, limit=MAX_CONCURRENT_READS)
    ids = dict(zip(numbers, loaded, strict=True))
    neighbors = (Neighbor(score, ids[number][row], segments[number], row) for score, number, row in rows)
    return heapq.nsmallest(top_k, neighbors, key=lambda neighbor: (-neighbor.score, neighbor.id))
