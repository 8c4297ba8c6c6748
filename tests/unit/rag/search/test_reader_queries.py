"""Queries over several segments with deleted rows agree with brute force over the live documents."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.aws.clients import Aws
from spass.core.ids import DocumentId, IndexId
from spass.core.messages import Json, TokenUsage
from spass.models.types import EmbeddingReply, pack_rows
from spass.rag.index.documents import NewDocument
from spass.rag.index.embedding import normalise
from spass.rag.index.filters import parse_filter
from spass.rag.index.manifest import read_manifest
from spass.rag.index.objects import vector_blocks
from spass.rag.index.responses import QueryAnswer
from spass.rag.search.scan import ScanBlock, scan_top_k
from spass.store.invocation import PendingCall, ServiceCall
from spass.testing.faults import FaultPlan, inject
from spass.tools.base import Rag
from tests.unit.rag.conftest import DIMENSIONS, RagHarness, documents, vector_of

pytestmark = pytest.mark.anyio
T = TypeVar("T")
INDEX = IndexId("berlin")


class RecordedReads(FaultPlan):
    """Records the reads of objects. ``most`` is the maximum of concurrent ones."""

    def __init__(self, pause: float = 0) -> None:
        super().__init__()
        self.pause = pause
        self.now = self.most = 0

    async def around(self, call: ServiceCall, run: PendingCall[T]) -> T:
        if call.operation != "GetObject":
            return await super().around(call, run)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.pause)
            return await super().around(call, run)
        finally:
            self.now -= 1

    def parts(self) -> Counter[str]:
        """Return the number of reads for each kind of object."""
        return Counter(str(call.parameters["Key"]).rsplit("/", 1)[1] for call in self.calls if call.operation == "GetObject")


@dataclass(frozen=True, slots=True)
class WrittenIndex:
    """The documents that an index must have."""

    documents_by_id: dict[str, NewDocument]

    def best(self, query: str, top_k: int, filter_: dict[str, Json], min_score: float | None) -> list[tuple[str, float]]:
        parsed = parse_filter(filter_)
        scores = [(name, cosine(query, one.text)) for name, one in self.documents_by_id.items() if parsed.matches(one.metadata)]
        reached = [pair for pair in scores if min_score is None or pair[1] >= min_score]
        return sorted(reached, key=lambda pair: (-pair[1], pair[0]))[:top_k]


def cosine(left: str, right: str) -> float:
    a, b = normalise(np.array([vector_of(left), vector_of(right)], np.float32))
    return round(max(-1.0, min(1.0, math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True)))), 6)


async def write(harness: RagHarness, batches: Sequence[Sequence[NewDocument]], deleted: Sequence[str]) -> WrittenIndex:
    """Append the largest batch first, so that each stays an own segment. Delete the documents ``deleted``."""
    documents_by_id: dict[str, NewDocument] = {}
    for batch in sorted(batches, key=len, reverse=True):
        await harness.rag.writer.append(harness.scope, INDEX, list(batch))
        documents_by_id |= {document.id: document for document in batch}
    for name in deleted:
        await harness.rag.deleter.delete_document(harness.scope, INDEX, DocumentId(name))
        documents_by_id.pop(name, None)
    return WrittenIndex(documents_by_id)


def as_pairs(answer: QueryAnswer) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in answer.results]


async def run_query(
    harness: RagHarness, rag: Rag, query: str, top_k: int, filter_: dict[str, Json] | None = None, min_score: float | None = None
) -> list[tuple[str, float]]:
    parsed = None if filter_ is None else parse_filter(filter_)
    return as_pairs(await rag.reader.query(harness.scope, INDEX, query, top_k, filter=parsed, min_score=min_score))


names = [f"d{n}" for n in range(40)]
metadata = st.dictionaries(st.sampled_from("kl"), st.integers(0, 3) | st.sampled_from(["a", "b", None, True]), max_size=2)
batches = st.lists(
    st.lists(
        st.builds(NewDocument, id=st.sampled_from(names), text=st.text("abü", min_size=1, max_size=4), metadata=metadata),
        min_size=1,
        max_size=25,
        unique_by=lambda document: document.id,
    ),
    min_size=1,
    max_size=4,
)
raw_filters = st.dictionaries(
    st.sampled_from("klm"),
    st.integers(0, 3)
    | st.just("a")
    | st.fixed_dictionaries({"$gte": st.integers(0, 3)})
    | st.fixed_dictionaries({"$ne": st.sampled_from([1, "a", None])})
    | st.fixed_dictionaries({"$in": st.lists(st.sampled_from([0, 1, "b", None]), max_size=3)}),
    min_size=1,
    max_size=2,
)


@settings(max_examples=max(15, settings().max_examples // 10), deadline=None)
@given(
    batches,
    st.lists(st.sampled_from(names), max_size=8),
    st.text("abü", min_size=1, max_size=4),
    st.integers(1, 12),
    st.lists(st.tuples(raw_filters, st.none() | st.sampled_from([-1.0, 0.0, 0.5, 0.707107, 1.0])), min_size=1, max_size=4),
    st.sampled_from([0, 3_000, 2**20]),
)
def test_filters_minimum_scores_and_ties_agree_with_brute_force(
    aws: Aws,
    batches: list[list[NewDocument]],
    deleted: list[str],
    query: str,
    top_k: int,
    filters: list[tuple[dict[str, Json], float | None]],
    budget: int,
) -> None:
    async def run() -> None:
        harness = RagHarness(aws)
        written = await write(harness, batches, deleted)
        reader = harness.cold(budget=budget)
        assert await run_query(harness, reader, query, top_k) == written.best(query, top_k, {}, None)
        for filter_, min_score in filters:
            assert await run_query(harness, reader, query, top_k, filter_, min_score) == written.best(
                query, top_k, filter_, min_score
            )
            assert await run_query(harness, reader, query, top_k, None, min_score) == written.best(query, top_k, {}, min_score)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.rag.index.objects.BLOCK_BYTES", 5 * 4 * DIMENSIONS)
        patch.setattr("spass.rag.index.objects.HEAD_BYTES", 64)
        patch.setattr("spass.rag.index.objects._WHOLE_OFFSETS_ROWS", 8)
        patch.setattr("spass.rag.index.objects._WHOLE_DOCS_BYTES", 500)
        patch.setattr("spass.rag.search.blocks.MAX_GROUP_BYTES", 1000)
        asyncio.run(run())


def batches_of(*sizes: int) -> list[list[NewDocument]]:
    """Return batches of these sizes. Every tenth document is ``rare``."""
    numbers = iter(range(sum(sizes)))
    return [
        [
            NewDocument(id=f"d{n:04}", text=f"text {n}", metadata={"n": n, "rare": n % 10 == 0, "long": "x" * 1000})
            for _, n in zip(range(size), numbers, strict=False)
        ]
        for size in sizes
    ]


async def test_a_filtered_query_returns_all_matches_up_to_top_k(harness: RagHarness) -> None:
    await write(harness, batches_of(200, 90, 40), ["d0000", "d0010"])
    assert len(await run_query(harness, harness.rag, "text", 50, {"rare": True})) == 31
    assert len(await run_query(harness, harness.rag, "text", 5, {"rare": True})) == 5
    assert len(await run_query(harness, harness.rag, "text", 50, {"n": {"$gte": 7, "$lte": 12, "$ne": 8}})) == 4
    assert await run_query(harness, harness.rag, "text", 50, {"n": -1}) == []


async def test_a_query_without_a_filter_reads_no_metadata(harness: RagHarness) -> None:
    await write(harness, batches_of(200, 90), [])
    plan = RecordedReads()
    with inject(plan):
        await run_query(harness, harness.cold(), "text", 5)
    assert "meta" not in plan.parts()


async def test_a_filter_reads_only_its_fields_and_the_vectors_that_may_match(
    harness: RagHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.index.objects.HEAD_BYTES", 256)
    monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", 50 * 4 * DIMENSIONS)
    await write(harness, batches_of(200, 90), [])
    cold = harness.cold()
    plan = RecordedReads()
    with inject(plan):
        assert len(await run_query(harness, cold, "text", 5, {"n": {"$gte": 60, "$lte": 70}})) == 5
    ranges = [str(call.parameters.get("Range")) for call in plan.calls if str(call.parameters.get("Key", "")).endswith("meta")]
    assert len(ranges) == 4, "the directory and one column of each of two segments"
    assert sum(int(end) - int(start) for start, end in (one.removeprefix("bytes=").split("-") for one in ranges)) < 4000
    assert plan.parts()["vectors.npy"] == 1
    warm = RecordedReads()
    with inject(warm):
        await run_query(harness, cold, "text", 5, {"n": {"$gte": 60, "$lte": 70}})
    assert warm.parts() == {}


async def test_an_index_larger_than_the_budget_is_read_a_few_blocks_at_a_time(
    harness: RagHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = 10 * 4 * DIMENSIONS
    monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", block)
    monkeypatch.setattr("spass.rag.search.blocks.MAX_GROUP_BYTES", 3 * block)
    await write(harness, batches_of(200, 90), ["d0003"])
    expected = await run_query(harness, harness.cold(), "some text", 50)
    small = harness.cold(budget=12_000)
    plans = [RecordedReads(pause=0.002) for _ in range(3)]
    for plan in plans:
        with inject(plan):
            assert await run_query(harness, small, "some text", 50) == expected
        assert plan.most <= 6, "three blocks that are scanned, and the next three"
    assert 0 < plans[-1].parts()["vectors.npy"] < 29, "blocks that fit stay cached"


async def test_two_concurrent_cold_queries_read_each_object_once(harness: RagHarness) -> None:
    await write(harness, batches_of(200, 90), [])
    cold = harness.cold()
    plan = RecordedReads(pause=0.002)
    with inject(plan):
        first, second = await asyncio.gather(run_query(harness, cold, "text", 5), run_query(harness, cold, "text", 5))
    assert first == second
    assert plan.parts()["vectors.npy"] == 2
    assert all(count <= 2 for count in plan.parts().values())


async def test_a_repeated_query_reads_no_document_again(harness: RagHarness) -> None:
    await harness.rag.writer.append(
        harness.scope, INDEX, documents(*((f"d{n:03}", f"{n} " + "wört " * 1000) for n in range(120)))
    )
    cold = harness.cold()
    first = RecordedReads()
    with inject(first):
        expected = await run_query(harness, cold, "wört", 5)
    again = RecordedReads()
    with inject(again):
        assert await run_query(harness, cold, "wört", 5) == expected
    assert first.parts()["docs.jsonl"] >= 1
    assert again.parts() == {}


async def test_blocks_cover_all_rows_of_a_segment(harness: RagHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    await write(harness, batches_of(200), [])
    (segment,) = (await read_manifest(harness.scope.store, INDEX)).segments
    size = len(await harness.scope.store.objects.get(f"rag/{INDEX}/{await generation(harness)}/{segment.id}/vectors.npy"))
    for rows in (1, 7, 199, 200, 201):
        monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", rows * 4 * DIMENSIONS)
        listed = vector_blocks(segment, DIMENSIONS)
        assert [block.first for block in listed] == list(range(0, 200, rows))
        assert sum(block.rows for block in listed) == 200
        assert [block.start for block in listed] == [0, *(block.end for block in listed[:-1])]
        assert listed[-1].end == size


async def generation(harness: RagHarness) -> str:
    return (await read_manifest(harness.scope.store, INDEX)).generation


async def test_a_score_that_rounds_to_the_minimum_is_returned(harness: RagHarness) -> None:
    harness.calls.answer = EmbeddingReply(pack_rows([[1.0, 0.0] + [0.0] * (DIMENSIONS - 2)]), 1, DIMENSIONS, TokenUsage())
    await harness.rag.writer.append(harness.scope, INDEX, documents(("a", "x")))
    slightly_off = [0.5, math.sqrt(0.75)] + [0.0] * (DIMENSIONS - 2)
    harness.calls.answer = EmbeddingReply(pack_rows([slightly_off]), 1, DIMENSIONS, TokenUsage())
    for min_score, count in ((0.5, 1), (0.499999, 1), (0.500001, 0)):
        assert len((await harness.rag.reader.query(harness.scope, INDEX, "x", 5, min_score=min_score)).results) == count


def test_thousands_of_near_duplicates_are_ranked_in_bounded_time() -> None:
    """All scores differ by less than the error of the scan, so all rows are scored again."""
    random = np.random.default_rng(3)
    centre = random.normal(size=768)
    vectors = normalise((centre + random.normal(size=(20_000, 768)) * 1e-7).astype(np.float32))
    query = normalise(centre.astype(np.float32)[None])[0]
    parts = [ScanBlock(0, 0, vectors[:8000]), ScanBlock(0, 8000, vectors[8000:12_000]), ScanBlock(1, 0, vectors[12_000:])]
    start = time.monotonic()
    rows = scan_top_k(parts, query, 50)
    assert time.monotonic() - start < 5
    exact = np.round((vectors.astype(np.float64) * query).sum(axis=1), 6)
    assert len(rows) <= 2 * 50, "of each segment, at most 50 ties are returned"
    assert [(one.segment, one.row) for one in rows[:50]] == [(0, row) for row in np.argsort(-exact, kind="stable")[:50]]
