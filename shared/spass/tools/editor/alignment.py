"""Align two lists of lines: find the lines of the first that were kept in the second.

Lines that occur once in both are anchors (patience diff, https://bramcohen.livejournal.com/73318.html). Between anchors, a banded
edit distance decides, in which replacing a line costs as much as inserting or deleting one. So of several equal lines, the one at
the same place counts as kept. Time is bounded for hostile lists too: when the budget is used up, a greedy match decides.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_MAX_CELLS: Final = 1_000_000
"""Cells of all tables of edit distances: about a second."""
_MAX_ROUNDS_PER_LINE: Final = 32

_KEEP, _REPLACE, _INSERT, _DELETE = range(4)


class Gap(NamedTuple):
    """The lines ``before[start:end]`` and ``after[new_start:new_end]``, of which none is aligned."""

    start: int
    end: int
    new_start: int
    new_end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def new_size(self) -> int:
        return self.new_end - self.new_start


class Pair(NamedTuple):
    """The indices of a line that was kept."""

    old: int
    new: int


def align(before: Sequence[str], after: Sequence[str]) -> list[int | None]:
    """Return for each line of ``after`` the index of the line of ``before`` that it is, or None for a new line. The indices
    ascend, and the two lines are equal."""
    numbers: dict[str, int] = {}
    old, new = ([numbers.setdefault(line, len(numbers)) for line in lines] for lines in (before, after))
    return _Alignment(old, new).kept


def gaps(kept: Sequence[int | None], size: int) -> Iterator[Gap]:
    """Yield what lies between the lines that were ``kept``, as ``align`` returned them for ``size`` lines."""
    start = new_start = 0
    for new, old in enumerate([*kept, size]):
        if old is None:
            continue
        if (gap := Gap(start, old, new_start, new)).size or gap.new_size:
            yield gap
        start, new_start = old + 1, new + 1


@dataclass(slots=True)
class _Alignment:
    before: Sequence[int]
    after: Sequence[int]
    kept: list[int | None] = field(init=False)
    _rounds: int = field(init=False)
    _cells: int = field(init=False, default=_MAX_CELLS)

    def __post_init__(self) -> None:
        self.kept = [None] * len(self.after)
        self._rounds = _MAX_ROUNDS_PER_LINE * (len(self.before) + len(self.after))
        open_gaps = [Gap(0, len(self.before), 0, len(self.after))]
        while open_gaps:
            gap = self._trim(open_gaps.pop())
            if gap.size and gap.new_size:
                open_gaps += self._split(gap)

    def _trim(self, gap: Gap) -> Gap:
        """Keep the equal lines at both ends of ``gap``, and return the rest."""
        start, end, new_start, new_end = gap
        while start < end and new_start < new_end and self.before[start] == self.after[new_start]:
            self.kept[new_start] = start
            start, new_start = start + 1, new_start + 1
        while start < end and new_start < new_end and self.before[end - 1] == self.after[new_end - 1]:
            end, new_end = end - 1, new_end - 1
            self.kept[new_end] = end
        return Gap(start, end, new_start, new_end)

    def _split(self, gap: Gap) -> list[Gap]:
        """Keep the anchors of ``gap`` and return the gaps between them; without an anchor, keep what another way finds."""
        self._rounds -= gap.size + gap.new_size
        anchors = self._anchors(gap) if self._rounds > 0 else []
        if not anchors:
            self._keep_by_distance(gap)
            return []
        parts = []
        start, new_start = gap.start, gap.new_start
        for old, new in anchors:
            self.kept[new] = old
            parts.append(Gap(start, old, new_start, new))
            start, new_start = old + 1, new + 1
        parts.append(Gap(start, gap.end, new_start, gap.new_end))
        return parts

    def _anchors(self, gap: Gap) -> list[Pair]:
        """Return the longest ascending series of lines that occur once on both sides, as pairs of indices."""
        old_lines, new_lines = self.before[gap.start : gap.end], self.after[gap.new_start : gap.new_end]
        old_counts, new_counts = Counter(old_lines), Counter(new_lines)
        places = {line: at for at, line in enumerate(new_lines, gap.new_start) if new_counts[line] == 1}
        pairs = [
            Pair(at, places[line]) for at, line in enumerate(old_lines, gap.start) if old_counts[line] == 1 and line in places
        ]
        return _longest_ascending(pairs)

    def _keep_by_distance(self, gap: Gap) -> None:
        band = min(self._cells // gap.size // 2, max(gap.size, gap.new_size))
        if band > abs(gap.size - gap.new_size):
            self._cells -= gap.size * (2 * band + 1)
            pairs = _banded(self.before, self.after, gap, band)
        elif gap.size == gap.new_size:
            pairs = _in_place(self.before, self.after, gap)
        else:
            pairs = _greedy(self.before, self.after, gap)
        for old, new in pairs:
            self.kept[new] = old


def _longest_ascending(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the longest part of ``pairs``, which ascend in their first index, that ascends in the second too."""
    tails: list[int] = []  # of each length, the smallest second index at which a series ends
    ends: list[int] = []
    previous: list[int] = []
    for number, (_, new) in enumerate(pairs):
        at = bisect_left(tails, new)
        previous.append(ends[at - 1] if at else -1)
        tails[at : at + 1] = [new]
        ends[at : at + 1] = [number]
    series = []
    number = ends[-1] if ends else -1
    while number >= 0:
        series.append(pairs[number])
        number = previous[number]
    return series[::-1]


def _banded(before: Sequence[int], after: Sequence[int], gap: Gap, band: int) -> Iterator[Pair]:
    """Yield the pairs that are kept on a shortest way from one side of ``gap`` to the other, at most ``band`` lines from the
    diagonal (Ukkonen 1985)."""
    far = gap.size + gap.new_size + 1
    width = 2 * band + 1
    steps = bytearray(gap.size * width)
    costs = [at if at <= band else far for at in range(gap.new_size + 1)]
    for row in range(1, gap.size + 1):
        line = before[gap.start + row - 1]
        low, high = max(1, row - band), min(gap.new_size, row + band)
        diagonal, left = costs[low - 1], row if row <= band else far
        costs[low - 1] = left
        at = (row - 1) * width + low - (row - band)
        for column in range(low, high + 1):
            above = costs[column] if column < row + band else far
            is_equal = line == after[gap.new_start + column - 1]
            cost, step = (diagonal, _KEEP) if is_equal else (diagonal + 1, _REPLACE)
            if left + 1 < cost:
                cost, step = left + 1, _INSERT
            if above + 1 < cost:
                cost, step = above + 1, _DELETE
            diagonal, left = costs[column], cost
            costs[column] = cost
            steps[at] = step
            at += 1
    row, column = gap.size, gap.new_size
    while row and column:
        step = steps[(row - 1) * width + column - (row - band)]
        if step == _KEEP:
            yield Pair(gap.start + row - 1, gap.new_start + column - 1)
        row, column = row - (step != _INSERT), column - (step != _DELETE)


def _in_place(before: Sequence[int], after: Sequence[int], gap: Gap) -> Iterator[Pair]:
    """Yield the pairs of lines that are equal at the same place of a gap whose sides are equally long."""
    for old, new in zip(range(gap.start, gap.end), range(gap.new_start, gap.new_end), strict=True):
        if before[old] == after[new]:
            yield Pair(old, new)


def _greedy(before: Sequence[int], after: Sequence[int], gap: Gap) -> Iterator[Pair]:
    """Yield pairs of equal lines; each new line takes the first old line behind those that were taken."""
    places: dict[int, list[int]] = defaultdict(list)
    for at in range(gap.start, gap.end):
        places[before[at]].append(at)
    following = gap.start
    for new in range(gap.new_start, gap.new_end):
        candidates = places.get(after[new], [])
        at = bisect_left(candidates, following)
        if at < len(candidates):
            yield Pair(candidates[at], new)
            following = candidates[at] + 1
