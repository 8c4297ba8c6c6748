"""Exact search: find the best rows of an index by cosine similarity."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.rag.index.segments import RowNumbers, Vectors

DECIMALS: Final = 6
_SCORE_SCALE: Final = 10.0**DECIMALS
_RESCORE_ROWS: Final = 2048  # scored in float64 together, to bound the memory
_CPU_CACHED_NUMBERS: Final = 2**20  # float32 numbers that stay in the cache of the processor between queries
_PARTITION_MAX_SCORES: Final = 32_768  # with more scores, the maxima of groups are faster than a partition
_GROUPS: Final = 2048
MIN_SCORE: Final = -2.0  # below every score
_FLOAT32_ROUNDOFF: Final = 2.0**-24  # rounding of one float32 operation, relative


@dataclass(frozen=True, slots=True)
class ScanBlock:
    """Rows to scan: (n, d) float32 ``vectors``, normalised. They are the rows from ``first`` on of a segment; ``segment`` is the
    index of that segment in the caller's list. Only the rows ``included`` are searched, or all but the rows ``excluded``. Both
    count from 0 within the block, in ascending order."""

    segment: int
    first: int
    vectors: Vectors
    excluded: RowNumbers | None = None
    included: RowNumbers | None = None


class ScoredRow(NamedTuple):
    """A row of the segment with the index ``segment``, and its score in [-1, 1], rounded to six decimals."""

    score: float
    segment: int
    row: int


def scan_top_k(blocks: Sequence[ScanBlock], query: Vectors, top_k: int, floor: float = MIN_SCORE) -> list[ScoredRow]:
    """Return the ``top_k`` best rows of ``blocks`` for the normalised (d,) float32 ``query`` with a score of at least ``floor``,
    best first. If rows tie with the last one, all of them are returned: the caller knows their ids and chooses.

    The scan is in float32. Its error is below ``float32_error_bound``, so every row that may be among the best is scored again in
    float64. There the order of additions does not depend on the position of the row, so equal vectors get equal scores, and a
    merge does not change a score. The blocks of one segment must be in the order of their rows.
    """
    ends = list(accumulate([len(block.vectors) if block.included is None else len(block.included) for block in blocks]))
    if not ends or not ends[-1] or top_k <= 0:
        return []
    scores = _scan(blocks, ends, query)
    error = float32_error_bound(len(query))
    threshold = min(max(_score_threshold(scores, top_k) - 2 * error, floor - error, MIN_SCORE), -MIN_SCORE)
    candidates = (scores >= threshold).nonzero()[0]
    query64 = query.astype(np.float64)
    scored_rows: list[ScoredRow] = []
    for start in range(0, len(candidates), _RESCORE_ROWS):
        rescored = _rescore(blocks, ends, candidates[start : start + _RESCORE_ROWS].tolist(), query64)
        scored_rows = keep_top_k(scored_rows + [scored for scored in rescored if scored.score >= floor], top_k)
    return scored_rows


def keep_top_k(scored_rows: list[ScoredRow], top_k: int) -> list[ScoredRow]:
    """Return the ``top_k`` best of ``scored_rows`` and all rows that tie with the last of them, best first. Of each segment, at
    most ``top_k`` are returned: ties are resolved by id, which is the order of rows. The rows of one segment must be in that
    order."""
    scored_rows.sort(key=attrgetter("score"), reverse=True)
    if len(scored_rows) <= top_k:
        return scored_rows
    lowest = scored_rows[top_k - 1].score
    best: list[ScoredRow] = []
    counts: dict[int, int] = {}  # by segment
    for scored in scored_rows:
        if scored.score < lowest:
            break
        count = counts[scored.segment] = counts.get(scored.segment, 0) + 1
        if count <= top_k:
            best.append(scored)
    return best


def _scan(blocks: Sequence[ScanBlock], ends: Sequence[int], query: Vectors) -> Vectors:
    """Return the float32 scores of all blocks, one after the other. The score of an excluded row is minus infinity."""
    scores = np.empty(ends[-1], np.float32)
    product = np.matmul if ends[-1] <= _CPU_CACHED_NUMBERS // len(query) else _matvec_uncached
    start = 0
    for block, end in zip(blocks, ends, strict=True):
        if block.included is None:
            product(block.vectors, query, out=scores[start:end])
            if block.excluded is not None:
                scores[start:end][block.excluded] = -np.inf
        else:
            for at in range(0, len(block.included), _RESCORE_ROWS):
                rows = block.included[at : at + _RESCORE_ROWS]
                np.matmul(block.vectors[rows], query, out=scores[start + at : start + at + len(rows)])
        start = end
    return scores


def _matvec_uncached(vectors: Vectors, query: Vectors, out: Vectors) -> None:
    """Write the products of ``vectors``, which are not in the cache of the processor, and ``query`` to ``out``. Alternating
    between the rows of both halves is faster than a matrix-vector product, because the processor prefetches two streams better
    than one."""
    half = len(vectors) // 2
    alternating = vectors[: 2 * half].reshape(2, half, len(query)).swapaxes(0, 1)
    out[: 2 * half].reshape(2, half)[:] = np.vecdot(alternating, query, out=np.empty((half, 2), np.float32)).T
    if len(vectors) > 2 * half:
        out[-1] = np.vecdot(vectors[-1], query)


def _score_threshold(scores: Vectors, top_k: int) -> float:
    """Return a score that at least ``top_k`` of ``scores`` reach, but few more. For many scores, take it from the maxima of
    groups."""
    if len(scores) > _PARTITION_MAX_SCORES:
        scores = scores[: len(scores) // _GROUPS * _GROUPS].reshape(-1, _GROUPS).max(axis=0)
    if len(scores) <= top_k:
        return -math.inf
    ordered = scores.copy()
    ordered.partition(len(ordered) - top_k)
    return float(ordered[len(ordered) - top_k])


def _rescore(
    blocks: Sequence[ScanBlock], ends: Sequence[int], candidates: Sequence[int], query: npt.NDArray[np.float64]
) -> list[ScoredRow]:
    """Score rows in float64. ``candidates`` are their positions in the result of ``_scan``. A score is never a negative zero."""
    rows: list[tuple[int, int]] = []
    vectors: list[Vectors] = []
    for candidate in candidates:
        number = bisect_right(ends, candidate)
        block = blocks[number]
        row = candidate - ends[number - 1] if number else candidate
        row = row if block.included is None else int(block.included[row])
        rows.append((block.segment, block.first + row))
        vectors.append(block.vectors[row])
    vectors64 = np.concatenate(vectors, dtype=np.float64).reshape(len(vectors), -1)
    rescored: list[float] = np.vecdot(vectors64, query).tolist()
    return [
        ScoredRow(round(max(-1.0, min(1.0, score)) * _SCORE_SCALE) / _SCORE_SCALE, segment, row)
        for score, (segment, row) in zip(rescored, rows, strict=True)
    ]


def float32_error_bound(dimensions: int) -> float:
    """Return a bound of the error of a float32 score of normalised vectors, plus half a unit of the last decimal.

    The error of a dot product of length d is at most d·u / (1 - d·u) times the sum of |x_i·y_i|, whatever the order of additions
    (Higham, Accuracy and Stability of Numerical Algorithms, §3.1); that sum is at most the product of the norms.
    """
    steps = (dimensions + 2) * _FLOAT32_ROUNDOFF
    return steps / (1 - steps) * 1.001 + 0.5 * 10.0**-DECIMALS
