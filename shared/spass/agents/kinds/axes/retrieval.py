"""The axis ``retrieval_strategy``: what an operator recalls before its first model call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

from spass.agents.kinds.axes.hybrid_retrieval import recall_and_grade
from spass.agents.kinds.axes.searches import MAX_QUERY_CHARACTERS, Found, recall_by_keyword, recall_by_meaning
from spass.agents.kinds.axes.side_calls import Effects, SideCalls
from spass.core.effects import Note, Recalled, SearchNotes

RetrievalStrategy: TypeAlias = Literal["hybrid_with_self_eval", "keyword", "semantic", "none"]
Retrieve: TypeAlias = Callable[[SideCalls, str], Effects[Found]]
"""Find the notes for a query."""

MAX_NEIGHBOURS: Final = 8
"""Notes that share an end with a recalled one and are recalled with it."""


def recall_nothing(_calls: SideCalls, _query: str) -> Effects[Found]:
    """Find no notes."""
    yield from ()
    return Found()


RETRIEVALS: Final[Mapping[RetrievalStrategy, Retrieve]] = {
    "hybrid_with_self_eval": recall_and_grade,
    "keyword": recall_by_keyword,
    "semantic": recall_by_meaning,
    "none": recall_nothing,
}


def retrieve(strategy: RetrievalStrategy, calls: SideCalls) -> Effects[Sequence[Note]]:
    """Return the notes for the task, and after them those that share a cause or an effect with one of them."""
    found = yield from RETRIEVALS[strategy](calls, calls.task[:MAX_QUERY_CHARACTERS])
    neighbours = yield from _neighbours(found)
    return (*found.notes, *neighbours)


def _neighbours(found: Found) -> Effects[Sequence[Note]]:
    known = {note.key for note in found.notes} | found.rejected
    neighbours: dict[str, Note] = {}
    for end in dict.fromkeys(end for note in found.notes for end in note.ends):
        if len(neighbours) == MAX_NEIGHBOURS:
            break
        recalled: Recalled = yield SearchNotes(end, "ends", len(known) + MAX_NEIGHBOURS)
        new = [note for note in recalled.notes if note.key not in known | neighbours.keys()]
        neighbours |= {note.key: note for note in new[: MAX_NEIGHBOURS - len(neighbours)]}
    return [*neighbours.values()]
