"""Which rows of a segment a query looks at: those that are alive and meet its filter."""

from dataclasses import dataclass
from typing import Final

import anyio.to_thread
import numpy as np

from spass.rag.index.bitmap import Bitmap
from spass.rag.index.columns import Column, Mask, decode_directory, directory_bytes, encode_missing_column
from spass.rag.index.filters import NULL, Filter, FilterCondition
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import Block, SegmentObjects
from spass.rag.search.scan import RowNumbers

_DEAD: Final = "dead"
_FULL_SCAN_FRACTION: Final = 4  # where a fourth of the rows is looked at, reading all is no slower than picking them


@dataclass(frozen=True, slots=True)
class Selection:
    """All rows of a segment, ``only`` some, or all ``but`` some; both ascending."""

    but: RowNumbers | None = None
    only: RowNumbers | None = None

    def within(self, block: Block) -> "Selection":
        """Of the rows of ``block``, counted from its first."""
        return Selection(_within(self.but, block), _within(self.only, block))

    def empty(self, rows: int) -> bool:
        """Whether it holds none of its ``rows`` rows."""
        return len(self.only) == 0 if self.only is not None else self.but is not None and len(self.but) == rows


ALL: Final = Selection()


def _within(rows: RowNumbers | None, block: Block) -> RowNumbers | None:
    if rows is None:
        return None
    start, end = np.searchsorted(rows, (block.first, block.first + block.rows))
    return rows[start:end] - block.first


async def select(objects: SegmentObjects, segment: Segment, filter_: Filter | None) -> Selection:
    """The rows of ``segment`` that a query with ``filter_`` may find. Without one, no metadata is read."""
    dead = await _dead_rows(objects, segment)
    if filter_ is None:
        return ALL if dead is None else Selection(but=dead)
    found = np.ones(segment.rows, np.bool_)
    for field, condition in filter_.fields.items():
        found &= await _mask(objects, segment, field, condition)
    if dead is not None:
        found[dead] = False
    if np.count_nonzero(found) * _FULL_SCAN_FRACTION < segment.rows:
        return Selection(only=np.flatnonzero(found))
    return Selection(but=np.flatnonzero(~found))


async def _dead_rows(objects: SegmentObjects, segment: Segment) -> RowNumbers | None:
    if not segment.dead_rows:
        return None
    what = f"{_DEAD}-{segment.dead_object or segment.dead_inline.hex()}"
    stored = objects.get_derived(segment, what)
    if stored is None:
        stored = _row_numbers(await objects.dead(segment)).tobytes()
        objects.put_derived(segment, what, stored)
    return np.frombuffer(stored, np.intp)


def _row_numbers(dead: Bitmap) -> RowNumbers:
    return np.flatnonzero(np.unpackbits(np.frombuffer(dead.bits, np.uint8), bitorder="little"))


async def _mask(objects: SegmentObjects, segment: Segment, field: str, condition: FilterCondition) -> Mask:
    """(rows,) for which rows ``condition`` holds of ``field``."""
    stored = await _column(objects, segment, field)
    if stored is None:
        return np.full(segment.rows, condition.matches(NULL))
    return Column(stored).mask(condition, segment.rows)


async def _column(objects: SegmentObjects, segment: Segment, field: str) -> bytes | None:
    """The column of ``field``; None if no document has it."""
    head = await objects.meta_head(segment)
    if directory_bytes(head) > len(head):
        head = await objects.meta_range(segment, 0, directory_bytes(head))
    directory = decode_directory(head)
    if field in directory.columns:
        return await objects.meta_range(segment, *directory.columns[field])
    if directory.complete:
        return None
    what = f"column-{field}"
    stored = objects.get_derived(segment, what)
    if stored is None:
        stored = await anyio.to_thread.run_sync(encode_missing_column, await objects.meta_range(segment, *directory.lines), field)
        objects.put_derived(segment, what, stored)
    return stored
