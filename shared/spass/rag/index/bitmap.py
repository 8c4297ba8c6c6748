"""The deletion bitmap of a segment: one bit per row, immutable. It does not use numpy, so that a deletion need not import it."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bitmap:
    """A set of row numbers. Bit ``row % 8`` of byte ``row // 8`` is set if the row is in the set; missing bytes are zero."""

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
