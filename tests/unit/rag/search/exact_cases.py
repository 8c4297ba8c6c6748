"""Random searches that are compared with brute force. Everything follows from the number of the index and of the case in it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import numpy as np
import pytest

from spass.core.messages import Json
from spass.core.tasks import map_concurrently
from spass.rag.index.cache import ObjectCache
from spass.rag.index.segments import Vectors
from spass.rag.search.code_scan import dot_by_numpy
from tests.unit.rag.search.exact_index import KnownIndex, Mask, Question, put_index
from tests.unit.rag.search.exact_vectors import FAMILIES, Family, Random, Sample, unit

T = TypeVar("T")

CASES_OF_INDEX: Final = 10
_DIMENSIONS: Final = (1, 2, 3, 8, 16, 31, 32, 33, 64, 100, 128, 200, 384)
_MANY_DIMENSIONS: Final = (768, 1024, 1536, 4096)
_MAX_NUMBERS: Final = 60_000  # of an index
_MAX_QUERIES_OF_CACHE: Final = 5
_CONCURRENT: Final = 0.2  # of the caches
_CHECKED_ROWS: Final = 2  # whose scores are compared with exact sums
_UNIT: Final = 1e-6  # of the last decimal


class NotExactError(AssertionError):
    """A search returned something else than brute force."""


@dataclass(slots=True)
class Drawn:
    """The index number ``number`` with the sample that it was made from."""

    number: int
    family: Family
    index: KnownIndex
    sample: Sample
    random: Random

    def describe(self) -> str:
        segments = [segment.rows for segment in self.index.segments]
        return (
            f"index {self.number} ({self.family.__name__}, {self.index.vectors.shape[1]} dimensions, segments of {segments} rows)"
        )


async def check_indices(numbers: Iterable[int]) -> int:
    """Compare searches in the indices ``numbers`` with brute force, and return their count.

    Raises:
        NotExactError: one of them is different. The message says how to repeat it.
    """
    count = 0
    for number in numbers:
        with pytest.MonkeyPatch.context() as patch:
            random = np.random.default_rng([19, number])
            shrink_limits(patch, random)
            drawn = await _draw_index(number, random)
            shrink_codes(patch, random, *drawn.index.vectors.shape)
            await _check_index(drawn)
        count += CASES_OF_INDEX
    return count


def shrink_limits(patch: pytest.MonkeyPatch, random: Random) -> None:
    """Lower the limits of production, so that small indices have many blocks and groups and take every path."""
    group_bytes = int(2 ** random.uniform(10, 20))
    for name, value in {
        "index.objects.BLOCK_BYTES": int(2 ** random.uniform(8, 20)),
        "index.objects._GAP_BYTES": _pick(random, (0, 32 * 1024)),
        "index.segments._CHUNK_NUMBERS": _pick(random, (100, 2**17)),
        "search.blocks.MAX_GROUP_BYTES": group_bytes,
        "search.nearest_neighbors.MAX_GROUP_BYTES": group_bytes,
        "search.nearest_neighbors._MAX_INLINE_BYTES": 0 if random.random() < 0.1 else 2**23,
        "search.nearest_neighbors._FIRST_ROWS": _pick(random, (0, 8)),
        "search.nearest_neighbors._MORE_ROWS": _pick(random, (2, 512)),
        "search.nearest_neighbors._MANY_ROWS": _pick(random, (3, 64)),
        "search.nearest_neighbors._FEW_SELECTED": _pick(random, (0, 256)),
        "search.code_scan._INCLUDED_ROWS": _pick(random, (5, 8192)),
        "search.code_scan._MAX_BOUNDED_AGAIN": _pick(random, (0, 20, 8192)),
        "search.scan._RESCORE_ROWS": _pick(random, (3, 2048)),
        "search.scan._FEW_ROWS": _pick(random, (0, 0, 256)),
        "search.scan._GROUPED_SCORES": _pick(random, (16, 4096)),
        "search.scan._GROUPS": _pick(random, (4, 16)),
    }.items():
        patch.setattr(f"spass.rag.{name}", value)
    if random.random() < 0.3:
        patch.setattr("spass.rag.search.code_scan._CHUNK_NUMBERS", _pick(random, (100, 2**17)))
        patch.setattr("spass.rag.search.code_scan.int8_dot", dot_by_numpy)


def shrink_codes(patch: pytest.MonkeyPatch, random: Random, rows: int, dimensions: int) -> None:
    """Lower the size of a segment from which on it has codes: to that of some segments, or of all."""
    patch.setattr("spass.rag.index.manifest._MIN_DIMENSIONS", 1)
    patch.setattr("spass.rag.index.manifest._MIN_NUMBERS", _pick(random, (0, 0, dimensions * int(random.integers(0, rows + 1)))))


async def _draw_index(number: int, random: Random) -> Drawn:
    family = FAMILIES[number % len(FAMILIES)]
    dimensions = _pick(random, _MANY_DIMENSIONS if random.random() < 0.1 else _DIMENSIONS)
    most = max(1, min(400, _MAX_NUMBERS // dimensions))
    rows = int(min(most, random.integers(1, 20) if random.random() < 0.15 else 20 * 20 ** random.random()))
    sample = family(random, rows, dimensions)
    vectors = sample.vectors[random.permutation(rows)]
    segment_of = random.integers(0, random.integers(1, 9), rows)
    members = [np.flatnonzero(segment_of == segment) for segment in np.unique(segment_of)]
    with pytest.MonkeyPatch.context() as patch:  # of other sizes than those that are searched with codes
        shrink_codes(patch, random, rows, vectors.shape[1])
        merged = set(random.integers(0, 2 * len(members), 3).tolist())
        index = await put_index(vectors, random.integers(0, 20, rows).tolist(), members, merged)
    return Drawn(number, family, index, sample, random)


async def _check_index(drawn: Drawn) -> None:
    """Compare searches with brute force: several with each cache, in sequence or at the same time."""
    questions = [_draw_question(drawn) for _ in range(CASES_OF_INDEX)]
    while questions:
        count = int(drawn.random.integers(1, _MAX_QUERIES_OF_CACHE + 1))
        searches, questions = questions[:count], questions[count:]
        cache = ObjectCache(_draw_budget(drawn))
        limit = count if drawn.random.random() < _CONCURRENT else 1
        await map_concurrently(partial(_check, drawn, cache), searches, limit=limit)


async def _check(drawn: Drawn, cache: ObjectCache, question: Question) -> None:
    expected = drawn.index.brute_force(question)
    found = await drawn.index.search(drawn.index.objects(cache), question)
    if found != expected:
        different = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]]
        raise NotExactError(
            f"A search in {drawn.describe()}, with a cache of {cache.budget} bytes, top_k={question.top_k}, "
            f"condition={question.condition}, min_score={question.min_score}, {question.deleted.sum()} deleted rows: found "
            f"{len(found)} documents instead of {len(expected)}; first difference (found, expected): {different[:1]}. "
            f"Repeat it with SPASS_SEED={drawn.number}."
        )


def _draw_budget(drawn: Drawn) -> int:
    """Draw the budget of a cache: nothing, less than codes, codes, codes and some of the vectors, or everything."""
    rows, dimensions = drawn.index.vectors.shape
    codes = rows * (dimensions + 100) + 2000 * len(drawn.index.segments)
    return int(_pick(drawn.random, (0, 0.5 * codes, 1.1 * codes, 1.1 * codes + 2 * rows * dimensions, 100 * codes)))


def _draw_question(drawn: Drawn) -> Question:
    random, index = drawn.random, drawn.index
    rows = len(index.vectors)
    vector = _draw_query(drawn)
    top_k = _pick(random, (1, 2, 3, 10, int(random.integers(1, 101)), max(1, rows // 4), rows, rows + 7))
    deleted = random.random(rows) < _pick(random, (0, 0, 0, 0.1, 0.5, 1.0))
    condition, matching = _draw_condition(random, np.array(index.numbers))
    min_score = None
    if random.random() < 0.4:
        score = _pick(random, index.scores(vector).tolist())
        near = (score, score, score + _UNIT, score - _UNIT, math.nextafter(score, 2), math.nextafter(score, -2))
        min_score = _pick(random, near)
    _check_reference(drawn, vector)
    return Question(vector, top_k, deleted, matching, condition, min_score)


def _draw_query(drawn: Drawn) -> Vectors:
    """Draw one of the difficult queries of the sample, or one that is equal, opposite, near or orthogonal to a row, or any."""
    random, difficult = drawn.random, drawn.sample.queries
    if len(difficult) and random.random() < 0.7:
        return _pick(random, list(difficult))
    dimensions = drawn.index.vectors.shape[1]
    row = _pick(random, list(drawn.index.vectors)).astype(np.float64)
    noise = random.normal(size=dimensions)
    kinds = (
        row,
        -row,
        row + 1e-3 * noise,
        noise - row * (noise @ row),
        noise,
        noise,
        np.zeros(dimensions),
        np.eye(dimensions)[-1],
    )
    query: Vectors = unit(_pick(random, kinds)[None])[0]
    return query


def _draw_condition(random: Random, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[dict[str, Json] | None, Mask]:
    """Draw a condition on numbers from 0 to 19, and the rows that meet it: many, few or none."""
    number = int(random.integers(0, 20))
    draws: tuple[tuple[dict[str, Json] | None, Mask], ...] = (
        ({"$ne": number}, numbers != number),
        ({"$gte": number}, numbers >= number),
        ({"$in": [number]}, numbers == number),
        ({"$gte": 99}, numbers >= 99),
    )
    everything: tuple[dict[str, Json] | None, Mask] = (None, np.ones(len(numbers), np.bool_))
    return _pick(random, draws) if random.random() < 0.4 else everything


def _pick(random: Random, options: Sequence[T]) -> T:
    return options[int(random.integers(0, len(options)))]


def _check_reference(drawn: Drawn, vector: Vectors) -> None:
    """Compare the scores of the reference with exact sums. They may differ by a unit where the score is at a rounding border."""
    query = vector.tolist()
    scores = drawn.index.scores(vector)
    for row in drawn.random.integers(0, len(scores), _CHECKED_ROWS).tolist():
        exact = math.fsum(a * b for a, b in zip(drawn.index.vectors[row].tolist(), query, strict=True))
        assert abs(scores[row] - max(-1, min(1, exact))) <= _UNIT / 2 + 1e-12


@contextmanager
def expect_inexact() -> Iterator[None]:
    """Expect that a search in the body differs from brute force."""
    with pytest.raises(NotExactError, match="Repeat it with SPASS_SEED="):
        yield
