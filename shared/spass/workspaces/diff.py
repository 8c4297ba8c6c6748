"""Compare two texts of a file: counts of lines and a unified diff of limited size, computed in bounded time.

A line ends at a line feed, so a carriage return before it is part of the line.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from spass.core.messages import Json
from spass.workspaces.line_matching import MAX_STEPS, Block, Steps, match_lines
from spass.workspaces.text import decode_text

MAX_FILE_DIFF_BYTES: Final = 64 * 1024
"""Bytes of the unified diff of one file."""
MAX_DIFF_BYTES: Final = 1024 * 1024
"""Bytes of all unified diffs of an answer together."""
MAX_TEXT_BYTES: Final = 1024 * 1024
"""Bytes of a file that has a unified diff."""

FileStatus = Literal["added", "changed", "deleted"]

_CONTEXT_LINES: Final = 3
_MAX_STEPS: Final = 8 * MAX_STEPS
_MAX_LINES: Final = 1_600_000
"""Lines of both bodies of a file that are compared one by one. Each takes up to 140 bytes of the 512 MiB of a function."""
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_NO_LINE_END: Final = "\n\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The change of one file. ``added`` and ``removed`` count lines; both are 0 if the file is not text. ``truncated`` says that
    ``unified`` is not the whole diff."""

    path: str
    status: FileStatus
    added: int
    removed: int
    unified: str
    truncated: bool

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(slots=True)
class DiffLimit:
    """The bytes and the steps that are left for the diffs of one answer.

    ``file_bytes`` bounds the unified diff of one file, and ``text_bytes`` the file. Without steps, or with too many lines, a file
    gets no unified diff, and is counted as one change that holds all others.
    """

    bytes_left: int = MAX_DIFF_BYTES
    file_bytes: int = MAX_FILE_DIFF_BYTES
    text_bytes: int = MAX_TEXT_BYTES
    steps_left: int = field(default=_MAX_STEPS, init=False)

    def diff(self, path: str, before: bytes | None, after: bytes | None) -> FileDiff:
        """Compare two bodies of a file, of which None is an absent one. Take the unified diff from what is left."""
        status: FileStatus = "added" if before is None else "deleted" if after is None else "changed"
        bodies = before or b"", after or b""
        old, new = map(decode_text, bodies)
        if old is None or new is None:
            return FileDiff(path, status, 0, 0, "", truncated=True)
        if self.steps_left <= 0 or sum(body.count(b"\n") for body in bodies) > _MAX_LINES:
            removed, added = _count_between_equal_ends(*bodies)
            return FileDiff(path, status, added, removed, "", truncated=True)
        texts = _LINE.findall(old), _LINE.findall(new)
        changes = self._find_changes(*texts)
        removed = sum(change.old_end - change.old for change in changes)
        added = sum(change.new_end - change.new for change in changes)
        if max(map(len, bodies)) > self.text_bytes:
            return FileDiff(path, status, added, removed, "", truncated=True)
        unified, truncated = self._take(_unified(path, status, *texts, changes))
        return FileDiff(path, status, added, removed, unified, truncated)

    def _find_changes(self, before: Sequence[str], after: Sequence[str]) -> "list[_Change]":
        self.steps_left -= len(before) + len(after)
        steps = Steps(min(MAX_STEPS, max(0, self.steps_left)))
        self.steps_left -= steps.left
        blocks = match_lines(before, after, steps)
        self.steps_left += steps.left
        return _changes(blocks, before, after)

    def _take(self, lines: Iterator[str]) -> tuple[str, bool]:
        """Return the first lines that fit, and whether there are more."""
        taken: list[str] = []
        room = min(self.file_bytes, self.bytes_left)
        for line in lines:
            size = len(line.encode())
            if size > room:
                return "".join(taken), True
            room -= size
            self.bytes_left -= size
            taken.append(line)
        return "".join(taken), False


class _Change(NamedTuple):
    """Lines of the old text, which lines of the new text replace: half-open ranges, of which one may be empty."""

    old: int
    old_end: int
    new: int
    new_end: int


def _changes(blocks: Sequence[Block], before: Sequence[str], after: Sequence[str]) -> list[_Change]:
    """Return the changes between ``blocks``."""
    around = [Block(0, 0, 0), *blocks, Block(len(before), len(after), 0)]
    changes = (
        _Change(left.before + left.length, right.before, left.after + left.length, right.after)
        for left, right in pairwise(around)
    )
    return [change for change in changes if change.old < change.old_end or change.new < change.new_end]


def _unified(
    path: str, status: FileStatus, before: Sequence[str], after: Sequence[str], changes: Sequence[_Change]
) -> Iterator[str]:
    """Yield the pieces of the unified diff. Without a changed line it is empty."""
    if not changes:
        return
    yield f"--- {'/dev/null' if status == 'added' else f'a/{path}'}\n"
    yield f"+++ {'/dev/null' if status == 'deleted' else f'b/{path}'}\n"
    first = 0
    for at, change in enumerate(changes):
        is_last = at + 1 == len(changes)
        if is_last or changes[at + 1].old - change.old_end > 2 * _CONTEXT_LINES:
            yield from _hunk(before, after, changes[first : at + 1])
            first = at + 1


def _hunk(before: Sequence[str], after: Sequence[str], changes: Sequence[_Change]) -> Iterator[str]:
    """Yield the lines of ``changes``, with the lines between them and three around them."""
    leading = min(_CONTEXT_LINES, changes[0].old)
    trailing = min(_CONTEXT_LINES, len(before) - changes[-1].old_end)
    old, new = changes[0].old - leading, changes[0].new - leading
    yield f"@@ -{_range(old, changes[-1].old_end + trailing)} +{_range(new, changes[-1].new_end + trailing)} @@\n"
    for change in changes:
        yield from _prefixed(" ", before, old, change.old)
        yield from _prefixed("-", before, change.old, change.old_end)
        yield from _prefixed("+", after, change.new, change.new_end)
        old = change.old_end
    yield from _prefixed(" ", before, old, old + trailing)


def _prefixed(prefix: str, lines: Sequence[str], start: int, end: int) -> Iterator[str]:
    for at in range(start, end):
        line = lines[at]
        yield f"{prefix}{line}" if line.endswith("\n") else f"{prefix}{line}{_NO_LINE_END}"


def _range(start: int, end: int) -> str:
    """Return lines in the form of a hunk's header: an empty range names the line before it."""
    length = end - start
    if length == 1:
        return f"{end}"
    return f"{start + 1 if length else start},{length}"


def _count_between_equal_ends(before: bytes, after: bytes) -> tuple[int, int]:
    """Return how many lines of two different texts are between those that both begin with and those that both end with."""
    start = before.rfind(b"\n", 0, _equal_bytes(before, after)) + 1
    old, new = before[start:], after[start:]
    rest = _equal_bytes(old[::-1], new[::-1])
    old_middle, new_middle = old[: len(old) - rest], new[: len(new) - rest]
    if not all(
        text.endswith(b"\n") for text in (old_middle, new_middle) if text
    ):  # the first of the equal bytes end a changed line
        line_end = old.find(b"\n", len(old) - rest) + 1 or len(old)
        rest = len(old) - line_end
        old_middle, new_middle = old[:line_end], new[: len(new) - rest]
    return _count_lines(old_middle), _count_lines(new_middle)


def _equal_bytes(one: bytes, other: bytes) -> int:
    """Return how many bytes both begin with: compare halves of what is left, which is much faster than one byte at a time."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _count_lines(text: bytes) -> int:
    return text.count(b"\n") + (not text.endswith(b"\n") and bool(text))
