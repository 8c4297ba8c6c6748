"""Random writes, reads and queries by several workers, against a dictionary."""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spass.aws.clients import Aws
from spass.core.errors import DocumentNotFound, IndexNotFound
from spass.core.ids import DocumentId, IndexId
from spass.core.time import now_s
from spass.rag.index.catalog import describe_index
from spass.rag.index.documents import NewDocument
from spass.rag.index.embedding import normalise
from spass.rag.index.manifest import Manifest, read_manifest
from spass.testing.faults import inject
from spass.tools.base import Rag
from tests.unit.rag.conftest import RacingWriters, RagHarness, vector_of

INDEX = IndexId("berlin")
NAMES = [f"d{n}" for n in range(12)]

texts = st.text("abü ", min_size=1, max_size=6).filter(str.strip)
batches = st.lists(
    st.builds(
        NewDocument,
        id=st.sampled_from(NAMES),
        text=texts | st.just("zero"),
        metadata=st.dictionaries(st.sampled_from("kl"), st.integers(0, 3), max_size=2),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda document: document.id,
)
steps = st.one_of(
    st.tuples(st.just("append"), batches),
    st.tuples(st.just("append"), batches),
    st.tuples(st.just("replace"), batches),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("delete-index"), st.none()),
)


@dataclass(slots=True)
class Model:
    """The expected state of the index. ``listed`` are all paths that any version listed."""

    documents: dict[str, NewDocument] | None = None
    version: int = 0
    creation_times: dict[str, str] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)

    def best(self, query: str, top_k: int) -> list[tuple[str, float]]:
        scores = [(name, cosine(query, document.text)) for name, document in (self.documents or {}).items()]
        return sorted(scores, key=lambda pair: (-pair[1], pair[0]))[:top_k]


def cosine(left: str, right: str) -> float:
    a, b = normalise(np.array([vector_of(left), vector_of(right)], np.float32))
    return round(max(-1.0, min(1.0, math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True)))), 6)


async def take_step(harness: RagHarness, rag: Rag, model: Model, step: tuple[str, object]) -> None:
    """Apply a step to the index and to the model, and assert that the answer agrees with the model."""
    match step:
        case ("append", list() as batch):
            answer = await rag.writer.append(harness.scope, INDEX, batch)
            before = model.documents or {}
            assert answer.replaced == sum(document.id in before for document in batch)
            model.documents = before | {document.id: document for document in batch}
            model.version += 1
            assert (answer.doc_count, answer.version) == (len(model.documents), model.version)
        case ("replace", list() as batch):
            answer = await rag.writer.replace(harness.scope, INDEX, batch)
            assert answer.replaced == len(model.documents or {})
            model.documents = {document.id: document for document in batch}
            model.creation_times.clear()
            model.version += 1
            assert (answer.doc_count, answer.version) == (len(batch), model.version)
        case ("delete", str() as name):
            deleted = await rag.deleter.delete_document(harness.scope, INDEX, DocumentId(name))
            exists = name in (model.documents or {})
            assert deleted is exists
            if exists and model.documents:
                del model.documents[name]
                model.creation_times.pop(name, None)
                model.version += 1
        case _:
            deleted = await rag.deleter.delete_index(harness.scope, INDEX)
            assert deleted is (model.documents is not None)
            model.version += model.documents is not None
            model.documents = None
            model.creation_times.clear()


def listed_paths(manifest: Manifest) -> set[str]:
    """Return the paths that the current version lists: its generation, its segments and their bitmaps."""
    segments = {f"{manifest.generation}/{segment.id}": segment for segment in manifest.segments}
    bitmaps = {f"{path}/{segment.bitmap_object}" for path, segment in segments.items() if segment.bitmap_object}
    return {manifest.generation, *segments, *bitmaps} if manifest.exists else set()


def is_in_any(path: str, folders: Iterable[str]) -> bool:
    """Return True if ``path`` is one of the folders or in one of them."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


async def check_garbage(harness: RagHarness, model: Model) -> None:
    """Check that the garbage is exactly what earlier versions listed and the current one does not list."""
    manifest = await read_manifest(harness.scope.store, INDEX)
    garbage, listed = {entry.path for entry in manifest.garbage}, listed_paths(manifest)
    model.listed |= listed
    assert [path for path in listed if is_in_any(path, garbage)] == [], "a listed path is garbage"
    assert [path for path in model.listed - listed if not is_in_any(path, garbage)] == [], (
        "a path that is not listed is not garbage"
    )
    assert all(abs(entry.removed_at - now_s()) < 60 for entry in manifest.garbage)


async def check(harness: RagHarness, rag: Rag, model: Model, query: str, top_k: int) -> None:
    """Assert that the index, its documents and its answers equal those of the model."""
    await check_garbage(harness, model)
    if model.documents is None:
        for read in (describe_index(harness.scope, INDEX), rag.reader.query(harness.scope, INDEX, query, top_k)):
            try:
                await read
            except IndexNotFound:
                continue
            raise AssertionError("a deleted index answered")
        return
    summary = await describe_index(harness.scope, INDEX)
    texts = [document.text for document in model.documents.values()]
    assert (summary.doc_count, summary.version) == (len(texts), model.version)
    assert summary.total_text_bytes == sum(len(text.encode()) for text in texts)
    answer = await rag.reader.query(harness.scope, INDEX, query, top_k)
    assert [(hit.id, hit.score) for hit in answer.results] == model.best(query, top_k)
    assert answer.version == model.version
    page = await rag.reader.documents(harness.scope, INDEX)
    stored = {document.id: (document.text, document.metadata) for document in page.documents}
    assert stored == {name: (document.text, document.metadata) for name, document in model.documents.items()}
    for document in page.documents:
        assert model.creation_times.setdefault(document.id, document.created_at) == document.created_at <= document.updated_at
    for name in NAMES:
        try:
            assert (await rag.reader.document(harness.scope, INDEX, DocumentId(name))).text == model.documents[name].text
        except DocumentNotFound:
            assert name not in model.documents


six_documents = [NewDocument(id=name, text=f"a{name}") for name in NAMES[:6]]
few_examples = settings(max_examples=max(15, settings().max_examples // 10))


@few_examples
@given(
    st.lists(st.tuples(steps, st.integers(0, 1)), min_size=1, max_size=12),
    texts,
    st.integers(1, 15),
    st.booleans(),
)
@example(
    [(("append", six_documents), 0), (("delete", "d0"), 1), (("delete", "d1"), 0)], "ab", 5, True
)  # the second bitmap replaces the first one
def test_an_index_answers_like_a_dictionary(
    aws: Aws, script: list[tuple[tuple[str, object], int]], query: str, top_k: int, bitmaps_in_objects: bool
) -> None:
    async def run() -> None:
        harness = RagHarness(aws)
        workers = [harness.cold(), harness.cold(budget=500)]
        model = Model()
        for step, worker in script:
            await take_step(harness, workers[worker], model, step)
            await check(harness, workers[1 - worker], model, query, top_k)

    with pytest.MonkeyPatch.context() as patch:
        if bitmaps_in_objects:
            patch.setattr("spass.rag.index.locations.MAX_INLINE_BITMAP_BYTES", 0)
        asyncio.run(run())


@few_examples
@given(
    st.lists(steps, max_size=4),
    st.lists(st.tuples(steps, st.lists(steps, max_size=3)), min_size=1, max_size=3),
    st.booleans(),
)
def test_a_step_that_loses_a_race_takes_effect_after_the_winner(
    aws: Aws,
    first_steps: list[tuple[str, object]],
    script: list[tuple[tuple[str, object], list[tuple[str, object]]]],
    bitmaps_in_objects: bool,
) -> None:
    async def run() -> None:
        harness = RagHarness(aws)
        worker, rival = harness.cold(), harness.cold(budget=500)
        model = Model()

        async def take_rival_step(step: tuple[str, object]) -> None:
            await take_step(harness, rival, model, step)
            await check(harness, rival, model, "ab", 5)

        for step in first_steps:
            await take_rival_step(step)
        for step, rivals in script:
            with inject(RacingWriters(*(partial(take_rival_step, other) for other in rivals))):
                await take_step(harness, worker, model, step)
            await check(harness, rival, model, "ab", 5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.store.swap._MAX_BACKOFF_SECONDS", 0)
        if bitmaps_in_objects:
            patch.setattr("spass.rag.index.locations.MAX_INLINE_BITMAP_BYTES", 0)
        asyncio.run(run())
