"""Encode vectors as 8-bit codes, each row with a bound of what the rounding lost. The bound is proven in docs/decisions/026.

A segment of format ``CODED`` has the object ``codes``. It consists of blocks (``objects.code_blocks``), and a block of n rows of:

    scales       n × 4 bytes      float32; all numbers are little-endian
    residuals    n × 4 bytes      float32, at least the length of (row - scale · codes)
    codes        n × d bytes      int8, from -127 to 127
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.rag.index.cache import Body
from spass.rag.index.objects import CODE_BOUND_BYTES, code_block_rows

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
