"""Reciprocal rank fusion: a note that several searches find is before one that only one search finds."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spass.agents.kinds.axes.hybrid_retrieval import fuse
from spass.core.effects import Note

rankings = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=3)


def ranking(keys: str | list[str]) -> list[Note]:
    return [Note(key, key) for key in keys]


def keys(notes: list[Note]) -> str:
    return "".join(note.key for note in notes)


def test_the_order_is_that_of_the_sums_of_reciprocal_ranks() -> None:
    assert keys(fuse(ranking("abc"), ranking("cxa"))) == "acbx"
    assert keys(fuse(ranking("ab"), ranking("xy"))) == "axby"
    assert keys(fuse(ranking("abc"))) == "abc"
    assert fuse() == []


@given(rankings)
def test_the_fusion_has_each_note_once_in_the_order_of_the_formula(lists: list[list[str]]) -> None:
    found = keys(fuse(*map(ranking, lists)))
    assert sorted(found) == sorted({key for keys in lists for key in keys})

    def score(key: str) -> float:
        return sum(1 / (61 + keys.index(key)) for keys in lists if key in keys)

    scores = [score(key) for key in found]
    assert all(first >= second - 1e-12 for first, second in pairwise(scores))


@given(rankings)
def test_a_note_that_is_never_behind_another_one_is_not_behind_it_in_the_fusion(lists: list[list[str]]) -> None:
    found = keys(fuse(*map(ranking, lists)))
    for first in found:
        for second in found:
            better = [first in keys and (second not in keys or keys.index(first) < keys.index(second)) for keys in lists]
            if lists and all(better):
                assert found.index(first) < found.index(second)
