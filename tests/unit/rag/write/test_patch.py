"""PATCH changes one document, embeds only a new text, and loses no concurrent write."""

import asyncio
import json
import time

import pytest

from spass.core.errors import (
    DocumentNotFound,
    DocumentTooLarge,
    EmbeddingModelMismatch,
    IndexNotFound,
    InvalidRequest,
    SpassError,
)
from spass.core.ids import DocumentId, IndexId
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.rag.index.manifest import read_manifest
from spass.rag.index.responses import Document
from spass.testing.faults import FaultPlan, inject
from tests.unit.rag.conftest import DIMENSIONS, RacingWriters, RagHarness, config_with, documents

pytestmark = pytest.mark.anyio

A = DocumentId("a")


async def append_two(harness: RagHarness, index: IndexId) -> Document:
    """Append two documents and return the one to patch."""
    first = NewDocument(id="a", text="eins", metadata={"n": 1, "kept": True})
    await harness.rag.writer.append(harness.scope, index, [first, NewDocument(id="b", text="zwei")])
    harness.calls.texts.clear()
    return await harness.rag.reader.document(harness.scope, index, A)


async def score_of(harness: RagHarness, index: IndexId, query: str) -> float:
    """Return the score of document ``a`` from a worker with an empty cache."""
    answer = await harness.cold().reader.query(harness.scope, index, query, 50)
    return next(hit.score for hit in answer.results if hit.id == A)


async def test_a_new_text_is_embedded_and_the_metadata_stays(harness: RagHarness, index: IndexId) -> None:
    before = await append_two(harness, index)
    await asyncio.sleep(0.002)
    answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="etwas ganz anderes"))
    assert (answer.text, answer.metadata) == ("etwas ganz anderes", {"n": 1, "kept": True})
    assert answer.created_at == before.created_at
    assert answer.updated_at > before.updated_at
    assert harness.calls.texts == ["etwas ganz anderes"]
    assert await harness.cold().reader.document(harness.scope, index, A) == answer
    assert await score_of(harness, index, "etwas ganz anderes") == 1.0
    described = await describe_index(harness.scope, index)
    assert (described.version, described.doc_count) == (2, 2)
    assert described.total_text_bytes == len("etwas ganz anderes") + len("zwei")


@pytest.mark.parametrize("patch", [DocumentPatch(metadata={"m": None}), DocumentPatch(text="eins", metadata={"m": None})])
async def test_metadata_is_replaced_whole_and_no_model_is_called(
    harness: RagHarness, index: IndexId, patch: DocumentPatch
) -> None:
    before = await append_two(harness, index)
    answer = await harness.rag.writer.patch(harness.scope, index, A, patch)
    assert (answer.text, answer.metadata, answer.created_at) == ("eins", {"m": None}, before.created_at)
    assert harness.calls.texts == []
    assert harness.scope.tally.total.sub_calls == 0
    assert await harness.cold().reader.document(harness.scope, index, A) == answer
    assert await score_of(harness, index, "eins") == 1.0


async def test_a_patch_with_the_stored_text_makes_a_new_version(harness: RagHarness, index: IndexId) -> None:
    before = await append_two(harness, index)
    answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="eins"))
    assert (answer.text, answer.metadata) == (before.text, before.metadata)
    assert harness.calls.texts == []
    assert (await describe_index(harness.scope, index)).version == 2


async def test_a_document_of_a_file_can_be_patched(harness: RagHarness, index: IndexId) -> None:
    chunk = NewDocument.model_construct(id="notes.md#7", text="eins", metadata={"source": "notes.md"})
    await harness.rag.writer.append(harness.scope, index, [chunk])
    answer = await harness.rag.writer.patch(harness.scope, index, DocumentId("notes.md#7"), DocumentPatch(text="sieben"))
    assert (answer.id, answer.text, answer.metadata) == ("notes.md#7", "sieben", {"source": "notes.md"})


async def test_a_patch_of_an_absent_index_or_document_is_refused(harness: RagHarness, index: IndexId) -> None:
    with pytest.raises(IndexNotFound):
        await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    await append_two(harness, index)
    with pytest.raises(DocumentNotFound):
        await harness.rag.writer.patch(harness.scope, index, DocumentId("c"), DocumentPatch(text="neu"))
    assert harness.calls.texts == []
    assert (await describe_index(harness.scope, index)).version == 1


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        (DocumentPatch(text="ü" * 4097), DocumentTooLarge),
        (DocumentPatch(metadata={"k": "x" * 2048}), DocumentTooLarge),
        (DocumentPatch(metadata={"k": float("nan")}), InvalidRequest),
    ],
)
async def test_a_patch_over_a_limit_changes_nothing(
    harness: RagHarness, index: IndexId, patch: DocumentPatch, error: type[SpassError]
) -> None:
    before = await append_two(harness, index)
    with pytest.raises(error):
        await harness.rag.writer.patch(harness.scope, index, A, patch)
    assert harness.calls.texts == []
    assert await harness.rag.reader.document(harness.scope, index, A) == before


async def test_another_configured_model_prevents_only_new_texts(harness: RagHarness, index: IndexId) -> None:
    await append_two(harness, index)
    other = harness.cold(config_with("another", 4))
    with pytest.raises(EmbeddingModelMismatch):
        await other.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    answer = await other.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": 2}))
    assert answer.metadata == {"n": 2}
    assert harness.calls.texts == []
    assert await score_of(harness, index, "eins") == 1.0


async def test_a_patch_that_loses_many_races_embeds_its_text_once(harness: RagHarness, index: IndexId) -> None:
    await append_two(harness, index)
    rival = harness.cold()
    plan = RacingWriters(*(lambda n=n: rival.writer.append(harness.scope, index, documents((f"r{n}", "x"))) for n in range(5)))
    with inject(plan):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    assert harness.calls.texts.count("neu") == 1
    assert await rival.reader.document(harness.scope, index, A) == answer
    assert (await describe_index(harness.scope, index)).doc_count == 7


async def test_a_patch_of_metadata_keeps_the_text_of_a_faster_writer(harness: RagHarness, index: IndexId) -> None:
    """The vector is that of the stored text too."""
    await append_two(harness, index)
    rival = harness.cold()
    plan = RacingWriters(
        lambda: rival.writer.append(harness.scope, index, [NewDocument(id="a", text="anders", metadata={"x": 1})])
    )
    with inject(plan):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": 2}))
    assert (answer.text, answer.metadata) == ("anders", {"n": 2})
    assert await rival.reader.document(harness.scope, index, A) == answer
    assert await score_of(harness, index, "anders") == 1.0
    assert await score_of(harness, index, "eins") < 1.0


@pytest.mark.parametrize("rivals", [1, 2])
async def test_metadata_that_are_equal_in_python_but_not_in_json_are_written(
    harness: RagHarness, index: IndexId, rivals: int
) -> None:
    await append_two(harness, index)
    rival = harness.cold()
    values: list[bool | float] = [True, 1.0]
    plan = RacingWriters(
        *(
            lambda n=n: rival.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": values[n], "kept": True}))
            for n in range(rivals)
        )
    )
    with inject(plan):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    stored = await harness.cold().reader.document(harness.scope, index, A)
    assert json.dumps(stored.metadata) == json.dumps(answer.metadata) == json.dumps({"n": values[rivals - 1], "kept": True})


async def test_a_text_is_embedded_if_a_faster_writer_changed_the_stored_one(harness: RagHarness, index: IndexId) -> None:
    await append_two(harness, index)
    rival = harness.cold()
    with inject(RacingWriters(lambda: rival.writer.append(harness.scope, index, documents(("a", "anders"))))):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="eins"))
    assert answer.text == "eins"
    assert harness.calls.texts == ["anders", "eins"]
    assert await score_of(harness, index, "eins") == 1.0


async def test_a_text_that_a_faster_writer_stored_keeps_its_vector(harness: RagHarness, index: IndexId) -> None:
    await append_two(harness, index)
    rival = harness.cold()
    same = NewDocument(id="a", text="neu", metadata={"x": 1})
    with inject(RacingWriters(lambda: rival.writer.append(harness.scope, index, [same]))):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    assert (answer.text, answer.metadata) == ("neu", {"x": 1})
    assert await score_of(harness, index, "neu") == 1.0


async def test_a_patch_does_not_restore_a_deleted_document(harness: RagHarness, index: IndexId) -> None:
    await append_two(harness, index)
    rival = harness.cold()
    with inject(RacingWriters(lambda: rival.deleter.delete_document(harness.scope, index, A))), pytest.raises(DocumentNotFound):
        await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(metadata={}))
    with inject(RacingWriters(lambda: rival.deleter.delete_index(harness.scope, index))), pytest.raises(IndexNotFound):
        await harness.rag.writer.patch(harness.scope, index, DocumentId("b"), DocumentPatch(text="neu"))
    assert not (await read_manifest(harness.scope.store, index)).exists


async def test_two_concurrent_patches_of_one_document_both_take_effect(harness: RagHarness, index: IndexId) -> None:
    """One patches the text, the other the metadata."""
    await append_two(harness, index)
    rival = harness.cold()
    with inject(RacingWriters(lambda: rival.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": 2})))):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    assert (answer.text, answer.metadata) == ("neu", {"n": 2})
    assert (await describe_index(harness.scope, index)).version == 3


@pytest.mark.parametrize("first_patch", [DocumentPatch(metadata={"x": 1}), DocumentPatch(text="anders")])
@pytest.mark.parametrize("patch", [DocumentPatch(metadata={"n": 2}), DocumentPatch(text="neu")])
async def test_a_patch_that_lost_a_race_is_not_older_than_the_winner(
    harness: RagHarness, index: IndexId, patch: DocumentPatch, first_patch: DocumentPatch
) -> None:
    """This holds even if the row is the same and its segment is in the bucket."""
    before = await append_two(harness, index)
    rival = harness.cold()
    winners: list[Document] = []

    async def patch_first() -> None:
        await asyncio.sleep(0.003)
        winners.append(await rival.writer.patch(harness.scope, index, A, first_patch))

    with inject(RacingWriters(patch_first)):
        answer = await harness.rag.writer.patch(harness.scope, index, A, patch)
    times = [before.updated_at, *(document.updated_at for document in winners), answer.updated_at]
    assert times == sorted(times)
    assert len({*times[:-1]}) == 2
    assert answer.created_at == before.created_at
    assert await harness.cold().reader.document(harness.scope, index, A) == answer


async def test_a_writer_with_a_slow_clock_does_not_decrease_the_times_of_documents(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append_two(harness, index)
    await asyncio.sleep(0.002)
    before = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": 1}))
    real_time = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: real_time() - 60 * 10**9)
    patched = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": 2}))
    await harness.rag.writer.append(harness.scope, index, [NewDocument(id="a", text="neu")])
    appended = await harness.rag.reader.document(harness.scope, index, A)
    assert before.updated_at == patched.updated_at == appended.updated_at
    assert before.created_at == patched.created_at == appended.created_at < before.updated_at


async def test_many_patches_leave_few_segments(harness: RagHarness, index: IndexId) -> None:
    await append_two(harness, index)
    for number in range(70):
        await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": number}))
    manifest = await read_manifest(harness.scope.store, index)
    assert manifest.doc_count == 2
    assert len(manifest.segments) <= 2
    assert await score_of(harness, index, "eins") == 1.0


async def test_a_patch_in_a_large_segment_reads_only_one_text_and_one_vector(harness: RagHarness, index: IndexId) -> None:
    texts = [NewDocument(id=f"d{number:03}", text=f"{number} {'x' * 8000}") for number in range(64)]
    await harness.rag.writer.append(harness.scope, index, texts)
    with inject(FaultPlan()) as plan:
        await harness.cold().writer.patch(harness.scope, index, DocumentId("d017"), DocumentPatch(metadata={"n": 1}))
    reads = [call.parameters for call in plan.calls if call.operation == "GetObject"]
    assert all("Range" in read for read in reads if str(read["Key"]).endswith("docs.jsonl"))
    (row,) = [read["Range"] for read in reads if str(read["Key"]).endswith("vectors.npy")]
    assert row == f"bytes={128 + 17 * 4 * DIMENSIONS}-{127 + 18 * 4 * DIMENSIONS}"
    stored = await harness.cold().reader.document(harness.scope, index, DocumentId("d017"))
    assert (stored.text, stored.metadata) == (texts[17].text, {"n": 1})


@pytest.mark.parametrize("warm", [True, False], ids=["cached", "not cached"])
async def test_a_patch_of_metadata_keeps_a_vector_from_any_block(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch, *, warm: bool
) -> None:
    monkeypatch.setattr("spass.rag.index.objects.BLOCK_BYTES", 3 * 4 * DIMENSIONS)  # three rows
    await harness.rag.writer.append(
        harness.scope, index, documents(*((f"d{number:02}", f"text {number}") for number in range(11)))
    )
    for number in (0, 2, 3, 7, 10):
        name = DocumentId(f"d{number:02}")
        before = await _scores(harness, index, f"text {number}")
        worker = harness.cold()
        if warm:
            await worker.reader.query(harness.scope, index, "x", 1)
        await worker.writer.patch(harness.scope, index, name, DocumentPatch(metadata={"n": number}))
        assert await _scores(harness, index, f"text {number}") == before


async def _scores(harness: RagHarness, index: IndexId, query: str) -> dict[str, float]:
    return {hit.id: hit.score for hit in (await harness.cold().reader.query(harness.scope, index, query, 50)).results}
