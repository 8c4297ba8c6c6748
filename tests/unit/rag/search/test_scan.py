"""A scan returns the same rows and scores as brute force."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.rag.index.embedding import normalise
from spass.rag.index.segments import Vectors
from spass.rag.search.scan import ScanBlock, float32_error_bound, scan_top_k


def best(vectors: Vectors, query: Vectors, top_k: int, live: Sequence[bool] | None = None) -> list[tuple[int, float]]:
    """Return the best rows of one segment, with their scores."""
    deleted = None if live is None else np.flatnonzero(~np.array(live, np.bool_))
    return [(row, score) for score, _, row in scan_top_k([ScanBlock(0, 0, vectors, excluded=deleted)], query, top_k)[:top_k]]


def brute_force(vectors: Vectors, query: Vectors, top_k: int, live: Sequence[bool]) -> list[tuple[int, float]]:
    scores = [
        (row, round(max(-1.0, min(1.0, math.fsum(float(a) * float(b) for a, b in zip(vector, query, strict=True)))), 6))
        for row, vector in enumerate(vectors)
        if live[row]
    ]
    return sorted(scores, key=lambda pair: (-pair[1], pair[0]))[:top_k]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Vectors, Vectors, list[bool]]:
    """Return normalised vectors, a query and the live rows. The numbers are few, so that many scores tie."""
    dimensions = draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(st.integers(-2, 2), min_size=dimensions, max_size=dimensions), min_size=1, max_size=60))
    query = draw(st.lists(st.integers(-2, 2), min_size=dimensions, max_size=dimensions))
    live = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    return normalise(np.array(rows, np.float32)), normalise(np.array([query], np.float32))[0], live


@given(cases(), st.integers(1, 50))
def test_a_scan_agrees_with_brute_force(case: tuple[Vectors, Vectors, list[bool]], top_k: int) -> None:
    vectors, query, live = case
    assert best(vectors, query, top_k, live) == brute_force(vectors, query, top_k, live)


@pytest.mark.parametrize("seed", range(5))
def test_a_scan_of_nearly_equal_rows_agrees_with_brute_force(seed: int) -> None:
    random = np.random.default_rng(seed)
    centre = random.normal(size=384)
    near = centre + random.normal(size=(1000, 384)) * 10.0 ** -random.integers(1, 7, size=(1000, 1))
    vectors = normalise(np.concatenate([near, random.normal(size=(1000, 384))]).astype(np.float32))
    query = normalise(centre.astype(np.float32)[None])[0]
    assert best(vectors, query, 50) == brute_force(vectors, query, 50, [True] * 2000)


@given(st.lists(st.sampled_from([0, 1, 2, 3, 40, 700]), min_size=1, max_size=8), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_a_scan_of_segments_of_any_sizes_agrees_with_brute_force(sizes: list[int], top_k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = normalise(random.integers(-1, 2, size=(sum(sizes), 4)).astype(np.float32))
    query = normalise(np.array([[1, 2, 3, 4]], np.float32))[0]
    parts = np.split(vectors, np.cumsum(sizes)[:-1])
    best_rows = scan_top_k([ScanBlock(number, 0, piece) for number, piece in enumerate(parts)], query, top_k)
    firsts = [0, *np.cumsum(sizes).tolist()]
    ranked = sorted((-score, firsts[number] + row) for score, number, row in best_rows)[:top_k]
    assert [(row, -score) for score, row in ranked] == brute_force(vectors, query, top_k, [True] * len(vectors))


@pytest.mark.parametrize("rows", [3, 17, 1025])
def test_equal_vectors_get_equal_scores_at_any_position(rows: int) -> None:
    random = np.random.default_rng(rows)
    vector = normalise(random.normal(size=(1, 384)).astype(np.float32))
    query = normalise(random.normal(size=(1, 384)).astype(np.float32))[0]
    alone = best(vector, query, 1)[0][1]
    best_rows = best(np.repeat(vector, rows, axis=0), query, rows)
    assert best_rows == [(row, alone) for row in range(rows)]


def test_the_error_bound_covers_the_error_of_a_float32_scan() -> None:
    random = np.random.default_rng(7)
    vectors = normalise(random.normal(size=(20_000, 768)).astype(np.float32))
    query = vectors[0]
    exact = (vectors * query.astype(np.float64)).sum(axis=1)
    assert float(np.abs(vectors @ query - exact).max()) < float32_error_bound(768) < 1e-4


def test_scores_are_in_their_range_and_never_a_negative_zero() -> None:
    vectors = normalise(np.array([[1.0] * 7, [-1.0] * 7, [0.0] * 7], np.float32))
    scores = [score for _, score in best(vectors, vectors[0], 3)]
    assert scores == [1.0, 0.0, -1.0]
    assert math.copysign(1, best(vectors, -vectors[2], 3)[0][1]) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("floor", "count"), [(-1e308, 2), (-1.0, 2), (1.0, 1), (1.000001, 0), (1e308, 0)])
def test_the_minimum_score_may_be_any_number(floor: float, count: int) -> None:
    vectors = normalise(np.array([[1.0], [-1.0]], np.float32))
    assert len(scan_top_k([ScanBlock(0, 0, vectors)], vectors[0], 5, floor)) == count


def test_a_scan_without_live_rows_returns_none() -> None:
    vectors = normalise(np.ones((2, 3), np.float32))
    assert best(vectors, vectors[0], 5, [False, False]) == []
    assert best(vectors[:0], vectors[0], 5) == []


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_a_normalised_vector_has_length_one_or_zero(row: list[float]) -> None:
    length = float(np.linalg.norm(normalise(np.array([row], np.float32))[0].astype(np.float64)))
    assert length == 0 if not any(row) else abs(length - 1) < 1e-6


def test_scores_at_both_ends_of_one_unit_tie_after_the_rounding() -> None:
    query = np.array([1, 2.0**-25, 2.0**-50, 0], np.float32)  # so that a score may be any double
    low, high = 0.4396615, 0.4396625
    assert low < high - 1e-6
    vectors = np.stack([_vector_with_score(low), _vector_with_score(high)])
    assert np.array_equal(vectors, normalise(vectors))
    assert best(vectors, query, 1) == [(0, 0.439662)]


def _vector_with_score(score: float) -> Vectors:
    """Return a vector of length 1 whose product with the query (1, 2^-25, 2^-50, 0) is exactly ``score``."""
    first = np.float32(score)
    second = np.float32((score - float(first)) * 2**25)
    third = np.float32((score - float(first) - float(second) * 2.0**-25) * 2**50)
    return np.array([first, second, third, math.sqrt(1 - math.fsum(float(n) ** 2 for n in (first, second, third)))], np.float32)
