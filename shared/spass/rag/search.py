"""Exact search: the best rows of a segment by cosine similarity."""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from spass.rag.segments import Vectors

DECIMALS: Final = 6
_BLOCK_ROWS: Final = 65_536  # bounds what a scan holds beside the vectors
_HALF_UNIT: Final = 2.0**-24  # rounding of one float32 operation, relative


class Scored(NamedTuple):
    """A row and its score in [-1, 1], rounded to six decimals."""

    row: int
    score: float


def best(vectors: Vectors, query: Vectors, top_k: int, alive: npt.NDArray[np.bool_] | None = None) -> list[Scored]:
    """The ``top_k`` best of the (n, d) float32 ``vectors`` for the (d,) float32 ``query``, all normalised; where ``alive`` is
    given, among the rows it is true for. Best first, equal scores in the order of rows.

    The scan is float32. Its error is below ``margin``, so every row that could be among the best is scored again in float64, in
    an order of additions that does not depend on where the row stands: equal vectors get equal scores, and a score does not
    change when segments are merged.
    """
    if not len(vectors) or top_k <= 0:
        return []
    scores = np.concatenate([vectors[start : start + _BLOCK_ROWS] @ query for start in range(0, len(vectors), _BLOCK_ROWS)])
    if alive is not None:
        scores[~alive] = -np.inf
    count = int(np.isfinite(scores).sum())
    if not count:
        return []
    if count > top_k:
        kth = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
        candidates = np.flatnonzero(scores >= kth - 2 * margin(vectors.shape[1]))
    else:
        candidates = np.flatnonzero(np.isfinite(scores))
    rounded = exact(vectors, query, candidates)
    order = np.argsort(-rounded, kind="stable")[:top_k]
    return [Scored(int(candidates[n]), float(rounded[n])) for n in order]


def exact(vectors: Vectors, query: Vectors, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """The scores of ``rows`` from float64 arithmetic, clipped to [-1, 1] and rounded to six decimals; never a negative zero."""
    wide = query.astype(np.float64)
    scores = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _BLOCK_ROWS // 16):
        block = slice(start, start + _BLOCK_ROWS // 16)
        scores[block] = (vectors[rows[block]] * wide).sum(axis=1)
    np.clip(scores, -1.0, 1.0, out=scores)
    np.round(scores, DECIMALS, out=scores)
    scores += 0.0  # turns a negative zero into a plain one
    return scores


def margin(dimensions: int) -> float:
    """More than a float32 score of normalised vectors can be off, plus half a unit of the last decimal.

    The error of a dot product of length d is at most d·u / (1 - d·u) times the sum of |x_i·y_i|, whatever the order of additions
    (Higham, Accuracy and Stability of Numerical Algorithms, §3.1); that sum is at most the product of the norms.
    """
    steps = (dimensions + 2) * _HALF_UNIT
    return steps / (1 - steps) * 1.001 + 0.5 * 10.0**-DECIMALS
