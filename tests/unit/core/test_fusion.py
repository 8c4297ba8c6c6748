"""Rankings are fused by reciprocal rank."""

from hypothesis import given
from hypothesis import strategies as st

from spass.core.effects import Note
from spass.core.fusion import fuse


def notes(text: str) -> list[Note]:
    """Return a ranking: one note per letter, later letters newer."""
    return [Note(letter, letter.upper(), created_at=f"{ord(letter):03d}") for letter in text]


def keys(fused: tuple[Note, ...]) -> str:
    return "".join(note.key for note in fused)


def test_a_note_of_both_rankings_comes_before_the_first_of_one() -> None:
    assert keys(fuse([notes("abc"), notes("xc")], 3)) == "cxa"


def test_of_equal_scores_the_newest_note_comes_first() -> None:
    assert keys(fuse([notes("ab"), notes("xy")], 10)) == "xayb"
    assert keys(fuse([notes("ab"), notes("ba")], 10)) == "ba"


def test_one_ranking_keeps_its_order_and_a_limit_cuts_it() -> None:
    assert keys(fuse([notes("cab"), []], 2)) == "ca"
    assert fuse([notes("cab")], 0) == fuse([], 5) == ()


def test_the_score_is_the_sum_of_reciprocal_ranks() -> None:
    (note,) = fuse([notes("a"), notes("a")], 1)
    assert note == Note("a", "A", round(2 / 61, 6), "097")


RANKINGS = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True).map("".join), max_size=4)


@given(RANKINGS)
def test_every_note_is_there_once_in_the_order_of_the_formula(rankings: list[str]) -> None:
    fused = fuse([notes(ranking) for ranking in rankings], 100)
    assert sorted(keys(fused)) == sorted(set("".join(rankings)))
    for note in fused:
        score = sum(1 / (61 + ranking.index(note.key)) for ranking in rankings if note.key in ranking)
        assert note.score == round(score, 6)
    assert [note.score for note in fused] == sorted((note.score for note in fused), reverse=True)


@given(RANKINGS)
def test_more_support_never_hurts(rankings: list[str]) -> None:
    fused = keys(fuse([*map(notes, rankings)], 100))
    for key in fused:
        supported = fuse([*map(notes, rankings), notes(key)], 100)
        assert keys(supported).index(key) <= fused.index(key)


@given(RANKINGS)
def test_a_note_that_is_never_behind_another_one_is_not_behind_it_in_the_fusion(rankings: list[str]) -> None:
    fused = keys(fuse([*map(notes, rankings)], 100))
    for first in fused:
        for second in fused:
            better = [first in ranking and first in ranking.partition(second)[0] for ranking in rankings]
            if rankings and all(better):
                assert fused.index(first) < fused.index(second)
