"""Exact search: find the best rows of an index by cosine similarity."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.rag.index.segments import FLOAT32_ROUNDOFF, RowNumbers, Vectors

Scores = npt.NDArray[np.float32] | npt.NDArray[np.float64]

DECIMALS: Final = 6
_SCORE_SCALE: Final = 10.0**DECIMALS
_RESCORE_ROWS: Final = 2048  # scored in float64 together, to bound the memory
_FEW_ROWS: Final = 256  # are scored in float64 at once
_GROUPED_SCORES: Final = 4096  # of more scores, the maxima of groups are taken first
_GROUPS: Final = 512
MIN_SCORE: Final = -2.0  # below every score


@dataclass(frozen=True, slots=True)
class ScanBlock:
    """Rows to scan: (n, d) float32 ``vectors``, normalised. They are the rows from ``first`` on of a segment, or its rows
    ``numbers``; ``segment`` is the index of that segment in the caller's list. Only the rows ``included`` are searched, or all
    but the rows ``excluded``. Both count from 0 within the block, in ascending order."""

    segment: int
    first: int
    vectors: Vectors
    excluded: RowNumbers | None = None
    included: RowNumbers | None = None
    numbers: RowNumbers | None = None

    def __len__(self) -> int:
        """Return the number of rows that are scanned."""
        return len(self.vectors) if self.included is None else len(self.included)


class _Rows(NamedTuple):
    """Some ``rows`` of the vectors of ``block``, ascending."""

    block: ScanBlock
    rows: RowNumbers


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
    merge does not change a score.
    """
    if top_k <= 0:
        return []
    query64 = query.astype(np.float64)
    scored_rows: list[ScoredRow] = []
    for part in _chunks(_candidates(blocks, query, top_k, floor)):
        scored_rows = keep_top_k(scored_rows + _rescore(part, query64, top_k, floor), top_k)
    return scored_rows


def keep_top_k(scored_rows: list[ScoredRow], top_k: int) -> list[ScoredRow]:
    """Return the ``top_k`` best of ``scored_rows`` and all rows that tie with the last of them, best first. Of each segment, at
    most ``top_k`` are returned: ties are resolved by id, which is the order of rows."""
    scored_rows.sort(key=lambda scored: (-scored.score, scored.segment, scored.row))
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


def _candidates(blocks: Sequence[ScanBlock], query: Vectors, top_k: int, floor: float) -> list[_Rows]:
    """Return the rows that may be among the best."""
    ends = list(accumulate(map(len, blocks)))
    if not ends or not ends[-1]:
        return []
    if ends[-1] <= _FEW_ROWS and all(block.excluded is None for block in blocks):
        return [_Rows(block, block.included if block.included is not None else np.arange(len(block))) for block in blocks]
    scores = _scan(blocks, ends, query)
    error = float32_error_bound(len(query))
    threshold = min(max(kth_largest_at_least(scores, top_k) - 2 * error, floor - error, MIN_SCORE), -MIN_SCORE)
    split = zip(blocks, split_by_block(ends, (scores >= threshold).nonzero()[0]), strict=True)
    return [_Rows(block, rows if block.included is None else block.included[rows]) for block, rows in split if len(rows)]


def _scan(blocks: Sequence[ScanBlock], ends: Sequence[int], query: Vectors) -> Vectors:
    """Return the float32 scores of all blocks, one after the other. The score of an excluded row is minus infinity."""
    scores = np.empty(ends[-1], np.float32)
    start = 0
    for block, end in zip(blocks, ends, strict=True):
        if block.included is None:
            np.matmul(block.vectors, query, out=scores[start:end])
            if block.excluded is not None:
                scores[start:end][block.excluded] = -np.inf
        else:
            for at in range(0, len(block.included), _RESCORE_ROWS):
                rows = block.included[at : at + _RESCORE_ROWS]
                np.matmul(block.vectors[rows], query, out=scores[start + at : start + at + len(rows)])
        start = end
    return scores


def kth_largest_at_least(scores: Scores, top_k: int) -> float:
    """Return a number that at least ``top_k`` of ``scores`` reach, but few more; minus infinity if there are fewer. For many
    scores, take it from the maxima of groups."""
    if len(scores) > _GROUPED_SCORES and top_k < _GROUPS // 2:
        scores = scores[: len(scores) // _GROUPS * _GROUPS].reshape(-1, _GROUPS).max(axis=0)
    if len(scores) < top_k:
        return -math.inf
    ordered = scores.copy()
    ordered.partition(len(ordered) - top_k)
    return float(ordered[len(ordered) - top_k])


def split_by_block(ends: Sequence[int], positions: RowNumbers) -> Iterator[RowNumbers]:
    """Yield for each block those ``positions`` that are in it, counted from its first row. ``positions`` are ascending and count
    the rows of all blocks; ``ends`` are the ends of the blocks in that count."""
    ordered = positions.tolist()
    start = low = 0
    for end in ends:
        high = bisect_left(ordered, end, low)
        yield positions[low:high] - start
        start, low = end, high


def _chunks(candidates: Sequence[_Rows]) -> Iterator[list[_Rows]]:
    """Yield the rows of ``candidates`` in parts of at most ``_RESCORE_ROWS``."""
    part: list[_Rows] = []
    size = 0
    for block, rows in candidates:
        for start in range(0, len(rows), _RESCORE_ROWS):
            piece = _Rows(block, rows[start : start + _RESCORE_ROWS])
            if size + len(piece.rows) > _RESCORE_ROWS:
                yield part
                part, size = [], 0
            part.append(piece)
            size += len(piece.rows)
    if part:
        yield part


def _rescore(candidates: Sequence[_Rows], query: npt.NDArray[np.float64], top_k: int, floor: float) -> list[ScoredRow]:
    """Score rows in float64, and return those that may be among the best. A score is never a negative zero."""
    vectors = np.concatenate([block.vectors[rows] for block, rows in candidates], dtype=np.float64)
    rounded = np.rint(np.vecdot(vectors, query).clip(-1, 1) * _SCORE_SCALE) / _SCORE_SCALE + 0.0
    least = max(floor, kth_largest_at_least(rounded, top_k))
    scores: list[float] = rounded.tolist()
    scored_rows: list[ScoredRow] = []
    at = 0
    for block, rows in candidates:
        ties = 0  # with the last score; the first of them have the first ids
        for row, score in zip(rows.tolist(), scores[at : at + len(rows)], strict=True):
            if score < least:
                continue
            ties += score == least
            if ties <= top_k or score > least:
                number = block.first + row if block.numbers is None else int(block.numbers[row])
                scored_rows.append(ScoredRow(score, block.segment, number))
        at += len(rows)
    return scored_rows


def float32_error_bound(dimensions: int) -> float:
    """Return a bound of the error of a float32 score of normalised vectors, plus half a unit of the last decimal.

    The error of a dot product of length d is at most d·u / (1 - d·u) times the sum of |x_i·y_i|, whatever the order of additions
    (Higham, Accuracy and Stability of Numerical Algorithms, §3.1); that sum is at most the product of the norms.
    """
    steps = (dimensions + 2) * FLOAT32_ROUNDOFF
    return steps / (1 - steps) * 1.001 + 0.5 * 10.0**-DECIMALS
