"""Fuse rankings of notes by reciprocal rank (Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and
individual Rank Learning Methods", 2009)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from spass.core.effects import Note

_RANK_OFFSET: Final = 60
_DIGITS: Final = 6


def fuse(rankings: Sequence[Sequence[Note]], limit: int) -> tuple[Note, ...]:
    """Return the best ``limit`` notes of ``rankings``, each of which is best first. The score of a note is the sum of
    1 / (60 + its rank). Of equal scores, the newest note comes first."""
    notes: dict[str, Note] = {}
    scores: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, note in enumerate(ranking, 1):
            notes.setdefault(note.key, note)
            scores[note.key] += 1 / (_RANK_OFFSET + rank)
    fused = [replace(note, score=round(scores[key], _DIGITS)) for key, note in notes.items()]
    return tuple(sorted(fused, key=lambda note: (note.score, note.created_at, note.key), reverse=True)[: max(limit, 0)])
