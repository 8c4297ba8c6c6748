"""After five compactions the summary is still short, and questions about the first session are answered."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.recall import GENERATIONS, RecallBench, report
from spass.sessions.compaction.summary import MAX_SUMMARY_CHARACTERS
from spass.store import invocation
from spass.testing.aws import MemoryAws
from tests.sampling import SOAK

pytestmark = pytest.mark.anyio

SEEDS = range(1, 21) if SOAK else [5]


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_fifth_generation_answers_questions_about_the_first(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The offline stand-in answers from the summary or with ``lineage_search``. A summary has no room for all facts."""
    with ThreadPoolExecutor(1) as thread:
        monkeypatch.setattr(invocation, "_threads", thread)
        generations = await RecallBench(MemoryAws(clock=time.time), seed, turns=16).generations()
    assert len([*report(generations)]) == 2 + GENERATIONS
    assert [generation.number for generation in generations] == [*range(1, GENERATIONS + 1)]
    for generation in generations:
        assert len(generation.summary.text) <= MAX_SUMMARY_CHARACTERS
        assert generation.words <= 500
        for recall in generation.recall:
            assert recall.by_either == recall.facts == 14
            assert recall.answered >= 13  # the stand-in may choose the wrong sentence of a search result
    last = generations[-1]
    assert last.summary.text.count("[compaction summary") == 0
    assert last.recall[0].by_summary < 14  # the summary has lost facts, which only the search finds
    assert last.recall[0].by_summary > 4
    assert len({generation.summary.source for generation in generations}) == GENERATIONS
