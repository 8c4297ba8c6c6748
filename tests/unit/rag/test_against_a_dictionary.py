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
    """What the index must be. ``listed`` are all paths that any version listed."""

    documents: dict[str, NewDocument] | None = None
    version: int = 0
    created: dict[str, str] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)

    def best(self, query: str, top_k: int) -> list[tuple[str, float]]:
        scores = [(name, cosine(query, document.text)) for name, document in (self.documents or {}).items()]
        return sorted(scores, key=lambda pair: (-pair[1], pair[0]))[:top_k]


def cosine(left: str, right: str) -> float:
    a, b = normalise(np.array([vector_of(left), vector_of(right)], np.float32))
    return round(max(-1.0, min(1.0, math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True)))), 6)


async def apply(harness: RagHarness, rag: Rag, model: Model, step: tuple[str, object]) -> None:
    match step:
        case ("append", list() as batch):
            answer = await rag.writer.append(harness.scope, INDEX, batch)
            held = model.documents or {}
            assert answer.replaced == sum(document.id in held for document in batch)
            model.documents = held | {document.id: document for document in batch}
            model.version += 1
            assert (answer.doc_count, answer.version) == (len(model.documents), model.version)
        case ("replace", list() as batch):
            answer = await rag.writer.replace(harness.scope, INDEX, batch)
            assert answer.replaced == len(model.documents or {})
            model.documents = {document.id: document for document in batch}
            model.created.clear()
            model.version += 1
            assert (answer.doc_count, answer.version) == (len(batch), model.version)
        case ("delete", str() as name):
            deleted = await rag.deleter.delete_document(harness.scope, INDEX, DocumentId(name))
            there = name in (model.documents or {})
            assert deleted is there
            if there and model.documents:
                del model.documents[name]
                model.created.pop(name, None)
                model.version += 1
        case _:
            deleted = await rag.deleter.delete_index(harness.scope, INDEX)
            assert deleted is (model.documents is not None)
            model.version += model.documents is not None
            model.documents = None
            model.created.clear()


def paths(manifest: Manifest) -> set[str]:
    """What the version in force lists: its generation, the segments, their bitmaps."""
    segments = {f"{manifest.generation}/{segment.id}": segment for segment in manifest.segments}
    bitmaps = {f"{path}/{segment.bitmap_object}" for path, segment in segments.items() if segment.bitmap_object}
    return {manifest.generation, *segments, *bitmaps} if manifest.exists else set()


def within(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


async def retired_is_what_is_listed_no_more(harness: RagHarness, model: Model) -> None:
    """A sweep may delete what is retired, and it finds there whatever no version lists any more."""
    manifest = await read_manifest(harness.scope.store, INDEX)
    retired, listed = {entry.path for entry in manifest.garbage}, paths(manifest)
    model.listed |= listed
    assert [path for path in listed if within(path, retired)] == [], "what is in use will not be swept"
    assert [path for path in model.listed - listed if not within(path, retired)] == [], "all that is out of use will be"
    assert all(abs(entry.removed_at - now_s()) < 60 for entry in manifest.garbage)


async def agree(harness: RagHarness, rag: Rag, model: Model, query: str, top_k: int) -> None:
    await retired_is_what_is_listed_no_more(harness, model)
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
    stored = {found.id: (found.text, found.metadata) for found in page.documents}
    assert stored == {name: (document.text, document.metadata) for name, document in model.documents.items()}
    for found in page.documents:
        assert model.created.setdefault(found.id, found.created_at) == found.created_at <= found.updated_at
    for name in NAMES:
        try:
            assert (await rag.reader.document(harness.scope, INDEX, DocumentId(name))).text == model.documents[name].text
        except DocumentNotFound:
            assert name not in model.documents


six = [NewDocument(id=name, text=f"a{name}") for name in NAMES[:6]]
few = settings(max_examples=max(15, settings().max_examples // 10))


@few
@given(
    st.lists(st.tuples(steps, st.integers(0, 1)), min_size=1, max_size=12),
    texts,
    st.integers(1, 15),
    st.booleans(),
)
@example([(("append", six), 0), (("delete", "d0"), 1), (("delete", "d1"), 0)], "ab", 5, True)  # a bitmap follows a bitmap
def test_an_index_is_a_dictionary_that_can_be_searched(
    aws: Aws, script: list[tuple[tuple[str, object], int]], query: str, top_k: int, dead_in_objects: bool
) -> None:
    async def run() -> None:
        harness = RagHarness(aws)
        workers = [harness.cold(), harness.cold(budget=500)]
        model = Model()
        for step, worker in script:
            await apply(harness, workers[worker], model, step)
            await agree(harness, workers[1 - worker], model, query, top_k)

    with pytest.MonkeyPatch.context() as patch:
        if dead_in_objects:
            patch.setattr("spass.rag.write.deleted_rows.MAX_INLINE_BITMAP_BYTES", 0)
        asyncio.run(run())


@few
@given(
    st.lists(steps, max_size=4),
    st.lists(st.tuples(steps, st.lists(steps, max_size=3)), min_size=1, max_size=3),
    st.booleans(),
)
def test_a_step_that_others_overtake_is_as_if_it_came_after_them(
    aws: Aws,
    prepared: list[tuple[str, object]],
    script: list[tuple[tuple[str, object], list[tuple[str, object]]]],
    dead_in_objects: bool,
) -> None:
    async def run() -> None:
        harness = RagHarness(aws)
        worker, rival = harness.cold(), harness.cold(budget=500)
        model = Model()

        async def step_of_rival(step: tuple[str, object]) -> None:
            await apply(harness, rival, model, step)
            await agree(harness, rival, model, "ab", 5)

        for step in prepared:
            await step_of_rival(step)
        for step, rivals in script:
            with inject(RacingWriters(*(partial(step_of_rival, other) for other in rivals))):
                await apply(harness, worker, model, step)
            await agree(harness, rival, model, "ab", 5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spass.aws.swap._MAX_BACKOFF_SECONDS", 0)
        if dead_in_objects:
            patch.setattr("spass.rag.write.deleted_rows.MAX_INLINE_BITMAP_BYTES", 0)
        asyncio.run(run())
