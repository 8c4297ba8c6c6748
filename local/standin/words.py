"""Words of German and English, reduced so that forms of one word compare equal, and how well a sentence covers a question."""

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
_SHORTEST_STEM: Final = 3
_SHORTEST_PART: Final = 4

# Function words: they say how things relate, not what is talked about.
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
    """How much of a question a sentence speaks of: ``coverage`` weighs words by how telling they are, ``words`` counts them."""

    coverage: float
    words: int


def fold(text: str) -> str:
    """Lower case without umlauts and accents."""
    return text.lower().translate(_FOLDS)


def stem(word: str) -> str:
    """A crude stem: folded, one suffix off. ``Parks`` and ``Park``, ``größte`` and ``groß`` become the same."""
    folded = fold(word)
    if folded in _SYNONYMS:
        return _SYNONYMS[folded]
    for suffix in _SUFFIXES:
        if folded.endswith(suffix) and not folded.endswith("ss") and len(folded) - len(suffix) >= _SHORTEST_STEM:
            folded = folded.removesuffix(suffix)
            break
    return _SYNONYMS.get(folded, folded)


def content_stems(text: str) -> tuple[str, ...]:
    """The stems of the words that carry meaning, each once, in order."""
    words = (word for word in _WORD.findall(text) if fold(word) not in _STOPWORDS)
    return tuple(dict.fromkeys(stem(word) for word in words))


def count_tokens(text: str) -> int:
    """Return the stand-in's token count: words by pieces of up to six letters, and each other sign."""
    return sum(-(-len(piece) // 6) for piece in re.findall(r"\w+|[^\w\s]", text))


def rarity(sentences: Sequence[Collection[str]]) -> dict[str, float]:
    """Of every stem its inverse document frequency over the sentences, each given as its stems."""
    frequencies: dict[str, int] = {}
    for stems in sentences:
        for word in set(stems):
            frequencies[word] = frequencies.get(word, 0) + 1
    return {word: math.log(1 + (len(sentences) + 1) / count) for word, count in frequencies.items()}


def match(question: Sequence[str], sentence: Collection[str], weights: dict[str, float]) -> Match:
    """Return how well the sentence covers the question, both given as stems.

    A word counts fully when its stem is there, and for the most part when one is a part of the other, as in German compounds
    (``Sport`` and ``Lieblingssport``). A question word that no sentence has still counts, so half-answered questions score half.
    """
    if not question:
        return Match(0.0, 0)
    unknown = max(weights.values(), default=1.0)
    total = met = 0.0
    words = 0
    for word in question:
        weight = weights.get(word, unknown)
        total += weight
        share = _likeness(word, sentence)
        met += weight * share
        words += share > 0
    return Match(met / total, words)


def _likeness(word: str, sentence: Collection[str]) -> float:
    if word in sentence:
        return 1.0
    if any(_is_part(word, other) or _is_part(other, word) for other in sentence):
        return 0.8
    return 0.0


def _is_part(part: str, whole: str) -> bool:
    return len(part) >= _SHORTEST_PART and part in whole
