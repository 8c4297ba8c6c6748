"""Get, list and query documents."""

import json

import pytest

from spass.core.errors import (
    IndexNotFound,
    InvalidRequest,
)
from spass.core.ids import DocumentId, IndexId
from spass.rag.index.catalog import read_indices
from spass.rag.index.documents import NewDocument
from spass.rag.index.manifest import Manifest, read_manifest
from spass.store.tenant_store import TenantStore
from spass.testing.faults import FaultPlan, inject
from tests.unit.rag.conftest import ConcurrentReads, RagHarness, all_documents, documents

pytestmark = pytest.mark.anyio


async def test_a_vector_of_zeros_scores_zero(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "zero"), ("b", "eins")))
    scores = {hit.id: hit.score for hit in (await harness.rag.reader.query(harness.scope, index, "eins", 5)).results}
    assert scores == {"a": 0.0, "b": 1.0}
    assert {hit.score for hit in (await harness.rag.reader.query(harness.scope, index, "zero", 5)).results} == {0.0}


async def test_a_page_ends_at_four_mebibytes(harness: RagHarness, index: IndexId) -> None:
    for start in range(0, 768, 256):
        await harness.rag.writer.append(
            harness.scope, index, documents(*((f"d{n:03}", "x" * 8192) for n in range(start, start + 256)))
        )
    page = await harness.rag.reader.documents(harness.scope, index, limit=1000)
    assert 500 < len(page.documents) < 512
    assert page.next_cursor is not None
    assert len(await all_documents(harness, index, limit=1000)) == 768


@pytest.mark.parametrize("text", ["x", '"', "\\", "\n", "\x01", "ü", "\U0001f600", '{"k": "v",\n "w": [1]}\n'])
async def test_a_page_as_a_json_string_fits_into_the_response_of_a_function(
    harness: RagHarness, index: IndexId, text: str
) -> None:
    text = "x" + text * (8191 // len(text.encode()))
    for start in range(0, 768, 256):
        await harness.rag.writer.append(harness.scope, index, documents(*((f"d{n:03}", text) for n in range(start, start + 256))))
    page = await harness.rag.reader.documents(harness.scope, index, limit=1000)
    body = page.to_json().decode()
    assert len(json.dumps({"body": body}, ensure_ascii=False).encode()) < 6 * 2**20 - 300_000
    assert page.next_cursor is not None
    assert len(await all_documents(harness, index, limit=1000)) == 768


async def test_a_page_over_many_segments_reads_at_most_four_at_a_time(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)
    monkeypatch.setattr("spass.rag.search.reader._MAX_CONCURRENT_READS", 4)
    for n in range(12):
        await harness.rag.writer.append(harness.scope, index, documents((f"d{n}", f"text {n}")))
    cold = harness.cold()
    plan = ConcurrentReads("offsets.npy")
    with inject(plan):
        assert len((await cold.reader.documents(harness.scope, index)).documents) == 12
    assert plan.most == 4


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_of_any_size_list_each_document_once(harness: RagHarness, index: IndexId, limit: int) -> None:
    expected = {f"d{n}": f"text {n}" for n in range(23)}
    for start in range(0, 23, 4):
        await harness.rag.writer.append(harness.scope, index, documents(*list(expected.items())[start : start + 4]))
    await harness.rag.deleter.delete_document(harness.scope, index, DocumentId("d7"))
    del expected["d7"]
    assert await all_documents(harness, index, limit) == expected


async def test_documents_of_a_file_are_listed_in_pages(harness: RagHarness, index: IndexId) -> None:
    names = ["a", *(f"handbook.md#{number}" for number in (1, 10, 2)), "z"]
    await harness.rag.writer.append(
        harness.scope, index, [NewDocument.model_construct(id=name, text="x", metadata={}) for name in names]
    )
    assert list(await all_documents(harness, index, limit=1)) == names


async def test_a_cursor_of_another_index_or_tenant_is_refused(harness: RagHarness, index: IndexId) -> None:
    other = harness.scope_of("other")
    for scope, name in ((harness.scope, index), (harness.scope, IndexId("two")), (other, index)):
        await harness.rag.writer.append(scope, name, documents(("a", "x"), ("b", "y")))
    cursor = (await harness.rag.reader.documents(harness.scope, index, None, 1)).next_cursor
    for scope, name in ((harness.scope, IndexId("two")), (other, index)):
        with pytest.raises(InvalidRequest):
            await harness.rag.reader.documents(scope, name, cursor)


async def test_a_tenant_sees_no_index_of_another_tenant(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    other = harness.scope_of("demo-2")
    assert (await read_indices(other)).indices == ()
    with pytest.raises(IndexNotFound):
        await harness.rag.reader.document(other, index, DocumentId("a"))
    assert await harness.rag.deleter.delete_index(other, index) is False
    assert await harness.rag.reader.retrieve(other, index, "eins", 5) == ()


async def test_retrieval_from_an_absent_index_returns_no_documents(harness: RagHarness, index: IndexId) -> None:
    assert await harness.rag.reader.retrieve(harness.scope, index, "eins", 5) == ()
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    assert [hit.id for hit in await harness.rag.reader.retrieve(harness.scope, index, "eins", 5)] == ["a"]


async def test_a_query_whose_segment_was_swept_reads_the_current_version(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    stale = await read_manifest(harness.scope.store, index)
    await harness.rag.writer.replace(harness.scope, index, documents(("b", "zwei")))
    prefix = f"rag/{index}/{stale.generation}/{stale.segments[0].id}"
    await harness.scope.store.objects.delete(
        [f"{prefix}/{part}" for part in ("vectors.npy", "ids", "meta", "docs.jsonl", "offsets.npy")]
    )
    answers = [stale]

    async def read_stale_first(store: TenantStore, name: IndexId) -> Manifest:
        return answers.pop() if answers else await read_manifest(store, name)

    monkeypatch.setattr("spass.rag.index.manifest.read_manifest", read_stale_first)
    answer = await harness.cold().reader.query(harness.scope, index, "zwei", 5)
    assert ([hit.id for hit in answer.results], answer.version) == (["b"], 2)


@pytest.mark.parametrize("budget", [0, 1000, 100_000])
async def test_an_index_larger_than_the_cache_is_answered_exactly(harness: RagHarness, index: IndexId, budget: int) -> None:
    for start in range(0, 120, 40):
        batch = documents(*((f"d{n}", f"text number {n}") for n in range(start, start + 40)))
        await harness.rag.writer.append(harness.scope, index, batch)
    small = harness.cold(budget=budget)
    assert await small.reader.query(harness.scope, index, "some text", 50) == await harness.rag.reader.query(
        harness.scope, index, "some text", 50
    )


async def test_a_query_returns_long_texts_whole(harness: RagHarness, index: IndexId) -> None:
    expected = {f"d{n:03}": f"{n} " + "wört " * 1000 for n in range(120)}
    await harness.rag.writer.append(harness.scope, index, documents(*expected.items()))
    answer = await harness.cold().reader.query(harness.scope, index, "wört", 50)
    assert len(answer.results) == 50
    assert all(hit.text == expected[hit.id] for hit in answer.results)
    assert await all_documents(harness, index, 7) == expected


async def test_a_cold_query_reads_each_object_once_and_a_warm_one_only_the_table(harness: RagHarness, index: IndexId) -> None:
    for start in range(0, 60, 20):
        await harness.rag.writer.append(
            harness.scope, index, documents(*((f"d{n}", f"text {n}") for n in range(start, start + 20)))
        )
    cold = harness.cold()
    with inject(FaultPlan()) as first:
        await cold.reader.query(harness.scope, index, "text", 50)
    read = [call.parameters["Key"] for call in first.calls if call.service == "s3"]
    assert len(read) == len(set(map(str, read))) >= 4
    with inject(FaultPlan()) as warm:
        await cold.reader.query(harness.scope, index, "more text", 5)
    assert [call.operation for call in warm.calls] == ["GetItem"]
