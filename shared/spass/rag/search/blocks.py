"""Read what a query scans: the codes of each segment that has them or is large enough for them, the vectors of the others."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import anyio.to_thread

from spass.core.tasks import map_concurrently
from spass.core.time import now
from spass.rag.index.cache import Body, in_large_pages
from spass.rag.index.filters import Filter
from spass.rag.index.manifest import CODED, Segment, has_codes
from spass.rag.index.objects import CODE_BOUND_BYTES, CODES, Block, SegmentObjects, code_blocks, vector_blocks
from spass.rag.index.segments import Codes, decode_codes, decode_rows, encode_block, quantize
from spass.rag.search.code_scan import CodeBlock
from spass.rag.search.scan import ScanBlock
from spass.rag.search.selection import ALL, FieldTypes, Selection, select
from spass.redaction.log import write_line
from spass.store.bucket import ObjectMissing

MAX_GROUP_BYTES: Final = 24 * 2**20  # that one group reads; the group before it is in memory at the same time
MAX_CONCURRENT_READS: Final = 16
_MAX_VECTOR_READS: Final = 2  # blocks of vectors whose codes are made at the same time, for one block of codes
_MAX_GROUP_ROWS: Final = 2**18  # of one group, to bound the memory for scores and candidates
_FLOAT_BYTES: Final = 4
_ID_BYTES: Final = 64  # of a row in ``ids``, about


class Residency(StrEnum):
    """What stays in memory: codes and vectors, codes alone, or those codes that fit."""

    CODES_AND_VECTORS = "codes and vectors"
    CODES = "codes"
    SOME_CODES = "some codes"

    @property
    def keeps_vectors(self) -> bool:
        return self is Residency.CODES_AND_VECTORS


def choose_residency(segments: Sequence[Segment], dimensions: int, budget: int) -> Residency:
    """Return what fits ``budget``, the bytes of the cache. Segments without codes count with their vectors in each case."""
    coded = sum(segment.rows for segment in segments if has_codes(segment.rows, dimensions))
    rows = sum(segment.rows for segment in segments)
    vectors = dimensions * _FLOAT_BYTES
    least = coded * (dimensions + CODE_BOUND_BYTES) + (rows - coded) * vectors + rows * _ID_BYTES
    if least + coded * vectors <= budget:
        return Residency.CODES_AND_VECTORS
    return Residency.CODES if least <= budget else Residency.SOME_CODES


class ScanUnit(NamedTuple):
    """The ``selected`` rows of a block. ``number`` is the index of its segment in the list of segments."""

    number: int
    block: Block
    selected: Selection


@dataclass(slots=True)
class BlockReader:
    """Reads blocks of ``segments``, whose vectors have ``dimensions`` numbers. ``code_reads`` counts the blocks of
    codes that were not cached."""

    objects: SegmentObjects
    segments: Sequence[Segment]
    dimensions: int
    residency: Residency
    code_reads: int = field(default=0, init=False)
    _incomplete: set[str] = field(default_factory=set, init=False)  # segments whose codes are known to be incomplete

    async def select(self, filter_: Filter | None, types: FieldTypes | None = None) -> list[ScanUnit]:
        """Return what to scan: the rows that ``filter_`` selects, without blocks that have none. Add to ``types`` as ``select``
        does."""
        segments = self.segments
        filtered = [n for n, segment in enumerate(segments) if filter_ is not None or segment.deleted_rows]
        selections = await map_concurrently(
            lambda n: select(self.objects, segments[n], filter_, types), filtered, limit=MAX_CONCURRENT_READS
        )
        selected = dict(zip(filtered, selections, strict=True))
        units = []
        for number, segment in enumerate(segments):
            selection_of_segment = selected.get(number, ALL)
            list_blocks = code_blocks if has_codes(segment.rows, self.dimensions) else vector_blocks
            for block in list_blocks(segment, self.dimensions):
                selection = selection_of_segment.within(block)
                if not selection.is_empty(block.rows):
                    units.append(ScanUnit(number, block, selection))
        return units

    async def load(self, units: Sequence[ScanUnit]) -> AsyncGenerator[list[ScanBlock | CodeBlock], None]:
        """Yield the blocks of ``units`` in groups. A group has at most 2^18 rows and reads at most 24 MiB, or is one block; the
        next group is read while the caller works on one."""
        groups = self._group(units)
        next_group = asyncio.ensure_future(self._load_group(groups[0])) if groups else None
        try:
            for group in [*groups[1:], None]:
                if next_group is None:
                    break
                loaded = await next_group
                next_group = asyncio.ensure_future(self._load_group(group)) if group else None
                yield loaded
                del loaded
        finally:
            if next_group is not None:
                next_group.cancel()
                await asyncio.gather(next_group, return_exceptions=True)  # a read that is not needed any more may fail

    def _group(self, units: Sequence[ScanUnit]) -> list[list[ScanUnit]]:
        groups: list[list[ScanUnit]] = []
        size = rows = 0
        for unit in units:
            bytes_to_read = self._bytes_to_read(unit)
            is_full = rows + unit.block.rows > _MAX_GROUP_ROWS or (bytes_to_read and size + bytes_to_read > MAX_GROUP_BYTES)
            if not groups or is_full:
                groups.append([])
                size = rows = 0
            groups[-1].append(unit)
            size += bytes_to_read
            rows += unit.block.rows
        return groups

    def _bytes_to_read(self, unit: ScanUnit) -> int:
        block = unit.block
        if self.objects.is_cached(block):
            return 0
        if block.part == CODES and self.segments[unit.number].format != CODED:
            return block.rows * self.dimensions * _FLOAT_BYTES
        return block.end - block.start

    async def _load_group(self, group: Sequence[ScanUnit]) -> list[ScanBlock | CodeBlock]:
        bodies = [self.objects.cached_block(unit.block) for unit in group]
        missing = [n for n, body in enumerate(bodies) if body is None]
        self.code_reads += sum(group[n].block.part == CODES for n in missing)
        for n, body in zip(missing, await asyncio.gather(*(self._read(group[n]) for n in missing)), strict=True):
            bodies[n] = body
        return [self._decode(unit, body or b"") for unit, body in zip(group, bodies, strict=True)]

    async def _read(self, unit: ScanUnit) -> Body:
        block, segment = unit.block, self.segments[unit.number]
        if block.part != CODES:
            return await self._read_vectors(segment, block)

        async def read() -> Body:
            return in_large_pages(await self._read_codes(segment, block))

        return await self.objects.load_block(block, read)

    async def _read_vectors(self, segment: Segment, block: Block) -> Body:
        keeps = self.residency.keeps_vectors or not has_codes(segment.rows, self.dimensions)
        return await (self.objects.block(block) if keeps else self.objects.read_block(block))

    async def _read_codes(self, segment: Segment, block: Block) -> bytes:
        """Read the codes of a block, or make them from its vectors: if the segment has none, or its object is incomplete."""
        if segment.format != CODED:
            return await self._make_codes(segment, block)
        with suppress(ObjectMissing):
            stored = await self.objects.read_block(block)
            if len(stored) == block.end - block.start:
                return stored
        made = await self._make_codes(segment, block)
        if segment.id not in self._incomplete:  # one warning for the segment, however many blocks are missing
            self._incomplete.add(segment.id)
            fields = {"event": "codes_incomplete", **self.objects.log_fields, "segment": segment.id}
            write_line({"at": now(), "level": "warning", **fields})
        return made

    async def _make_codes(self, segment: Segment, block: Block) -> bytes:
        async def quantized(part: Block) -> Codes:
            vectors = decode_rows(await self._read_vectors(segment, part), part.rows, header=part.first == 0)
            return await anyio.to_thread.run_sync(quantize, vectors)

        parts = [part for part in vector_blocks(segment, self.dimensions) if block.first <= part.first < block.first + block.rows]
        return encode_block(await map_concurrently(quantized, parts, limit=_MAX_VECTOR_READS))

    def _decode(self, unit: ScanUnit, body: Body) -> ScanBlock | CodeBlock:
        number, block, selected = unit
        if block.part == CODES:
            codes = decode_codes(body, block.rows, self.dimensions)
            return CodeBlock(number, block.first, codes, selected.excluded, selected.included)
        vectors = decode_rows(body, block.rows, header=block.first == 0)
        return ScanBlock(number, block.first, vectors, selected.excluded, selected.included)
