"""Encode and decode the objects of a segment.

    vectors.npy     (n, d) float32, rows normalised
    codes           see ``codes``; only if the vectors have enough numbers
    ids             see ``ids``
    meta            see ``columns``
    docs.jsonl      n lines of JSON: ``{"id", "text", "metadata"}``
    offsets.npy     (n + 1,) uint64: the start of each line of docs.jsonl, and the end of the last one

All are in the order of ids. The headers of both arrays have 128 bytes, so that any of their rows can be read by range
(https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from spass.core.json import dump
from spass.core.messages import Json
from spass.rag.index.cache import Body
from spass.rag.index.codes import encode_codes
from spass.rag.index.columns import encode_meta
from spass.rag.index.ids import Bitmap, IdRow, encode_ids
from spass.rag.index.manifest import has_codes
from spass.rag.index.objects import CODES, DOCS, HEADER_BYTES, IDS, META, OFFSETS, VECTORS

Vectors = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.intp]
Offsets = npt.NDArray[np.uint64]
Number = TypeVar("Number", bound=np.generic)

_MAGIC: Final = b"\x93NUMPY\x01\x00"


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
