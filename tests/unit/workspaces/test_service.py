"""A workspace keeps every version, and a reader sees what a writer was told."""

import hashlib
import io
import random
import zipfile
from collections.abc import Iterator
from dataclasses import replace

import pytest

from spass.core.errors import (
    InvalidPath,
    VersionNotFound,
    WorkspaceConflict,
    WorkspaceFileNotFound,
    WorkspaceLimit,
    WorkspaceNotFound,
)
from spass.core.ids import TenantId
from spass.store.tenant_store import TenantStore
from spass.testing.faults import FaultPlan, inject
from spass.workspaces.change import Change
from spass.workspaces.head import read_live_head
from spass.workspaces.paths import WorkspacePath, parse_path
from spass.workspaces.tree import EMPTY_TREE, Tree, TreeAt, TreeFile
from tests.unit.workspaces.harness import WorkspaceHarness, paths, writes

pytestmark = pytest.mark.anyio

NOISE = random.Random(1).randbytes(5000)  # does not shrink


@pytest.fixture
def harness() -> WorkspaceHarness:
    return WorkspaceHarness()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def test_the_first_write_creates_the_workspace(harness: WorkspaceHarness) -> None:
    with pytest.raises(WorkspaceNotFound):
        await read_live_head(harness.store, harness.workspace)
    with pytest.raises(WorkspaceNotFound):
        await harness.workspaces.open(harness.store, harness.workspace).tree()
    committed = await harness.write({"src/main.py": b"print(1)\n" * 50, "noise": NOISE, "empty": b""})
    assert (committed.version, committed.counts) == (1, {"added": 3, "changed": 0, "deleted": 0})
    head = await read_live_head(harness.store, harness.workspace)
    assert (head.version, head.file_count, head.total_bytes) == (1, 3, 450 + 5000)
    assert await harness.contents() == {"src/main.py": b"print(1)\n" * 50, "noise": NOISE, "empty": b""}


async def test_each_version_stays_readable(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1", "b": b"x"})
    assert (await harness.write({"a": b"2"})).counts["changed"] == 1
    assert (await harness.write({"b": None, "c": b"3"})).counts["deleted"] == 1
    assert await harness.contents(1) == {"a": b"1", "b": b"x"}
    assert await harness.contents(2) == {"a": b"2", "b": b"x"}
    assert await harness.contents(3) == await harness.contents() == {"a": b"2", "c": b"3"}
    for version in (0, 4, -1):
        with pytest.raises(VersionNotFound):
            await harness.contents(version)


async def test_a_write_that_changes_nothing_makes_no_version(harness: WorkspaceHarness) -> None:
    assert (await harness.write({"a": None})).current == 0
    with pytest.raises(WorkspaceNotFound):
        await read_live_head(harness.store, harness.workspace)
    await harness.write({"a": b"1"})
    with inject(FaultPlan()) as plan:
        same = await harness.write({"a": b"1", "b": None})
    assert (same.version, same.current, same.files) == (None, 1, ())
    assert [call.operation for call in plan.calls] == ["GetItem"]


async def test_a_change_that_always_makes_a_version_does_so_without_a_difference(harness: WorkspaceHarness) -> None:
    assert (await harness.commit(replace(writes({"a": None}), always=True))).version is None, "there is no workspace"
    assert [(await harness.commit(replace(writes({"a": b"1"}), always=True))).version for _ in range(2)] == [1, 2]
    assert (await harness.commit(replace(writes({}), always=True))).files == []
    assert await harness.contents(3) == await harness.contents(1) == {"a": b"1"}


async def test_a_commit_is_two_puts_and_one_transaction_and_a_read_two_calls(harness: WorkspaceHarness) -> None:
    await harness.write({f"d/{n}": b"x%d" % n for n in range(10)})
    with inject(FaultPlan()) as plan:
        await harness.write({"d/1": b"new", "d/2": b"new"})
    assert sorted(call.operation for call in plan.calls) == ["GetItem", "PutObject", "PutObject", "TransactWriteItems"]
    with inject(FaultPlan()) as plan:
        at = await harness.workspaces.open(harness.store, harness.workspace).tree()
        assert await harness.workspaces.open(harness.store, harness.workspace).read(at, parse_path("d/7")) == b"x7"
    assert [call.operation for call in plan.calls] == ["GetItem", "GetObject"]
    assert plan.calls[1].parameters["Range"] == "bytes=14-15", "the eighth body of two bytes"


async def test_content_that_the_tree_holds_is_not_stored_twice(harness: WorkspaceHarness) -> None:
    await harness.write({"a": NOISE, "b": NOISE})
    first = sum(len(body) for body in harness.aws.bucket.objects.values())
    with inject(FaultPlan()) as plan:
        await harness.write({"c/d": NOISE, "a": None})
    assert [call.operation for call in plan.calls].count("PutObject") == 1, "the tree"
    assert 5000 < first < 6000
    assert await harness.contents() == {"b": NOISE, "c/d": NOISE}


async def test_an_expected_path_that_differs_is_a_conflict_that_changes_nothing(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1", "b": b"2"})
    with pytest.raises(WorkspaceConflict) as raised:
        await harness.write({"a": b"3", "b": b"3", "c": b"3"}, {"a": digest(b"1"), "b": digest(b"1"), "d": digest(b"")})
    assert raised.value.details == {"paths": ["b", "d"]}
    with pytest.raises(WorkspaceConflict):
        await harness.write({"a": b"3"}, {"a": None})
    assert (await harness.write({"a": b"3", "c": b"3"}, {"a": digest(b"1"), "c": None})).version == 2


async def test_a_resulting_tree_beyond_the_limits_is_refused(harness: WorkspaceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    await harness.write({"src/main.py": b"1"})
    for invalid in ("SRC/main.py", "src", "src/main.py/x", "src/Main.py"):
        with pytest.raises(InvalidPath):
            await harness.write({invalid: b"2"})
    assert (await harness.write({"SRC/main.py": b"2", "src/main.py": None})).version == 2
    monkeypatch.setattr("spass.workspaces.service.MAX_FILES", 3)
    monkeypatch.setattr("spass.workspaces.service.MAX_FILE_BYTES", 10)
    monkeypatch.setattr("spass.workspaces.service.MAX_TOTAL_BYTES", 20)
    for files in ({"1": b"", "2": b"", "3": b""}, {"1": bytes(11)}, {"1": bytes(10), "2": bytes(10)}):
        with pytest.raises(WorkspaceLimit):
            await harness.write(files)
    assert (await harness.write({"1": bytes(10), "2": bytes(9)})).version == 3
    assert (await harness.write({"3": bytes(10), "1": None})).version == 4


async def test_a_deleted_workspace_is_gone_and_its_numbers_continue(harness: WorkspaceHarness) -> None:
    assert await harness.delete() is False
    await harness.write({"a": b"1"})
    await harness.write({"a": b"2"})
    assert await harness.delete() is True
    assert await harness.delete() is False
    for version in (None, 1, 2):
        with pytest.raises(WorkspaceNotFound):
            await harness.contents(version)
    harness.clock += 60
    assert (await harness.write({"b": b"3"})).version == 3
    assert await harness.contents() == await harness.contents(3) == {"b": b"3"}
    for version in (1, 2):
        with pytest.raises(VersionNotFound):
            await harness.contents(version)


async def test_an_archive_replaces_all_files_and_may_be_empty(harness: WorkspaceHarness) -> None:
    assert (await harness.commit(Change.replace_all({}))).version == 1
    assert await harness.contents() == {}
    assert (await harness.commit(Change.replace_all(paths({"a": b"1", "b": b"2"})))).counts["added"] == 2
    committed = await harness.commit(Change.replace_all(paths({"b": b"3", "c": b"4"})))
    assert committed.counts == {"added": 1, "changed": 1, "deleted": 1}
    assert [(file.path, file.status) for file in committed.files] == [("a", "deleted"), ("b", "changed"), ("c", "added")]
    assert await harness.contents() == {"b": b"3", "c": b"4"}


async def test_an_earlier_version_is_restored_as_a_new_one(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1", "d/x": b"x", "d/y": b"y"})
    await harness.write({"a": b"2", "d/x": None, "d/z": b"z", "e": b"5"})
    old = await harness.workspaces.open(harness.store, harness.workspace).tree(1)
    with inject(FaultPlan()) as plan:
        assert (await harness.commit(Change.restore(old, ["d"]))).version == 3
    assert [call.operation for call in plan.calls].count("PutObject") == 1, "the tree"
    assert await harness.contents() == {"a": b"2", "d/x": b"x", "d/y": b"y", "e": b"5"}
    assert (await harness.commit(Change.restore(old, ["e"]))).counts["deleted"] == 1
    assert (await harness.commit(Change.restore(old))).version == 5
    assert await harness.contents() == await harness.contents(1)
    assert (await harness.commit(Change.restore(old))).version is None
    with pytest.raises(WorkspaceFileNotFound):
        await harness.commit(Change.restore(old, ["nowhere"]))
    await harness.delete()
    for restore in (Change.restore(old), Change.restore(old, ["e"])):
        with pytest.raises(VersionNotFound):
            await harness.commit(restore)


async def test_a_pinned_change_holds_only_while_its_paths_are_unchanged(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1", "b": b"2"})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    planned = Change.replace_all(paths({"a": b"3", "c": b"4"})).plan(at).pin()
    change = Change.from_json(planned.to_json())
    assert change == planned
    await harness.write({"elsewhere": b"5"})
    assert (await harness.commit(change)).version == 3
    assert await harness.contents() == {"a": b"3", "c": b"4", "elsewhere": b"5"}
    with pytest.raises(WorkspaceConflict) as raised:
        await harness.commit(change)
    assert raised.value.details == {"paths": ["a", "b", "c"]}


async def test_the_archive_holds_every_file_as_it_is(harness: WorkspaceHarness) -> None:
    files = {"a/ä.txt": b"text " * 1000, "a/copy.txt": b"text " * 1000, "noise": NOISE, "empty": b"", "\U0001f600": b"x"}
    await harness.write(files)
    await harness.write({"later": b"text " * 99})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    body = b"".join([chunk async for chunk in harness.workspaces.open(harness.store, harness.workspace).archive(at)])
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == sorted({*files, "later"})
        assert {name: archive.read(name) for name in archive.namelist()} == {**files, "later": b"text " * 99}
        assert all(entry.external_attr >> 16 == 0o100644 for entry in archive.infolist())


async def test_a_tenant_does_not_see_the_workspace_of_another(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1"})
    other: TenantStore = harness.aws.for_tenant(TenantId("other"))
    with pytest.raises(WorkspaceNotFound):
        await harness.workspaces.open(other, harness.workspace).tree()
    assert (await harness.workspaces.open(other, harness.workspace).newest()).tree.files == {}


def test_a_listing_shows_files_and_folders_by_path() -> None:
    tree = tree_of("a-b", "a.txt", "a/x", "a/y/z", "a0", "b/c/d/e")
    assert [entry.path for entry in tree.list(depth=1)] == ["a", "a-b", "a.txt", "a0", "b"]
    assert [entry.path for entry in tree.list("a", 1)] == ["a/x", "a/y"]
    assert [entry.path for entry in tree.list("b", 2)] == ["b/c", "b/c/d"]
    assert [entry.path for entry in tree.list("b")] == ["b/c", "b/c/d", "b/c/d/e"]
    everything = ["a", "a-b", "a.txt", "a/x", "a/y", "a/y/z", "a0", "b", "b/c", "b/c/d", "b/c/d/e"]
    assert [entry.path for entry in tree.list()] == [entry.path for entry in tree.list(depth=32)] == everything
    assert [entry.type for entry in tree.list("a")] == ["file", "directory", "file"]
    assert [*tree.list("a.txt")] == [*tree.list("nowhere")] == []
    assert [tree.is_folder(folder) for folder in ("", "a", "a/y", "a.txt", "a/x", "b/c/d/e")] == [True] * 3 + [False] * 3


def tree_of(*names: str) -> Tree:
    return Tree({WorkspacePath(name): TreeFile(digest(b""), 0, "", 0, 0, 0) for name in names})


class CountedPaths(dict[WorkspacePath, TreeFile]):
    """Files by path that count how often all of them are looked through."""

    rounds = 0

    def __iter__(self) -> Iterator[WorkspacePath]:
        self.rounds += 1
        return super().__iter__()


def test_a_restore_of_many_paths_looks_through_the_files_once() -> None:
    files = CountedPaths({parse_path(f"d{at % 70}/f{at}"): TreeFile(f"{at:064}", 1, "p", at, 1, 0) for at in range(500)})
    plan = Change(files, replaced=(*files.keys(), "d7"), generation="g").plan(TreeAt(2, "g", EMPTY_TREE))
    assert len(plan.files) == len(files)
    assert files.rounds <= 3
