"""A note of an operator as it is stored: one item, with the vector of its text. Searches rank notes best first, and of equal
scores the newest first.

A vector is missing if the embedding model failed, and useless if another model made it. The next search by meaning computes it.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spass.core.bm25 import Ranking
from spass.core.effects import Note
from spass.core.json import encode_utf8
from spass.core.text_checks import remove_controls
from spass.core.time import Timestamp

if TYPE_CHECKING:  # its package imports numpy, which a list of notes does not need
    from spass.rag.index.manifest import EmbeddingModel

MAX_NOTES: Final = 1000
"""Notes that an operator keeps. The oldest beyond them are evicted."""
MAX_CONTENT_BYTES: Final = 4096
"""Bytes of a note's content as UTF-8."""
MAX_KEY_CHARACTERS: Final = 128

_MAX_ENDS: Final = 8
_MAX_END_CHARACTERS: Final = 500
_FLOAT_BYTES: Final = 4
_KEY_DIGITS: Final = 24
_NOTES_AT_ONCE: Final = 250
_SCORE_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class StoredNote:
    """A note of the ``generation`` of an operator. ``vector`` is float32, of length 1, made by ``model``."""

    key: str
    content: str
    created_at: Timestamp
    generation: str
    ends: tuple[str, ...] = ()
    model: str | None = None
    vector: bytes | None = None

    @property
    def age(self) -> tuple[str, str]:
        """Return a sort key: greater for newer notes."""
        return self.created_at, self.key

    @property
    def digest(self) -> str:
        """Return the name of the item: a hash of the note's generation and key."""
        return note_digest(self.generation, self.key)

    def has_vector(self, model: "EmbeddingModel") -> bool:
        """Return whether the note has a vector of ``model``."""
        return self.model == model.name and self.vector is not None and len(self.vector) == _FLOAT_BYTES * model.dimensions

    def with_vector(self, model: str, vector: bytes) -> "StoredNote":
        """Return the note with the ``vector`` that ``model`` made of its content."""
        return replace(self, model=model, vector=vector)

    def found(self, score: float = 0.0) -> Note:
        """Return the note as a search with this ``score`` finds it."""
        return Note(self.key, self.content, score, self.created_at, self.ends)


def make_note(content: str, key: str | None, ends: Sequence[str], generation: str, at: Timestamp) -> StoredNote:
    """Return a note that fits: what is too long is cut, and control characters are left out. Without ``key``, the key is derived
    from the content."""
    content = _cut_utf8(remove_controls(content, keep_lines=True), MAX_CONTENT_BYTES)
    key = _cut_utf8(remove_controls(key or ""), 4 * MAX_KEY_CHARACTERS)[:MAX_KEY_CHARACTERS].strip()
    fitting = tuple(_cut_utf8(end, 4 * _MAX_END_CHARACTERS)[:_MAX_END_CHARACTERS] for end in ends[:_MAX_ENDS])
    return StoredNote(key or derive_key(content), content, at, generation, fitting)


def derive_key(content: str) -> str:
    """Return the key of a note that has none of its own: always the same for the same content."""
    return f"note-{hashlib.sha256(content.encode()).hexdigest()[:_KEY_DIGITS]}"


def normalise_end(text: str) -> str:
    """Return an end as ends are compared: without differences of case and blanks."""
    return " ".join(text[:_MAX_END_CHARACTERS].split()).casefold()


def note_digest(generation: str, key: str) -> str:
    return hashlib.sha256(f"{generation}\n{key}".encode()).hexdigest()


def _cut_utf8(text: str, limit: int) -> str:
    """Return as much of the beginning of ``text`` as fits in ``limit`` bytes of UTF-8, without halves of surrogate pairs."""
    return encode_utf8(text)[:limit].decode("utf-8", "ignore")


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
    scores: list[float] = (vectors @ vector).astype(np.float64).round(_SCORE_DIGITS).tolist()
    return _best(zip(notes, scores, strict=True), limit)


def _best(scored: Iterable[tuple[StoredNote, float]], limit: int) -> tuple[Note, ...]:
    best_first = sorted(scored, key=lambda one: (one[1], one[0].age), reverse=True)
    return tuple(note.found(score) for note, score in best_first[: max(limit, 0)])
