"""An alignment finds the lines that were kept, the one at the same place if several are equal."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.tools.editor.alignment import align, gaps

LINES = st.lists(st.sampled_from("abcxyz"), max_size=30)


@given(LINES, LINES)
def test_kept_lines_are_equal_and_in_order(before: Sequence[str], after: Sequence[str]) -> None:
    kept = align(before, after)
    olds = [old for old in kept if old is not None]
    assert olds == sorted(set(olds))
    assert all(old is None or before[old] == line for old, line in zip(kept, after, strict=True))


@given(LINES, LINES)
def test_gaps_and_kept_lines_cover_both_lists(before: Sequence[str], after: Sequence[str]) -> None:
    kept = align(before, after)
    found = list(gaps(kept, len(before)))
    count = sum(old is not None for old in kept)
    assert sum(gap.size for gap in found) + count == len(before)
    assert sum(gap.new_size for gap in found) + count == len(after)
    assert all(kept[at] is None for gap in found for at in range(gap.new_start, gap.new_end))


@given(st.lists(st.sampled_from("ab"), max_size=40), st.sets(st.integers(0, 39)))
def test_lines_that_were_not_replaced_are_kept_in_place(before: Sequence[str], replaced: set[int]) -> None:
    after = [f"new {at}" if at in replaced else line for at, line in enumerate(before)]
    assert align(before, after) == [None if at in replaced else at for at in range(len(before))]


@pytest.mark.parametrize("count", [3, 100, 2000])
def test_of_many_equal_lines_the_one_at_the_same_place_is_kept(count: int) -> None:
    before = ["x"] * count
    after = ["first", "second", *before[1:-1], "last"]
    assert align(before, after) == [None, None, *range(1, count - 1), None]


def test_a_block_that_moved_keeps_the_longer_rest() -> None:
    before = [*"abc", *"defgh"]
    after = [*"defgh", *"abc"]
    assert align(before, after) == [3, 4, 5, 6, 7, None, None, None]
