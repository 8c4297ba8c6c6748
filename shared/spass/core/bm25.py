"""Rank texts by the words of a query with BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009), and
extract the best passage of a text."""

import math
import re
import unicodedata
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

_SATURATION: Final = 1.2  # BM25's k1 and b, with the usual values
_LENGTH: Final = 0.75
_DIGITS: Final = 6
_EPSILON: Final = 1e-9  # repeated additions and subtractions of floats are not exact
_ELLIPSIS: Final = "…"

# Scripts without blanks between words: Thai and Lao, Burmese, Khmer, Japanese, Chinese. Count each character as a word.
_UNSPACED_SCRIPTS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)


def _combining_marks(first: int, end: int) -> str:
    return "".join(chr(code) for code in range(first, end) if unicodedata.category(chr(code)) in ("Mn", "Mc"))


_DIACRITICS: Final = _combining_marks(0x300, 0x900)  # accents, and Hebrew and Arabic points, which most texts omit
_VOWELS: Final = _combining_marks(0x900, 0xE00)  # in Indic scripts, a different vowel sign makes a different word
_DIACRITIC: Final = re.compile(f"[{_DIACRITICS}]+")
_WORD: Final = re.compile(f"[{_UNSPACED_SCRIPTS}]|(?:(?![{_UNSPACED_SCRIPTS}])[^\\W_]|[{_DIACRITICS}{_VOWELS}])+")
_ASCII_LETTERS: Final = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}
"""Each ASCII letter in lower case, and a blank for what is neither a letter nor a digit."""


def words(text: str) -> list[str]:
    """Return the words and numbers of ``text``, in order, in lower case, without accents and compatibility forms."""
    if text.isascii():
        return text.translate(_ASCII_LETTERS).split()
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return _WORD.findall(_DIACRITIC.sub("", folded))


class ScoredItem(NamedTuple, Generic[T]):
    """An added item and its score, which is more than 0."""

    item: T
    score: float


@dataclass(frozen=True, slots=True)
class _Candidate(Generic[T]):
    item: T
    length: int
    counts: Mapping[str, int]


class Ranking(Generic[T]):
    """Rank texts by ``query``. A rare word weighs more than a frequent one."""

    def __init__(self, query: str) -> None:
        self._terms = dict.fromkeys(words(query))
        self._candidates: list[_Candidate[T]] = []
        self._text_counts: Counter[str] = Counter()
        self._word_count = 0
        self.searched = 0

    def add(self, item: T, text: str) -> bool:
        """Add a text. Return True if it contains a word of the query."""
        text_words = words(text)
        self.searched += 1
        self._word_count += len(text_words)
        counts = Counter(filter(self._terms.__contains__, text_words))
        if counts:
            self._text_counts.update(counts.keys())
            self._candidates.append(_Candidate(item, len(text_words), counts))
        return bool(counts)

    def scored(self) -> list[ScoredItem[T]]:
        """Return the items that contain a word of the query, in the order in which they were added."""
        weights = self.weights()
        average = self._word_count / self.searched if self._word_count else 1.0
        return [
            ScoredItem(candidate.item, round(_score(candidate, weights, candidate.length / average), _DIGITS))
            for candidate in self._candidates
        ]

    def weights(self) -> dict[str, float]:
        """Return the weight of each word of the query: the rarer the word, the higher."""
        return {
            term: math.log(1 + (self.searched - self._text_counts[term] + 0.5) / (self._text_counts[term] + 0.5))
            for term in self._terms
        }


def _score(candidate: _Candidate[T], weights: Mapping[str, float], length: float) -> float:
    damping = _SATURATION * (1 - _LENGTH + _LENGTH * length)
    score = 0.0
    for term, count in candidate.counts.items():
        score += weights[term] * count * (_SATURATION + 1) / (count + damping)
    return score


class _Hit(NamedTuple):
    start: int
    end: int
    term: str


def excerpt(text: str, weights: Mapping[str, float], length: int) -> str:
    """Return at most ``length`` characters of ``text``, around the passage whose words weigh most. An ellipsis replaces omitted
    text."""
    if len(text) <= length:
        return text
    first, last = _best_window(text, weights, length - 2)
    start = max(0, min(first - (length - 2 - (last - first)) // 2, len(text) - length + 2))
    end = start + length - 2
    return f"{_ELLIPSIS if start else ''}{text[start:end]}{_ELLIPSIS if end < len(text) else ''}"


def _best_window(text: str, weights: Mapping[str, float], length: int) -> tuple[int, int]:
    """Return the start and end of the first window of ``length`` characters with the highest weight."""
    window: deque[_Hit] = deque()
    term_counts: Counter[str] = Counter()
    best, best_weight, weight = (0, 0), 0.0, 0.0
    for hit in _hits(text, weights):
        window.append(hit)
        term_counts[hit.term] += 1
        weight += weights[hit.term] if term_counts[hit.term] == 1 else 0.0
        while len(window) > 1 and hit.end - window[0].start > length:
            term = window.popleft().term
            term_counts[term] -= 1
            weight -= 0.0 if term_counts[term] else weights[term]
        if weight > best_weight + _EPSILON:
            best, best_weight = (window[0].start, min(hit.end, window[0].start + length)), weight
    return best


def _hits(text: str, weights: Mapping[str, float]) -> Iterator[_Hit]:
    for word in _WORD.finditer(text):
        for folded in words(word[0]):
            if folded in weights:
                yield _Hit(word.start(), word.end(), folded)
