"""Rank notes by the words or by the meaning of a query: best first, and of equal scores the newest first."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from spass.core.bm25 import Ranking
from spass.core.effects import Note
from spass.memory.notes import StoredNote

_NOTES_AT_ONCE: Final = 250
_DIGITS: Final = 6


async def rank_by_words(notes: Sequence[StoredNote], query: str, limit: int) -> tuple[Note, ...]:
    """Return the best ``limit`` notes by BM25, of those that contain a word of ``query``."""
    ranking = Ranking[StoredNote](query)
    for number, note in enumerate(notes, 1):
        ranking.add(note, note.content)
        if number % _NOTES_AT_ONCE == 0:
            await asyncio.sleep(0)  # counting megabytes of words takes a while; let other requests run
    return _best(ranking.scored(), limit)


def rank_by_meaning(notes: Sequence[StoredNote], query: bytes, limit: int) -> tuple[Note, ...]:
    """Return the best ``limit`` notes by exact cosine. ``query`` is a float32 vector of length 1, and so is the vector of every
    note."""
    import numpy as np

    vector = np.frombuffer(query, "<f4")
    vectors = np.frombuffer(b"".join(note.vector or b"" for note in notes), "<f4").reshape(len(notes), len(vector))
    scores: list[float] = (vectors @ vector).astype(np.float64).round(_DIGITS).tolist()
    return _best(zip(notes, scores, strict=True), limit)


def _best(scored: Iterable[tuple[StoredNote, float]], limit: int) -> tuple[Note, ...]:
    best_first = sorted(scored, key=lambda one: (one[1], one[0].age), reverse=True)
    return tuple(note.found(score) for note, score in best_first[: max(limit, 0)])
