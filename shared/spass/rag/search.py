"""Exact search: the best rows of an index by cosine similarity."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.rag.segments import Vectors

RowNumbers = npt.NDArray[np.intp]
Scores = npt.NDArray[np.float64]

DECIMALS: Final = 6
_UNITS: Final = 10.0**DECIMALS
_EXACT_ROWS: Final = 2048  # bounds what scoring in float64 holds
_CACHED_BYTES: Final = 4 * 2**20
_FEW: Final = 256  # rows that are sorted without asking which of them can be left out
_MANY: Final = 32_768  # scores of which a partition costs more than maxima of groups
_GROUPS: Final = 2048
_LOWEST: Final = -2.0  # below every score
_HALF_UNIT: Final = 2.0**-24  # rounding of one float32 operation, relative


@dataclass(frozen=True, slots=True)
class Part:
    """Rows to be searched: (n, d) float32 ``vectors``, normalised, of a segment whose number is ``segment`` and whose rows they
    are from ``first`` on. ``only`` some of these n, or all ``but`` some; both ascending."""

    segment: int
    first: int
    vectors: Vectors
    but: RowNumbers | None = None
    only: RowNumbers | None = None

    @property
    def rows(self) -> int:
        return len(self.vectors) if self.only is None else len(self.only)


class Scored(NamedTuple):
    """A row of a segment and its score in [-1, 1], rounded to six decimals."""

    score: float
    segment: int
    row: int


def best(parts: Sequence[Part], query: Vectors, top_k: int, floor: float = _LOWEST) -> list[Scored]:
    """The ``top_k`` best rows of ``parts`` for the normalised (d,) float32 ``query`` with a score of at least ``floor``, best
    first. Which of several with the last one's score are among them is for ids to say, so more than ``top_k`` may come.

    The scan is float32. Its error is below ``margin``, so every row that could be among the best is scored again in float64, in
    an order of additions that does not depend on where the row stands: equal vectors get equal scores, and a score does not
    change when segments are merged. Parts of one segment follow each other in the order of its rows.
    """
    ends = list(accumulate([part.rows for part in parts]))
    if not ends or not ends[-1] or top_k <= 0:
        return []
    scores = _scan(parts, ends, query)
    error = margin(len(query))
    threshold = max(_bound(scores, top_k) - 2 * error, floor - error, _LOWEST)
    places = (scores >= threshold).nonzero()[0]
    exact_scores = _exact(parts, ends, places, query)
    if len(places) > _FEW:
        kept = _could_be_best(parts, ends, places, exact_scores, top_k)
        places, exact_scores = places[kept], exact_scores[kept]
    found = [
        Scored(score, part.segment, part.first + (row if part.only is None else int(part.only[row])))
        for score, (part, row) in zip(exact_scores.tolist(), _rows(parts, ends, places), strict=True)
        if score >= floor
    ]
    found.sort(key=_worst_first, reverse=True)
    return found


def _scan(parts: Sequence[Part], ends: Sequence[int], query: Vectors) -> Vectors:
    """The float32 scores of all rows one after the other; of those that are not to be found, minus infinity."""
    scores = np.empty(ends[-1], np.float32)
    # A matrix-vector product reads rows side by side, which is fastest out of the processor's cache; one row after the other is
    # out of memory.
    product = np.matmul if sum(part.vectors.nbytes for part in parts) <= _CACHED_BYTES else np.vecdot
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


def _bound(scores: Vectors, top_k: int) -> float:
    """A number that at least ``top_k`` of ``scores`` reach, and few others: of many scores, what as many groups' maxima reach."""
    if len(scores) > _MANY:
        scores = scores[: len(scores) // _GROUPS * _GROUPS].reshape(-1, _GROUPS).max(axis=0)
    if len(scores) <= top_k:
        return -math.inf
    return float(np.partition(scores, len(scores) - top_k)[len(scores) - top_k])


def _rows(parts: Sequence[Part], ends: Sequence[int], places: RowNumbers) -> Iterator[tuple[Part, int]]:
    """Where ``places``, which are places among the scores, stand: the part, and the row of those that it holds."""
    for place in places.tolist():
        number = bisect_right(ends, place)
        yield parts[number], place - (ends[number - 1] if number else 0)


def _exact(parts: Sequence[Part], ends: Sequence[int], places: RowNumbers, query: Vectors) -> Scores:
    """The scores at ``places`` from float64 arithmetic, clipped to [-1, 1] and rounded to six decimals; never a negative zero."""
    wide = query.astype(np.float64)
    scores = np.empty(len(places), np.float64)
    for start in range(0, len(places), _EXACT_ROWS):
        some = places[start : start + _EXACT_ROWS]
        vectors = [part.vectors[row if part.only is None else part.only[row]] for part, row in _rows(parts, ends, some)]
        together = np.concatenate(vectors, dtype=np.float64).reshape(len(some), -1)
        np.vecdot(together, wide, out=scores[start : start + len(some)])
    np.minimum(np.maximum(scores, -1.0, out=scores), 1.0, out=scores)
    scores *= _UNITS
    np.rint(scores, out=scores)
    scores /= _UNITS
    scores += 0.0  # turns a negative zero into a plain one
    return scores


def _could_be_best(
    parts: Sequence[Part], ends: Sequence[int], places: RowNumbers, scores: Scores, top_k: int
) -> npt.NDArray[np.intp]:
    """Which of ``scores`` are among the ``top_k`` best, or tie with the last of them: of these, the first ``top_k`` of each
    segment, for in a segment the order of rows is that of ids."""
    if len(scores) <= top_k:
        return np.arange(len(scores))
    last = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    ties = np.flatnonzero(scores == last)
    segments = np.array([part.segment for part in parts])[np.searchsorted(ends, places[ties], side="right")]
    starts = np.flatnonzero(np.diff(segments, prepend=-1))
    rank = np.arange(len(ties)) - np.repeat(starts, np.diff(starts, append=len(ties)))
    return np.concatenate([np.flatnonzero(scores > last), ties[rank < top_k]])


def _worst_first(scored: Scored) -> float:
    return scored.score


def margin(dimensions: int) -> float:
    """More than a float32 score of normalised vectors can be off, plus half a unit of the last decimal.

    The error of a dot product of length d is at most d·u / (1 - d·u) times the sum of |x_i·y_i|, whatever the order of additions
    (Higham, Accuracy and Stability of Numerical Algorithms, §3.1); that sum is at most the product of the norms.
    """
    steps = (dimensions + 2) * _HALF_UNIT
    return steps / (1 - steps) * 1.001 + 0.5 * 10.0**-DECIMALS
