"""The ``meta`` object of a segment: the metadata by field, so that a filter reads only the fields that it names.

    directory size     8 bytes            all numbers little-endian
    directory          JSON: ``{"lines": [start, end], "complete": bool, "columns": {field: [start, end]}}``
    columns            see ``encode_column``
    lines              n lines of JSON: the whole metadata of each document, for merges

Starts and ends count from the end of the directory. If there are more fields than a directory may list, the most frequent ones
are columns, ``complete`` is false, and all other fields are searched in the lines.
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
from spass.rag.index.filters import NULL, FilterCondition, MetadataKey, ValueType, metadata_key, normalized_json

Mask = npt.NDArray[np.bool_]

MAX_COLUMNS: Final = 256
_MAX_COUNTED_FIELDS: Final = 2**16  # fields that are counted at a time
_parse: Final = json.JSONDecoder().raw_decode  # without a search for the encoding and for white space: three times as fast
_SIZE: Final = struct.Struct("<Q")
_HEADER: Final = struct.Struct("<IIII")  # rows with a value, stored row numbers, distinct values, bytes per code
_CODES: Final[dict[int, np.dtype[np.unsignedinteger]]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory of a ``meta`` object. Spans are (start, end) in bytes from the beginning of the object."""

    lines: tuple[int, int]
    complete: bool
    columns: Mapping[str, tuple[int, int]]


def encode_meta(lines: bytes) -> bytes:
    """Return the object for ``lines``, each of which is one JSON object."""
    counts = _count_fields(lines)
    listed = sorted(counts.fields, key=lambda field: (-counts.fields[field], field))[:MAX_COLUMNS]
    bodies = [*_columns(lines, listed), lines]
    ends = list(accumulate(map(len, bodies)))
    spans = list(pairwise([0, *ends]))
    entries = dict(zip(listed, spans, strict=False))
    whole = {"lines": spans[-1], "complete": counts.complete and len(listed) == len(counts.fields), "columns": entries}
    directory = json.dumps(whole, separators=(",", ":")).encode()
    return b"".join((_SIZE.pack(len(directory)), directory, *bodies))


def directory_bytes(head: bytes) -> int:
    """Return the bytes up to the end of the directory, given at least the first 8 bytes of the object."""
    return _SIZE.size + int(_SIZE.unpack_from(head)[0])


def decode_directory(head: bytes) -> Directory:
    """Decode ``head``, the beginning of an object with its whole directory."""
    begin = directory_bytes(head)
    stored = json.loads(head[_SIZE.size : begin])
    spans = {field: (begin + start, begin + end) for field, (start, end) in stored["columns"].items()}
    start, end = stored["lines"]
    return Directory((begin + start, begin + end), stored["complete"], spans)


def decode_meta(stored: bytes) -> bytes:
    """Return the lines of a whole object."""
    start, end = decode_directory(stored).lines
    return stored[start:end]


def encode_missing_column(lines: bytes, field: str) -> bytes:
    """Return the column of a field that the directory does not list."""
    return _columns(lines, [field])[0]


class _Counts(NamedTuple):
    """The number of rows with a value, by field. ``complete`` if every field was counted."""

    fields: Counter[str]
    complete: bool


def _count_fields(lines: bytes) -> _Counts:
    """Count the rows with a value for each field. If there are too many fields, forget the rare ones and count the others
    approximately (lossy counting, https://doi.org/10.1016/B978-155860869-6/50038-X). The choice of columns affects only speed."""
    fields: Counter[str] = Counter()
    complete = True
    for _, metadata in _rows(lines):
        fields.update(field for field, value in metadata.items() if value is not None)
        if len(fields) > _MAX_COUNTED_FIELDS:
            fields = Counter(dict(fields.most_common(2 * MAX_COLUMNS)))
            complete = False
    return _Counts(fields, complete)


def _columns(lines: bytes, fields: Sequence[str]) -> list[bytes]:
    """Return the columns of ``fields`` in their order. Null is not a value."""
    columns: dict[str, tuple[array[int], list[Json]]] = {field: (array("I"), []) for field in fields}
    for row, metadata in _rows(lines):
        for field in metadata.keys() & columns.keys():
            if metadata[field] is not None:
                rows, values = columns[field]
                rows.append(row)
                values.append(metadata[field])
    encoded = []
    for field in fields:
        rows, values = columns.pop(field)  # frees its memory
        encoded.append(encode_column(rows, list(map(metadata_key, values))))
    return encoded


def _rows(lines: bytes) -> Iterator[tuple[int, Mapping[str, Json]]]:
    """Yield the numbers and the metadata of the rows that have metadata."""
    for row, line in enumerate(io.BytesIO(lines)):
        if line != b"{}\n":
            yield row, _parse(line.decode())[0]


def encode_column(rows: Sequence[int], keys: Sequence[MetadataKey]) -> bytes:
    """Return the column in which each of ``rows`` (ascending) has one of ``keys``.

    It consists of a header, the ends (uint32) of the distinct values, the row numbers (uint32; none if the rows are the first
    ones), for each row the rank of its value (uint8, uint16 or uint32), and the JSON of the distinct values in order.
    """
    distinct = sorted(set(keys))
    ranks = {key: rank for rank, key in enumerate(distinct)}
    texts = [_text(key).encode() for key in distinct]
    width = 1 if len(distinct) <= 2**8 else 2 if len(distinct) <= 2**16 else 4
    ends = np.cumsum([len(text) for text in texts], dtype=np.uint64).astype("<u4")
    numbers = np.array([] if rows and rows[-1] == len(rows) - 1 else rows, "<u4")
    codes = np.fromiter((ranks[key] for key in keys), _CODES[width], len(keys))
    header = _HEADER.pack(len(rows), len(numbers), len(distinct), width)
    return b"".join((header, ends.tobytes(), numbers.tobytes(), codes.tobytes(), *texts))


def _text(key: MetadataKey) -> str:
    if key.type is ValueType.OTHER:
        return key.text
    value: Json = key.text if key.type is ValueType.STRING else key.number
    return normalized_json(value)


class Column:
    """A column, read in place: opening it parses nothing."""

    def __init__(self, stored: bytes) -> None:
        count, numbers, distinct, width = _HEADER.unpack_from(stored)
        at = _HEADER.size
        ends = np.frombuffer(stored, "<u4", distinct, at)
        at += 4 * distinct
        self._rows = np.frombuffer(stored, "<u4", numbers, at) if numbers else slice(count)
        at += 4 * numbers
        self._codes = np.frombuffer(stored, _CODES[width], count, at)
        self._values = _Values(ends, memoryview(stored)[at + width * count :])

    def mask(self, condition: FilterCondition, rows: int) -> Mask:
        """Return (rows,) booleans: the rows of the segment for which ``condition`` holds."""
        matching = np.zeros(len(self._values), np.bool_)
        for first, end in condition.key_ranges(self._values):
            matching[first:end] = True
        matches = matching[self._codes]
        if len(matches) == rows:
            return matches
        mask = np.full(rows, condition.matches(NULL))
        mask[self._rows] = matches
        return mask

    def types(self, rows: int, deleted: npt.NDArray[np.intp] | None) -> set[ValueType]:
        """Return the least and the greatest type of the values in the ``rows`` that are not ``deleted``."""
        if not len(self._codes):
            return set()
        first, last = 0, len(self._values) - 1
        if deleted is not None and len(deleted):
            live = np.ones(rows, np.bool_)
            live[deleted] = False
            codes = self._codes[live[self._rows]]
            if not len(codes):
                return set()
            first, last = int(codes.min()), int(codes.max())
        return {self._values[first].type, self._values[last].type}


class _Values(Sequence[MetadataKey]):
    """The distinct values of a column in order. Only the values that a bisection reads are parsed."""

    def __init__(self, ends: npt.NDArray[np.uint32], text: memoryview) -> None:
        self._ends = ends
        self._text = text

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, rank: int) -> MetadataKey:  # type: ignore[override]  # values are read one by one
        rank = rank if rank >= 0 else rank + len(self)
        start = self._ends[rank - 1] if rank else 0
        return metadata_key(json.loads(str(self._text[start : self._ends[rank]], "utf-8")))

    def __iter__(self) -> Iterator[MetadataKey]:
        return (self[rank] for rank in range(len(self)))
