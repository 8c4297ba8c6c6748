"""A unified diff turns one text into the other, counts lines, and is computed in bounded time."""

import re
import time
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spass.workspaces.diff import MAX_FILE_DIFF_BYTES, DiffLimit, FileDiff
from spass.workspaces.line_matching import Steps, match_lines

MIB = 1024 * 1024
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")

texts = st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\r\n", " d\n", "-\n", "é\n", "\u2028\n"]), max_size=30).map("".join)
bodies = st.builds(lambda text, end: (text + end).encode(), texts, st.sampled_from(["", "x", "a"]))


def diff_bodies(path: str, before: bytes | None, after: bytes | None, max_bytes: int = MAX_FILE_DIFF_BYTES) -> FileDiff:
    return DiffLimit(max_bytes).diff(path, before, after)


def split(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def apply(unified: str, before: str) -> str:
    """Apply a unified diff as ``patch`` does: check each context line and each header."""
    if not unified:
        return before
    old, result, taken = split(before), [], 0
    lines = split(unified)
    assert lines[0].startswith("--- ")
    assert lines[1].startswith("+++ ")
    at = 2
    while at < len(lines):
        found = HUNK.fullmatch(lines[at])
        assert found, lines[at]
        start, length, new_start, new_length = (1 if number is None else int(number) for number in found.groups())
        start -= 1 if length else 0
        new_start -= 1 if new_length else 0
        result += old[taken:start]
        taken = start
        assert len(result) == new_start
        at += 1
        while at < len(lines) and not lines[at].startswith("@@"):
            kind, line = lines[at][0], lines[at][1:]
            if at + 1 < len(lines) and lines[at + 1].startswith("\\"):
                line = line.removesuffix("\n")
                assert lines[at + 1] == "\\ No newline at end of file\n"
                at += 1
            if kind in " -":
                assert old[taken] == line
                taken += 1
                length -= 1
            if kind in " +":
                result.append(line)
                new_length -= 1
            at += 1
        assert (length, new_length) == (0, 0)
    return "".join(result + old[taken:])


def lines_of(diff: FileDiff, prefix: str) -> int:
    return sum(line.startswith(prefix) and not line.startswith(prefix * 3 + " ") for line in split(diff.unified))


@given(bodies, bodies)
def test_applying_the_diff_gives_the_new_text(before: bytes, after: bytes) -> None:
    diff = diff_bodies("src/a.py", before, after)
    assert apply(diff.unified, before.decode()) == after.decode()
    assert (diff.status, diff.truncated) == ("changed", False)
    assert diff.added - diff.removed == len(split(after.decode())) - len(split(before.decode()))


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_the_common_lines_are_a_longest_common_subsequence(before: Sequence[int], after: Sequence[int]) -> None:
    old, new = [*map(str, before)], [*map(str, after)]
    blocks = match_lines(old, new, Steps())
    for block in blocks:
        assert old[block.before : block.before + block.length] == new[block.after : block.after + block.length]
    ends = [(block.before + block.length, block.after + block.length) for block in blocks]
    starts = [(block.before, block.after) for block in blocks]
    assert all(end[0] <= start[0] and end[1] <= start[1] and end != start for end, start in zip(ends, starts[1:], strict=False))
    assert sum(block.length for block in blocks) == longest(old, new)


def longest(old: Sequence[str], new: Sequence[str]) -> int:
    row = [0] * (len(new) + 1)
    for one in old:
        row = [0] + [max(row[at] + 1 if one == other else 0, row[at + 1]) for at, other in enumerate(new)]
        for at in range(len(new)):
            row[at + 1] = max(row[at + 1], row[at])
    return row[-1]


def test_a_diff_has_three_lines_around_each_change() -> None:
    before = "".join(f"line {number}\n" for number in range(1, 31))
    after = before.replace("line 5\n", "line five\n").replace("line 11\n", "").replace("line 25\n", "line 25\nline 25a\n")
    assert diff_bodies("docs/a b.md", before.encode(), after.encode()).to_json() == {
        "path": "docs/a b.md",
        "status": "changed",
        "added": 2,
        "removed": 2,
        "unified": "--- a/docs/a b.md\n+++ b/docs/a b.md\n"
        "@@ -2,13 +2,12 @@\n line 2\n line 3\n line 4\n-line 5\n+line five\n line 6\n line 7\n line 8\n line 9\n line 10\n"
        "-line 11\n line 12\n line 13\n line 14\n"
        "@@ -23,6 +22,7 @@\n line 23\n line 24\n line 25\n+line 25a\n line 26\n line 27\n line 28\n",
        "truncated": False,
    }


def test_an_added_and_a_deleted_file_have_no_other_side() -> None:
    added = diff_bodies("a.md", None, b"one\ntwo")
    assert (added.status, added.added, added.removed) == ("added", 2, 0)
    assert added.unified == "--- /dev/null\n+++ b/a.md\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n"
    deleted = diff_bodies("a.md", b"one\n", None)
    assert (deleted.status, deleted.added, deleted.removed) == ("deleted", 0, 1)
    assert deleted.unified == "--- a/a.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
    assert diff_bodies("empty", None, b"") == FileDiff("empty", "added", 0, 0, "", truncated=False)


@pytest.mark.parametrize(
    ("before", "after", "hunk"),
    [
        ("a", "a\n", "-a\n\\ No newline at end of file\n+a\n"),
        ("a\n", "a", "-a\n+a\n\\ No newline at end of file\n"),
        ("a\nb", "c\nb", "-a\n+c\n b\n\\ No newline at end of file\n"),
        ("a\r\n", "a\n", "-a\r\n+a\n"),
    ],
)
def test_line_ends_are_part_of_a_line(before: str, after: str, hunk: str) -> None:
    assert diff_bodies("a", before.encode(), after.encode()).unified.split(" @@\n")[1] == hunk


@pytest.mark.parametrize(("before", "after"), [(b"\xff\xfe", b"a\n"), (b"a\n", b"PNG\0"), (None, b"\x80"), (b"\0", None)])
def test_a_file_that_is_not_text_has_no_unified_diff(before: bytes | None, after: bytes | None) -> None:
    diff = diff_bodies("logo.png", before, after)
    assert (diff.added, diff.removed, diff.unified, diff.truncated) == (0, 0, "", True)


def test_a_file_over_1_mib_has_counts_but_no_unified_diff() -> None:
    before = b"0123456789abcde\n" * (MIB // 16)
    after = before.replace(b"0", b"X", 1) + b"end\n"
    diff = diff_bodies("big", before, after)
    assert (diff.added, diff.removed, diff.unified, diff.truncated) == (2, 1, "", True)
    assert diff_bodies("big", None, after).unified == ""
    exact = diff_bodies("big", before, b"x" + before[1:])
    assert (exact.added, exact.removed, exact.truncated) == (1, 1, False)


@pytest.mark.parametrize("limit", [0, 10, 100, 5000, MAX_FILE_DIFF_BYTES, 10 * MIB])
def test_a_long_diff_is_cut_after_a_line_and_its_counts_are_whole(limit: int) -> None:
    before = "".join(f"line é {number}\n" for number in range(9000)).encode()
    diff = diff_bodies("a.md", None, before, limit)
    assert (diff.added, diff.truncated) == (9000, True)
    assert len(diff.unified.encode()) <= min(limit, MAX_FILE_DIFF_BYTES)
    assert len(diff.unified.encode()) > min(limit, MAX_FILE_DIFF_BYTES) - 60
    assert not diff.unified or diff.unified.endswith("\n")
    assert diff_bodies("a.md", before, before + b"x\n", 200).truncated is False


def test_all_diffs_of_an_answer_share_the_bytes() -> None:
    limit = DiffLimit(1000)
    diffs = [limit.diff(f"{number}.md", None, b"0123456789\n" * 20) for number in range(8)]
    assert sum(len(diff.unified) for diff in diffs) <= 1000
    assert [diff.truncated for diff in diffs] == [False] * 3 + [True] * 5
    assert [diff.added for diff in diffs] == [20] * 8


HOSTILE = {
    "equal lines": (b"\n" * MIB, b"\n" * (MIB - 1000)),
    "blocks that change places": (b"x\n" * (MIB // 4) + b"y\n" * (MIB // 4), b"y\n" * (MIB // 4) + b"x\n" * (MIB // 4)),
    "equal lines around one that moves": (b"\n" * (MIB // 2) + b"a\n", b"a\n" + b"\n" * (MIB // 2)),
    "lines in reverse order": (
        b"".join(b"%06d\n" % number for number in range(100_000)),
        b"".join(b"%06d\n" % number for number in range(100_000, 0, -1)),
    ),
    "every second line changed": (
        b"".join(b"%06d\n" % number for number in range(100_000)),
        b"".join(b"%06d\n" % (number if number % 2 else -number) for number in range(100_000)),
    ),
    "two lines in disorder": (
        b"".join(b"x\n" if number * number % 7 < 3 else b"y\n" for number in range(400_000)),
        b"".join(b"x\n" if number * number % 11 < 5 else b"y\n" for number in range(400_000)),
    ),
    "one long line": (b"x" * MIB, b"x" * (MIB - 1) + b"y"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pair_of_texts_takes_bounded_time(name: str) -> None:
    before, after = HOSTILE[name]
    started = time.thread_time()
    diff = diff_bodies("a", before, after)
    assert time.thread_time() - started < 10
    assert diff.added - diff.removed == after.count(b"\n") - before.count(b"\n")
    assert len(diff.unified.encode()) <= MAX_FILE_DIFF_BYTES


def test_many_long_texts_take_bounded_time_together() -> None:
    limit = DiffLimit()
    started = time.thread_time()
    diffs = [limit.diff(f"{number}", b"\n" * MIB, b"\n" * (MIB // 2) + b"a\n") for number in range(100)]
    assert time.thread_time() - started < 20
    assert {diff.added for diff in diffs} == {1}
    assert {diff.removed for diff in diffs} == {MIB // 2}
    assert diffs[0].unified
    assert not diffs[-1].unified
    assert diffs[-1].truncated


@given(bodies, bodies)
@example(b"b\n", b"a\nb\n")
@example(b"a\nb\n", b"b\n")
@example(b"xa\nb\n", b"a\nb\n")
def test_without_steps_the_counts_are_those_of_one_change(before: bytes, after: bytes) -> None:
    limit = DiffLimit()
    limit.steps_left = 0
    diff = limit.diff("a", before, after)
    old, new = split(before.decode()), split(after.decode())
    if old == new:
        return
    start = next((at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), min(len(old), len(new)))
    rest, other = old[start:][::-1], new[start:][::-1]
    end = next((at for at, (one, two) in enumerate(zip(rest, other, strict=False)) if one != two), min(len(rest), len(other)))
    assert (diff.added, diff.removed) == (len(new) - start - end, len(old) - start - end)


def test_two_texts_of_millions_of_short_lines_take_bounded_memory() -> None:
    before, after = b"a\n" * (2 * MIB), b"b\n" * (2 * MIB)
    tracemalloc.start()
    try:
        diff = DiffLimit().diff("lines", before, after)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (diff.added, diff.removed) == (2 * MIB, 2 * MIB)
    assert peak < 64 * MIB
