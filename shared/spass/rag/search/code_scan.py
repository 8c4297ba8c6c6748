"""Choose the rows of an index that may be among the best, by a scan of 8-bit codes whose error is bounded for each row.

No row that is among the best is left out: docs/decisions/026 proves the bounds. The dot products are by simsimd with the integer
instructions of the processor, or slower by numpy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.rag.index.segments import FLOAT32_ROUNDOFF, MAX_CODE, Codes, Float32s, Int8s, RowNumbers, Vectors, quantize
from spass.rag.search.scan import DECIMALS, MIN_SCORE, kth_largest_at_least, split_by_block

Bounds = npt.NDArray[np.float64]

_MAX_LENGTH: Final = 1 + 2.0**-22
"""At least the length of a vector that was scaled to length 1 and rounded to float32."""

_SLACK: Final = 0.5 * 10.0**-DECIMALS + 2.0**-19
"""The rounding of a score to six decimals, and all roundings that do not grow with the residual (026 adds them up)."""

_PRODUCT_ROUNDOFF: Final = 1.01 * FLOAT32_ROUNDOFF  # of a sum with both scales, to float32
_ROW_BITS: Final = 40
_INCLUDED_ROWS: Final = 8192  # copied together
_BOUND_NUMBERS: Final = 2**20  # that are converted to float64 together, to bound the memory
_MAX_BOUNDED_AGAIN: Final = 8192  # rows; with more, reading whole blocks is not slower than a better choice of rows

Sums = npt.NDArray[np.float64]

_CPUINFO: Final = Path("/proc/cpuinfo")
_EXACT_FLOAT32: Final = 2**24  # float32 has every whole number up to this
_CHUNK_NUMBERS: Final = 2**17  # that numpy converts together


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Codes to scan, of the rows of a segment from ``first`` on. ``segment`` is the index of that segment in the caller's
    list. Only the rows ``included`` are searched, or all but the rows ``excluded``. Both count from 0 within the block, in
    ascending order."""

    segment: int
    first: int
    codes: Codes
    excluded: RowNumbers | None = None
    included: RowNumbers | None = None

    def __len__(self) -> int:
        """Return the number of rows that are scanned."""
        return len(self.codes.codes) if self.included is None else len(self.included)

    def locate(self, rows: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
        """Return the segment and the numbers in it of scanned ``rows``, counted from 0: two arrays of the same length."""
        numbers = rows if self.included is None else self.included[rows]
        return np.full(len(rows), self.segment), numbers + self.first


class Candidates(NamedTuple):
    """Rows of segments, and a lower and an upper bound of each rounded score: four arrays of (n,)."""

    segments: RowNumbers
    rows: RowNumbers
    lower: Bounds
    upper: Bounds

    def __bool__(self) -> bool:
        return len(self.rows) > 0

    def pick(self, which: npt.NDArray[np.bool_] | RowNumbers | slice) -> "Candidates":
        """Return the candidates that ``which`` selects."""
        return Candidates(self.segments[which], self.rows[which], self.lower[which], self.upper[which])

    def by_block(self, block_rows: int) -> Iterator[tuple[int, int, "Candidates"]]:
        """Yield a segment, the number of a block of ``block_rows`` rows in it, and the candidates in that block, in order."""
        if not self:
            return
        ordered = self.pick(np.lexsort((self.rows, self.segments)))
        numbers = ordered.rows // block_rows
        changes = (numbers[1:] != numbers[:-1]) | (ordered.segments[1:] != ordered.segments[:-1])
        for start, end in pairwise([0, *(changes.nonzero()[0] + 1).tolist(), len(numbers)]):
            yield int(ordered.segments[start]), int(numbers[start]), ordered.pick(slice(start, end))

    def best_first(self, top_k: int) -> "tuple[Candidates, Candidates]":
        """Return the ``top_k`` with the best lower bounds, or few more, and the others."""
        is_first = self.lower >= kth_largest_at_least(self.lower, top_k)
        return self.pick(is_first), self.pick(~is_first)

    @classmethod
    def joined(cls, parts: "Sequence[Candidates]") -> "Candidates":
        """Return the candidates of all ``parts``, of which there is at least one."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


NO_CANDIDATES: Final = Candidates(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0), np.empty(0))


class CodedQuery:
    """A query, (d,) float32, normalised, with its codes and the terms of the bound that depend on it alone.

    A row with the residual r is bounded by ``error_factor`` · r + ``error_constant``.
    """

    def __init__(self, vector: Vectors) -> None:
        self.vector = vector
        quantized = quantize(vector[None])
        self.codes: Int8s = quantized.codes[0]
        self.scale = quantized.scales[0]
        lost = float(quantized.residuals[0])
        rounded = _PRODUCT_ROUNDOFF * (_MAX_LENGTH + lost)
        self.error_factor = np.float32((_MAX_LENGTH + lost + rounded) * (1 + 2 * FLOAT32_ROUNDOFF))
        self.error_constant = np.float32((_MAX_LENGTH * (lost + rounded) + _SLACK) * (1 + 2 * FLOAT32_ROUNDOFF))


def scan_codes(blocks: Sequence[CodeBlock], query: CodedQuery, top_k: int, floor: float = MIN_SCORE) -> Candidates:
    """Return the rows of ``blocks`` that may be among the ``top_k`` best and have a score of at least ``floor``. They are in the
    order of the blocks."""
    ends = list(accumulate(map(len, blocks)))
    if not ends or not ends[-1] or top_k <= 0:
        return NO_CANDIDATES
    lower, upper = np.empty(ends[-1], np.float32), np.empty(ends[-1], np.float32)
    start = 0
    for block, end in zip(blocks, ends, strict=True):
        _bound(block, query, lower[start:end], upper[start:end])
        start = end
    threshold = max(kth_largest_at_least(lower, top_k), floor, MIN_SCORE)
    found = (upper >= min(threshold, -MIN_SCORE)).nonzero()[0]
    if not len(found):
        return NO_CANDIDATES
    split = zip(blocks, split_by_block(ends, found), strict=True)
    pieces = [block.locate(rows) for block, rows in split if len(rows)]
    segments, rows = map(np.concatenate, zip(*pieces, strict=True))
    return Candidates(segments, rows, lower[found].astype(np.float64), upper[found].astype(np.float64))


def _bound(block: CodeBlock, query: CodedQuery, lower: Float32s, upper: Float32s) -> None:
    """Write the bounds of the scores with the codes of the query. Those of an excluded row are minus infinity."""
    if block.included is None:
        _bound_rows(block.codes, query, lower, upper)
        if block.excluded is not None:
            lower[block.excluded] = upper[block.excluded] = -np.inf
        return
    for start in range(0, len(block.included), _INCLUDED_ROWS):
        part = slice(start, start + _INCLUDED_ROWS)
        _bound_rows(block.codes.pick(block.included[part]), query, lower[part], upper[part])


def _bound_rows(rows: Codes, query: CodedQuery, lower: Float32s, upper: Float32s) -> None:
    products = int8_dot(rows.codes, query.codes)
    products *= query.scale
    np.multiply(products, rows.scales, out=lower, casting="same_kind")
    errors = rows.residuals * query.error_factor
    errors += query.error_constant
    np.add(lower, errors, out=upper)
    lower -= errors


def bound_again(blocks: Sequence[CodeBlock], query: CodedQuery, candidates: Candidates) -> Candidates:
    """Return ``candidates``, rows of ``blocks``, with the bounds that the query itself gives, which are closer than those by the
    codes of the query. They are in the order of segments and rows, as the blocks are."""
    if not candidates or len(candidates.rows) > _MAX_BOUNDED_AGAIN:
        return candidates
    candidates = candidates.pick(np.lexsort((candidates.rows, candidates.segments)))
    starts = [block.segment << _ROW_BITS | block.first for block in blocks]
    keys = candidates.segments << _ROW_BITS | candidates.rows
    ends = [*np.searchsorted(keys, starts[1:]).tolist(), len(keys)]
    pieces: list[Codes] = []
    begin = 0
    for block, end in zip(blocks, ends, strict=True):
        if begin < end:
            pieces.append(block.codes.pick(candidates.rows[begin:end] - block.first))
        begin = end
    codes, scales, residuals = map(np.concatenate, zip(*pieces, strict=True))
    vector = query.vector.astype(np.float64)
    scores = np.empty(len(codes))
    chunk = max(1, _BOUND_NUMBERS // len(vector))
    for start in range(0, len(codes), chunk):
        scores[start : start + chunk] = np.vecdot(codes[start : start + chunk].astype(np.float64), vector)
    scores *= scales
    errors = residuals.astype(np.float64) * _MAX_LENGTH + _SLACK
    return candidates._replace(lower=scores - errors, upper=scores + errors)


def int8_dot(codes: Int8s, query: Int8s) -> Sums:
    """Return the dot products of (n, d) ``codes``, contiguous, and the (d,) ``query``: (n,) exact whole numbers.

    All codes are between -127 and 127, and d is at most 2^17.
    """
    return _kernel()(codes, query)


@cache
def _kernel() -> Callable[[Int8s, Int8s], Sums]:
    """Return the product by simsimd if it is installed and right on this processor, otherwise that by numpy."""
    try:
        by_simsimd = _load_simsimd()
    except ImportError:
        return dot_by_numpy
    codes = np.full((2, 4095), MAX_CODE, np.int8)
    codes[1, ::2] = -MAX_CODE
    is_right = np.array_equal(by_simsimd(codes, codes[1]), dot_by_numpy(codes, codes[1]))
    return by_simsimd if is_right else dot_by_numpy


def _load_simsimd() -> Callable[[Int8s, Int8s], Sums]:
    import simsimd

    if _has_sdot():
        simsimd.enable_capability("neon_i8")  # version 6.5 does not look for it in Linux, and its loop without it is slow

    def dot_by_simsimd(codes: Int8s, query: Int8s) -> Sums:
        # Without ``out``: with it, version 6.5 takes a reference of None away at each call, until Python 3.11 aborts.
        sums: Sums = np.asarray(simsimd.cdist(codes, query[None], "dot"))[:, 0]
        return sums

    return dot_by_simsimd


def _has_sdot() -> bool:
    """Return whether this is Linux on arm64 with the instruction SDOT, as Graviton 2 and newer: it is listed as ``asimddp``."""
    try:
        return "asimddp" in _CPUINFO.read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return False


def dot_by_numpy(codes: Int8s, query: Int8s) -> Sums:
    """Compute ``int8_dot`` with floats that have every sum that may occur."""
    dimensions = len(query)
    dtype: type[np.floating] = np.float32 if dimensions * MAX_CODE**2 <= _EXACT_FLOAT32 else np.float64
    sums = np.empty(len(codes))
    chunk = max(1, _CHUNK_NUMBERS // dimensions)
    for start in range(0, len(codes), chunk):
        sums[start : start + chunk] = codes[start : start + chunk].astype(dtype) @ query.astype(dtype)
    return sums
