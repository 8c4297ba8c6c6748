"""The comparison with brute force finds planted errors in search, within the cases of every day."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from spass.rag.index.manifest import Segment
from spass.rag.index.objects import Block, SegmentObjects, vector_blocks
from spass.rag.search import scan, selection
from spass.rag.search.nearest_neighbors import _Search
from spass.rag.search.scan import ScanBlock, ScoredRow, keep_top_k
from spass.rag.search.selection import Selection
from tests.unit.rag.search.exact_cases import check_indices, expect_inexact
from tests.unit.rag.search.test_exactness import CASES_OF_EVERY_DAY, indices

pytestmark = pytest.mark.anyio
SEARCH: Final = "spass.rag.search"


def no_allowance_for_rounding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(f"{SEARCH}.scan.float32_error_bound", lambda dimensions: 0.0)


def no_allowance_for_six_decimals(patch: pytest.MonkeyPatch) -> None:
    bound = scan.float32_error_bound
    patch.setattr(f"{SEARCH}.scan.float32_error_bound", lambda dimensions: bound(dimensions) - 0.5e-6)


def threshold_of_one_row_less(patch: pytest.MonkeyPatch) -> None:
    threshold = scan.kth_largest_at_least
    patch.setattr(f"{SEARCH}.scan.kth_largest_at_least", lambda scores, top_k: threshold(scores, max(1, top_k - 1)))


def ties_cut_before_ids_are_known(patch: pytest.MonkeyPatch) -> None:
    def keep(scored_rows: list[ScoredRow], top_k: int) -> list[ScoredRow]:
        return keep_top_k(scored_rows, top_k)[:top_k]

    patch.setattr(f"{SEARCH}.scan.keep_top_k", keep)
    patch.setattr(f"{SEARCH}.nearest_neighbors.keep_top_k", keep)


def scores_that_depend_on_the_position(patch: pytest.MonkeyPatch) -> None:
    """A matrix product adds in another order than a dot product of one row."""
    patch.setattr(np, "vecdot", lambda a, b: np.matmul(a, b) if b.ndim == 1 else VECDOT(a, b))


def floor_of_the_groups_before_is_the_best_score(patch: pytest.MonkeyPatch) -> None:
    def floor(search: _Search) -> float:
        lowest = scan.MIN_SCORE if search.query.min_score is None else search.query.min_score
        return max(lowest, search.rows[0].score) if search.rows else lowest

    patch.setattr(_Search, "_floor", property(floor))


def last_row_of_a_block_is_lost(patch: pytest.MonkeyPatch) -> None:
    def lossy(segment: Segment, dimensions: int) -> list[Block]:
        *full, last = vector_blocks(segment, dimensions)
        return [*(block._replace(rows=block.rows - 1, end=block.end - dimensions * 4) for block in full if block.rows > 1), last]

    patch.setattr(f"{SEARCH}.blocks.vector_blocks", lossy)


def deleted_rows_of_an_earlier_version(patch: pytest.MonkeyPatch) -> None:
    deleted_rows = selection._deleted_rows
    first: dict[str, Segment] = {}

    async def stale(objects: SegmentObjects, segment: Segment) -> object:
        return await deleted_rows(objects, first.setdefault(segment.id, segment))

    patch.setattr(f"{SEARCH}.selection._deleted_rows", stale)


def filter_relative_to_the_segment(patch: pytest.MonkeyPatch) -> None:
    """The numbers of selected rows are not counted from the first row of the block."""

    def within(self: Selection, block: Block) -> Selection:
        return WITHIN(self, block._replace(first=0))

    patch.setattr(Selection, "within", within)


def excluded_rows_of_a_block_are_returned(patch: pytest.MonkeyPatch) -> None:
    scan_top_k = scan.scan_top_k

    def scan_all(parts: Sequence[ScanBlock], *arguments: object) -> list[ScoredRow]:
        return scan_top_k([replace(part, excluded=None) for part in parts], *arguments)  # type: ignore[arg-type]

    patch.setattr(f"{SEARCH}.nearest_neighbors.scan_top_k", scan_all)


VECDOT: Final = np.vecdot
WITHIN: Final = Selection.within
ERRORS: Final[tuple[Callable[[pytest.MonkeyPatch], None], ...]] = (
    no_allowance_for_rounding,
    no_allowance_for_six_decimals,
    threshold_of_one_row_less,
    ties_cut_before_ids_are_known,
    scores_that_depend_on_the_position,
    floor_of_the_groups_before_is_the_best_score,
    last_row_of_a_block_is_lost,
    deleted_rows_of_an_earlier_version,
    filter_relative_to_the_segment,
    excluded_rows_of_a_block_are_returned,
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
async def test_a_planted_error_is_found(error: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    error(monkeypatch)
    with expect_inexact():
        await check_indices(indices(CASES_OF_EVERY_DAY))
