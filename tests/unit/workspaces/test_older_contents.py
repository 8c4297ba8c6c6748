"""A content that a path had before is found in every kind of version, also with other blanks, and without many reads."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import pytest

from spass.store.invocation import PendingCall
from spass.testing.faults import FaultPlan, inject
from spass.workspaces.change import Body, Change
from spass.workspaces.paths import WorkspacePath
from tests.unit.workspaces.harness import WorkspaceHarness, paths

T = TypeVar("T")
pytestmark = pytest.mark.anyio

OLD = b"def f(x):\n    return x\n"
NEW = b"def f(x):\n    return 2 * x\n"
LOOKS_OLD = ["", "\n", " ", "\t", "\u200b", "\u2800", "\u3164", "\u00a0", "\ufeff", "\U000e0041", "\u0301", "\x07"]


@pytest.fixture
def harness() -> WorkspaceHarness:
    return WorkspaceHarness()


async def find(harness: WorkspaceHarness, files: Mapping[str, bytes]) -> str | None:
    """Return the path that another process, with an empty cache, finds."""
    cold = harness.cold()
    at = await cold.open(harness.store, harness.workspace).newest()
    bodies: dict[WorkspacePath, Body] = {path: Body.of(content) for path, content in paths(files).items()}
    return await cold.open(harness.store, harness.workspace).find_older(at, bodies)


async def restore(harness: WorkspaceHarness, version: int) -> None:
    await harness.commit(Change.restore(await harness.workspaces.open(harness.store, harness.workspace).tree(version)))


@pytest.mark.parametrize("added", LOOKS_OLD)
@pytest.mark.parametrize("files", [1, 70])
async def test_an_older_content_is_found_whatever_is_added_that_nobody_sees(
    harness: WorkspaceHarness, files: int, added: str
) -> None:
    await harness.write({f"{number}.py": OLD for number in range(files)})
    await harness.write({"0.py": NEW})
    for content in (OLD + added.encode(), added.encode() + OLD, OLD.replace(b"x", added.encode() + b"x")):
        assert await find(harness, {"new.py": OLD, "0.py": content}) == "0.py"


async def test_a_content_that_was_removed_moved_or_restored_is_found(harness: WorkspaceHarness) -> None:
    await harness.write({"a.py": OLD})
    at = await harness.workspaces.open(harness.store, harness.workspace).newest()
    (file,) = at.tree.files.values()
    await harness.commit(Change({**paths({"a.py": None}), **paths({"b.py": file})}, generation=at.generation))
    assert await find(harness, {"a.py": OLD + b" "}) == "a.py"
    await harness.write({"b.py": NEW})
    assert await find(harness, {"b.py": OLD + b" "}) == "b.py"
    await restore(harness, 2)
    await harness.write({"b.py": b"3"})
    assert await find(harness, {"b.py": NEW + b" "}) == "b.py"


async def test_a_change_of_blanks_brings_back_only_an_exact_older_content(
    harness: WorkspaceHarness,
) -> None:
    await harness.write({"a.py": OLD, **{f"{number}.py": NEW for number in range(70)}})
    await harness.write({"other.py": NEW})
    assert await find(harness, {"a.py": OLD + b"\n"}) is None
    await harness.write({"a.py": OLD + b"\n"})
    assert await find(harness, {"a.py": OLD + b"\n\n"}) is None
    assert await find(harness, {"a.py": OLD}) == "a.py"


@pytest.mark.parametrize("content", [b"def f(y):\n    return x\n", b"# " + OLD, OLD + b".", b"\xff\xfe", "déf\n".encode()])
async def test_another_content_is_not_found(harness: WorkspaceHarness, content: bytes) -> None:
    await harness.write({"a.py": OLD, **{f"{number}.py": content for number in range(70)}})
    await harness.write({"a.py": NEW})
    assert await find(harness, {"a.py": content}) is None


@dataclass(slots=True)
class InFlight(FaultPlan):
    """A plan without a fault that counts the calls in flight."""

    in_threads = False

    now: int = 0
    most: int = 0

    async def run_call(self, run: PendingCall[T]) -> T:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        return await run()


async def test_trees_of_large_versions_are_read_eight_at_once(harness: WorkspaceHarness) -> None:
    for version in range(20):
        await harness.write({f"{number}.py": b"%d" % version for number in range(70)})
    with inject(InFlight()) as plan:
        assert await find(harness, {"new.py": b"x"}) is None
    assert isinstance(plan, InFlight)
    assert plan.most == 8


async def test_a_long_history_is_read_in_one_query(harness: WorkspaceHarness) -> None:
    for number in range(30):
        await harness.write({"a.py": b"%d" % number})
    with inject(FaultPlan()) as plan:
        assert await find(harness, {"a.py": b"x"}) is None
    assert [call.operation for call in plan.calls] == ["GetItem", "GetObject", "Query"]


async def test_old_files_over_16_mib_are_compared_byte_by_byte(harness: WorkspaceHarness) -> None:
    for number in range(7):
        await harness.write({"a.txt": b"%d\n" % number * (2 * 2**20)})  # 4 MiB: the version does not say what it brought
    assert await find(harness, {"a.txt": b"5\n" * (2 * 2**20) + b" "}) == "a.txt"
    assert await find(harness, {"a.txt": b"0\n" * (2 * 2**20) + b" "}) is None
    assert await find(harness, {"a.txt": b"0\n" * (2 * 2**20)}) == "a.txt"
