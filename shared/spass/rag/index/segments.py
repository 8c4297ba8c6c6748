"""Encode and decode the objects of a segment.

    vectors.npy     (n, d) float32, rows normalised
    codes           the vectors as 8-bit codes, if they have enough numbers
    ids             see ``ids``
    meta            see ``columns``
    docs.jsonl      n lines of JSON: ``{"id", "text", "metadata"}``
    offsets.npy     (n + 1,) uint64: the start of each line of docs.jsonl, and the end of the last one

All are in the order of ids. The headers of both arrays have 128 bytes, so that any of their rows can be read by range
(https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).

The codes have a bound, for each row, of what the rounding lost; docs/decisions/026 proves it. They consist of blocks
(``objects.code_blocks``), and a block of n rows of:

    scales       n × 4 bytes      float32; all numbers are little-endian
    residuals    n × 4 bytes      float32, at least the length of (row - scale · codes)
    codes        n × d bytes      int8, from -127 to 127
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from spass.core.json import dump
from spass.core.messages import Json
from spass.rag.index.cache import Body
from spass.rag.index.columns import encode_meta
from spass.rag.index.ids import Bitmap, IdRow, encode_ids
from spass.rag.index.manifest import has_codes
from spass.rag.index.objects import CODE_BOUND_BYTES, CODES, DOCS, HEADER_BYTES, IDS, META, OFFSETS, VECTORS, code_block_rows

Vectors = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.intp]
Offsets = npt.NDArray[np.uint64]
Number = TypeVar("Number", bound=np.generic)

_MAGIC: Final = b"\x93NUMPY\x01\x00"

Float32s = npt.NDArray[np.float32]
Int8s = npt.NDArray[np.int8]

MAX_CODE: Final = 127
FLOAT32_ROUNDOFF: Final = 2.0**-24
"""The largest relative error of one float32 operation."""

_MIN_SCALE: Final = 2.0**-100  # so that a component divided by its scale is at most 127.5; below it, all codes are 0
_CHUNK_NUMBERS: Final = 2**17  # that are encoded together, in the cache of the processor


class Codes(NamedTuple):
    """(n, d) int8 ``codes``, (n,) float32 ``scales`` and (n,) float32 ``residuals``. Row i of the vectors is
    ``scales[i] * codes[i]`` and a rest whose length is at most ``residuals[i]``."""

    codes: Int8s
    scales: Float32s
    residuals: Float32s

    def pick(self, rows: npt.NDArray[np.intp]) -> "Codes":
        """Return a copy of the codes of ``rows``."""
        return Codes(self.codes[rows], self.scales[rows], self.residuals[rows])


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to be written as a segment. ``docs`` and ``meta`` are lines without line feeds; ``vectors`` is (n, d) float32, rows
    normalised."""

    ids: Sequence[IdRow]
    docs: Sequence[bytes]
    meta: Sequence[bytes]
    vectors: Vectors

    @property
    def text_bytes(self) -> int:
        return sum(row.text_bytes for row in self.ids)


def json_line(value: Json) -> bytes:
    """Return ``value`` as one line of JSON in UTF-8, without a line feed."""
    return dump(value).encode()


def encode_segment(rows: Rows, *, with_codes: bool = True) -> dict[str, bytes]:
    """Return the objects of the segment by name. ``rows`` are in the order of ids. A merge needs its inputs without codes."""
    docs = b"".join(line + b"\n" for line in rows.docs)
    offsets = np.zeros(len(rows.docs) + 1, np.uint64)
    offsets[1:] = np.cumsum([len(line) + 1 for line in rows.docs], dtype=np.uint64)
    codes = {CODES: encode_codes(rows.vectors)} if with_codes and has_codes(*rows.vectors.shape) else {}
    return codes | {
        VECTORS: encode_array(rows.vectors),
        IDS: encode_ids(rows.ids),
        META: encode_meta(b"".join(line + b"\n" for line in rows.meta)),
        DOCS: docs,
        OFFSETS: encode_array(offsets),
    }


def decode_vectors(stored: bytes) -> Vectors:
    """Return (n, d) float32 of a whole object, without a copy."""
    return _array(stored, np.dtype(np.float32))


def decode_rows(stored: Body, rows: int, *, header: bool) -> Vectors:
    """Return (rows, d) float32 of a range of the object: its beginning, with the ``header``, or other rows without it."""
    if header and stored[: len(_MAGIC)] != _MAGIC:
        raise ValueError("not an array of a segment")
    return np.frombuffer(stored, np.float32, offset=HEADER_BYTES if header else 0).reshape(rows, -1)


def decode_offsets(stored: bytes) -> Offsets:
    return _array(stored, np.dtype(np.uint64))


def deleted_row_numbers(bitmap: Bitmap) -> RowNumbers:
    """Return the numbers of the rows in ``bitmap``, ascending."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(bitmap.bits, np.uint8), bitorder="little"))


def encode_array(array: npt.NDArray[np.float32] | npt.NDArray[np.uint64]) -> bytes:
    """Return an array in the .npy format: version 1.0, C order, little-endian."""
    fields = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {array.shape}, }}"
    header = fields.ljust(HEADER_BYTES - len(_MAGIC) - 3) + "\n"
    numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return b"".join((_MAGIC, len(header).to_bytes(2, "little"), header.encode(), numbers))


def _array(stored: bytes, dtype: np.dtype[Number]) -> npt.NDArray[Number]:
    header = io.BytesIO(stored)
    np.lib.format.read_magic(header)
    shape, fortran_order, stored_dtype = np.lib.format.read_array_header_1_0(header)
    if stored_dtype != dtype or fortran_order or header.tell() != HEADER_BYTES:
        raise ValueError("not an array of a segment")
    return np.frombuffer(stored, dtype, offset=HEADER_BYTES).reshape(shape)


def quantize(vectors: Float32s) -> Codes:
    """Return the codes of (n, d) ``vectors``, rows normalised. Each row has its own scale: its largest component becomes 127 or
    -127."""
    rows, dimensions = vectors.shape
    codes = Codes(np.empty((rows, dimensions), np.int8), np.empty(rows, np.float32), np.empty(rows, np.float32))
    chunk = max(1, _CHUNK_NUMBERS // dimensions)
    for start in range(0, rows, chunk):
        part = slice(start, start + chunk)
        _quantize(vectors[part], codes.codes[part], codes.scales[part], codes.residuals[part])
    return codes


def _quantize(vectors: Float32s, codes: Int8s, scales: Float32s, residuals: Float32s) -> None:
    """Write the codes, the scales and the residuals of ``vectors``.

    The residual is computed in float32. What is added to it covers all roundings (026, step 2).
    """
    whole = np.abs(vectors)
    np.divide(whole.max(axis=1), MAX_CODE, out=scales)
    divisors = np.where(scales > _MIN_SCALE, scales, np.float32(np.inf))[:, None]
    np.divide(vectors, divisors, out=whole)
    np.rint(whole, out=whole)
    codes[:] = whole
    whole *= scales[:, None]
    np.subtract(vectors, whole, out=whole)
    np.sqrt(np.vecdot(whole, whole), out=residuals)
    residuals *= np.float32(1 + (vectors.shape[1] + 8) * FLOAT32_ROUNDOFF)
    residuals += np.float32(4 * FLOAT32_ROUNDOFF)


def encode_codes(vectors: Float32s) -> bytes:
    """Return the object ``codes`` of a segment with these vectors, (n, d) float32, rows normalised."""
    block_rows = code_block_rows(vectors.shape[1])
    return b"".join(encode_block([quantize(vectors[start : start + block_rows])]) for start in range(0, len(vectors), block_rows))


def encode_block(pieces: Sequence[Codes]) -> bytes:
    """Return the block with the rows of all ``pieces``."""
    scales = [piece.scales.data.cast("B") for piece in pieces]
    residuals = [piece.residuals.data.cast("B") for piece in pieces]
    return b"".join([*scales, *residuals, *(piece.codes.reshape(-1).data.cast("B") for piece in pieces)])


def decode_codes(stored: Body, rows: int, dimensions: int) -> Codes:
    """Return the codes of a block, without a copy. Raise ``ValueError`` if the block has another size."""
    if len(stored) != rows * (CODE_BOUND_BYTES + dimensions):
        raise ValueError("not a block of codes")
    bounds = np.frombuffer(stored, np.float32, 2 * rows).reshape(2, rows)
    codes = np.frombuffer(stored, np.int8, rows * dimensions, CODE_BOUND_BYTES * rows).reshape(rows, dimensions)
    return Codes(codes, bounds[0], bounds[1])
