"""PATCH of a document: what changes, what stays, what it costs, and what other writers may do meanwhile."""

import asyncio
import json
import time

import pytest

from spass.aws.faults import FaultPlan, inject
from spass.core.errors import (
    DocumentNotFound,
    DocumentTooLarge,
    EmbeddingModelMismatch,
    IndexNotFound,
    InvalidRequest,
    SpassError,
)
from spass.core.ids import DocumentId, IndexId
from spass.rag.answers import Document
from spass.rag.documents import DocumentPatch, NewDocument
from spass.rag.swap import read_manifest
from tests.unit.rag.conftest import DIMENSIONS, Overtaken, World, config_with, documents

pytestmark = pytest.mark.anyio

A = DocumentId("a")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spass.rag.swap._LONGEST_PAUSE", 0)


async def begun(world: World, index: IndexId) -> Document:
    """An index of two documents, and the one that is to be patched."""
    first = NewDocument(id="a", text="eins", metadata={"n": 1, "kept": True})
    await world.rag.append(world.scope, index, [first, NewDocument(id="b", text="zwei")])
    world.calls.asked.clear()
    return await world.rag.document(world.scope, index, A)


async def score_of(world: World, index: IndexId, query: str) -> float:
    """How near document ``a`` is to ``query`` for a worker that has nothing in memory."""
    answer = await world.cold().query(world.scope, index, query, 50)
    return next(hit.score for hit in answer.results if hit.id == A)


async def test_a_new_text_is_embedded_and_the_metadata_stays(world: World, index: IndexId) -> None:
    before = await begun(world, index)
    await asyncio.sleep(0.002)
    answer = await world.rag.patch(world.scope, index, A, DocumentPatch(text="etwas ganz anderes"))
    assert (answer.text, answer.metadata) == ("etwas ganz anderes", {"n": 1, "kept": True})
    assert answer.created_at == before.created_at
    assert answer.updated_at > before.updated_at
    assert world.calls.asked == ["etwas ganz anderes"]
    assert await world.cold().document(world.scope, index, A) == answer
    assert await score_of(world, index, "etwas ganz anderes") == 1.0
    described = await world.rag.describe(world.scope, index)
    assert (described.version, described.doc_count) == (2, 2)
    assert described.total_text_bytes == len("etwas ganz anderes") + len("zwei")


@pytest.mark.parametrize("patch", [DocumentPatch(metadata={"m": None}), DocumentPatch(text="eins", metadata={"m": None})])
async def test_metadata_is_replaced_whole_and_no_model_is_called(world: World, index: IndexId, patch: DocumentPatch) -> None:
    before = await begun(world, index)
    answer = await world.rag.patch(world.scope, index, A, patch)
    assert (answer.text, answer.metadata, answer.created_at) == ("eins", {"m": None}, before.created_at)
    assert world.calls.asked == []
    assert world.scope.tally.total.sub_calls == 0
    assert await world.cold().document(world.scope, index, A) == answer
    assert await score_of(world, index, "eins") == 1.0


async def test_a_patch_that_says_what_stands_already_is_a_write_like_any_other(world: World, index: IndexId) -> None:
    before = await begun(world, index)
    answer = await world.rag.patch(world.scope, index, A, DocumentPatch(text="eins"))
    assert (answer.text, answer.metadata) == (before.text, before.metadata)
    assert world.calls.asked == []
    assert (await world.rag.describe(world.scope, index)).version == 2


async def test_a_document_of_a_file_is_patched_under_its_own_id(world: World, index: IndexId) -> None:
    chunk = NewDocument.model_construct(id="notes.md#7", text="eins", metadata={"source": "notes.md"})
    await world.rag.append(world.scope, index, [chunk])
    answer = await world.rag.patch(world.scope, index, DocumentId("notes.md#7"), DocumentPatch(text="sieben"))
    assert (answer.id, answer.text, answer.metadata) == ("notes.md#7", "sieben", {"source": "notes.md"})


async def test_what_is_not_there_is_not_patched(world: World, index: IndexId) -> None:
    with pytest.raises(IndexNotFound):
        await world.rag.patch(world.scope, index, A, DocumentPatch(text="neu"))
    await begun(world, index)
    with pytest.raises(DocumentNotFound):
        await world.rag.patch(world.scope, index, DocumentId("c"), DocumentPatch(text="neu"))
    assert world.calls.asked == []
    assert (await world.rag.describe(world.scope, index)).version == 1


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        (DocumentPatch(text="ü" * 4097), DocumentTooLarge),
        (DocumentPatch(metadata={"k": "x" * 2048}), DocumentTooLarge),
        (DocumentPatch(metadata={"k": float("nan")}), InvalidRequest),
    ],
)
async def test_a_patch_over_a_limit_changes_nothing(
    world: World, index: IndexId, patch: DocumentPatch, error: type[SpassError]
) -> None:
    before = await begun(world, index)
    with pytest.raises(error):
        await world.rag.patch(world.scope, index, A, patch)
    assert world.calls.asked == []
    assert await world.rag.document(world.scope, index, A) == before


async def test_another_model_in_force_matters_only_to_a_new_text(world: World, index: IndexId) -> None:
    await begun(world, index)
    other = world.cold(config_with("another", 4))
    with pytest.raises(EmbeddingModelMismatch):
        await other.patch(world.scope, index, A, DocumentPatch(text="neu"))
    answer = await other.patch(world.scope, index, A, DocumentPatch(metadata={"n": 2}))
    assert answer.metadata == {"n": 2}
    assert world.calls.asked == []
    assert await score_of(world, index, "eins") == 1.0


async def test_a_new_text_is_embedded_once_however_often_it_is_overtaken(world: World, index: IndexId) -> None:
    await begun(world, index)
    rival = world.cold()
    plan = Overtaken(*(lambda n=n: rival.append(world.scope, index, documents((f"r{n}", "x"))) for n in range(5)))
    with inject(plan):
        answer = await world.rag.patch(world.scope, index, A, DocumentPatch(text="neu"))
    assert world.calls.asked.count("neu") == 1
    assert await rival.document(world.scope, index, A) == answer
    assert (await rival.describe(world.scope, index)).doc_count == 7


async def test_metadata_lands_on_the_text_that_another_writer_put_meanwhile(world: World, index: IndexId) -> None:
    """And so does the vector: it is that of the text that is stored."""
    await begun(world, index)
    rival = world.cold()
    plan = Overtaken(lambda: rival.append(world.scope, index, [NewDocument(id="a", text="anders", metadata={"x": 1})]))
    with inject(plan):
        answer = await world.rag.patch(world.scope, index, A, DocumentPatch(metadata={"n": 2}))
    assert (answer.text, answer.metadata) == ("anders", {"n": 2})
    assert await rival.document(world.scope, index, A) == answer
    assert await score_of(world, index, "anders") == 1.0
    assert await score_of(world, index, "eins") < 1.0


@pytest.mark.parametrize("rivals", [1, 2])
async def test_metadata_that_only_python_takes_for_the_same_is_not(world: World, index: IndexId, rivals: int) -> None:
    await begun(world, index)
    rival = world.cold()
    values: list[bool | float] = [True, 1.0]
    plan = Overtaken(
        *(
            lambda n=n: rival.patch(world.scope, index, A, DocumentPatch(metadata={"n": values[n], "kept": True}))
            for n in range(rivals)
        )
    )
    with inject(plan):
        answer = await world.rag.patch(world.scope, index, A, DocumentPatch(text="neu"))
    stored = await world.cold().document(world.scope, index, A)
    assert json.dumps(stored.metadata) == json.dumps(answer.metadata) == json.dumps({"n": values[rivals - 1], "kept": True})


async def test_a_text_that_was_the_stored_one_until_another_writer_came_is_embedded_after_all(
    world: World, index: IndexId
) -> None:
    await begun(world, index)
    rival = world.cold()
    with inject(Overtaken(lambda: rival.append(world.scope, index, documents(("a", "anders"))))):
        answer = await world.rag.patch(world.scope, index, A, DocumentPatch(text="eins"))
    assert answer.text == "eins"
    assert world.calls.asked == ["anders", "eins"]
    assert await score_of(world, index, "eins") == 1.0


async def test_a_new_text_that_another_writer_puts_first_takes_that_writers_vector(world: World, index: IndexId) -> None:
    await begun(world, index)
    rival = world.cold()
    same = NewDocument(id="a", text="neu", metadata={"x": 1})
    with inject(Overtaken(lambda: rival.append(world.scope, index, [same]))):
        answer = await world.rag.patch(world.scope, index, A, DocumentPatch(text="neu"))
    assert (answer.text, answer.metadata) == ("neu", {"x": 1})
    assert await score_of(world, index, "neu") == 1.0


async def test_a_document_deleted_meanwhile_is_not_brought_back(world: World, index: IndexId) -> None:
    await begun(world, index)
    rival = world.cold()
    with inject(Overtaken(lambda: rival.delete_document(world.scope, index, A))), pytest.raises(DocumentNotFound):
        await world.rag.patch(world.scope, index, A, DocumentPatch(metadata={}))
    with inject(Overtaken(lambda: rival.delete_index(world.scope, index))), pytest.raises(IndexNotFound):
        await world.rag.patch(world.scope, index, DocumentId("b"), DocumentPatch(text="neu"))
    assert not (await read_manifest(world.scope.store, index)).exists


async def test_two_patches_of_one_document_both_hold(world: World, index: IndexId) -> None:
    """One of the text, one of the metadata: neither takes the other back."""
    await begun(world, index)
    rival = world.cold()
    with inject(Overtaken(lambda: rival.patch(world.scope, index, A, DocumentPatch(metadata={"n": 2})))):
        answer = await world.rag.patch(world.scope, index, A, DocumentPatch(text="neu"))
    assert (answer.text, answer.metadata) == ("neu", {"n": 2})
    assert (await rival.describe(world.scope, index)).version == 3


@pytest.mark.parametrize("change", [DocumentPatch(metadata={"x": 1}), DocumentPatch(text="anders")])
@pytest.mark.parametrize("patch", [DocumentPatch(metadata={"n": 2}), DocumentPatch(text="neu")])
async def test_a_patch_that_was_overtaken_is_no_earlier_than_what_overtook_it(
    world: World, index: IndexId, patch: DocumentPatch, change: DocumentPatch
) -> None:
    """Also where the row comes out the same and its segment was put already."""
    before = await begun(world, index)
    rival = world.cold()
    overtook: list[Document] = []

    async def faster() -> None:
        await asyncio.sleep(0.003)
        overtook.append(await rival.patch(world.scope, index, A, change))

    with inject(Overtaken(faster)):
        answer = await world.rag.patch(world.scope, index, A, patch)
    times = [before.updated_at, *(document.updated_at for document in overtook), answer.updated_at]
    assert times == sorted(times)
    assert len({*times[:-1]}) == 2
    assert answer.created_at == before.created_at
    assert await world.cold().document(world.scope, index, A) == answer


async def test_a_clock_that_is_behind_turns_no_time_back(world: World, index: IndexId, monkeypatch: pytest.MonkeyPatch) -> None:
    await begun(world, index)
    await asyncio.sleep(0.002)
    before = await world.rag.patch(world.scope, index, A, DocumentPatch(metadata={"n": 1}))
    late = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: late() - 60 * 10**9)
    patched = await world.rag.patch(world.scope, index, A, DocumentPatch(metadata={"n": 2}))
    await world.rag.append(world.scope, index, [NewDocument(id="a", text="neu")])
    appended = await world.rag.document(world.scope, index, A)
    assert before.updated_at == patched.updated_at == appended.updated_at
    assert before.created_at == patched.created_at == appended.created_at < before.updated_at


async def test_many_patches_stay_within_a_few_segments(world: World, index: IndexId) -> None:
    await begun(world, index)
    for number in range(70):
        await world.rag.patch(world.scope, index, A, DocumentPatch(metadata={"n": number}))
    manifest = await read_manifest(world.scope.store, index)
    assert manifest.doc_count == 2
    assert len(manifest.segments) <= 2
    assert await score_of(world, index, "eins") == 1.0


async def test_a_patch_in_a_large_segment_reads_neither_its_texts_nor_its_vectors_whole(world: World, index: IndexId) -> None:
    texts = [NewDocument(id=f"d{number:03}", text=f"{number} {'x' * 8000}") for number in range(64)]
    await world.rag.append(world.scope, index, texts)
    with inject(FaultPlan()) as plan:
        await world.cold().patch(world.scope, index, DocumentId("d017"), DocumentPatch(metadata={"n": 1}))
    reads = [call.parameters for call in plan.calls if call.operation == "GetObject"]
    assert all("Range" in read for read in reads if str(read["Key"]).endswith("docs.jsonl"))
    (row,) = [read["Range"] for read in reads if str(read["Key"]).endswith("vectors.npy")]
    assert row == f"bytes={128 + 17 * 4 * DIMENSIONS}-{127 + 18 * 4 * DIMENSIONS}"
    found = await world.cold().document(world.scope, index, DocumentId("d017"))
    assert (found.text, found.metadata) == (texts[17].text, {"n": 1})


@pytest.mark.parametrize("warm", [True, False], ids=["held", "not held"])
async def test_a_vector_is_copied_out_of_any_block_of_a_segment(
    world: World, index: IndexId, monkeypatch: pytest.MonkeyPatch, *, warm: bool
) -> None:
    monkeypatch.setattr("spass.rag.objects.BLOCK_BYTES", 3 * 4 * DIMENSIONS)  # three rows
    await world.rag.append(world.scope, index, documents(*((f"d{number:02}", f"text {number}") for number in range(11))))
    for number in (0, 2, 3, 7, 10):
        name = DocumentId(f"d{number:02}")
        before = await _scores(world, index, f"text {number}")
        worker = world.cold()
        if warm:
            await worker.query(world.scope, index, "x", 1)
        await worker.patch(world.scope, index, name, DocumentPatch(metadata={"n": number}))
        assert await _scores(world, index, f"text {number}") == before


async def _scores(world: World, index: IndexId, query: str) -> dict[str, float]:
    return {hit.id: hit.score for hit in (await world.cold().query(world.scope, index, query, 50)).results}
