"""PATCH of a document: what changes, what stays, what it costs, and what other writers may do meanwhile."""

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
from spass.rag.index.answers import Document
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.rag.index.manifest import read_manifest
from spass.testing.faults import FaultPlan, inject
from tests.unit.rag.conftest import DIMENSIONS, RacingWriters, RagHarness, config_with, documents

pytestmark = pytest.mark.anyio

A = DocumentId("a")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.aws.swap._MAX_BACKOFF_SECONDS", 0)


async def begun(harness: RagHarness, index: IndexId) -> Document:
    """An index of two documents, and the one that is to be patched."""
    first = NewDocument(id="a", text="eins", metadata={"n": 1, "kept": True})
    await harness.rag.writer.append(harness.scope, index, [first, NewDocument(id="b", text="zwei")])
    harness.calls.asked.clear()
    return await harness.rag.reader.document(harness.scope, index, A)


async def score_of(harness: RagHarness, index: IndexId, query: str) -> float:
    """How near document ``a`` is to ``query`` for a worker that has nothing in memory."""
    answer = await harness.cold().reader.query(harness.scope, index, query, 50)
    return next(hit.score for hit in answer.results if hit.id == A)


async def test_a_new_text_is_embedded_and_the_metadata_stays(harness: RagHarness, index: IndexId) -> None:
    before = await begun(harness, index)
    await asyncio.sleep(0.002)
    answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="etwas ganz anderes"))
    assert (answer.text, answer.metadata) == ("etwas ganz anderes", {"n": 1, "kept": True})
    assert answer.created_at == before.created_at
    assert answer.updated_at > before.updated_at
    assert harness.calls.asked == ["etwas ganz anderes"]
    assert await harness.cold().reader.document(harness.scope, index, A) == answer
    assert await score_of(harness, index, "etwas ganz anderes") == 1.0
    described = await describe_index(harness.scope, index)
    assert (described.version, described.doc_count) == (2, 2)
    assert described.total_text_bytes == len("etwas ganz anderes") + len("zwei")


@pytest.mark.parametrize("patch", [DocumentPatch(metadata={"m": None}), DocumentPatch(text="eins", metadata={"m": None})])
async def test_metadata_is_replaced_whole_and_no_model_is_called(
    harness: RagHarness, index: IndexId, patch: DocumentPatch
) -> None:
    before = await begun(harness, index)
    answer = await harness.rag.writer.patch(harness.scope, index, A, patch)
    assert (answer.text, answer.metadata, answer.created_at) == ("eins", {"m": None}, before.created_at)
    assert harness.calls.asked == []
    assert harness.scope.tally.total.sub_calls == 0
    assert await harness.cold().reader.document(harness.scope, index, A) == answer
    assert await score_of(harness, index, "eins") == 1.0


async def test_a_patch_that_says_what_stands_already_is_a_write_like_any_other(harness: RagHarness, index: IndexId) -> None:
    before = await begun(harness, index)
    answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="eins"))
    assert (answer.text, answer.metadata) == (before.text, before.metadata)
    assert harness.calls.asked == []
    assert (await describe_index(harness.scope, index)).version == 2


async def test_a_document_of_a_file_is_patched_under_its_own_id(harness: RagHarness, index: IndexId) -> None:
    chunk = NewDocument.model_construct(id="notes.md#7", text="eins", metadata={"source": "notes.md"})
    await harness.rag.writer.append(harness.scope, index, [chunk])
    answer = await harness.rag.writer.patch(harness.scope, index, DocumentId("notes.md#7"), DocumentPatch(text="sieben"))
    assert (answer.id, answer.text, answer.metadata) == ("notes.md#7", "sieben", {"source": "notes.md"})


async def test_what_is_not_there_is_not_patched(harness: RagHarness, index: IndexId) -> None:
    with pytest.raises(IndexNotFound):
        await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    await begun(harness, index)
    with pytest.raises(DocumentNotFound):
        await harness.rag.writer.patch(harness.scope, index, DocumentId("c"), DocumentPatch(text="neu"))
    assert harness.calls.asked == []
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
    before = await begun(harness, index)
    with pytest.raises(error):
        await harness.rag.writer.patch(harness.scope, index, A, patch)
    assert harness.calls.asked == []
    assert await harness.rag.reader.document(harness.scope, index, A) == before


async def test_another_model_in_force_matters_only_to_a_new_text(harness: RagHarness, index: IndexId) -> None:
    await begun(harness, index)
    other = harness.cold(config_with("another", 4))
    with pytest.raises(EmbeddingModelMismatch):
        await other.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    answer = await other.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": 2}))
    assert answer.metadata == {"n": 2}
    assert harness.calls.asked == []
    assert await score_of(harness, index, "eins") == 1.0


async def test_a_new_text_is_embedded_once_however_often_it_is_overtaken(harness: RagHarness, index: IndexId) -> None:
    await begun(harness, index)
    rival = harness.cold()
    plan = RacingWriters(*(lambda n=n: rival.writer.append(harness.scope, index, documents((f"r{n}", "x"))) for n in range(5)))
    with inject(plan):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    assert harness.calls.asked.count("neu") == 1
    assert await rival.reader.document(harness.scope, index, A) == answer
    assert (await describe_index(harness.scope, index)).doc_count == 7


async def test_metadata_lands_on_the_text_that_another_writer_put_meanwhile(harness: RagHarness, index: IndexId) -> None:
    """And so does the vector: it is that of the text that is stored."""
    await begun(harness, index)
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
async def test_metadata_that_only_python_takes_for_the_same_is_not(harness: RagHarness, index: IndexId, rivals: int) -> None:
    await begun(harness, index)
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


async def test_a_text_that_was_the_stored_one_until_another_writer_came_is_embedded(harness: RagHarness, index: IndexId) -> None:
    await begun(harness, index)
    rival = harness.cold()
    with inject(RacingWriters(lambda: rival.writer.append(harness.scope, index, documents(("a", "anders"))))):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="eins"))
    assert answer.text == "eins"
    assert harness.calls.asked == ["anders", "eins"]
    assert await score_of(harness, index, "eins") == 1.0


async def test_a_new_text_that_another_writer_puts_first_takes_that_writers_vector(harness: RagHarness, index: IndexId) -> None:
    await begun(harness, index)
    rival = harness.cold()
    same = NewDocument(id="a", text="neu", metadata={"x": 1})
    with inject(RacingWriters(lambda: rival.writer.append(harness.scope, index, [same]))):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    assert (answer.text, answer.metadata) == ("neu", {"x": 1})
    assert await score_of(harness, index, "neu") == 1.0


async def test_a_document_deleted_meanwhile_is_not_brought_back(harness: RagHarness, index: IndexId) -> None:
    await begun(harness, index)
    rival = harness.cold()
    with inject(RacingWriters(lambda: rival.deleter.delete_document(harness.scope, index, A))), pytest.raises(DocumentNotFound):
        await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(metadata={}))
    with inject(RacingWriters(lambda: rival.deleter.delete_index(harness.scope, index))), pytest.raises(IndexNotFound):
        await harness.rag.writer.patch(harness.scope, index, DocumentId("b"), DocumentPatch(text="neu"))
    assert not (await read_manifest(harness.scope.store, index)).exists


async def test_two_patches_of_one_document_both_hold(harness: RagHarness, index: IndexId) -> None:
    """One of the text, one of the metadata: neither takes the other back."""
    await begun(harness, index)
    rival = harness.cold()
    with inject(RacingWriters(lambda: rival.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": 2})))):
        answer = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(text="neu"))
    assert (answer.text, answer.metadata) == ("neu", {"n": 2})
    assert (await describe_index(harness.scope, index)).version == 3


@pytest.mark.parametrize("change", [DocumentPatch(metadata={"x": 1}), DocumentPatch(text="anders")])
@pytest.mark.parametrize("patch", [DocumentPatch(metadata={"n": 2}), DocumentPatch(text="neu")])
async def test_a_patch_that_was_overtaken_is_no_earlier_than_what_overtook_it(
    harness: RagHarness, index: IndexId, patch: DocumentPatch, change: DocumentPatch
) -> None:
    """Also where the row comes out the same and its segment was put already."""
    before = await begun(harness, index)
    rival = harness.cold()
    overtook: list[Document] = []

    async def faster() -> None:
        await asyncio.sleep(0.003)
        overtook.append(await rival.writer.patch(harness.scope, index, A, change))

    with inject(RacingWriters(faster)):
        answer = await harness.rag.writer.patch(harness.scope, index, A, patch)
    times = [before.updated_at, *(document.updated_at for document in overtook), answer.updated_at]
    assert times == sorted(times)
    assert len({*times[:-1]}) == 2
    assert answer.created_at == before.created_at
    assert await harness.cold().reader.document(harness.scope, index, A) == answer


async def test_a_clock_that_is_behind_turns_no_time_back(
    harness: RagHarness, index: IndexId, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(harness, index)
    await asyncio.sleep(0.002)
    before = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": 1}))
    late = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: late() - 60 * 10**9)
    patched = await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": 2}))
    await harness.rag.writer.append(harness.scope, index, [NewDocument(id="a", text="neu")])
    appended = await harness.rag.reader.document(harness.scope, index, A)
    assert before.updated_at == patched.updated_at == appended.updated_at
    assert before.created_at == patched.created_at == appended.created_at < before.updated_at


async def test_many_patches_stay_within_a_few_segments(harness: RagHarness, index: IndexId) -> None:
    await begun(harness, index)
    for number in range(70):
        await harness.rag.writer.patch(harness.scope, index, A, DocumentPatch(metadata={"n": number}))
    manifest = await read_manifest(harness.scope.store, index)
    assert manifest.doc_count == 2
    assert len(manifest.segments) <= 2
    assert await score_of(harness, index, "eins") == 1.0


async def test_a_patch_in_a_large_segment_reads_neither_its_texts_nor_its_vectors_whole(
    harness: RagHarness, index: IndexId
) -> None:
    texts = [NewDocument(id=f"d{number:03}", text=f"{number} {'x' * 8000}") for number in range(64)]
    await harness.rag.writer.append(harness.scope, index, texts)
    with inject(FaultPlan()) as plan:
        await harness.cold().writer.patch(harness.scope, index, DocumentId("d017"), DocumentPatch(metadata={"n": 1}))
    reads = [call.parameters for call in plan.calls if call.operation == "GetObject"]
    assert all("Range" in read for read in reads if str(read["Key"]).endswith("docs.jsonl"))
    (row,) = [read["Range"] for read in reads if str(read["Key"]).endswith("vectors.npy")]
    assert row == f"bytes={128 + 17 * 4 * DIMENSIONS}-{127 + 18 * 4 * DIMENSIONS}"
    found = await harness.cold().reader.document(harness.scope, index, DocumentId("d017"))
    assert (found.text, found.metadata) == (texts[17].text, {"n": 1})


@pytest.mark.parametrize("warm", [True, False], ids=["held", "not held"])
async def test_a_vector_is_copied_out_of_any_block_of_a_segment(
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
