"""What a client sees of an index."""

import asyncio
import json
from collections.abc import Callable
from typing import TypeVar

import pytest

from spass.aws.clients import TenantStore
from spass.aws.faults import AwsCall, FaultPlan, inject
from spass.core.errors import (
    DocumentNotFound,
    DocumentTooLarge,
    DuplicateDocumentId,
    EmbeddingModelMismatch,
    IndexNotFound,
    InvalidRequest,
    SpassError,
    TooManyDocuments,
    UpstreamError,
)
from spass.core.ids import DocumentId, IndexId
from spass.core.messages import TokenUsage
from spass.llm.types import EmbeddingReply, pack_rows
from spass.rag.index.documents import NewDocument
from spass.rag.index.manifest import Manifest, read_manifest
from tests.unit.rag.conftest import DIMENSIONS, RagHarness, config_with, documents

pytestmark = pytest.mark.anyio
T = TypeVar("T")


class Reads(FaultPlan):
    """Sees how many reads of objects named ``name`` are under way at once, ``most`` of all."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.now = self.most = 0

    async def around(self, call: AwsCall, run: Callable[[], T]) -> T:
        if call.operation != "GetObject" or not str(call.parameters["Key"]).endswith(self.name):
            return await super().around(call, run)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0.005)
            return await super().around(call, run)
        finally:
            self.now -= 1


async def all_documents(harness: RagHarness, index: IndexId, limit: int = 100) -> dict[str, str]:
    found: dict[str, str] = {}
    cursor = None
    while True:
        page = await harness.rag.reader.documents(harness.scope, index, cursor, limit)
        assert [document.id for document in page.documents] == sorted(document.id for document in page.documents)
        for document in page.documents:
            assert document.id not in found
            found[document.id] = document.text
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_append_creates_then_upserts_and_keeps_when_a_document_was_created(harness: RagHarness, index: IndexId) -> None:
    first = await harness.rag.writer.append(harness.scope, index, documents(("a", "eins"), ("b", "zwei")))
    assert (first.doc_count, first.ingested, first.replaced, first.version) == (2, 2, 0, 1)
    created = (await harness.rag.reader.document(harness.scope, index, DocumentId("a"))).created_at
    second = await harness.rag.writer.append(harness.scope, index, [NewDocument(id="a", text="neu", metadata={"ü": [1, None]})])
    assert (second.doc_count, second.ingested, second.replaced, second.version) == (2, 1, 1, 2)
    document = await harness.rag.reader.document(harness.scope, index, DocumentId("a"))
    assert (document.text, document.metadata, document.created_at) == ("neu", {"ü": [1, None]}, created)
    assert document.updated_at >= created
    assert await all_documents(harness, index) == {"a": "neu", "b": "zwei"}


async def test_replace_leaves_nothing_of_what_was(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins"), ("b", "zwei")))
    before = await harness.rag.catalog.describe(harness.scope, index)
    answer = await harness.rag.writer.replace(harness.scope, index, documents(("c", "drei")))
    assert (answer.doc_count, answer.ingested, answer.replaced, answer.version) == (1, 1, 2, 2)
    assert await all_documents(harness, index) == {"c": "drei"}
    after = await harness.rag.catalog.describe(harness.scope, index)
    assert (after.total_text_bytes, after.created_at) == (4, before.created_at)


async def test_the_version_never_goes_back_also_across_deletion(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    assert await harness.rag.deleter.delete_index(harness.scope, index) is True
    assert await harness.rag.deleter.delete_index(harness.scope, index) is False
    with pytest.raises(IndexNotFound):
        await harness.rag.catalog.describe(harness.scope, index)
    with pytest.raises(IndexNotFound):
        await harness.rag.reader.query(harness.scope, index, "eins", 5)
    assert (await harness.rag.writer.append(harness.scope, index, documents(("b", "zwei")))).version == 3
    assert await all_documents(harness, index) == {"b": "zwei"}


async def test_deleting_a_document_twice_changes_the_index_once(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins"), ("b", "über")))
    assert await harness.rag.deleter.delete_document(harness.scope, index, DocumentId("a")) is True
    assert await harness.rag.deleter.delete_document(harness.scope, index, DocumentId("a")) is False
    summary = await harness.rag.catalog.describe(harness.scope, index)
    assert (summary.doc_count, summary.total_text_bytes, summary.version) == (1, 5, 2)
    with pytest.raises(DocumentNotFound):
        await harness.rag.reader.document(harness.scope, index, DocumentId("a"))
    assert [hit.id for hit in (await harness.rag.reader.query(harness.scope, index, "eins", 5)).results] == ["b"]
    assert await harness.rag.deleter.delete_document(harness.scope, IndexId("absent"), DocumentId("a")) is False


async def test_an_emptied_index_is_still_one(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    await harness.rag.deleter.delete_document(harness.scope, index, DocumentId("a"))
    assert (await harness.rag.catalog.describe(harness.scope, index)).doc_count == 0
    assert (await harness.rag.reader.query(harness.scope, index, "eins", 5)).results == ()
    assert (await harness.rag.reader.documents(harness.scope, index)).documents == ()


async def test_a_text_without_direction_scores_zero(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "zero"), ("b", "eins")))
    scores = {hit.id: hit.score for hit in (await harness.rag.reader.query(harness.scope, index, "eins", 5)).results}
    assert scores == {"a": 0.0, "b": 1.0}
    assert {hit.score for hit in (await harness.rag.reader.query(harness.scope, index, "zero", 5)).results} == {0.0}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ([], InvalidRequest),
        (documents(*((f"d{n}", "x") for n in range(257))), TooManyDocuments),
        (documents(("a", "ü" * 4097)), DocumentTooLarge),
        (documents(("a", "x"), ("b", "y"), ("a", "z")), DuplicateDocumentId),
        ([NewDocument(id="a", text="x", metadata={"k": "ü" * 1024})], DocumentTooLarge),
        ([NewDocument(id="a", text="x", metadata={"k": float("nan")})], InvalidRequest),
    ],
)
async def test_a_write_over_a_limit_changes_nothing_and_calls_no_model(
    harness: RagHarness, index: IndexId, bad: list[NewDocument], error: type[SpassError]
) -> None:
    for write in (harness.rag.writer.append, harness.rag.writer.replace):
        with pytest.raises(error):
            await write(harness.scope, index, bad)
    assert harness.calls.asked == []
    with pytest.raises(IndexNotFound):
        await harness.rag.catalog.describe(harness.scope, index)


async def test_what_is_just_within_the_limits_is_taken(harness: RagHarness, index: IndexId) -> None:
    many = [NewDocument(id=f"d{n}", text="ü" * 4096, metadata={"k": "x" * 2040}) for n in range(256)]
    await harness.rag.writer.append(harness.scope, index, many)
    assert (await harness.rag.catalog.describe(harness.scope, index)).total_text_bytes == 256 * 8192


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
async def test_a_page_fits_the_response_of_a_lambda_where_its_body_is_a_json_string(
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


async def test_a_page_over_many_segments_reads_them_side_by_side_but_not_all_at_once(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)
    monkeypatch.setattr("spass.rag.search.reader._MAX_CONCURRENT_READS", 4)
    for n in range(12):
        await harness.rag.writer.append(harness.scope, index, documents((f"d{n}", f"text {n}")))
    cold = harness.cold()
    plan = Reads("offsets.npy")
    with inject(plan):
        assert len((await cold.reader.documents(harness.scope, index)).documents) == 12
    assert plan.most == 4


async def test_a_merge_reads_its_segments_side_by_side(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)
        for n in range(9):
            await harness.rag.writer.append(harness.scope, index, documents((f"d{n}", f"text {n}")))
    plan = Reads("docs.jsonl")
    with inject(plan):
        await harness.cold(budget=0).writer.append(harness.scope, index, documents(("a", "x"), ("b", "y")))
    assert plan.most == 4
    assert len(await all_documents(harness, index)) == 11


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_of_any_size_hold_every_document_once(harness: RagHarness, index: IndexId, limit: int) -> None:
    wanted = {f"d{n}": f"text {n}" for n in range(23)}
    for start in range(0, 23, 4):
        await harness.rag.writer.append(harness.scope, index, documents(*list(wanted.items())[start : start + 4]))
    await harness.rag.deleter.delete_document(harness.scope, index, DocumentId("d7"))
    del wanted["d7"]
    assert await all_documents(harness, index, limit) == wanted


async def test_pieces_of_a_file_are_paged_like_any_documents(harness: RagHarness, index: IndexId) -> None:
    names = ["a", *(f"handbook.md#{number}" for number in (1, 10, 2)), "z"]
    await harness.rag.writer.append(
        harness.scope, index, [NewDocument.model_construct(id=name, text="x", metadata={}) for name in names]
    )
    assert list(await all_documents(harness, index, limit=1)) == names


async def test_a_cursor_is_useless_for_another_index_or_tenant(harness: RagHarness, index: IndexId) -> None:
    other = harness.tenant("other")
    for scope, name in ((harness.scope, index), (harness.scope, IndexId("two")), (other, index)):
        await harness.rag.writer.append(scope, name, documents(("a", "x"), ("b", "y")))
    cursor = (await harness.rag.reader.documents(harness.scope, index, None, 1)).next_cursor
    for scope, name in ((harness.scope, IndexId("two")), (other, index)):
        with pytest.raises(InvalidRequest):
            await harness.rag.reader.documents(scope, name, cursor)


async def test_indices_are_listed_in_pages_without_the_deleted_ones(harness: RagHarness) -> None:
    names = [f"i{n}" for n in range(7)]
    for name in names:
        await harness.rag.writer.append(harness.scope, IndexId(name), documents(("a", "x")))
    for name in ("i0", "i3", "i6"):
        await harness.rag.deleter.delete_index(harness.scope, IndexId(name))
    await harness.rag.writer.append(harness.tenant("other"), IndexId("i3"), documents(("a", "x")))
    for limit in (1, 2, 3, 4, 100):
        seen: list[str] = []
        cursor = None
        while True:
            page = await harness.rag.catalog.list(harness.scope, cursor, limit)
            assert len(page.indices) <= limit
            seen += [summary.id for summary in page.indices]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == ["i1", "i2", "i4", "i5"]


async def test_another_tenant_sees_nothing(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    other = harness.tenant("demo-2")
    assert (await harness.rag.catalog.list(other)).indices == ()
    with pytest.raises(IndexNotFound):
        await harness.rag.reader.document(other, index, DocumentId("a"))
    assert await harness.rag.deleter.delete_index(other, index) is False
    assert await harness.rag.reader.retrieve(other, index, "eins", 5) == ()


async def test_another_model_or_dimension_is_refused_until_the_index_is_replaced(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    for config in (config_with("other"), config_with(dimensions=DIMENSIONS + 1)):
        rag = harness.cold(config)
        asked = list(harness.calls.asked)
        with pytest.raises(EmbeddingModelMismatch):
            await rag.writer.append(harness.scope, index, documents(("b", "zwei")))
        with pytest.raises(EmbeddingModelMismatch):
            await rag.reader.query(harness.scope, index, "eins", 5)
        assert harness.calls.asked == asked, "no model was called"
    renamed = harness.cold(config_with("other"))
    await renamed.writer.replace(harness.scope, index, documents(("b", "zwei")))
    assert (await renamed.catalog.describe(harness.scope, index)).embedding_model == "other"
    assert [hit.id for hit in (await renamed.reader.query(harness.scope, index, "zwei", 5)).results] == ["b"]


@pytest.mark.parametrize(
    "rows",
    [[[1.0] * (DIMENSIONS - 1)], [[float("nan")] * DIMENSIONS], [[float("inf")] * DIMENSIONS], [[1.0] * DIMENSIONS] * 2, []],
)
async def test_unusable_vectors_are_an_upstream_error_and_nothing_is_stored(
    harness: RagHarness, index: IndexId, rows: list[list[float]]
) -> None:
    width = len(rows[0]) if rows else DIMENSIONS
    harness.calls.answer = EmbeddingReply(pack_rows(rows), len(rows), width, TokenUsage())
    with pytest.raises(UpstreamError):
        await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    with pytest.raises(IndexNotFound):
        await harness.rag.catalog.describe(harness.scope, index)


async def test_passive_retrieval_from_an_absent_index_adds_nothing(harness: RagHarness, index: IndexId) -> None:
    assert await harness.rag.reader.retrieve(harness.scope, index, "eins", 5) == ()
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    assert [hit.id for hit in await harness.rag.reader.retrieve(harness.scope, index, "eins", 5)] == ["a"]


async def test_a_reader_whose_segment_was_swept_answers_from_the_current_version(
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

    async def first_stale(store: TenantStore, name: IndexId) -> Manifest:
        return answers.pop() if answers else await read_manifest(store, name)

    monkeypatch.setattr("spass.rag.search.reader.read_manifest", first_stale)
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


async def test_long_texts_are_fetched_by_range(harness: RagHarness, index: IndexId) -> None:
    wanted = {f"d{n:03}": f"{n} " + "wört " * 1000 for n in range(120)}
    await harness.rag.writer.append(harness.scope, index, documents(*wanted.items()))
    answer = await harness.cold().reader.query(harness.scope, index, "wört", 50)
    assert len(answer.results) == 50
    assert all(hit.text == wanted[hit.id] for hit in answer.results)
    assert await all_documents(harness, index, 7) == wanted


async def test_a_warm_query_is_one_table_call_and_a_cold_one_reads_each_object_once(harness: RagHarness, index: IndexId) -> None:
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
