"""The whole life of a workspace on an emulated AWS: DynamoDB's conditions and S3's ranges do what the tests in memory assume."""

import asyncio
import io
import zipfile

import pytest

from spass.core.errors import WorkspaceConflict, WorkspaceNotFound
from spass.core.ids import WorkspaceId
from spass.core.time import Deadline, now_s
from spass.store.keys import workspace
from spass.store.tenant_store import TenantStore
from spass.testing.faults import Crash, Fault, FaultPlan, inject
from spass.workspaces.change import Author, Change, Committed
from spass.workspaces.head import read_live_head
from spass.workspaces.paths import parse_path
from spass.workspaces.service import Workspaces
from spass.workspaces.sweep import DELETED_SECONDS, ORPHAN_SECONDS, WorkspaceSweep, sweep_workspaces
from spass.workspaces.versions import list_versions

pytestmark = pytest.mark.anyio

WORKSPACE = WorkspaceId("default")


async def write(store: TenantStore, path: str, body: bytes | None, *, expects: str | None = "anything") -> Committed:
    expected = {} if expects == "anything" else {parse_path(path): expects}
    change = Change.of({parse_path(path): body}, expected)
    return await Workspaces().open(store, WORKSPACE).commit(change, Author(message="why"), Deadline.after(30))


async def contents(store: TenantStore) -> dict[str, bytes]:
    workspaces = Workspaces()
    at = await workspaces.open(store, WORKSPACE).tree()
    chunks = [chunk async for chunk in workspaces.open(store, WORKSPACE).archive(at)]
    with zipfile.ZipFile(io.BytesIO(b"".join(chunks))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


async def test_a_workspace_is_written_deleted_and_written_again(store: TenantStore) -> None:
    results = await asyncio.gather(
        *(write(store, "a", b"%d" % n, expects=None) for n in range(4)),
        *(write(store, f"b{n}", b"text " * n) for n in range(4)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, WorkspaceConflict) for result in results) == 3
    assert sorted(result.current for result in results if isinstance(result, Committed)) == [1, 2, 3, 4, 5]
    found = await contents(store)
    assert {name: body for name, body in found.items() if name != "a"} == {f"b{n}": b"text " * n for n in range(4)}
    head = await read_live_head(store, WORKSPACE)
    versions = await list_versions(store, WORKSPACE, head.generation, newest_first=True, limit=3)
    assert [(version.version, version.message) for version in versions] == [(n, "why") for n in (5, 4, 3)]

    assert await Workspaces().open(store, WORKSPACE).delete(Deadline.after(30)) is True
    with pytest.raises(WorkspaceNotFound):
        await contents(store)
    assert (await write(store, "c", b"new")).version == 6
    assert await sweep_workspaces(store, now_s(), Deadline.after(30)) == WorkspaceSweep()
    later = now_s() + DELETED_SECONDS + 60
    swept = await sweep_workspaces(store, later, Deadline.after(30))
    assert swept.generations == 1
    assert await contents(store) == {"c": b"new"}
    assert len(await store.objects.list_keys("ws/")) == 2
    assert not await list_versions(store, WORKSPACE, head.generation)


@pytest.mark.parametrize("exists", [False, True], ids=["first write", "later write"])
async def test_the_fence_of_a_sweep_stops_a_slow_writer(store: TenantStore, *, exists: bool) -> None:
    if exists:
        await write(store, "a", b"1")
    with inject(FaultPlan(Fault.CRASH_BEFORE, at=3 + exists)) as plan, pytest.raises(Crash):
        await write(store, "b", b"2")
    assert plan.calls[-1].operation == "TransactWriteItems"
    later = now_s() + ORPHAN_SECONDS + 60
    assert await sweep_workspaces(store, later, Deadline.after(30)) == WorkspaceSweep(orphans=2)
    item = await store.table.get(workspace(store.tenant, WORKSPACE))
    assert item is not None
    assert (item["version"], item["fences"], bool(item["generation"])) == (int(exists), 1, exists)
    assert (await write(store, "b", b"2")).version == 1 + exists
    assert await contents(store) == ({"a": b"1"} if exists else {}) | {"b": b"2"}
