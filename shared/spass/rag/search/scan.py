"""Exact search: find the best rows of an index by cosine similarity."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.rag.index.segments import RowNumbers, Vectors

DECIMALS: Final = 6
_UNITS: Final = 10.0**DECIMALS
_EXACT_ROWS: Final = 2048  # scored in float64 at a time: a bound of the memory
_CACHED_NUMBERS: Final = 2**20  # numbers that stay in the cache of the processor between queries
_PARTITION_MAX_SCORES: Final = 32_768  # for more scores, maxima of groups are faster than a partition
_GROUPS: Final = 2048
_MIN_SCORE: Final = -2.0  # below every score
_HALF_UNIT: Final = 2.0**-24  # rounding of one float32 operation, relative


@dataclass(frozen=True, slots=True)
class ScanBlock:
    """Rows to scan: (n, d) float32 ``vectors``, normalised, which are the rows from ``first`` on of the segment with the number
    ``segment``. Of these n rows, only the ``included`` are searched, or all but the ``excluded``; both are ascending."""

    segment: int
    first: int
    vectors: Vectors
    excluded: RowNumbers | None = None
    included: RowNumbers | None = None


class ScoredRow(NamedTuple):
    """A row of a segment and its score in [-1, 1], rounded to six decimals."""

    score: float
    segment: int
    row: int


def scan_top_k(parts: Sequence[ScanBlock], query: Vectors, top_k: int, floor: float = _MIN_SCORE) -> list[ScoredRow]:
    """Return the ``top_k`` best rows of ``parts`` for the normalised (d,) float32 ``query`` with a score of at least ``floor``,
    best first. Rows that tie with the last one are all returned, because the caller knows their ids and decides.

    The scan is in float32. Its error is below ``float32_error_bound``, so every row that may be among the best is scored again in
    float64, in an order of additions that does not depend on the position of the row: equal vectors get equal scores, and a merge
    does not change a score. Parts of one segment must be in the order of rows.
    """
    ends = list(accumulate([len(part.vectors) if part.included is None else len(part.included) for part in parts]))
    if not ends or not ends[-1] or top_k <= 0:
        return []
    scores = _scan(parts, ends, query)
    error = float32_error_bound(len(query))
    threshold = min(max(_score_threshold(scores, top_k) - 2 * error, floor - error, _MIN_SCORE), -_MIN_SCORE)
    candidates = (scores >= threshold).nonzero()[0]
    wide = query.astype(np.float64)
    found: list[ScoredRow] = []
    for start in range(0, len(candidates), _EXACT_ROWS):
        exact = _rescore(parts, ends, candidates[start : start + _EXACT_ROWS].tolist(), wide)
        found = keep_top_k(found + [scored for scored in exact if scored.score >= floor], top_k)
    return found


def keep_top_k(found: list[ScoredRow], top_k: int) -> list[ScoredRow]:
    """Return the ``top_k`` best of ``found`` and those that tie with the last of them, best first. Of each segment at most
    ``top_k`` are returned, because in a segment row order is id order. Rows of one segment must be in their order."""
    found.sort(key=_score, reverse=True)
    if len(found) <= top_k:
        return found
    lowest = found[top_k - 1].score
    kept: list[ScoredRow] = []
    of_segment: dict[int, int] = {}
    for scored in found:
        if scored.score < lowest:
            break
        count = of_segment[scored.segment] = of_segment.get(scored.segment, 0) + 1
        if count <= top_k:
            kept.append(scored)
    return kept


def _scan(parts: Sequence[ScanBlock], ends: Sequence[int], query: Vectors) -> Vectors:
    """Return the float32 scores of all parts, one after the other. The score of an excluded row is minus infinity."""
    scores = np.empty(ends[-1], np.float32)
    product = np.matmul if ends[-1] <= _CACHED_NUMBERS // len(query) else _matvec_uncached
    start = 0
    for part, end in zip(parts, ends, strict=True):
        if part.included is None:
            product(part.vectors, query, out=scores[start:end])
            if part.excluded is not None:
                scores[start:end][part.excluded] = -np.inf
        else:
            for at in range(0, len(part.included), _EXACT_ROWS):
                some = part.included[at : at + _EXACT_ROWS]
                np.matmul(part.vectors[some], query, out=scores[start + at : start + at + len(some)])
        start = end
    return scores


def _matvec_uncached(vectors: Vectors, query: Vectors, out: Vectors) -> None:
    """Multiply ``vectors``, which are not in the cache of the processor, by ``query``. Alternating between the rows of both
    halves is faster than a matrix-vector product, because the processor prefetches two streams better than one."""
    half = len(vectors) // 2
    alternating = vectors[: 2 * half].reshape(2, half, len(query)).swapaxes(0, 1)
    out[: 2 * half].reshape(2, half)[:] = np.vecdot(alternating, query, out=np.empty((half, 2), np.float32)).T
    if len(vectors) > 2 * half:
        out[-1] = np.vecdot(vectors[-1], query)


def _score_threshold(scores: Vectors, top_k: int) -> float:
    """Return a score that at least ``top_k`` of ``scores`` reach, and few others. For many scores, use the maxima of groups."""
    if len(scores) > _PARTITION_MAX_SCORES:
        scores = scores[: len(scores) // _GROUPS * _GROUPS].reshape(-1, _GROUPS).max(axis=0)
    if len(scores) <= top_k:
        return -math.inf
    ordered = scores.copy()
    ordered.partition(len(ordered) - top_k)
    return float(ordered[len(ordered) - top_k])


def _rescore(
    parts: Sequence[ScanBlock], ends: Sequence[int], candidates: Sequence[int], query: npt.NDArray[np.float64]
) -> list[ScoredRow]:
    """Score the rows at ``candidates``, which are indices of the scores, in float64. A score is never a negative zero."""
    rows: list[tuple[int, int]] = []
    vectors: list[Vectors] = []
    for candidate in candidates:
        number = bisect_right(ends, candidate)
        part = parts[number]
        row = candidate - ends[number - 1] if number else candidate
        row = row if part.included is None else int(part.included[row])
        rows.append((part.segment, part.first + row))
        vectors.append(part.vectors[row])
    together = np.concatenate(vectors, dtype=np.float64).reshape(len(vectors), -1)
    exact: list[float] = np.vecdot(together, query).tolist()
    return [
        ScoredRow(round(max(-1.0, min(1.0, score)) * _UNITS) / _UNITS, segment, row)
        for score, (segment, row) in zip(exact, rows, strict=True)
    ]


def _score(scored: ScoredRow) -> float:
    return scored.score


def float32_error_bound(dimensions: int) -> float:
    """Return a bound of the error of a float32 score of normalised vectors, plus half a unit of the last decimal.

    The error of a dot product of length d is at most d·u / (1 - d·u) times the sum of |x_i·y_i|, whatever the order of additions
    (Higham, Accuracy and Stability of Numerical Algorithms, §3.1); that sum is at most the product of the norms.
    """
    steps = (dimensions + 2) * _HALF_UNIT
    return steps / (1 - steps) * 1.001 + 0.5 * 10.0**-DECIMALS
