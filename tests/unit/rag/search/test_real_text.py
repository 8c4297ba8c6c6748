"""Queries over sentences of the project's documentation and of docstrings agree with brute force in float64."""

from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median

import numpy as np
import pytest

from bench.candidates import count_candidates
from bench.corpus import docstring_sentences, document_sentences, embed
from spass.rag.index.cache import ObjectCache
from spass.rag.index.manifest import CODED
from spass.rag.index.segments import Vectors
from spass.rag.search.blocks import Residency, choose_residency
from tests.unit.rag.search.exact_index import Question, put_index

pytestmark = pytest.mark.anyio

DOCSTRINGS = 500
DOCUMENT_STEP = 15  # of the sentences of the documentation, every fifteenth is in the index
QUESTIONS = 40
SEGMENTS = 3


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """The vectors of an index and of questions, (n, 384) float32, rows normalised."""

    rows: Vectors
    questions: Vectors


@pytest.fixture(scope="module")
def text() -> EmbeddedText:
    """Return the rows of an index, some of which are equal, and questions, some of which are rows of the index."""
    documents = list(document_sentences())
    docstrings = list(islice(docstring_sentences(), DOCSTRINGS + QUESTIONS))
    indexed = docstrings[:DOCSTRINGS] + documents[::DOCUMENT_STEP]
    indexed += indexed[:: len(indexed) // QUESTIONS]
    counts = Counter(indexed)
    others = docstrings[DOCSTRINGS:] + documents[1 :: len(documents) // QUESTIONS]
    unknown = [sentence for sentence in others if sentence not in counts]
    repeated = [sentence for sentence, count in counts.items() if count > 1]
    asked = unknown + repeated[:QUESTIONS]
    rows, questions = np.split(embed(indexed + asked), [len(indexed)])
    return EmbeddedText(rows, questions)


@pytest.mark.parametrize(
    ("residency", "share"), [(Residency.CODES_AND_VECTORS, 2), (Residency.CODES, 0.5), (Residency.SOME_CODES, 0)]
)
async def test_answers_on_real_text_are_those_of_brute_force(
    text: EmbeddedText, residency: Residency, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``share`` is the size of the cache in relation to that of the vectors. Equal rows are in several segments."""
    monkeypatch.setattr("spass.rag.index.manifest._MIN_NUMBERS", 1)  # small segments have codes, as large ones do
    count, dimensions = text.rows.shape
    index = await put_index(text.rows, [0] * count, [np.arange(first, count, SEGMENTS) for first in range(SEGMENTS)])
    objects = index.objects(ObjectCache(int(text.rows.nbytes * share)))
    assert {segment.format for segment in index.segments} == {CODED}
    assert choose_residency(index.segments, dimensions, objects.cache.budget) is residency
    every_row = np.ones(count, np.bool_)
    ties = 0
    for vector, top_k in zip(text.questions, cycle((1, 10, 100)), strict=False):
        question = Question(vector, top_k, deleted=~every_row, matching=every_row)
        found = await index.search(objects, question)
        assert found == index.brute_force(question)
        ties += len(found) - len({score for _, score in found})
    assert ties >= QUESTIONS


def test_few_rows_of_real_text_are_candidates_and_the_best_are_among_them(text: EmbeddedText) -> None:
    with_codes, with_query = count_candidates(text.rows, text.questions)
    assert (with_codes.recall, with_query.recall) == (1, 1)
    assert median(with_query.counts) < median(with_codes.counts) < 0.02 * len(text.rows)
    assert max(with_codes.counts) < 0.1 * len(text.rows)
