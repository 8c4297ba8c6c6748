"""Replace, append and delete documents and indices."""

import pytest

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
from spass.models.types import EmbeddingReply, pack_rows
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import NewDocument
from spass.testing.faults import inject
from tests.unit.rag.conftest import DIMENSIONS, ConcurrentReads, RagHarness, all_documents, config_with, documents

pytestmark = pytest.mark.anyio


async def test_append_creates_an_index_and_keeps_creation_times(harness: RagHarness, index: IndexId) -> None:
    first = await harness.rag.writer.append(harness.scope, index, documents(("a", "eins"), ("b", "zwei")))
    assert (first.doc_count, first.ingested, first.replaced, first.version) == (2, 2, 0, 1)
    created = (await harness.rag.reader.document(harness.scope, index, DocumentId("a"))).created_at
    second = await harness.rag.writer.append(harness.scope, index, [NewDocument(id="a", text="neu", metadata={"ü": [1, None]})])
    assert (second.doc_count, second.ingested, second.replaced, second.version) == (2, 1, 1, 2)
    document = await harness.rag.reader.document(harness.scope, index, DocumentId("a"))
    assert (document.text, document.metadata, document.created_at) == ("neu", {"ü": [1, None]}, created)
    assert document.updated_at >= created
    assert await all_documents(harness, index) == {"a": "neu", "b": "zwei"}


async def test_replace_removes_all_earlier_documents(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins"), ("b", "zwei")))
    before = await describe_index(harness.scope, index)
    answer = await harness.rag.writer.replace(harness.scope, index, documents(("c", "drei")))
    assert (answer.doc_count, answer.ingested, answer.replaced, answer.version) == (1, 1, 2, 2)
    assert await all_documents(harness, index) == {"c": "drei"}
    after = await describe_index(harness.scope, index)
    assert (after.total_text_bytes, after.created_at) == (4, before.created_at)


async def test_the_version_grows_across_a_deletion_of_the_index(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    assert await harness.rag.deleter.delete_index(harness.scope, index) is True
    assert await harness.rag.deleter.delete_index(harness.scope, index) is False
    with pytest.raises(IndexNotFound):
        await describe_index(harness.scope, index)
    with pytest.raises(IndexNotFound):
        await harness.rag.reader.query(harness.scope, index, "eins", 5)
    assert (await harness.rag.writer.append(harness.scope, index, documents(("b", "zwei")))).version == 3
    assert await all_documents(harness, index) == {"b": "zwei"}


async def test_deleting_a_document_twice_changes_the_index_once(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins"), ("b", "über")))
    assert await harness.rag.deleter.delete_document(harness.scope, index, DocumentId("a")) is True
    assert await harness.rag.deleter.delete_document(harness.scope, index, DocumentId("a")) is False
    summary = await describe_index(harness.scope, index)
    assert (summary.doc_count, summary.total_text_bytes, summary.version) == (1, 5, 2)
    with pytest.raises(DocumentNotFound):
        await harness.rag.reader.document(harness.scope, index, DocumentId("a"))
    assert [hit.id for hit in (await harness.rag.reader.query(harness.scope, index, "eins", 5)).results] == ["b"]
    assert await harness.rag.deleter.delete_document(harness.scope, IndexId("absent"), DocumentId("a")) is False


async def test_an_index_without_documents_still_exists(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    await harness.rag.deleter.delete_document(harness.scope, index, DocumentId("a"))
    assert (await describe_index(harness.scope, index)).doc_count == 0
    assert (await harness.rag.reader.query(harness.scope, index, "eins", 5)).results == ()
    assert (await harness.rag.reader.documents(harness.scope, index)).documents == ()


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
    assert harness.calls.texts == []
    with pytest.raises(IndexNotFound):
        await describe_index(harness.scope, index)


async def test_a_write_at_the_limits_is_accepted(harness: RagHarness, index: IndexId) -> None:
    many = [NewDocument(id=f"d{n}", text="ü" * 4096, metadata={"k": "x" * 2040}) for n in range(256)]
    await harness.rag.writer.append(harness.scope, index, many)
    assert (await describe_index(harness.scope, index)).total_text_bytes == 256 * 8192


async def test_an_append_reads_four_of_its_merge_inputs_at_a_time(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("spass.rag.write.merge_policy.MERGE_ROWS", 1)
        for n in range(9):
            await harness.rag.writer.append(harness.scope, index, documents((f"d{n}", f"text {n}")))
    plan = ConcurrentReads("docs.jsonl")
    with inject(plan):
        await harness.cold(budget=0).writer.append(harness.scope, index, documents(("a", "x"), ("b", "y")))
    assert plan.most == 4
    assert len(await all_documents(harness, index)) == 11


async def test_another_model_or_dimension_is_refused_until_the_index_is_replaced(harness: RagHarness, index: IndexId) -> None:
    await harness.rag.writer.append(harness.scope, index, documents(("a", "eins")))
    for config in (config_with("other"), config_with(dimensions=DIMENSIONS + 1)):
        rag = harness.cold(config)
        texts_before = list(harness.calls.texts)
        with pytest.raises(EmbeddingModelMismatch):
            await rag.writer.append(harness.scope, index, documents(("b", "zwei")))
        with pytest.raises(EmbeddingModelMismatch):
            await rag.reader.query(harness.scope, index, "eins", 5)
        assert harness.calls.texts == texts_before, "no model was called"
    renamed = harness.cold(config_with("other"))
    await renamed.writer.replace(harness.scope, index, documents(("b", "zwei")))
    assert (await describe_index(harness.scope, index)).embedding_model == "other"
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
        await describe_index(harness.scope, index)
