"""Trees list what is in a folder, and survive encoding."""

import tracemalloc
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from spass.core.ids import TenantId
from spass.workspaces.globs import Globs
from spass.workspaces.objects import TreeCache, TreeName
from spass.workspaces.paths import WorkspacePath
from spass.workspaces.tree import EMPTY_TREE, Tree, TreeFile, decode_tree, encode_tree

segments = st.sampled_from(["a", "a-b", "a.b", "a0", "b", "ä", "\uffff", "\U0001f600"])
file_paths = st.lists(segments, min_size=1, max_size=4).map("/".join)
folders = st.lists(segments, max_size=3).map("/".join)
files = st.builds(
    TreeFile,
    st.text("0f", min_size=64, max_size=64),
    st.integers(0, 9),
    st.sampled_from(["", "p", "q"]),
    *[st.integers(0, 9)] * 3,
)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw a tree in which no file is a folder."""
    drawn: dict[WorkspacePath, TreeFile] = {}
    for path in draw(st.lists(file_paths, max_size=12)):
        if not any(f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/") for other in drawn):
            drawn[WorkspacePath(path)] = draw(files)
    return Tree(drawn)


def naive_listing(tree: Tree, folder: str, depth: int | None) -> Mapping[str, TreeFile | None]:
    """Return the entries by path in order: the file, or None for a directory."""
    prefix = f"{folder}/" if folder else ""
    found: dict[str, TreeFile | None] = {}
    for path, file in tree.files.items():
        if path.startswith(prefix):
            names = path.removeprefix(prefix).split("/")
            for count in range(1, len(names) + 1):
                if depth is None or count <= depth:
                    found[prefix + "/".join(names[:count])] = file if count == len(names) else None
    return dict(sorted(found.items()))


@given(trees(), folders, st.none() | st.integers(1, 4))
def test_a_listing_agrees_with_a_naive_one(tree: Tree, folder: str, depth: int | None) -> None:
    expected = naive_listing(tree, folder, depth)
    entries = [*tree.list(folder, depth)]
    assert [entry.path for entry in entries] == list(expected)
    for path, kind, size, sha256 in entries:
        file = expected[path]
        assert (kind, size, sha256) == (("file", file.size, file.sha256) if file else ("directory", None, None))
    assert tree.is_folder(folder) == (not folder or bool(expected))


@given(trees(), folders, st.none() | st.integers(1, 4), file_paths)
def test_a_listing_continues_after_a_path(tree: Tree, folder: str, depth: int | None, after: str) -> None:
    entries = [*tree.list(folder, depth)]
    assert [*tree.list(folder, depth, after=after)] == [entry for entry in entries if entry.path > after]


@given(trees(), st.lists(st.sampled_from(["**", "a/", "**/b", "!a/b/", "!**/ä", "b*"]), min_size=1).map(Globs))
def test_a_part_of_a_tree_has_the_files_that_match(tree: Tree, globs: Globs) -> None:
    expected = Tree({path: file for path, file in tree.files.items() if globs.matches(path)})
    for _ in range(2):
        part = tree.matching(globs)
        assert part == expected
        assert [*part.list()] == [*expected.list()]


def test_every_pattern_has_a_part_of_its_own() -> None:
    paths = [WorkspacePath(f"{folder}/{name}") for folder in "abcdefgh" for name in ("x", "y")]
    tree = Tree(dict.fromkeys(paths, TreeFile("", 0, "", 0, 0, 0)))
    for _ in range(2):
        for folder in "abcdefgh":
            assert tree.matching(Globs([f"{folder}/"])).paths == [f"{folder}/x", f"{folder}/y"]


@given(trees())
def test_a_decoded_tree_equals_the_encoded_one(tree: Tree) -> None:
    assert decode_tree(encode_tree(tree)) == tree


def name(number: int, tenant: str = "demo") -> TreeName:
    return TreeName(TenantId(tenant), f"ws/default/gen/{number}.tree")


def test_the_cache_keeps_the_most_recently_used_trees_within_its_budget() -> None:
    cache = TreeCache(3 * EMPTY_TREE.memory_bytes)
    for number in range(3):
        cache.put(name(number), EMPTY_TREE)
    assert cache.get(name(0)) is EMPTY_TREE
    cache.put(name(3), EMPTY_TREE)
    assert [cache.get(name(number)) is not None for number in range(4)] == [True, False, True, True]
    assert cache.get(name(0, tenant="other")) is None
    large = Tree({WorkspacePath(str(n)): TreeFile("", 0, "", 0, 0, 0) for n in range(9)})
    cache.put(name(4), large)
    assert cache.get(name(4)) is None, "larger than the budget"


def test_the_memory_of_a_tree_counts_the_folders_that_a_listing_names() -> None:
    deep = "/".join(f"{number:014}" for number in range(31))
    encoded = encode_tree(Tree({WorkspacePath(f"{at}/{deep}"): TreeFile("0" * 64, 1, "p", at, 1, 0) for at in range(500)}))
    tracemalloc.start()
    try:
        tree = decode_tree(encoded)
        for pattern in ("**", "!x", "!y", "!z"):
            assert next(tree.matching(Globs.parse(["**", pattern])).list("", 1)).path == "0"
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tree.memory_bytes >= used


def test_a_tree_over_the_budget_displaces_no_other() -> None:
    large = Tree({WorkspacePath("a"): TreeFile("0" * 64, 1, "p", 0, 1, 0)})
    cache = TreeCache(EMPTY_TREE.memory_bytes)
    cache.put(TreeName(TenantId("demo"), "small"), EMPTY_TREE)
    cache.put(TreeName(TenantId("demo"), "large"), large)
    assert cache.get(TreeName(TenantId("demo"), "small")) is EMPTY_TREE
    assert cache.get(TreeName(TenantId("demo"), "large")) is None
