"""The ``meta`` object of a segment: its documents' metadata by field, so that a filter reads only the fields it names.

    directory size     8 bytes            all numbers little-endian
    directory          JSON: ``{"lines": [start, end], "complete": bool, "columns": {field: [start, end]}}``
    columns            see ``encode_column``
    lines              n lines of JSON: each document's metadata whole, for merges

Starts and ends count from the directory's end. Where documents have more different fields than a directory should list, the most
frequent are columns, ``complete`` is false, and any other field is looked for in the lines.
"""

import io
import json
import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.core.messages import Json
from spass.rag.index.filters import NULL, FilterCondition, MetadataKey, ValueType, canonical, metadata_key

Mask = npt.NDArray[np.bool_]

MAX_COLUMNS: Final = 256
_MAX_COUNTED_FIELDS: Final = 2**16  # different fields at a time
_SIZE: Final = struct.Struct("<Q")
_HEADER: Final = struct.Struct("<IIII")  # rows with a value, row numbers stored, different values, bytes of a code
_CODES: Final[dict[int, np.dtype[np.unsignedinteger]]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclass(frozen=True, slots=True)
class Directory:
    """Where things lie in a ``meta`` object: (start, end) in bytes from its beginning."""

    lines: tuple[int, int]
    complete: bool
    columns: Mapping[str, tuple[int, int]]


def encode_meta(lines: bytes) -> bytes:
    """The object for ``lines`` of one JSON object each."""
    counts = _count_fields(lines)
    kept = sorted(counts.fields, key=lambda field: (-counts.fields[field], field))[:MAX_COLUMNS]
    bodies = [*_columns(lines, kept), lines]
    ends = list(accumulate(map(len, bodies)))
    spans = list(pairwise([0, *ends]))
    entries = dict(zip(kept, spans, strict=False))
    whole = {"lines": spans[-1], "complete": counts.complete and len(kept) == len(counts.fields), "columns": entries}
    directory = json.dumps(whole, separators=(",", ":")).encode()
    return b"".join((_SIZE.pack(len(directory)), directory, *bodies))


def directory_bytes(head: bytes) -> int:
    """How long the object is up to the directory's end, out of its first 8 bytes."""
    return _SIZE.size + int(_SIZE.unpack_from(head)[0])


def decode_directory(head: bytes) -> Directory:
    """``head`` is the object's beginning, with the directory whole."""
    begin = directory_bytes(head)
    stored = json.loads(head[_SIZE.size : begin])
    spans = {field: (begin + start, begin + end) for field, (start, end) in stored["columns"].items()}
    start, end = stored["lines"]
    return Directory((begin + start, begin + end), stored["complete"], spans)


def decode_meta(stored: bytes) -> bytes:
    """The lines of a whole object."""
    start, end = decode_directory(stored).lines
    return stored[start:end]


def encode_missing_column(lines: bytes, field: str) -> bytes:
    """The column of a field that the directory does not list."""
    return _columns(lines, [field])[0]


class _Counts(NamedTuple):
    """In how many rows ``fields`` have a value; ``complete`` if these are all the fields there are."""

    fields: Counter[str]
    complete: bool


def _count_fields(lines: bytes) -> _Counts:
    """Where every document has fields of its own, only those that are frequent are remembered, and those roughly (lossy counting,
    https://doi.org/10.1016/B978-155860869-6/50038-X): which of them are columns is for speed alone."""
    fields: Counter[str] = Counter()
    complete = True
    for _, metadata in _rows(lines):
        fields.update(field for field, value in metadata.items() if value is not None)
        if len(fields) > _MAX_COUNTED_FIELDS:
            fields = Counter(dict(fields.most_common(2 * MAX_COLUMNS)))
            complete = False
    return _Counts(fields, complete)


def _columns(lines: bytes, fields: Sequence[str]) -> list[bytes]:
    """The columns of ``fields``, in their order; null is no value."""
    found: dict[str, tuple[array[int], list[Json]]] = {field: (array("I"), []) for field in fields}
    for row, metadata in _rows(lines):
        for field in metadata.keys() & found.keys():
            if metadata[field] is not None:
                rows, values = found[field]
                rows.append(row)
                values.append(metadata[field])
    columns = []
    for field in fields:
        rows, values = found.pop(field)
        columns.append(encode_column(rows, list(map(metadata_key, values))))
    return columns


def _rows(lines: bytes) -> Iterator[tuple[int, Mapping[str, Json]]]:
    """The rows that have metadata."""
    for row, line in enumerate(io.BytesIO(lines)):
        if line != b"{}\n":
            yield row, json.loads(line)


def encode_column(rows: Sequence[int], keys: Sequence[MetadataKey]) -> bytes:
    """The column of the ``keys`` that stand in ``rows`` (ascending): a header, the different values sorted, as the ends (uint32)
    and the text of their JSON, the row numbers (uint32; none if they are the first ones), and for each row the place of its value
    (uint8, uint16 or uint32)."""
    different = sorted(set(keys))
    places = {one: place for place, one in enumerate(different)}
    texts = [_text(one).encode() for one in different]
    width = 1 if len(different) <= 2**8 else 2 if len(different) <= 2**16 else 4
    ends = np.cumsum([len(text) for text in texts], dtype=np.uint64).astype("<u4")
    numbers = np.array([] if rows and rows[-1] == len(rows) - 1 else rows, "<u4")
    codes = np.fromiter((places[one] for one in keys), _CODES[width], len(keys))
    header = _HEADER.pack(len(rows), len(numbers), len(different), width)
    return b"".join((header, ends.tobytes(), numbers.tobytes(), codes.tobytes(), *texts))


def _text(one: MetadataKey) -> str:
    if one.kind is ValueType.OTHER:
        return one.text
    value: Json = one.text if one.kind is ValueType.STRING else one.number
    return canonical(value)


class Column:
    """The column over its bytes: opening it parses nothing."""

    def __init__(self, stored: bytes) -> None:
        count, numbers, different, width = _HEADER.unpack_from(stored)
        at = _HEADER.size
        ends = np.frombuffer(stored, "<u4", different, at)
        at += 4 * different
        self._rows = np.frombuffer(stored, "<u4", numbers, at) if numbers else slice(count)
        at += 4 * numbers
        self._codes = np.frombuffer(stored, _CODES[width], count, at)
        self._values = _Values(ends, memoryview(stored)[at + width * count :])

    def mask(self, condition: FilterCondition, rows: int) -> Mask:
        """(rows,) for which of the segment's rows ``condition`` holds."""
        matching = np.zeros(len(self._values), np.bool_)
        for first, end in condition.spans(self._values):
            matching[first:end] = True
        found = matching[self._codes]
        if len(found) == rows:
            return found
        mask = np.full(rows, condition.matches(NULL))
        mask[self._rows] = found
        return mask


class _Values(Sequence[MetadataKey]):
    """The sorted different values of a column; only those that a bisection meets are parsed."""

    def __init__(self, ends: npt.NDArray[np.uint32], text: memoryview) -> None:
        self._ends = ends
        self._text = text

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, place: int) -> MetadataKey:  # type: ignore[override]  # values are asked for one by one
        place = place if place >= 0 else place + len(self)
        start = self._ends[place - 1] if place else 0
        return metadata_key(json.loads(str(self._text[start : self._ends[place]], "utf-8")))

    def __iter__(self) -> Iterator[MetadataKey]:
        return (self[place] for place in range(len(self)))
