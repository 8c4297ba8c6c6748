"""Keep the beginning and the end of a long result."""

from typing import Final

from spass.agents.kinds.axes.side_calls import Effects, SideCalls

FIRST: Final = 1400
LAST: Final = 600


def truncate(_calls: SideCalls, text: str) -> Effects[str]:
    """Return the first 1,400 and the last 600 characters, with the number of those between them."""
    yield from ()
    return shorten(text)


def shorten(text: str) -> str:
    """Return the beginning and the end of ``text``, which is longer than both together."""
    return f"{text[:FIRST]}\n[… {len(text) - FIRST - LAST} characters were dropped here …]\n{text[-LAST:]}"
