"""Recall notes by one kind of search."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from spass.agents.kinds.axes.side_calls import Effects, SideCalls
from spass.core.effects import Note, Recalled, SearchNotes

MAX_NOTES: Final = 8
MAX_QUERY_CHARACTERS: Final = 2000
"""Characters of a query. More text does not improve the search."""


class Found(NamedTuple):
    """The notes for a query, the best first, and the keys of those that were found and judged to be of no use."""

    notes: Sequence[Note] = ()
    rejected: frozenset[str] = frozenset()


def recall_by_keyword(calls: SideCalls, query: str) -> Effects[Found]:
    """Return 8 notes by the words of the query."""
    return Found((yield from search(calls, query, "keyword", MAX_NOTES)))


def recall_by_meaning(calls: SideCalls, query: str) -> Effects[Found]:
    """Return 8 notes by the meaning of the query."""
    return Found((yield from search(calls, query, "semantic", MAX_NOTES)))


def search(calls: SideCalls, query: str, by: Literal["keyword", "semantic"], limit: int) -> Effects[Sequence[Note]]:
    """Return at most ``limit`` notes, the best first. A failed call of the embedding model is listed, and finds none."""
    recalled: Recalled = yield SearchNotes(query, by, limit)
    if recalled.error is not None:
        yield from calls.fail("retrieval_strategy", recalled.error.code, recalled.error.message)
    return recalled.notes
