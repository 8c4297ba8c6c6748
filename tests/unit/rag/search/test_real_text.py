"""Queries over sentences of the project's documentation and of docstrings agree with brute force in float64."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import numpy.typing as npt
import pytest

from bench.corpus import docstring_sentences, document_sentences, embed
from spass.core.ids import IndexId, TenantId, random_suffix
from spass.rag.index.cache import ObjectCache
from spass.rag.index.ids import IdRow
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.segments import Rows, Vectors, json_line
from spass.rag.search.nearest_neighbors import VectorQuery, find_nearest
from spass.rag.write.upsert import put_segment
from spass.testing.aws import MemoryAws

pytestmark = pytest.mark.anyio

DOCSTRINGS = 1100
DOCUMENT_STEP = 8  # of the sentences of the documentation, every eighth is in the index
QUESTIONS = 60
SEGMENTS = 3


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """The vectors of an index and of questions, (n, 384) float32, rows normalised."""

    rows: Vectors
    questions: Vectors


@pytest.fixture(scope="module")
def embedded() -> EmbeddedText:
    """Return the rows of an index, some of which are equal, and questions, some of which are rows of the index."""
    documents = list(document_sentences())
    docstrings = list(islice(docstring_sentences(), DOCSTRINGS + QUESTIONS))
    indexed = docstrings[:DOCSTRINGS] + documents[::DOCUMENT_STEP]
    counts = Counter(indexed)
    others = docstrings[DOCSTRINGS:] + documents[1 :: len(documents) // QUESTIONS]
    unknown = [sentence for sentence in others if sentence not in counts]
    repeated = [sentence for sentence, count in counts.items() if count > 1]
    asked = unknown + repeated[: QUESTIONS // 2] + indexed[:: len(indexed) // QUESTIONS]
    vectors = embed(indexed + asked)
    return EmbeddedText(vectors[: len(indexed)], vectors[len(indexed) :])


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """``rows`` in a bucket. Row n has the id ``id_of(n)`` and is in segment n modulo 3, so that equal rows are in several."""

    store: MemoryAws
    rows: Vectors
    tenant: TenantId

    @staticmethod
    def id_of(row: int) -> str:
        return f"s{row:05}"

    def objects(self, budget: int) -> SegmentObjects:
        """Return the objects of the index, with a cache of ``budget`` bytes that is empty."""
        return SegmentObjects(self.store.for_tenant(self.tenant), IndexId("text"), "gen_1", ObjectCache(budget))

    async def write(self) -> list[Segment]:
        return [await put_segment(self.objects(budget=0), self._segment_rows(number)) for number in range(SEGMENTS)]

    def _segment_rows(self, number: int) -> Rows:
        ids = [IdRow(self.id_of(row), 1, 1, 1) for row in range(number, len(self.rows), SEGMENTS)]
        docs = [json_line({"id": row.id, "text": "x", "metadata": {}}) for row in ids]
        return Rows(ids, docs, [b"{}"] * len(ids), self.rows[number::SEGMENTS])

    def brute_force(self, query: Vectors, top_k: int) -> list[tuple[str, float]]:
        """Return the ids and scores of the best rows, best first. Equal scores are in the order of ids."""
        products: npt.NDArray[np.float64] = self.rows.astype(np.float64) * query.astype(np.float64)
        scores = np.round(products.sum(axis=1).clip(-1, 1), 6).tolist()
        best = sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:top_k]
        return [(self.id_of(row), scores[row]) for row in best]


@pytest.fixture
def index(embedded: EmbeddedText) -> StoredIndex:
    return StoredIndex(MemoryAws(), embedded.rows, TenantId(f"demo-{random_suffix()}"))


def count_ties(answer: Sequence[tuple[str, float]]) -> int:
    return len(answer) - len({score for _, score in answer})


@pytest.mark.parametrize("resident_share", [2, 0.5, 0], ids=["all in memory", "half of the vectors", "nothing in memory"])
async def test_answers_on_real_text_are_those_of_brute_force(
    embedded: EmbeddedText, index: StoredIndex, resident_share: float
) -> None:
    segments = await index.write()
    objects = index.objects(budget=int(embedded.rows.nbytes * resident_share))
    ties = 0
    for question, top_k in zip(embedded.questions, cycle((1, 10, 100)), strict=False):
        neighbors = await find_nearest(objects, segments, VectorQuery(question, top_k))
        found = [(neighbor.id, neighbor.score) for neighbor in neighbors]
        assert found == index.brute_force(question, top_k)
        ties += count_ties(found)
    assert ties >= QUESTIONS
