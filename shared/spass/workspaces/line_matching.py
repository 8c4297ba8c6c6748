"""Find the lines that two texts have in common, in bounded time.

The result is a longest common subsequence (E. W. Myers, "An O(ND) Difference Algorithm and Its Variations", 1986). The algorithm
needs time in proportion to the square of the number of differences, so it sees only lines that both texts have, and stops after a
number of steps: then the texts have nothing in common but their beginning and their end.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

MAX_STEPS: Final = 1_000_000
"""Steps of the search, about half a second."""


class Block(NamedTuple):
    """``length`` lines from ``before`` on that equal those from ``after`` on."""

    before: int
    after: int
    length: int


@dataclass(slots=True)
class Steps:
    """The steps that a search may still take."""

    left: int = MAX_STEPS


def match_lines(before: Sequence[str], after: Sequence[str], steps: Steps) -> list[Block]:
    """Return the blocks of equal lines in order, none adjacent to the next in both texts. Take the search from ``steps``."""
    shorter = min(len(before), len(after))
    start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    end = next((at for at in range(shorter - start) if before[-1 - at] != after[-1 - at]), shorter - start)
    middle = _match_middle(before[start : len(before) - end], after[start : len(after) - end], steps)
    return _join(
        [
            Block(0, 0, start),
            *(Block(start + old, start + new, 1) for old, new in middle),
            Block(len(before) - end, len(after) - end, end),
        ]
    )


def _join(blocks: Sequence[Block]) -> list[Block]:
    """Return ``blocks`` without empty ones, and join neighbours."""
    joined: list[Block] = []
    for block in blocks:
        last = joined[-1] if joined else None
        if last and last.before + last.length == block.before and last.after + last.length == block.after:
            joined[-1] = last._replace(length=last.length + block.length)
        elif block.length:
            joined.append(block)
    return joined


def _match_middle(before: Sequence[str], after: Sequence[str], steps: Steps) -> list[tuple[int, int]]:
    """Return pairs of the numbers of equal lines."""
    known = set(after)
    numbers = {line: number for number, line in enumerate(known.intersection(before))}
    old = [at for at, line in enumerate(before) if line in numbers]
    new = [at for at, line in enumerate(after) if line in numbers]
    pairs = _longest_common([numbers[before[at]] for at in old], [numbers[after[at]] for at in new], steps)
    return [(old[x], new[y]) for x, y in pairs]


def _longest_common(before: Sequence[int], after: Sequence[int], steps: Steps) -> list[tuple[int, int]]:
    """Return the pairs of a longest common subsequence, or none if that takes too many steps.

    ``rows[d][i]`` is the furthest position in ``before`` that ``d`` differences reach on the diagonal ``2 * i - d``. The number
    of a diagonal is the position in ``before`` minus that in ``after``.
    """
    old_size, new_size = len(before), len(after)
    rows: list[array[int]] = []
    while True:
        differences = len(rows)
        row = array("i")
        for at in range(differences + 1):
            x = first = _first_position(rows[-1], at) if rows else 0
            y = x - (2 * at - differences)
            while x < old_size and y < new_size and before[x] == after[y]:
                x += 1
                y += 1
            row.append(x)
            steps.left -= 1 + x - first
            if x >= old_size and y >= new_size:
                return _trace_back([*rows, row], at)
            if steps.left < 0:
                return []
        rows.append(row)


def _first_position(row: "array[int]", at: int) -> int:
    """Return the position in ``before`` that one more difference than in ``row`` reaches: a line added or a line removed."""
    added = row[at] if at < len(row) else -1
    removed = row[at - 1] + 1 if at else -1
    return max(added, removed)


def _trace_back(rows: "Sequence[array[int]]", at: int) -> list[tuple[int, int]]:
    """Return the pairs on the way to the last row's entry ``at``."""
    pairs: list[tuple[int, int]] = []
    for differences in range(len(rows) - 1, -1, -1):
        x, diagonal = rows[differences][at], 2 * at - differences
        first = _first_position(rows[differences - 1], at) if differences else 0
        pairs += [(position, position - diagonal) for position in range(x - 1, first - 1, -1)]
        if differences:
            is_added = at < differences and rows[differences - 1][at] == first
            at -= 0 if is_added else 1
    return pairs[::-1]
