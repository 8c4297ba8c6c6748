"""The ``ids`` object of a segment: the ids of its documents in order, with the times and the text size of each row. Also the
bitmap of its deleted rows. Neither needs numpy.

The rows are sorted by id. The object is read in place: opening it parses nothing.

    count                8 bytes          number of rows; all numbers are little-endian
    created_at           count × 8        milliseconds since the epoch
    updated_at           count × 8
    text bytes           count × 4        length of each text in UTF-8
    ends                 count × 4        offset of the end of each id in the next field
    ids                  ASCII            all ids, without separators
"""

import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_COUNT_BYTES: Final = 8


class IdRow(NamedTuple):
    """One row. Times are in milliseconds since the epoch; ``text_bytes`` is the size of the text in UTF-8."""

    id: str
    created_at: int
    updated_at: int
    text_bytes: int


def encode_ids(rows: Sequence[IdRow]) -> bytes:
    """Encode ``rows``, which must be sorted by id."""
    _check_little_endian()
    ends = array("I")
    end = 0
    for row in rows:
        end += len(row.id)
        ends.append(end)
    return b"".join(
        (
            len(rows).to_bytes(_COUNT_BYTES, "little"),
            array("q", (row.created_at for row in rows)).tobytes(),
            array("q", (row.updated_at for row in rows)).tobytes(),
            array("I", (row.text_bytes for row in rows)).tobytes(),
            ends.tobytes(),
            "".join(row.id for row in rows).encode("ascii"),
        )
    )


class Ids(Sequence[str]):
    """The ids of an ``ids`` object, read in place."""

    def __init__(self, stored: bytes) -> None:
        _check_little_endian()
        count = int.from_bytes(stored[:_COUNT_BYTES], "little")
        view = memoryview(stored)
        start = _COUNT_BYTES
        self._created_at = view[start : (start := start + 8 * count)].cast("q")
        self._updated_at = view[start : (start := start + 8 * count)].cast("q")
        self._text_bytes = view[start : (start := start + 4 * count)].cast("I")
        self._ends = view[start : (start := start + 4 * count)].cast("I")
        self._text = view[start:]

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, row: int) -> str:  # type: ignore[override]  # ids are read one by one
        start = self._ends[row - 1] if row else 0
        return str(self._text[start : self._ends[row]], "ascii")

    @property
    def text_bytes(self) -> int:
        """The size of the texts of all rows in UTF-8."""
        return sum(self._text_bytes)

    def row(self, number: int) -> IdRow:
        return IdRow(self[number], self._created_at[number], self._updated_at[number], self._text_bytes[number])

    def find(self, document_id: str) -> int | None:
        """Return the row of ``document_id``, or None."""
        row = bisect_left(self, document_id)
        return row if row < len(self) and self[row] == document_id else None

    def first_row_after(self, document_id: str) -> int:
        """Return the first row whose id comes after ``document_id``."""
        row = bisect_left(self, document_id)
        return row + 1 if row < len(self) and self[row] == document_id else row


def _check_little_endian() -> None:
    if sys.byteorder != "little":  # both architectures of Lambda are little-endian
        raise NotImplementedError("segments are read in place, on little-endian machines only")


@dataclass(frozen=True, slots=True)
class Bitmap:
    """The deletion bitmap of a segment: an immutable set of row numbers. Bit ``row % 8`` of byte ``row // 8`` is set if the row
    is in the set; missing bytes are zero."""

    bits: bytes = b""

    def __contains__(self, row: int) -> bool:
        byte = row >> 3
        return byte < len(self.bits) and bool(self.bits[byte] >> (row & 7) & 1)

    def __len__(self) -> int:
        return int.from_bytes(self.bits, "little").bit_count()

    def with_rows(self, rows: Iterable[int]) -> "Bitmap":
        """Return the union of this set and ``rows``."""
        bits = bytearray(self.bits)
        for row in rows:
            if row >> 3 >= len(bits):
                bits.extend(bytes((row >> 3) + 1 - len(bits)))
            bits[row >> 3] |= 1 << (row & 7)
        return Bitmap(bytes(bits))

    def packed(self) -> bytes:
        """Return the stored form (zlib). A few rows among a million take tens of bytes."""
        return zlib.compress(self.bits, 9) if self.bits else b""

    @classmethod
    def unpacked(cls, packed: bytes) -> "Bitmap":
        """Return the bitmap that ``packed`` encoded."""
        return cls(zlib.decompress(packed)) if packed else cls()
