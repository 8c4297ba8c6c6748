"""The sweep removes what nobody can read any more, and never what a version names."""

import asyncio

import pytest

from spass.core.errors import SpassError, WorkspaceNotFound
from spass.core.time import Deadline
from spass.store.keys import tenant_prefix
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.workspaces.change import Change
from spass.workspaces.head import read_live_head
from spass.workspaces.sweep import DELETED_SECONDS, ORPHAN_SECONDS, WorkspaceSweep, sweep_workspaces
from tests.unit.rag.conftest import RacingWriters
from tests.unit.workspaces.harness import WorkspaceHarness, paths

pytestmark = pytest.mark.anyio

NOTHING = WorkspaceSweep()


@pytest.fixture
def harness() -> WorkspaceHarness:
    return WorkspaceHarness()


async def sweep_after(harness: WorkspaceHarness, seconds: float) -> WorkspaceSweep:
    harness.clock += seconds
    return await sweep_workspaces(harness.store, int(harness.clock), Deadline.after(60))


async def crash_at(harness: WorkspaceHarness, call: int, files: dict[str, bytes | None]) -> None:
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=call)), pytest.raises(Crash):
        await harness.write(files)


def items(harness: WorkspaceHarness) -> list[str]:
    """Return the sort keys of all items of workspaces."""
    prefix = f"{tenant_prefix(harness.store.tenant)}WS"
    found = sorted((str(item["pk"]), str(item["sk"])) for item in harness.aws.table.items())
    return [sk for pk, sk in found if pk.startswith(prefix)]


async def test_the_objects_of_live_versions_stay_for_ever(harness: WorkspaceHarness) -> None:
    for n in range(5):
        await harness.write({"a": b"%d" % n, f"b{n}": b"x"})
    before = await harness.object_names()
    for seconds in (60, ORPHAN_SECONDS, 10 * ORPHAN_SECONDS):
        assert await sweep_after(harness, seconds) == NOTHING
    assert await harness.object_names() == before
    assert (await harness.contents(1), (await harness.contents(5))["a"]) == ({"a": b"0", "b0": b"x"}, b"4")


async def test_a_deleted_generation_is_removed_after_an_hour(harness: WorkspaceHarness) -> None:
    for n in range(25):
        await harness.write({"a": b"%d" % n})
    old = set(await harness.object_names())
    await harness.delete()
    await harness.write({"b": b"new"})
    assert await sweep_after(harness, DELETED_SECONDS - 1) == NOTHING
    assert old < set(await harness.object_names())
    assert await sweep_after(harness, 2) == WorkspaceSweep(generations=1)
    assert old.isdisjoint(await harness.object_names())
    assert await harness.contents() == {"b": b"new"}
    assert [name.partition("#")[0] for name in items(harness)] == ["WS", "V"]
    assert await sweep_after(harness, ORPHAN_SECONDS) == NOTHING


async def test_a_deleted_workspace_leaves_only_its_number(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1"})
    await harness.delete()
    await sweep_after(harness, DELETED_SECONDS + 1)
    assert await harness.object_names() == []
    assert items(harness) == ["WS#default"]
    assert (await harness.write({"a": b"1"})).version == 2


@pytest.mark.parametrize("call", [2, 3])
async def test_objects_of_a_dead_writer_are_removed_after_a_day(harness: WorkspaceHarness, call: int) -> None:
    await harness.write({"a": b"1"})
    await crash_at(harness, call, {"a": b"2"})
    kept = await harness.contents()
    assert await sweep_after(harness, ORPHAN_SECONDS - 1) == NOTHING
    assert await sweep_after(harness, 2) == WorkspaceSweep(orphans=call - 1)
    assert len(await harness.object_names()) == 2
    assert await harness.contents() == kept == {"a": b"1"}


async def test_objects_of_a_dead_first_writer_are_removed_after_an_hour(harness: WorkspaceHarness) -> None:
    await crash_at(harness, 3, {"a": b"first"})
    assert await sweep_after(harness, DELETED_SECONDS - 1) == NOTHING
    assert await sweep_after(harness, 2) == WorkspaceSweep(orphans=2)
    with pytest.raises(WorkspaceNotFound):
        await read_live_head(harness.store, harness.workspace)
    assert (await harness.write({"a": b"1"})).version == 1


async def test_a_sweep_does_not_read_the_versions_that_another_one_checked(harness: WorkspaceHarness) -> None:
    for n in range(5):
        await harness.write({"a": b"%d" % n})
    await sweep_after(harness, ORPHAN_SECONDS + 1)
    with inject(FaultPlan()) as plan:
        await sweep_after(harness, 3600)
    assert [call.operation for call in plan.calls] == ["Query", "ListObjectsV2", "GetItem"]


@pytest.mark.parametrize("is_new", [True, False], ids=["first write", "later write"])
async def test_a_writer_that_stood_still_for_days_loses_no_object(harness: WorkspaceHarness, *, is_new: bool) -> None:
    if not is_new:
        await harness.write({"a": b"1"})

    async def sleep_for_days() -> None:
        assert await sweep_after(harness, 3 * ORPHAN_SECONDS) == WorkspaceSweep(orphans=2)

    with inject(RacingWriters(sleep_for_days)) as plan:
        committed = await harness.write({"b": b"slow"})
    assert committed.version == (1 if is_new else 2)
    assert [call.operation for call in plan.calls].count("TransactWriteItems") == 2, "the fence stopped the first one"
    await sweep_after(harness, 3 * ORPHAN_SECONDS)
    assert (await harness.contents())["b"] == b"slow"


async def test_a_writer_that_swaps_just_before_the_fence_keeps_its_objects(harness: WorkspaceHarness) -> None:
    """The sweep has already read the versions, and takes the writer's objects for orphans."""
    await harness.write({"a": b"1"})
    may_swap, swapped = asyncio.Event(), asyncio.Event()

    async def write_slowly() -> None:
        with inject(RacingWriters(may_swap.wait)):
            assert (await harness.write({"b": b"slow"})).version == 2
        swapped.set()

    async def let_it_swap() -> None:
        may_swap.set()
        await swapped.wait()

    writer = asyncio.create_task(write_slowly())
    while len(await harness.object_names()) < 4:
        await asyncio.sleep(0)
    with inject(RacingWriters(let_it_swap, operation="UpdateItem")):
        assert await sweep_after(harness, ORPHAN_SECONDS + 1) == NOTHING
    await writer
    assert await harness.contents() == {"a": b"1", "b": b"slow"}


async def test_a_reader_of_a_removed_generation_is_told_that_it_is_gone(harness: WorkspaceHarness) -> None:
    await harness.write({"a": b"1", "b": b"2"})
    at = await harness.workspaces.open(harness.store, harness.workspace).tree()
    harness.clock += 3 * ORPHAN_SECONDS
    await harness.delete()
    await harness.write({"a": b"other"})
    assert await sweep_after(harness, DELETED_SECONDS - 1) == NOTHING
    assert await harness.workspaces.open(harness.store, harness.workspace).read(at, at.tree.paths[0]) == b"1"
    assert await sweep_after(harness, 2) == WorkspaceSweep(generations=1)
    with pytest.raises(WorkspaceNotFound):
        await harness.workspaces.open(harness.store, harness.workspace).read(at, at.tree.paths[0])
    with pytest.raises(WorkspaceNotFound):
        await anext(harness.workspaces.open(harness.store, harness.workspace).archive(at))


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_sweep_with_a_fault_at_any_call_removes_no_named_object(fault: Fault) -> None:
    point = 0
    while True:
        harness = WorkspaceHarness()
        await harness.commit(Change.replace_all(paths({"a": b"1"})))
        await harness.write({"a": b"2"})
        await harness.delete()
        await harness.write({"a": b"3", "b": b"4"})
        await crash_at(harness, 3, {"c": b"5"})
        harness.clock += 3 * ORPHAN_SECONDS
        with inject(FaultPlan(fault, at=point, times=2)) as plan:
            try:
                await sweep_after(harness, 0)
            except (Crash, SpassError):
                assert len(plan.calls) > point
        if len(plan.calls) <= point:
            break
        assert await harness.contents() == await harness.contents(3) == {"a": b"3", "b": b"4"}
        await sweep_after(harness, 3600)
        assert len(await harness.object_names()) == 2, f"{fault} at {point}"
        assert [name.partition("#")[0] for name in items(harness)] == ["WS", "V"]
        point += 1
    assert point > 12
