"""The bounds of a scan of codes hold for every row and every query, also where they are as tight as they can be."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pytest

from spass.rag.index.segments import quantize
from spass.rag.search.code_scan import Candidates, CodeBlock, CodedQuery, bound_again, scan_codes
from tests.sampling import SOAK
from tests.unit.rag.search.exact_vectors import FAMILIES, Doubles, Sample, unit

SAMPLES: Final = 20_000 if SOAK else 600
_HALF_UNIT: Final = 0.5e-6  # what rounding to six decimals may change
_MISSED: Final = 1e-12  # rounding of the reference


class Bounded(NamedTuple):
    """The ``scores`` of all rows in float64, not rounded, and the ``bounds`` of a scan and of a second scan of what it found."""

    number: int
    scores: Doubles
    bounds: tuple[Candidates, Candidates]


def draw_sample(number: int) -> Sample:
    random = np.random.default_rng([26, number])
    dimensions = int(random.choice([1, 2, 3, 8, 12, 31, 64, 200, 768, 1536, 4096], p=[0.1] * 9 + [0.05] * 2))
    sample = FAMILIES[number % len(FAMILIES)](random, int(random.integers(1, max(2, 40_000 // max(dimensions, 100)))), dimensions)
    others = unit(random.normal(size=(2, sample.vectors.shape[1])))
    return Sample(sample.vectors, np.concatenate([sample.queries, others, sample.vectors[:1] if number % 2 else others[:1]]))


def bounded_samples() -> Iterator[Bounded]:
    for number in range(SAMPLES):
        sample = draw_sample(number)
        blocks = [CodeBlock(0, 0, quantize(sample.vectors))]
        for vector in unit(sample.queries.astype(np.float64)):
            query = CodedQuery(vector)
            first = scan_codes(blocks, query, len(sample.vectors) + 1)
            assert first.rows.tolist() == list(range(len(sample.vectors)))
            scores = np.vecdot(sample.vectors.astype(np.float64), vector.astype(np.float64))
            yield Bounded(number, scores, (first, bound_again(blocks, query, first)))


def test_every_rounded_score_lies_within_its_bounds_and_some_within_a_twentieth() -> None:
    """Samples far from the bounds would not show that a bound is too small. Some rows of each scan use 95 % of their error."""
    closest = np.zeros((2, 2))
    for number, scores, bounds in bounded_samples():
        for scan, bound in enumerate(bounds):
            assert (bound.lower <= scores - _HALF_UNIT + _MISSED).all(), number
            assert (bound.upper >= scores + _HALF_UNIT - _MISSED).all(), number
            error, middle = (bound.upper - bound.lower) / 2, (bound.upper + bound.lower) / 2
            used = (scores - middle)[error > 0.01] / error[error > 0.01]
            closest[scan] = np.maximum(closest[scan], [used.max(initial=0), (-used).max(initial=0)])
    assert closest.min() > 0.95


def test_a_residual_is_at_least_the_length_of_what_the_codes_lost() -> None:
    for number in range(SAMPLES):
        vectors = draw_sample(number).vectors
        codes, scales, residuals = quantize(vectors)
        lost = vectors.astype(np.float64) - codes * scales.astype(np.float64)[:, None]
        assert (residuals >= np.linalg.norm(lost, axis=1)).all(), number
        assert codes.min(initial=0) >= -127


@pytest.mark.parametrize("length", [1.0, 2.0**-130, 2.0**-149, 0.0])
def test_a_row_of_any_length_has_finite_codes(length: float) -> None:
    codes, scales, residuals = quantize(np.full((3, 5), length, np.float32))
    assert np.isfinite(scales).all()
    assert (np.abs(codes * scales[:, None] - length) <= residuals[:, None]).all()
