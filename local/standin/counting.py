"""Count when asked to ("Count slowly to 40."): an answer that takes long enough to follow, cut or stop its stream."""

import re
from dataclasses import dataclass
from typing import Final

from local.standin.words import fold

_MAX_NUMBERS: Final = 200
_SLOW_PAUSE_SECONDS: Final = 0.15
_FILLER: Final = r"(?:[ ,]+(?:slowly|langsam|up|please|bitte|mal|(?:from|von) (?:1|one|eins)))*"
_REQUEST: Final = re.compile(
    rf"(?:please[ ,]+|bitte[ ,]+)?(?:count|zahle?){_FILLER}[ ,]+(?:to|bis)(?: zu)? ([1-9]\d{{0,8}}){_FILLER}[.!]*"
)
_SLOWLY: Final = re.compile(r"\b(slowly|langsam)\b")


@dataclass(frozen=True, slots=True)
class Count:
    """The numbers from 1 to ``last``, and the pause between two of them in a stream."""

    last: int
    pause_seconds: float

    @property
    def text(self) -> str:
        return " ".join(map(str, range(1, self.last + 1)))


def requested_count(question: str) -> Count | None:
    """Return the count that the question asks for, of at most 200 numbers, or None. Only a slow one has pauses."""
    folded = fold(question.strip())
    request = _REQUEST.fullmatch(folded)
    if request is None:
        return None
    return Count(min(int(request[1]), _MAX_NUMBERS), _SLOW_PAUSE_SECONDS if _SLOWLY.search(folded) else 0.0)
