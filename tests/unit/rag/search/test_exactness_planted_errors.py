"""The comparison with brute force finds planted errors in the bounds and the steps of search, within the first 500 cases."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from spass.rag.index import segments
from spass.rag.index.filters import Filter
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import Block, SegmentObjects
from spass.rag.index.segments import Codes, Int8s, Vectors
from spass.rag.search import code_scan, scan, selection
from spass.rag.search.code_scan import Candidates, CodeBlock, CodedQuery
from spass.rag.search.nearest_neighbors import _Search
from spass.rag.search.scan import ScanBlock, ScoredRow, Scores, keep_top_k
from spass.rag.search.selection import FieldTypes, Selection
from tests.unit.rag.search.exact_cases import check_indices, expect_inexact
from tests.unit.rag.search.exact_vectors import Doubles

pytestmark = pytest.mark.anyio
Patch = pytest.MonkeyPatch
SEARCH: Final = "spass.rag.search"
ERRORS: Final[list[Callable[[Patch], None]]] = []
INDICES: Final = range(50)


def planted(error: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Add a function that plants an error to those that the cases must find."""
    ERRORS.append(error)
    return error


def _change_query(patch: Patch, change: Callable[[CodedQuery, float], None]) -> None:
    """Call ``change`` on the terms of the bound of each query, with the length of what its codes lost."""
    create = CodedQuery.__init__

    def create_changed(self: CodedQuery, vector: Vectors) -> None:
        create(self, vector)
        change(self, float(segments.quantize(vector[None]).residuals[0]))

    patch.setattr(CodedQuery, "__init__", create_changed)


@planted
def nine_tenths_of_the_residual(patch: Patch) -> None:
    def change(query: CodedQuery, lost: float) -> None:
        query.error_factor *= np.float32(0.9)

    _change_query(patch, change)


@planted
def no_residual(patch: Patch) -> None:
    def change(query: CodedQuery, lost: float) -> None:
        query.error_factor = np.float32(0)

    _change_query(patch, change)


@planted
def nine_tenths_of_what_the_query_lost(patch: Patch) -> None:
    def change(query: CodedQuery, lost: float) -> None:
        query.error_constant -= np.float32(0.1 * lost)

    _change_query(patch, change)


@planted
def nothing_lost_by_the_query(patch: Patch) -> None:
    def change(query: CodedQuery, lost: float) -> None:
        query.error_constant -= np.float32(lost)

    _change_query(patch, change)


@planted
def no_allowance_for_rounding(patch: Patch) -> None:
    """The bound of exact arithmetic: neither the roundings to float32 nor those to six decimals are added."""
    patch.setattr(f"{SEARCH}.code_scan._SLACK", 0.0)
    patch.setattr(f"{SEARCH}.code_scan._PRODUCT_ROUNDOFF", 0.0)
    _change_residuals(patch, lambda lost: np.linalg.norm(lost, axis=1))


@planted
def largest_component_as_the_residual(patch: Patch) -> None:
    _change_residuals(patch, lambda lost: np.abs(lost).max(axis=1))


def _change_residuals(patch: Patch, measure: Callable[[Doubles], Doubles]) -> None:
    """Replace the residuals by what ``measure`` says of the differences between rows and codes."""
    quantize = segments.quantize

    def changed(vectors: Vectors) -> Codes:
        encoded = quantize(vectors)
        lost: Doubles = vectors.astype(np.float64) - encoded.codes * encoded.scales[:, None].astype(np.float64)
        return encoded._replace(residuals=measure(lost).astype(np.float32))

    for user in ("index.segments", "search.blocks", "search.code_scan"):
        patch.setattr(f"spass.rag.{user}.quantize", changed)


@planted
def sums_of_16_bits(patch: Patch) -> None:
    def dot(rows: Int8s, query: Int8s) -> object:
        return np.matmul(rows.astype(np.int16), query.astype(np.int16)).astype(np.float64)

    patch.setattr(f"{SEARCH}.code_scan.int8_dot", dot)


@planted
def float32_overflow(patch: Patch) -> None:
    """Bounds in units of the codes: those of tiny rows overflow to infinity, and infinity times 0 compares to nothing."""

    def bound(block: CodeBlock, query: CodedQuery, lower: Vectors, upper: Vectors) -> None:
        BOUND(block, query, lower, upper)
        scales = block.codes.scales if block.included is None else block.codes.scales[block.included]
        with np.errstate(all="ignore"):
            steps = scales * query.scale
            lower[:] = lower / steps * steps
            upper[:] = upper / steps * steps

    patch.setattr(f"{SEARCH}.code_scan._bound", bound)


@planted
def threshold_of_one_row_less(patch: Patch) -> None:
    for module in ("code_scan", "nearest_neighbors", "scan"):
        patch.setattr(f"{SEARCH}.{module}.kth_largest_at_least", lambda scores, top_k: KTH(scores, max(1, top_k - 1)))


@planted
def threshold_of_one_row_less_among_codes(patch: Patch) -> None:
    patch.setattr(f"{SEARCH}.code_scan.kth_largest_at_least", lambda scores, top_k: KTH(scores, max(1, top_k - 1)))


@planted
def deleted_rows_count_for_the_threshold(patch: Patch) -> None:
    def bound(block: CodeBlock, query: CodedQuery, lower: Vectors, upper: Vectors) -> None:
        BOUND(replace(block, excluded=None), query, lower, upper)
        if block.excluded is not None:
            upper[block.excluded] = -np.inf

    patch.setattr(f"{SEARCH}.code_scan._bound", bound)


@planted
def nine_tenths_of_the_second_bound(patch: Patch) -> None:
    def bound(blocks: Sequence[CodeBlock], query: CodedQuery, candidates: Candidates) -> Candidates:
        bounded = BOUND_AGAIN(blocks, query, candidates)
        middle, error = (bounded.lower + bounded.upper) / 2, (bounded.upper - bounded.lower) * 0.45
        return bounded._replace(lower=middle - error, upper=middle + error)

    patch.setattr(f"{SEARCH}.nearest_neighbors.bound_again", bound)


@planted
def no_slack_in_float32(patch: Patch) -> None:
    patch.setattr(f"{SEARCH}.scan.float32_error_bound", lambda dimensions: 0.0)


@planted
def no_slack_for_six_decimals_in_float32(patch: Patch) -> None:
    bound = scan.float32_error_bound
    patch.setattr(f"{SEARCH}.scan.float32_error_bound", lambda dimensions: bound(dimensions) - 0.5e-6)


@planted
def floor_is_the_best_score_so_far(patch: Patch) -> None:
    def floor(search: _Search) -> float:
        lowest = scan.MIN_SCORE if search.query.min_score is None else search.query.min_score
        return max(lowest, search.rows[0].score) if search.rows else lowest

    patch.setattr(_Search, "_floor", property(floor))


@planted
def reads_end_after_the_first(patch: Patch) -> None:
    """The candidates with the best bounds are not always the best rows."""
    read_rows = _Search._read_rows

    async def read_once(self: _Search, count: int) -> None:
        await read_rows(self, count)
        self.open = self.open.pick(slice(0, 0))

    patch.setattr(_Search, "_read_rows", read_once)


@planted
def blocks_with_many_candidates_are_forgotten(patch: Patch) -> None:
    async def forget(self: _Search, units: object) -> None:
        return None

    patch.setattr(_Search, "_read_and_score", forget)


@planted
def codes_made_in_another_order(patch: Patch) -> None:
    patch.setattr(f"{SEARCH}.blocks.encode_block", lambda pieces: segments.encode_block(pieces[::-1]))


@planted
def ties_cut_before_ids_are_known(patch: Patch) -> None:
    def keep(scored_rows: list[ScoredRow], top_k: int) -> list[ScoredRow]:
        return keep_top_k(scored_rows, top_k)[:top_k]

    for module in ("scan", "nearest_neighbors"):
        patch.setattr(f"{SEARCH}.{module}.keep_top_k", keep)


@planted
def scores_that_depend_on_the_position(patch: Patch) -> None:
    """A matrix product adds in another order than a dot product of one row."""

    def dot(rows: Doubles, query: Doubles) -> object:
        return np.matmul(rows, query) if query.ndim == 1 else VECDOT(rows, query)

    patch.setattr(np, "vecdot", dot)


@planted
def excluded_rows_of_vectors_are_returned(patch: Patch) -> None:
    def scan_all(parts: Sequence[ScanBlock], *arguments: Any) -> list[ScoredRow]:
        return scan.scan_top_k([replace(part, excluded=None) for part in parts], *arguments)

    patch.setattr(f"{SEARCH}.nearest_neighbors.scan_top_k", scan_all)


@planted
def last_row_of_a_block_of_vectors_is_lost(patch: Patch) -> None:
    def shortened(part: ScanBlock) -> ScanBlock:
        is_whole = part.included is None and part.excluded is None
        return replace(part, excluded=np.array([len(part) - 1])) if part.first and is_whole else part

    def scan_shortened(parts: Sequence[ScanBlock], *arguments: Any) -> list[ScoredRow]:
        return scan.scan_top_k(list(map(shortened, parts)), *arguments)

    patch.setattr(f"{SEARCH}.nearest_neighbors.scan_top_k", scan_shortened)


@planted
def last_row_of_a_block_of_codes_is_lost(patch: Patch) -> None:
    def bound(block: CodeBlock, query: CodedQuery, lower: Vectors, upper: Vectors) -> None:
        BOUND(block, query, lower, upper)
        if block.included is None and block.first:
            lower[-1] = upper[-1] = -np.inf

    patch.setattr(f"{SEARCH}.code_scan._bound", bound)


@planted
def deleted_rows_of_an_earlier_version(patch: Patch) -> None:
    deleted_rows = selection._deleted_rows
    first: dict[str, Segment] = {}

    async def stale(reads: SegmentObjects, segment: Segment) -> object:
        return await deleted_rows(reads, first.setdefault(segment.id, segment))

    patch.setattr(f"{SEARCH}.selection._deleted_rows", stale)


@planted
def filter_of_an_earlier_query(patch: Patch) -> None:
    first: dict[str, Filter | None] = {}

    async def stale(reads: SegmentObjects, segment: Segment, filter_: Filter | None, types: FieldTypes | None) -> Selection:
        return await SELECT(reads, segment, first.setdefault(segment.id, filter_), types)

    patch.setattr(f"{SEARCH}.blocks.select", stale)


@planted
def selected_rows_are_counted_from_the_segment(patch: Patch) -> None:
    def within(self: Selection, block: Block) -> Selection:
        return WITHIN(self, block._replace(first=0))

    patch.setattr(Selection, "within", within)


BOUND: Final = code_scan._bound
BOUND_AGAIN: Final = code_scan.bound_again
KTH: Final[Callable[[Scores, int], float]] = scan.kth_largest_at_least
SELECT: Final = selection.select
VECDOT: Final = np.vecdot
WITHIN: Final = Selection.within


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
async def test_a_planted_error_is_found(error: Callable[[Patch], None], monkeypatch: Patch) -> None:
    error(monkeypatch)
    with expect_inexact():
        await check_indices(INDICES)
