"""Reduce German and English words to stems, and measure how well a sentence covers a question."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)?")
_FOLDS: Final = str.maketrans({"ä": "a", "ö": "o", "ü": "u", "ß": "ss", "é": "e", "è": "e", "á": "a", "ó": "o", "’": "'"})
_SUFFIXES: Final = (
    "ungen", "ingly", "ations", "ation", "lich", "isch", "ung", "ing", "ern", "est", "em", "en", "er", "es", "ed", "ly", "st",
    "e", "n", "s",
)  # fmt: skip
_MIN_STEM_LENGTH: Final = 3
_MIN_PART_LENGTH: Final = 4

# Function words: they carry no topic.
_STOPWORDS: Final = frozenset(
    """
    aber alle als also am an auch auf aus bei beim bin bis bist da damit dann das dass dein deine deinem deinen deiner
    dem den denn der des dich die dies diese dieser dieses dir doch du durch ein eine einem einen einer eines er es
    etwas euch euer für gegen gibt habe haben hat hatte hier ich ihm ihn ihr ihre im in ist ja jede jeder kann kannst
    können machen man mehr mein meine meinem meinen meiner mich mir mit muss nach nein nicht noch nun nur ob oder ohne
    sehr sein seine sich sie sind so soll über um und uns unser unter vom von vor war waren warum was weil welche
    welchem welchen welcher welches wem wen wenn wer werden wie wieso wir wird wo woher wohin wurde wurden zu zum zur
    zwischen bitte sag sage nenne erzähl erzähle mal finde findet denn gerade wann wieviel viel viele heißt heisst a
    about all also an and any are as at be been but by can could did do does for from get give had has have he her here
    him his how i if in into is it its just many me more most much my of on or our out please say she should so some
    tell than that the their them then there these they this those to up us was we were what when where which who whom
    whose why will with would you your find exactly
    """.translate(_FOLDS).split()
)
_SYNONYMS: Final = {
    "gebaut": "bau", "erbaut": "bau", "errichtet": "bau", "erbau": "bau", "built": "bau", "build": "bau",
    "grosste": "gross", "grossten": "gross", "grosster": "gross", "grosstes": "gross",
    "largest": "large", "biggest": "large", "big": "large",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Match:
    """The overlap of a question and a sentence: ``coverage`` is the share of the question, from 0.0 to 1.0, in which rare words
    count more; ``words`` is the number of common words."""

    coverage: float
    words: int


def fold(text: str) -> str:
    """Return ``text`` in lower case without umlauts and accents."""
    return text.lower().translate(_FOLDS)


def stem(word: str) -> str:
    """Return a simple stem: folded and without one suffix. ``Parks`` and ``Park`` have the same stem, as do ``größte`` and
    ``groß``."""
    folded = fold(word)
    if folded in _SYNONYMS:
        return _SYNONYMS[folded]
    for suffix in _SUFFIXES:
        if folded.endswith(suffix) and not folded.endswith("ss") and len(folded) - len(suffix) >= _MIN_STEM_LENGTH:
            folded = folded.removesuffix(suffix)
            break
    return _SYNONYMS.get(folded, folded)


def content_stems(text: str) -> tuple[str, ...]:
    """Return the stems of the words that are not stopwords, each once, in order."""
    words = (word for word in _WORD.findall(text) if fold(word) not in _STOPWORDS)
    return tuple(dict.fromkeys(stem(word) for word in words))


def count_tokens(text: str) -> int:
    """Return the stand-in's token count: words by pieces of up to six letters, and each other sign."""
    return sum(-(-len(piece) // 6) for piece in re.findall(r"\w+|[^\w\s]", text))


def rarity(sentences: Sequence[Collection[str]]) -> dict[str, float]:
    """Return the inverse document frequency of every stem over the sentences. A sentence is a collection of stems."""
    frequencies: dict[str, int] = {}
    for stems in sentences:
        for word in set(stems):
            frequencies[word] = frequencies.get(word, 0) + 1
    return {word: math.log(1 + (len(sentences) + 1) / count) for word, count in frequencies.items()}


def match(question: Sequence[str], sentence: Collection[str], weights: dict[str, float]) -> Match:
    """Return how well the sentence covers the question, both given as stems.

    A word counts 1.0 if the sentence has its stem, and 0.8 if one stem is a part of the other, as in German compounds (``Sport``
    and ``Lieblingssport``). A question word that no sentence has still counts, so a half-answered question has coverage 0.5.
    """
    if not question:
        return Match(0.0, 0)
    unknown = max(weights.values(), default=1.0)
    total = covered = 0.0
    words = 0
    for word in question:
        weight = weights.get(word, unknown)
        total += weight
        share = _similarity(word, sentence)
        covered += weight * share
        words += share > 0
    return Match(covered / total, words)


def _similarity(word: str, sentence: Collection[str]) -> float:
    if word in sentence:
        return 1.0
    if any(_is_part(word, other) or _is_part(other, word) for other in sentence):
        return 0.8
    return 0.0


def _is_part(part: str, whole: str) -> bool:
    return len(part) >= _MIN_PART_LENGTH and part in whole
