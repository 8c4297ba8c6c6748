"""Random writes, reads and queries by several workers, against a dictionary."""

import asyncio
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spass.aws.clients import Aws
from spass.core.errors import DocumentNotFound, IndexNotFound
from spass.core.ids import DocumentId, IndexId
from spass.rag.documents import NewDocument
from spass.rag.embedding import normalised
from spass.rag.service import Rag
from tests.unit.rag.conftest import World, vector_of

INDEX = IndexId("berlin")
NAMES = [f"d{n}" for n in range(12)]

batches = st.lists(
    st.builds(
        NewDocument,
        id=st.sampled_from(NAMES),
        text=st.text("abü ", min_size=1, max_size=6) | st.just("zero"),
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
    """What the index must be."""

    documents: dict[str, NewDocument] | None = None
    version: int = 0
    created: dict[str, str] = field(default_factory=dict)

    def best(self, query: str, top_k: int) -> list[tuple[str, float]]:
        scores = [(name, cosine(query, document.text)) for name, document in (self.documents or {}).items()]
        return sorted(scores, key=lambda pair: (-pair[1], pair[0]))[:top_k]


def cosine(left: str, right: str) -> float:
    a, b = normalised(np.array([vector_of(left), vector_of(right)], np.float32))
    return round(max(-1.0, min(1.0, math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True)))), 6)


async def apply(world: World, rag: Rag, model: Model, step: tuple[str, object]) -> None:
    match step:
        case ("append", list() as batch):
            held = model.documents or {}
            answer = await rag.append(world.scope, INDEX, batch)
            assert answer.replaced == sum(document.id in held for document in batch)
            model.documents = held | {document.id: document for document in batch}
            model.version += 1
            assert (answer.doc_count, answer.version) == (len(model.documents), model.version)
        case ("replace", list() as batch):
            answer = await rag.replace(world.scope, INDEX, batch)
            assert answer.replaced == len(model.documents or {})
            model.documents = {document.id: document for document in batch}
            model.created.clear()
            model.version += 1
            assert (answer.doc_count, answer.version) == (len(batch), model.version)
        case ("delete", str() as name):
            there = name in (model.documents or {})
            assert await rag.delete_document(world.scope, INDEX, DocumentId(name)) is there
            if there and model.documents:
                del model.documents[name]
                model.created.pop(name, None)
                model.version += 1
        case _:
            assert await rag.delete_index(world.scope, INDEX) is (model.documents is not None)
            model.version += model.documents is not None
            model.documents = None
            model.created.clear()


async def agree(world: World, rag: Rag, model: Model, query: str, top_k: int) -> None:
    if model.documents is None:
        for read in (rag.describe(world.scope, INDEX), rag.query(world.scope, INDEX, query, top_k)):
            try:
                await read
            except IndexNotFound:
                continue
            raise AssertionError("a deleted index answered")
        return
    summary = await rag.describe(world.scope, INDEX)
    texts = [document.text for document in model.documents.values()]
    assert (summary.doc_count, summary.version) == (len(texts), model.version)
    assert summary.total_text_bytes == sum(len(text.encode()) for text in texts)
    answer = await rag.query(world.scope, INDEX, query, top_k)
    assert [(hit.id, hit.score) for hit in answer.results] == model.best(query, top_k)
    assert answer.version == model.version
    page = await rag.documents(world.scope, INDEX)
    stored = {found.id: (found.text, found.metadata) for found in page.documents}
    assert stored == {name: (document.text, document.metadata) for name, document in model.documents.items()}
    for found in page.documents:
        assert model.created.setdefault(found.id, found.created_at) == found.created_at <= found.updated_at
    for name in NAMES:
        try:
            assert (await rag.document(world.scope, INDEX, DocumentId(name))).text == model.documents[name].text
        except DocumentNotFound:
            assert name not in model.documents


@settings(max_examples=max(15, settings().max_examples // 10))
@given(
    st.lists(st.tuples(steps, st.integers(0, 1)), min_size=1, max_size=12),
    st.text("abü ", min_size=1, max_size=6),
    st.integers(1, 15),
    st.booleans(),
)
def test_an_index_is_a_dictionary_that_can_be_searched(
    aws: Aws, script: list[tuple[tuple[str, object], int]], query: str, top_k: int, dead_in_objects: bool
) -> None:
    async def run() -> None:
        world = World(aws)
        workers = [world.cold(), world.cold(budget=500)]
        model = Model()
        for step, worker in script:
            await apply(world, workers[worker], model, step)
            await agree(world, workers[1 - worker], model, query, top_k)

    with pytest.MonkeyPatch.context() as patch:
        if dead_in_objects:
            patch.setattr("spass.rag.kill.INLINE_DEAD_BYTES", 0)
        asyncio.run(run())
