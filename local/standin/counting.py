"""Count when asked to ("Count slowly to 40."): an answer that takes long enough to follow, cut or stop its stream."""

import re
from dataclasses import dataclass
from typing import Final

_MAX_NUMBERS: Final = 200
_SLOW_PAUSE_SECONDS: Final = 0.15
_REQUEST: Final = re.compile(r"(?:count|zähle)( slowly| langsam)? (?:to|bis) ([1-9]\d{0,8})\.?", re.IGNORECASE)


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
    request = _REQUEST.fullmatch(question)
    return request and Count(min(int(request[2]), _MAX_NUMBERS), _SLOW_PAUSE_SECONDS if request[1] else 0.0)
