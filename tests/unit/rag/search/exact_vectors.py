"""Vectors and queries for which exact search is difficult: ties, near-duplicates, and rows for which 8-bit codes are as wrong as
they can be.

A code of a row is ``round(x / scale)`` with ``scale = max|x| / 127``, so an integer vector whose largest component is 127 is its
own code, and adding less than a half to its other components does not change the code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from spass.rag.index.embedding import normalise
from spass.rag.index.segments import Vectors

Random = np.random.Generator
Doubles = npt.NDArray[np.float64]

_LARGEST_CODE: Final = 127
_ALMOST_HALF: Final = 0.49  # of a step between two codes


@dataclass(frozen=True, slots=True)
class Sample:
    """(n, d) float32 ``vectors`` of length at most 1 and the (m, d) float32 ``queries`` that are difficult for them, of length 1
    or 0. There may be no such queries."""

    vectors: Vectors
    queries: Vectors


Family = Callable[[Random, int, int], Sample]
"""Draw a sample, given the number of rows and the dimensions. A family may use more dimensions than it is asked for."""


def unit(vectors: Doubles) -> Vectors:
    """Return ``vectors``, (n, d), as normalised float32."""
    with np.errstate(over="ignore", under="ignore"):
        return normalise(vectors.astype(np.float32))


def _sample(vectors: Doubles, *queries: Doubles) -> Sample:
    return Sample(unit(vectors), unit(np.array(queries).reshape(len(queries), vectors.shape[1])))


def _signs(random: Random, dimensions: int) -> Doubles:
    return random.choice([-1.0, 1.0], dimensions)


def gaussian(random: Random, rows: int, dimensions: int) -> Sample:
    return _sample(random.normal(size=(rows, dimensions)))


def near_duplicates(random: Random, rows: int, dimensions: int) -> Sample:
    """Clusters whose rows are 1e-1 to 1e-7 away from the centre."""
    centres = unit(random.normal(size=(random.integers(1, 4), dimensions))).astype(np.float64)
    noise = unit(random.normal(size=(rows, dimensions))) * 10.0 ** -random.integers(1, 8, size=(rows, 1))
    return _sample(centres[random.integers(0, len(centres), rows)] + noise, *centres)


def duplicates(random: Random, rows: int, dimensions: int) -> Sample:
    originals = random.normal(size=(max(1, rows // 6), dimensions))
    return _sample(originals[random.integers(0, len(originals), rows)])


def equal_rows(random: Random, rows: int, dimensions: int) -> Sample:
    row = random.normal(size=(1, dimensions))
    return _sample(np.repeat(row, rows, axis=0), row[0])


def zeros(random: Random, rows: int, dimensions: int) -> Sample:
    vectors = random.normal(size=(rows, dimensions))
    vectors[random.random(rows) < random.choice([0.3, 0.9, 1.0])] = 0
    return _sample(vectors)


def small_integers(random: Random, rows: int, dimensions: int) -> Sample:
    """Few different components, so that many scores tie."""
    return _sample(random.integers(-2, 3, size=(rows, dimensions)).astype(np.float64))


def sparse(random: Random, rows: int, dimensions: int) -> Sample:
    vectors = random.normal(size=(rows, dimensions))
    vectors[random.random(vectors.shape) < 0.95] = 0
    return _sample(vectors)


def power_law(random: Random, rows: int, dimensions: int) -> Sample:
    return _sample(random.normal(size=(rows, dimensions)) * np.arange(1, dimensions + 1) ** -random.uniform(0.5, 2))


def huge_component(random: Random, rows: int, dimensions: int) -> Sample:
    """One component is so large that the codes of the others are 0. The query sees only the others, or only a large one."""
    vectors = random.normal(size=(rows, dimensions)) * 10.0 ** -random.integers(3, 7, size=(rows, 1))
    at = random.integers(0, min(2, dimensions), rows)
    vectors[np.arange(rows), at] = random.choice([-1.0, 1.0], rows)
    query = random.normal(size=dimensions)
    query[:2] = 0
    return _sample(vectors, query, np.eye(dimensions)[0])


def tiny_rows(random: Random, rows: int, dimensions: int) -> Sample:
    """Rows of lengths from 1 down to the smallest floats, whose scales are subnormal."""
    with np.errstate(under="ignore"):
        vectors = unit(random.normal(size=(rows, dimensions))) * 10.0 ** -random.uniform(0, 46, size=(rows, 1))
        return Sample(vectors.astype(np.float32), np.empty((0, dimensions), np.float32))


def half_codes(random: Random, rows: int, dimensions: int) -> Sample:
    """Components half way between two codes: the largest residual that a row can have. The query points along it."""
    signs = _signs(random, dimensions)
    vectors = random.integers(-3, 4, size=(rows, dimensions)) + 0.5 * signs * random.choice([-1, 1], (rows, 1))
    vectors[:, random.integers(0, dimensions)] = _LARGEST_CODE
    return _sample(vectors, signs)


def large_codes(random: Random, rows: int, dimensions: int) -> Sample:
    """Codes near ±127 that all agree with the query: the largest integer dot products."""
    signs = _signs(random, dimensions)
    vectors = signs * (_LARGEST_CODE - random.integers(0, 2, (rows, dimensions)) * random.integers(0, 2, (rows, 1)))
    vectors[:, 0] = signs[0] * _LARGEST_CODE
    return _sample(vectors * random.choice([-1, 1], (rows, 1)), signs, -signs)


def scores_that_differ_in_the_seventh_decimal(random: Random, rows: int, dimensions: int) -> Sample:
    """Exact codes whose scores differ by less than the rounding: the ids decide. Components that the query does not see change
    the length of each row a little."""
    dimensions = max(dimensions, 16)
    seen = dimensions // 2
    base = random.integers(-126, 127, dimensions).astype(np.float64)
    base[0], base[seen:] = _LARGEST_CODE, 0
    vectors = np.repeat(base[None], rows, axis=0)
    vectors[:, seen:] = random.integers(0, 2, (rows, dimensions - seen)) * (random.random((rows, 1)) < 0.9)
    query = np.zeros(dimensions)
    query[:seen] = np.sign(base[:seen])
    return _sample(vectors, query)


def ties_in_few_dimensions(random: Random, rows: int, dimensions: int) -> Sample:
    """Rows so near to each other that most of their scores are rounded to the same number. In few dimensions, the rounding to six
    decimals is larger than the error of float32."""
    dimensions = 2 + dimensions % 2
    row = unit(random.normal(size=(1, dimensions))).astype(np.float64)
    return _sample(row + random.normal(size=(rows, dimensions)) * 5e-7, *random.normal(size=(4, dimensions)))


def scores_at_a_rounding_border(random: Random, rows: int, dimensions: int) -> Sample:
    """Scores half way between two rounded ones, as precisely as float64 can tell, so that the order of additions decides. Each
    row occurs several times. All must get the same score."""
    dimensions = max(dimensions, 4)
    query = unit(random.normal(size=(1, dimensions)))[0]
    query[-2:] = [0.125, 0.25]
    query64 = unit(query.astype(np.float64)[None])[0].astype(np.float64)
    vectors = random.normal(size=(max(1, rows // 5), dimensions))
    vectors[:, -2:] = 0
    vectors = unit(vectors).astype(np.float64)
    for last in (-2, -1):  # the second component corrects what is left by the rounding of the first one
        scores = np.vecdot(vectors, query64)
        border = (np.floor(scores * 1e6) + 0.5) / 1e6
        vectors[:, last] = ((border - scores) / query64[last]).astype(np.float32)
    chosen = vectors[random.integers(0, len(vectors), rows)].astype(np.float32)
    return Sample(chosen, query64.astype(np.float32)[None])


def residual_along_the_query(random: Random, rows: int, dimensions: int) -> Sample:
    """Rows A, whose residual is parallel to the query, so that Cauchy–Schwarz is an equation, and rows B, which are exact codes.
    The score of B lies at 91 to 99 % of the residual of A. The order of their codes is not the order of their scores.

    If the residual points along the query, every A is better than every B. A search that takes 0.9 of the residual of A as its
    error drops A. If it points against the query, every B is better, and a search that takes 0.9 of it drops B.
    """
    dimensions = max(dimensions, 12)
    signs = _signs(random, dimensions)
    signs[0] = 0  # the query does not see the component that determines the scale
    direction = random.choice([-1.0, 1.0])
    base = random.integers(-1, 2, dimensions) * float(random.integers(0, 2))
    base[0] = _LARGEST_CODE
    vectors = np.repeat(base[None], rows, axis=0)
    kind = random.integers(0, 3, rows)
    vectors[kind == 0] += direction * _ALMOST_HALF * signs
    for row in np.flatnonzero(kind == 1):
        share = _ALMOST_HALF * random.uniform(0.91, 0.99)
        changed = 1 + random.choice(dimensions - 1, round(share * (dimensions - 1)), replace=False)
        vectors[row, changed] += direction * signs[changed]
    vectors[kind == 2] = random.normal(size=(rows, dimensions))[kind == 2] - 3 * signs
    return _sample(vectors, signs)


def residual_of_the_query(random: Random, rows: int, dimensions: int) -> Sample:
    """Rows A along the residual of the query and rows B against it, so that Cauchy–Schwarz is almost an equation for both.

    All rows are exact codes, and the query's code sees only their first component. That of B is so large that the codes put B
    before A by 1.82 to 1.97 times the residual. But each A is better than each B.
    """
    dimensions = min(max(dimensions, 64), 512)
    signs = _signs(random, dimensions)
    signs[0] = 0
    query = _ALMOST_HALF * signs
    query[0] = _LARGEST_CODE
    kind = random.integers(0, 3, rows)
    vectors = random.normal(size=(rows, dimensions)) - np.eye(dimensions)[0] * dimensions
    vectors[kind == 0] = _LARGEST_CODE * signs
    for row in np.flatnonzero(kind == 1):
        first = random.uniform(1.82, 1.97) * _ALMOST_HALF * np.sqrt(dimensions - 1) / _LARGEST_CODE
        other = np.sqrt((1 - first**2) / (dimensions - 1))
        vectors[row] = -signs * round(_LARGEST_CODE * other / max(first, other))
        vectors[row, 0] = round(_LARGEST_CODE * first / max(first, other))
    return _sample(vectors, query)


FAMILIES: Final[tuple[Family, ...]] = (
    residual_along_the_query,
    scores_that_differ_in_the_seventh_decimal,
    near_duplicates,
    residual_of_the_query,
    gaussian,
    huge_component,
    scores_at_a_rounding_border,
    duplicates,
    half_codes,
    large_codes,
    zeros,
    small_integers,
    ties_in_few_dimensions,
    residual_along_the_query,
    tiny_rows,
    sparse,
    power_law,
    equal_rows,
)
