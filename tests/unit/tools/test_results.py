"""Bound the blocks for people: at most 128 KiB of JSON, cut at a line or an entry, and marked."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.tools.results import MAX_RICH_BYTES, truncate_rich


def diff(path: str, unified: str) -> dict[str, Json]:
    return {"kind": "diff", "path": path, "status": "changed", "added": 1, "removed": 1, "unified": unified, "truncated": False}


def test_blocks_that_fit_are_unchanged() -> None:
    blocks: list[Json] = [diff("a", "+x\n"), {"kind": "file", "text": "y", "truncated": False}]
    assert [*truncate_rich(blocks)] == blocks


def test_a_long_diff_is_cut_after_a_line() -> None:
    (cut,) = truncate_rich([diff("a", '+"line"\n' * 60_000)])
    assert isinstance(cut, dict)
    assert cut["truncated"] is True
    assert set(str(cut["unified"]).splitlines()) == {'+"line"'}
    assert str(cut["unified"]).endswith("\n")
    assert MAX_RICH_BYTES - 200 < len(dump_bytes([cut])) <= MAX_RICH_BYTES


def test_a_long_tree_is_cut_after_an_entry() -> None:
    entries: list[Json] = [{"path": f"src/{n}.py", "type": "file", "size": n} for n in range(9000)]
    (cut,) = truncate_rich([{"kind": "file_tree", "root": "", "entries": entries, "truncated": False}])
    assert isinstance(cut, dict)
    shown: Any = cut["entries"]
    assert shown == entries[: len(shown)]
    assert cut["truncated"] is True


def test_every_file_is_named_before_the_first_is_shown_in_full() -> None:
    blocks = truncate_rich([diff(f"{n}.py", "+x\n" * 30_000) for n in range(100)])
    assert [block["path"] for block in blocks if isinstance(block, dict)] == [f"{n}.py" for n in range(100)]


@given(st.lists(st.text(max_size=400).map(lambda text: diff("p", text * 300)), max_size=8))
def test_all_blocks_together_are_bounded(blocks: list[Json]) -> None:
    assert len(dump_bytes([*truncate_rich(blocks)])) <= MAX_RICH_BYTES
