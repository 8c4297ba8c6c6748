"""Measure how well texts cover the words of a question, and count tokens."""

import math
import re
from collections.abc import Sequence
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
_MAX_QUESTION_WORDS: Final = 50
_MIN_STEM: Final = 4
_STEM: Final = 6  # letters of a word that its other forms, and compounds with it, have too
_STOPWORDS: Final = frozenset(
    _WORD.findall(
        "a about all an and any are as at be by can could did do does exactly for from had has have how i in is it its many me "
        "more most much my of on or our say she should so some tell than that the their them there they this to was we were "
        "what when where which who whose why will with would you your "
        "aber als am an auf aus bei bis das dass dein deine dem den der des die du ein eine einem einen einer es für hat hier "
        "ich ihr im in ist kann man mein meine mit nach nicht noch oder sich sie sind um und viel viele vom von wann war was "
        "welche welchem welchen welcher welches wem wen wer werden wie wird wo wohin wurde wurden zu zum zur"
    )
)


def coverage(question: str, texts: Sequence[str]) -> list[float]:
    """Return, for each of ``texts``, the share of the question's words that it has, from 0.0 to 1.0.

    Words that fewer of the texts have count more (inverse document frequency). A word that none has counts as a rare one.
    """
    wanted = content_words(question)[:_MAX_QUESTION_WORDS]
    found = [_found(wanted, frozenset(content_words(text))) for text in texts]
    weights = {
        word: math.log(1 + (len(texts) + 1) / max(1, sum(word in similarities for similarities in found))) for word in wanted
    }
    total = sum(weights.values()) or 1.0
    return [sum(weights[word] * similarity for word, similarity in similarities.items()) / total for similarities in found]


def content_words(text: str) -> list[str]:
    """Return the words that are not stopwords, in lower case, each once, in order."""
    return list(dict.fromkeys(word for word in _WORD.findall(text.casefold()) if word not in _STOPWORDS))


def count_tokens(text: str) -> int:
    """Return the stand-in's token count: words by pieces of up to six letters, and each other sign."""
    return sum(-(-len(piece) // 6) for piece in re.findall(r"\w+|[^\w\s]", text))


def _found(wanted: Sequence[str], words: frozenset[str]) -> dict[str, float]:
    """Return the similarity of each wanted word that is among ``words``, or of which another form or a compound is."""
    similar = {word: 0.8 for word in wanted if any(_is_similar(word, other) for other in words)}
    return similar | {word: 1.0 for word in wanted if word in words}


def _is_similar(word: str, other: str) -> bool:
    part, whole = sorted((word, other), key=len)
    return len(part) >= _MIN_STEM and part[:_STEM] in whole
