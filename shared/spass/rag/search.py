"""Exact search: the best rows of an index by cosine similarity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.rag.segments import Vectors

RowNumbers = npt.NDArray[np.intp]
Scores = npt.NDArray[np.float64]

DECIMALS: Final = 6
_EXACT_ROWS: Final = 2048  # bounds what scoring in float64 holds
_COLUMNS: Final = 2048
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
    counts = np.array([part.rows for part in parts], np.intp)
    ends = np.cumsum(counts)
    starts = ends - counts
    if not counts.any() or top_k <= 0:
        return []
    scores = _scan(parts, query)
    error = margin(len(query))
    threshold = max(_bound(scores, top_k) - 2 * error, floor - error, _LOWEST)
    places = np.flatnonzero(scores >= threshold)
    if not len(places):
        return []
    numbers = np.searchsorted(ends, places, side="right")
    rows = places - starts[numbers]
    return _best(parts, numbers, rows, exact(parts, numbers, rows, query), top_k, floor)


def _scan(parts: Sequence[Part], query: Vectors) -> Vectors:
    """The float32 scores of all rows one after the other; of those that are not to be found, minus infinity."""
    scores = np.empty(sum(part.rows for part in parts), np.float32)
    end = 0
    for part in parts:
        start, end = end, end + part.rows
        if part.only is None:
            np.matmul(part.vectors, query, out=scores[start:end])
            if part.but is not None:
                scores[start:end][part.but] = -np.inf
        else:
            for at in range(0, len(part.only), _EXACT_ROWS):
                some = part.only[at : at + _EXACT_ROWS]
                np.matmul(part.vectors[some], query, out=scores[start + at : start + at + len(some)])
    return scores


def _bound(scores: Vectors, top_k: int) -> float:
    """A number that at least ``top_k`` of ``scores`` reach, and few others: of many scores, what as many groups' maxima reach."""
    if len(scores) > 4 * _COLUMNS:
        scores = scores[: len(scores) // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS).max(axis=0)
    if len(scores) <= top_k:
        return -math.inf
    return float(np.partition(scores, len(scores) - top_k)[len(scores) - top_k])


def _best(parts: Sequence[Part], numbers: RowNumbers, rows: RowNumbers, scores: Scores, top_k: int, floor: float) -> list[Scored]:
    """The best of the ``rows`` of the parts with these ``numbers``, which have these exact ``scores``."""
    least = max(floor, float(np.partition(scores, len(scores) - top_k)[len(scores) - top_k])) if len(scores) > top_k else floor
    kept = np.flatnonzero(scores >= least)
    if len(kept) > 2 * top_k:
        above, ties = kept[scores[kept] > least], kept[scores[kept] == least]
        segments = np.array([part.segment for part in parts])[numbers[ties]]
        kept = np.concatenate([above, ties[_rank_in_run(segments) < top_k]])
    found = []
    for place in kept[np.argsort(-scores[kept], kind="stable")].tolist():
        part, row = parts[numbers[place]], int(rows[place])
        found.append(Scored(float(scores[place]), part.segment, part.first + (row if part.only is None else int(part.only[row]))))
    return found


def _rank_in_run(values: RowNumbers) -> RowNumbers:
    """For each of ``values`` how many equal ones stand right before it."""
    starts = np.flatnonzero(np.diff(values, prepend=values[:1] - 1))
    return np.arange(len(values)) - np.repeat(starts, np.diff(starts, append=len(values)))


def exact(parts: Sequence[Part], numbers: RowNumbers, rows: RowNumbers, query: Vectors) -> Scores:
    """The scores of the ``rows`` of the parts with these ``numbers`` (ascending) from float64 arithmetic, clipped to [-1, 1] and
    rounded to six decimals; never a negative zero."""
    wide = query.astype(np.float64)
    scores = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _EXACT_ROWS):
        some = slice(start, start + _EXACT_ROWS)
        scores[some] = np.vecdot(_rows(parts, numbers[some], rows[some]).astype(np.float64), wide)
    np.clip(scores, -1.0, 1.0, out=scores)
    np.round(scores, DECIMALS, out=scores)
    scores += 0.0  # turns a negative zero into a plain one
    return scores


def _rows(parts: Sequence[Part], numbers: RowNumbers, rows: RowNumbers) -> Vectors:
    """The vectors of ``rows``, copied together."""
    if numbers[0] == numbers[-1]:
        return _of(parts[numbers[0]], rows)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = [*starts[1:].tolist(), len(rows)]
    return np.concatenate([_of(parts[numbers[start]], rows[start:end]) for start, end in zip(starts.tolist(), ends, strict=True)])


def _of(part: Part, rows: RowNumbers) -> Vectors:
    return part.vectors[rows if part.only is None else part.only[rows]]


def margin(dimensions: int) -> float:
    """More than a float32 score of normalised vectors can be off, plus half a unit of the last decimal.

    The error of a dot product of length d is at most d·u / (1 - d·u) times the sum of |x_i·y_i|, whatever the order of additions
    (Higham, Accuracy and Stability of Numerical Algorithms, §3.1); that sum is at most the product of the norms.
    """
    steps = (dimensions + 2) * _HALF_UNIT
    return steps / (1 - steps) * 1.001 + 0.5 * 10.0**-DECIMALS
