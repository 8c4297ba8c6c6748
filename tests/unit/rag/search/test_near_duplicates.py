"""Queries of indices that consist of near-duplicates are exact, and take bounded memory, time and numbers of reads."""

from typing import Final

import numpy as np
import pytest

from spass.rag.index.cache import ObjectCache
from spass.rag.index.objects import CODES, VECTORS
from spass.rag.search.blocks import Residency
from spass.rag.search.selection import Selection
from tests.unit.rag.search.exact_vectors import unit
from tests.unit.rag.search.test_residency import (
    ALL_ROWS,
    BLOCK_ROWS,
    BUDGETS,
    CODED_ROWS,
    DIMENSIONS,
    GROUP_BLOCKS,
    ROW_BYTES,
    UNCODED,
    Known,
    Reads,
    queries,
)

pytestmark = pytest.mark.anyio

BLOCKS: Final = CODED_ROWS // BLOCK_ROWS
QUERY: Final = queries(1)[0]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.index.manifest._MIN_NUMBERS", 100 * DIMENSIONS)
    monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", BLOCK_ROWS * ROW_BYTES)
    monkeypatch.setattr("spass.rag.index.objects._GAP_BYTES", 0)
    monkeypatch.setattr("spass.rag.search.blocks._MAX_GROUP_ROWS", 2 * GROUP_BLOCKS * BLOCK_ROWS)
    monkeypatch.setattr("spass.rag.search.nearest_neighbors._MAX_OPEN", 300)
    monkeypatch.setattr("spass.rag.search.nearest_neighbors._MAX_RANGES", 100)
    for module in ("blocks", "nearest_neighbors"):
        monkeypatch.setattr(f"spass.rag.search.{module}.MAX_GROUP_BYTES", GROUP_BLOCKS * BLOCK_ROWS * ROW_BYTES)


async def near_duplicates(rows: slice) -> Known:
    """Return an index whose ``rows`` are nearly equal to the query."""
    known = Known()
    noise = np.random.default_rng(4).normal(size=(ALL_ROWS, DIMENSIONS))
    known.vectors[rows] = unit(QUERY + 1e-5 * noise)[rows]
    return await known.put()


def parts(reads: Reads) -> list[str]:
    return [part for segment, part, _ in reads.sizes if segment != UNCODED and part in (CODES, VECTORS)]


@pytest.mark.parametrize("residency", Residency)
async def test_many_near_duplicates_are_scored_before_the_next_codes_are_read(residency: Residency) -> None:
    known = await near_duplicates(slice(None))
    cache = ObjectCache(BUDGETS[residency])
    read = parts(await known.check(cache, QUERY))
    assert VECTORS in read[: len(read) - 1 - read[::-1].index(CODES)], "otherwise the bounds of all rows are in memory at once"
    for _ in range(12):
        await known.check(cache, QUERY)
    await known.check(cache, queries(2)[1])


@pytest.mark.parametrize("residency", [Residency.CODES, Residency.SOME_CODES])
async def test_some_near_duplicates_in_every_block_are_not_one_read_each(residency: Residency) -> None:
    known = await near_duplicates(slice(0, None, BLOCK_ROWS // 10))
    reads = await known.check(ObjectCache(BUDGETS[residency]), QUERY)
    assert len(reads.of(VECTORS)) < 3 * BLOCKS, "10 in each of the blocks"


@pytest.mark.parametrize("residency", Residency)
async def test_few_near_duplicates_in_every_block_are_read_alone(residency: Residency) -> None:
    known = await near_duplicates(slice(0, None, BLOCK_ROWS))
    reads = await known.check(ObjectCache(BUDGETS[residency]), QUERY)
    assert sum(reads.of(VECTORS)) < 4 * BLOCKS * ROW_BYTES


@pytest.mark.parametrize(("rows", "is_excluded"), [([1], False), ([0, 9], False), ([2, 5, 7], True), (list(range(10)), True)])
def test_a_selection_of_many_rows_is_all_but_the_others(rows: list[int], is_excluded: bool) -> None:
    selection = Selection.of(np.array(rows), 10)
    if is_excluded:
        assert selection.included is None
        assert selection.excluded is not None
        assert sorted([*rows, *selection.excluded.tolist()]) == list(range(10))
    else:
        assert selection.excluded is None
        assert selection.included is not None
        assert selection.included.tolist() == rows
