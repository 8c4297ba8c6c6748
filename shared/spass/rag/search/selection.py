"""Select the rows of a segment that a query may return: those that are live and match its filter."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import anyio.to_thread
import numpy as np

from spass.rag.index.columns import Column, decode_directory, directory_bytes, encode_missing_column
from spass.rag.index.filters import NULL, Filter, FilterCondition, ValueType
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import Block, SegmentObjects
from spass.rag.index.responses import QueryWarning
from spass.rag.index.segments import RowNumbers, deleted_row_numbers

_FULL_SCAN_FRACTION: Final = 4  # scanning all rows is not slower than picking a fourth of them

_MAX_SHOWN_CHARACTERS: Final = 64  # of a field's name


class FieldTypes:
    """The types of the values that the documents of an index have in the fields of one filter. Null is not a value.

    Of several types a segment reports the least and the greatest, which tell whether all are one.
    """

    def __init__(self) -> None:
        self._types: defaultdict[str, set[ValueType]] = defaultdict(set)

    def add(self, name: str, types: set[ValueType]) -> None:
        """Add the ``types`` that the live documents of a segment have in the field ``name``."""
        self._types[name] |= types

    def warnings(self, filter_: Filter) -> Iterator[QueryWarning]:
        """Yield a warning for each field of ``filter_`` that no document has, or whose values are all text while the filter
        compares it with numbers."""
        for name, condition in filter_.fields.items():
            shown = name[:_MAX_SHOWN_CHARACTERS]
            if not self._types[name]:
                message = f"No document of this index has the field '{shown}'."
                yield QueryWarning(code="field_unknown", field=name, message=message)
            elif self._types[name] == {ValueType.STRING} and _compares_numbers(condition):
                message = (
                    f"The filter compares '{shown}' with a number, but all its values in this index are strings, which no number "
                    "equals. Send a string, or store numbers: the columns of a CSV file are strings."
                )
                yield QueryWarning(code="type_mismatch", field=name, message=message)


def _compares_numbers(condition: FilterCondition) -> bool:
    """Return whether a part of ``condition`` has numbers only. One of ``$in`` may be meant for documents of another index."""
    parts = [{key.type for key in condition.one_of or ()}]
    parts += [{key.type} for key in (condition.not_equal, condition.minimum, condition.maximum) if key is not None]
    return {ValueType.NUMBER} in parts


@dataclass(frozen=True, slots=True)
class Selection:
    """The ``included`` rows of a segment, or all but the ``excluded``, or all. Both are ascending."""

    excluded: RowNumbers | None = None
    included: RowNumbers | None = None

    @classmethod
    def of(cls, rows: RowNumbers, count: int) -> "Selection":
        """Return the selection of ``rows``, ascending, of ``count`` rows."""
        if len(rows) * _FULL_SCAN_FRACTION < count:
            return cls(included=rows)
        return cls(excluded=np.delete(np.arange(count), rows))

    def within(self, block: Block) -> "Selection":
        """Return the selection within ``block``, with row numbers relative to its first row."""
        return Selection(_within(self.excluded, block), _within(self.included, block))

    def is_empty(self, rows: int) -> bool:
        """Return whether none of ``rows`` rows is selected."""
        return len(self.included) == 0 if self.included is not None else self.excluded is not None and len(self.excluded) == rows


ALL: Final = Selection()


def _within(rows: RowNumbers | None, block: Block) -> RowNumbers | None:
    if rows is None:
        return None
    start, end = np.searchsorted(rows, (block.first, block.first + block.rows))
    return rows[start:end] - block.first


async def select(objects: SegmentObjects, segment: Segment, filter_: Filter | None, types: FieldTypes | None = None) -> Selection:
    """Select the rows of ``segment`` that a query with ``filter_`` may return. Without a filter, no metadata are read. Add to
    ``types`` the types of the values that live documents have in the fields of the filter."""
    deleted = await _deleted_rows(objects, segment)
    if filter_ is None:
        return ALL if deleted is None else Selection(excluded=deleted)
    mask = np.ones(segment.rows, np.bool_)
    for field, condition in filter_.fields.items():
        stored = await _column(objects, segment, field)
        if stored is None:
            mask &= condition.matches(NULL)
            continue
        column = Column(stored)
        mask &= column.mask(condition, segment.rows)
        if types is not None:
            types.add(field, column.types(segment.rows, deleted))
    if deleted is not None:
        mask[deleted] = False
    if np.count_nonzero(mask) * _FULL_SCAN_FRACTION < segment.rows:
        return Selection(included=np.flatnonzero(mask))
    return Selection(excluded=np.flatnonzero(~mask))


async def _deleted_rows(objects: SegmentObjects, segment: Segment) -> RowNumbers | None:
    if not segment.deleted_rows:
        return None

    async def unpack() -> bytes:
        return deleted_row_numbers(await objects.deletion_bitmap(segment)).tobytes()

    bitmap = segment.bitmap_object or segment.inline_bitmap.hex()
    return np.frombuffer(await objects.derived(segment, f"deleted-{bitmap}", unpack), np.intp)


async def _column(objects: SegmentObjects, segment: Segment, field: str) -> bytes | None:
    """Return the column of ``field``, or None if no document has that field."""
    head = await objects.meta_head(segment)
    if directory_bytes(head) > len(head):
        head = await objects.meta_range(segment, 0, directory_bytes(head))
    directory = decode_directory(head)
    if field in directory.columns:
        return await objects.meta_range(segment, *directory.columns[field])
    if directory.complete:
        return None

    async def encode() -> bytes:
        return await anyio.to_thread.run_sync(encode_missing_column, await objects.meta_range(segment, *directory.lines), field)

    return await objects.derived(segment, f"column-{field}", encode)
