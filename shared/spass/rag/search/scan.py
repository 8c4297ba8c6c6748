"""Exact search: the best rows of an index by cosine similarity."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.rag.index.segments import Vectors

RowNumbers = npt.NDArray[np.intp]

DECIMALS: Final = 6
_UNITS: Final = 10.0**DECIMALS
_EXACT_ROWS: Final = 2048  # bounds what scoring in float64 holds
_CACHED_NUMBERS: Final = 2**20  # that stay in the processor's cache from query to query
_PARTITION_MAX_SCORES: Final = 32_768  # scores of which a partition costs more than maxima of groups
_GROUPS: Final = 2048
_MIN_SCORE: Final = -2.0  # below every score
_HALF_UNIT: Final = 2.0**-24  # rounding of one float32 operation, relative


@dataclass(frozen=True, slots=True)
class ScanBlock:
    """Rows to be searched: (n, d) float32 ``vectors``, normalised, of a segment whose number is ``segment`` and whose rows they
    are from ``keep_top_k`` on. ``only`` some of these n, or all ``but`` some; both ascending."""

    segment: int
    first: int
    vectors: Vectors
    but: RowNumbers | None = None
    only: RowNumbers | None = None


class ScoredRow(NamedTuple):
    """A row of a segment and its score in [-1, 1], rounded to six decimals."""

    score: float
    segment: int
    row: int


def scan_top_k(parts: Sequence[ScanBlock], query: Vectors, top_k: int, floor: float = _MIN_SCORE) -> list[ScoredRow]:
    """The ``top_k`` best rows of ``parts`` for the normalised (d,) float32 ``query`` with a score of at least ``floor``, best
    first. Which of several with the last one's score are among them is for ids to say, so more than ``top_k`` may come.

    The scan is float32. Its error is below ``float32_error_bound``, so every row that could be among the best is scored again
    in float64, in
    an order of additions that does not depend on where the row stands: equal vectors get equal scores, and a score does not
    change when segments are merged. Parts of one segment follow each other in the order of its rows.
    """
    ends = list(accumulate([len(part.vectors) if part.only is None else len(part.only) for part in parts]))
    if not ends or not ends[-1] or top_k <= 0:
        return []
    scores = _scan(parts, ends, query)
    error = float32_error_bound(len(query))
    threshold = min(max(_score_threshold(scores, top_k) - 2 * error, floor - error, _MIN_SCORE), -_MIN_SCORE)
    places = (scores >= threshold).nonzero()[0]
    wide = query.astype(np.float64)
    found: list[ScoredRow] = []
    for start in range(0, len(places), _EXACT_ROWS):
        exact = _rescore(parts, ends, places[start : start + _EXACT_ROWS].tolist(), wide)
        found = keep_top_k(found + [scored for scored in exact if scored.score >= floor], top_k)
    return found


def keep_top_k(found: list[ScoredRow], top_k: int) -> list[ScoredRow]:
    """Those of ``found`` that are among the ``top_k`` best or tie with the last of them, best first; of one segment the first
    ``top_k``, for in a segment the order of rows is that of ids. Rows of one segment stand in their order."""
    found.sort(key=_score, reverse=True)
    if len(found) <= top_k:
        return found
    least = found[top_k - 1].score
    kept: list[ScoredRow] = []
    of_segment: dict[int, int] = {}
    for scored in found:
        if scored.score < least:
            break
        count = of_segment[scored.segment] = of_segment.get(scored.segment, 0) + 1
        if count <= top_k:
            kept.append(scored)
    return kept


def _scan(parts: Sequence[ScanBlock], ends: Sequence[int], query: Vectors) -> Vectors:
    """The float32 scores of all rows one after the other; of those that are not to be found, minus infinity."""
    scores = np.empty(ends[-1], np.float32)
    product = np.matmul if ends[-1] <= _CACHED_NUMBERS // len(query) else _matvec_uncached
    start = 0
    for part, end in zip(parts, ends, strict=True):
        if part.only is None:
            product(part.vectors, query, out=scores[start:end])
            if part.but is not None:
                scores[start:end][part.but] = -np.inf
        else:
            for at in range(0, len(part.only), _EXACT_ROWS):
                some = part.only[at : at + _EXACT_ROWS]
                np.matmul(part.vectors[some], query, out=scores[start + at : start + at + len(some)])
        start = end
    return scores


def _matvec_uncached(vectors: Vectors, query: Vectors, out: Vectors) -> None:
    """The product of ``vectors``, which come out of memory, and ``query``. Row by row and from two places by turns, that is
    faster than a matrix-vector product: a processor reads two streams ahead sooner than one."""
    half = len(vectors) // 2
    by_turns = vectors[: 2 * half].reshape(2, half, len(query)).swapaxes(0, 1)
    out[: 2 * half].reshape(2, half)[:] = np.vecdot(by_turns, query, out=np.empty((half, 2), np.float32)).T
    if len(vectors) > 2 * half:
        out[-1] = np.vecdot(vectors[-1], query)


def _score_threshold(scores: Vectors, top_k: int) -> float:
    """A number that at least ``top_k`` of ``scores`` reach, and few others: of many scores, what as many groups' maxima reach."""
    if len(scores) > _PARTITION_MAX_SCORES:
        scores = scores[: len(scores) // _GROUPS * _GROUPS].reshape(-1, _GROUPS).max(axis=0)
    if len(scores) <= top_k:
        return -math.inf
    ordered = scores.copy()
    ordered.partition(len(ordered) - top_k)
    return float(ordered[len(ordered) - top_k])


def _rescore(
    parts: Sequence[ScanBlock], ends: Sequence[int], places: Sequence[int], query: npt.NDArray[np.float64]
) -> list[ScoredRow]:
    """The rows at ``places`` among the scores, with their scores from float64 arithmetic; never a negative zero."""
    rows: list[tuple[int, int]] = []
    vectors: list[Vectors] = []
    for place in places:
        number = bisect_right(ends, place)
        part = parts[number]
        row = place - ends[number - 1] if number else place
        row = row if part.only is None else int(part.only[row])
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
    """More than a float32 score of normalised vectors can be off, plus half a unit of the last decimal.

    The error of a dot product of length d is at most d·u / (1 - d·u) times the sum of |x_i·y_i|, whatever the order of additions
    (Higham, Accuracy and Stability of Numerical Algorithms, §3.1); that sum is at most the product of the norms.
    """
    steps = (dimensions + 2) * _HALF_UNIT
    return steps / (1 - steps) * 1.001 + 0.5 * 10.0**-DECIMALS
