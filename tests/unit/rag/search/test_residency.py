"""The budget of the cache decides what queries keep in memory: codes and vectors, codes alone, or some codes."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from spass.core.ids import IndexId, TenantId
from spass.rag.index.cache import ObjectCache
from spass.rag.index.filters import parse_filter
from spass.rag.index.ids import IdRow
from spass.rag.index.manifest import CODED, VECTORS_ALONE, Segment
from spass.rag.index.objects import CODE_BOUND_BYTES, CODES, DOCS, VECTORS, SegmentObjects, code_blocks, vector_blocks
from spass.rag.index.segments import Rows, Vectors, encode_codes, encode_segment, json_line, quantize
from spass.rag.search.blocks import Residency, choose_residency
from spass.rag.search.nearest_neighbors import VectorQuery, find_nearest
from spass.store.invocation import PendingCall, ServiceCall
from spass.store.tenant_store import TenantStore
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject
from tests.unit.rag.search.exact_vectors import unit

pytestmark = pytest.mark.anyio
T = TypeVar("T")
Scores = npt.NDArray[np.float64]

BERLIN, ROME = IndexId("berlin"), IndexId("rome")
DIMENSIONS: Final = 32
ROW_BYTES: Final = 4 * DIMENSIONS
BLOCK_ROWS: Final = 50
GROUP_BLOCKS: Final = 4
SIZES: Final = (1250, 700, 50)
ALL_ROWS: Final = sum(SIZES)
UNCODED: Final = "seg_2"
TOP_K: Final = 5
CODED_ROWS: Final = SIZES[0] + SIZES[1]
CODE_BYTES: Final = CODED_ROWS * (DIMENSIONS + CODE_BOUND_BYTES)
FEW_ROWS: Final = 60
VECTOR_BYTES: Final = ALL_ROWS * ROW_BYTES  # of all segments
ID_BYTES: Final = 64 * ALL_ROWS

BUDGETS: Final = {
    Residency.CODES_AND_VECTORS: 2 * (CODE_BYTES + VECTOR_BYTES + ID_BYTES),
    Residency.CODES: CODE_BYTES + ID_BYTES + VECTOR_BYTES // 2,
    Residency.SOME_CODES: 2 * CODE_BYTES // 3,
}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.index.manifest._MIN_NUMBERS", 100 * DIMENSIONS)  # so that the last segment has no codes
    monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", BLOCK_ROWS * ROW_BYTES)
    monkeypatch.setattr("spass.rag.index.objects._GAP_BYTES", 0)
    for module in ("blocks", "nearest_neighbors"):
        monkeypatch.setattr(f"spass.rag.search.{module}.MAX_GROUP_BYTES", GROUP_BLOCKS * BLOCK_ROWS * ROW_BYTES)


class Reads(FaultPlan):
    """Records the segment, the part and the size of each read of an object, in order."""

    in_threads = False

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[str, str, int]] = []

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        await asyncio.sleep(0)  # so that concurrent reads overlap
        result = await super().around(call, run)
        if call.operation == "GetObject":
            assert isinstance(result, bytes)
            segment, part = str(call.parameters["Key"]).split("/")[-2:]
            self.sizes.append((segment, part, len(result)))
        return result

    async def run_call(self, run: PendingCall[T]) -> T:
        return await run()

    def of(self, part: str) -> list[int]:
        """Return the sizes of the reads of ``part`` of the segments with codes."""
        return [size for segment, name, size in self.sizes if name == part and segment != UNCODED]


@dataclass(slots=True)
class Known:
    """An index of a tenant with the (n, d) ``vectors``, in segments of ``SIZES`` rows. The first has row 0 and the next ones."""

    tenant: str = "demo"
    index: IndexId = BERLIN
    seed: int = 0
    format: int = CODED
    store: TenantStore = field(init=False)
    vectors: Vectors = field(init=False)
    segments: list[Segment] = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryAws().for_tenant(TenantId(self.tenant))
        self.vectors = unit(np.random.default_rng(self.seed).normal(size=(ALL_ROWS, DIMENSIONS)))
        self.segments = []

    async def put(self, cache: ObjectCache | None = None) -> "Known":
        """Write the index, as a worker with ``cache``."""
        objects = self.objects(cache or ObjectCache(0))
        for number, first in enumerate(np.cumsum([0, *SIZES[:-1]]).tolist()):
            numbers = range(first, first + SIZES[number])
            ids = [IdRow(f"d{row:05}", 0, 0, 0) for row in numbers]
            meta = [json_line({"n": row}) for row in numbers]
            parts = encode_segment(Rows(ids, [b"{}"] * len(ids), meta, self.vectors[numbers.start : numbers.stop]))
            if self.format == VECTORS_ALONE:
                parts.pop(CODES, None)
            segment = Segment(f"seg_{number}", len(ids), 0, len(parts[DOCS]), format=CODED if CODES in parts else VECTORS_ALONE)
            self.segments.append(segment)
            await objects.write(segment.id, parts)
        return self

    def objects(self, cache: ObjectCache) -> SegmentObjects:
        return SegmentObjects(self.store, self.index, "gen_1", cache)

    def cached_blocks(self, cache: ObjectCache) -> int:
        """Return the number of blocks of vectors in ``cache``, of the segments with codes."""
        objects = self.objects(cache)
        coded = [segment for segment in self.segments if segment.id != UNCODED]
        return sum(objects.is_cached(block) for segment in coded for block in vector_blocks(segment, DIMENSIONS))

    async def check(self, cache: ObjectCache, query: Vectors, top_k: int = TOP_K) -> Reads:
        """Compare a search with brute force, and return what it read."""
        with inject(Reads()) as reads:
            await self.search(cache, query, top_k)
        assert isinstance(reads, Reads)
        return reads

    def scores(self, query: Vectors) -> Scores:
        scores: Scores = np.rint(np.vecdot(self.vectors.astype(np.float64), query.astype(np.float64)) * 1e6) / 1e6
        return scores

    async def search(self, cache: ObjectCache, query: Vectors, top_k: int = TOP_K) -> None:
        """Compare a search with brute force."""
        found = await find_nearest(self.objects(cache), self.segments, VectorQuery(query, top_k))
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")[:top_k]
        assert [(one.id, one.score) for one in found] == [(f"d{row:05}", scores[row]) for row in best.tolist()]


def queries(count: int, seed: int = 7) -> Vectors:
    return unit(np.random.default_rng(seed).normal(size=(count, DIMENSIONS)))


def test_the_budgets_of_these_tests_give_each_residency() -> None:
    segments = [Segment(f"seg_{number}", rows, 0, 0) for number, rows in enumerate(SIZES)]
    for residency, budget in BUDGETS.items():
        assert choose_residency(segments, DIMENSIONS, budget) is residency


@pytest.mark.parametrize("residency", Residency)
async def test_a_cold_query_reads_all_codes_and_then_the_vectors_of_few_rows(residency: Residency) -> None:
    known = await Known().put()
    for query in queries(3):
        reads = await known.check(ObjectCache(BUDGETS[residency]), query)
        assert sum(reads.of(CODES)) == CODE_BYTES
        assert 0 < sum(reads.of(VECTORS)) <= FEW_ROWS * ROW_BYTES
        parts = [part for segment, part, _ in reads.sizes if segment != UNCODED and part in (CODES, VECTORS)]
        assert parts == sorted(parts, key=[CODES, VECTORS].index), "codes first"


async def test_with_room_for_all_the_vectors_are_read_in_steps_and_then_nothing() -> None:
    known = await Known().put()
    cache = ObjectCache(BUDGETS[Residency.CODES_AND_VECTORS])
    await known.check(cache, queries(1)[0])
    reads_of_rounds: list[int] = []
    whole_blocks = 0
    while not reads_of_rounds or reads_of_rounds[-1]:
        assert len(reads_of_rounds) < 40
        reads_of_rounds.append(0)
        for query in queries(10):
            reads = await known.check(cache, query)
            assert reads.of(CODES) == []
            assert sum(reads.of(VECTORS)) <= (GROUP_BLOCKS * BLOCK_ROWS + FEW_ROWS) * ROW_BYTES
            whole_blocks += sum(size >= BLOCK_ROWS * ROW_BYTES for size in reads.of(VECTORS))
            reads_of_rounds[-1] += len(reads.sizes)
    assert GROUP_BLOCKS < whole_blocks <= CODED_ROWS // BLOCK_ROWS, "they are read by several queries, and none twice"


async def test_two_indices_that_fit_one_at_a_time_seldom_read_whole_blocks() -> None:
    berlin, rome = await Known().put(), await Known(index=ROME, seed=1).put()
    cache = ObjectCache(BUDGETS[Residency.CODES_AND_VECTORS] // 2 + 2 * CODE_BYTES)
    assert choose_residency(berlin.segments, DIMENSIONS, cache.budget) is Residency.CODES_AND_VECTORS
    last: list[int] = []
    for query in queries(80):
        for known in (berlin, rome):
            last = [*last[-39:], max((await known.check(cache, query)).of(VECTORS), default=0)]
    assert cache.used_bytes > cache.budget - 3 * BLOCK_ROWS * ROW_BYTES, "the cache is full"
    assert sum(size >= BLOCK_ROWS * ROW_BYTES for size in last) < len(last) // 5, "only where others were not used for long"


async def test_a_filter_of_few_rows_reads_their_vectors_and_no_codes() -> None:
    known = await Known().put()
    wanted = [3, 4, 900, 1300, 1301, 1948]
    cache = ObjectCache(BUDGETS[Residency.CODES_AND_VECTORS])
    with inject(Reads()) as reads:
        query = VectorQuery(queries(1)[0], 4, parse_filter({"n": {"$in": wanted}}))
        found = await find_nearest(known.objects(cache), known.segments, query)
    best = sorted(wanted, key=lambda row: (-known.scores(queries(1)[0])[row], row))[:4]
    assert [one.id for one in found] == [f"d{row:05}" for row in best]
    assert isinstance(reads, Reads)
    assert reads.of(CODES) == []
    assert sum(reads.of(VECTORS)) == len(wanted) * ROW_BYTES


async def test_with_room_for_codes_alone_no_block_of_vectors_is_read_or_kept() -> None:
    known = await Known().put()
    cache = ObjectCache(BUDGETS[Residency.CODES])
    await known.check(cache, queries(1)[0])
    for query in queries(60, seed=8):
        reads = await known.check(cache, query)
        assert reads.of(CODES) == []
        assert sum(reads.of(VECTORS)) <= FEW_ROWS * ROW_BYTES
        assert max(reads.of(VECTORS), default=0) <= 4 * ROW_BYTES, "rows that are neighbours are one read"
    assert known.cached_blocks(cache) == 0
    again = await known.check(cache, queries(60, seed=8)[-1])
    assert again.sizes == [], "the rows of the candidates were kept"


async def test_the_scores_of_the_first_rows_that_are_read_spare_half_of_the_others() -> None:
    known = Known()
    known.vectors[:, 0] = np.random.default_rng(3).uniform(4, 6, ALL_ROWS)  # so that the steps of the codes are large
    known.vectors = unit(known.vectors.astype(np.float64))
    await known.put()
    cache = ObjectCache(BUDGETS[Residency.CODES])
    residual = quantize(known.vectors).residuals.max()
    await known.check(cache, queries(1)[0])
    for query in unit(np.eye(DIMENSIONS)[:1] + np.random.default_rng(2).normal(0, 0.15, (5, DIMENSIONS))):
        lowest = np.sort(known.scores(query))[-50]
        reads = await known.check(cache, query, top_k=50)
        assert sum(reads.of(VECTORS)) // ROW_BYTES < np.count_nonzero(known.scores(query) >= lowest - residual)


async def test_a_block_with_many_candidates_is_read_whole_and_not_kept_among_codes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.search.nearest_neighbors._MANY_ROWS", 20)
    monkeypatch.setattr("spass.rag.search.nearest_neighbors._FIRST_ROWS", 3)
    known = Known()
    known.vectors[100:160] = unit(known.vectors[100] + 1e-5 * np.random.default_rng(5).normal(size=(60, DIMENSIONS)))
    await known.put()
    cache = ObjectCache(BUDGETS[Residency.CODES])
    for _ in range(2):
        reads = await known.check(cache, known.vectors[100])
        assert max(reads.of(VECTORS)) == BLOCK_ROWS * ROW_BYTES
        assert sum(reads.of(VECTORS)) <= (BLOCK_ROWS + FEW_ROWS) * ROW_BYTES
    assert known.cached_blocks(cache) == 0


async def test_without_room_for_all_codes_the_others_are_read_by_each_query() -> None:
    known = await Known().put()
    cache = ObjectCache(BUDGETS[Residency.SOME_CODES])
    reads = [await known.check(cache, query) for query in queries(40)]
    sizes = [sum(read.of(CODES)) for read in reads]
    assert sizes[0] == CODE_BYTES
    assert CODE_BYTES // 6 < max(sizes[20:]) < CODE_BYTES, "some codes stay in memory"
    assert max(sum(read.of(VECTORS)) for read in reads) <= FEW_ROWS * ROW_BYTES
    assert known.cached_blocks(cache) == 0
    assert cache.used_bytes <= cache.budget


@pytest.mark.parametrize("residency", Residency)
@pytest.mark.parametrize("format_", [CODED, VECTORS_ALONE])
async def test_concurrent_queries_share_the_reads_of_codes(residency: Residency, format_: int) -> None:
    known = await Known(format=format_).put()
    cache = ObjectCache(BUDGETS[residency])
    with inject(Reads()) as all_reads:
        await asyncio.gather(*(known.search(cache, query) for query in queries(6)))
    assert isinstance(all_reads, Reads)
    if residency is not Residency.SOME_CODES:
        assert sum(all_reads.of(CODES)) == (CODE_BYTES if format_ == CODED else 0)
        others = sum(all_reads.of(VECTORS)) - (CODED_ROWS * ROW_BYTES + 256 if format_ == VECTORS_ALONE else 0)
        assert 0 <= others <= 6 * FEW_ROWS * ROW_BYTES
    else:
        assert sum(all_reads.of(CODES)) < 6 * CODE_BYTES


async def test_codes_that_are_made_from_vectors_are_those_that_a_writer_stores() -> None:
    known = await Known(format=VECTORS_ALONE).put()
    cache = ObjectCache(BUDGETS[Residency.CODES])
    cold = await known.check(cache, queries(1)[0])
    assert sum(cold.of(VECTORS)) >= CODED_ROWS * ROW_BYTES
    assert sum((await known.check(cache, queries(2)[1])).of(VECTORS)) <= FEW_ROWS * ROW_BYTES, "the codes were kept"
    firsts = (0, SIZES[0])
    for segment, first in zip(known.segments, firsts, strict=False):
        stored = encode_codes(known.vectors[first : first + segment.rows])
        for block in code_blocks(segment, DIMENSIONS):
            assert bytes(known.objects(cache).cached_block(block) or b"") == stored[block.start : block.end]


async def test_tenants_and_indices_never_see_the_codes_of_each_other() -> None:
    """The ids of the segments and the generations are equal, and all share one cache."""
    knowns = [
        await Known(tenant, index, seed, format_).put()
        for seed, (tenant, index, format_) in enumerate(
            [("demo", BERLIN, CODED), ("other", BERLIN, CODED), ("demo", ROME, VECTORS_ALONE), ("other", ROME, CODED)]
        )
    ]
    cache = ObjectCache(8 * BUDGETS[Residency.CODES_AND_VECTORS])
    for query in queries(6):
        for known in knowns:
            await known.check(cache, query)
    for known in knowns:
        assert (await known.check(cache, queries(6)[-1])).of(CODES) == []


async def test_a_writer_keeps_no_codes_in_memory() -> None:
    """It does not read them again, and merges need the memory."""
    with_codes, without = ObjectCache(), ObjectCache()
    await Known().put(with_codes)
    await Known(format=VECTORS_ALONE).put(without)
    assert with_codes.used_bytes == without.used_bytes > 0


@pytest.mark.parametrize("residency", Residency)
async def test_a_query_that_reads_codes_says_so_in_the_log(residency: Residency, capsys: pytest.CaptureFixture[str]) -> None:
    known = await Known().put()
    cache = ObjectCache(BUDGETS[residency])
    counts = []
    for query in queries(3):
        reads = await known.check(cache, query)
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line.pop("blocks") for line in lines] == [len(reads.of(CODES))] * len(lines)
        counts.append(len(lines))
        for line in lines:
            assert line.pop("at").endswith("Z")
            expected = {"level": "info", "event": "index_read", "tenant": "demo", "index": "berlin"}
            assert line == {**expected, "residency": residency.value}
    assert counts == ([1, 1, 1] if residency is Residency.SOME_CODES else [1, 0, 0])


async def test_an_index_that_is_no_longer_queried_makes_room_for_another() -> None:
    one, other = await Known().put(), await Known("other", seed=1).put()
    cache = ObjectCache(BUDGETS[Residency.CODES])
    for query in queries(10):
        await one.check(cache, query)
    sizes = [sum((await other.check(cache, query)).of(CODES)) for query in queries(60)]
    assert sizes[0] == CODE_BYTES
    assert sizes[-1] == 0


def test_each_residency_begins_where_the_other_no_longer_fits() -> None:
    segments = [Segment(f"seg_{number}", rows, 0, 0) for number, rows in enumerate(SIZES)]
    codes = CODE_BYTES + SIZES[2] * ROW_BYTES + ID_BYTES
    everything = codes + CODED_ROWS * ROW_BYTES
    for budget, residency in (
        (0, Residency.SOME_CODES),
        (codes - 1, Residency.SOME_CODES),
        (codes, Residency.CODES),
        (everything - 1, Residency.CODES),
        (everything, Residency.CODES_AND_VECTORS),
    ):
        assert choose_residency(segments, DIMENSIONS, budget) is residency
    assert choose_residency([], DIMENSIONS, 0) is Residency.CODES_AND_VECTORS
