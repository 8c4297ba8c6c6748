"""List the workspaces of a tenant."""

import pytest

from spass.core.ids import WorkspaceId
from spass.store import keys
from spass.store.writes import Put
from spass.testing.faults import FaultPlan, inject
from spass.workspaces.catalog import MAX_DELETED, read_workspaces
from tests.unit.workspaces.harness import WorkspaceHarness

pytestmark = pytest.mark.anyio


async def test_a_list_looks_behind_a_bounded_number_of_deleted_workspaces() -> None:
    harness = WorkspaceHarness(workspace=WorkspaceId("x"))
    store = harness.store
    for number in range(MAX_DELETED + 10):
        await store.table.write(Put(keys.workspace(store.tenant, WorkspaceId(f"w{number:05}")), {"version": 1}))
    await harness.write({"a": b"1"})
    with inject(FaultPlan()) as plan:
        first = await read_workspaces(store, None, 1)
    assert first.workspaces == ()
    assert len(plan.calls) <= 11
    second = await read_workspaces(store, first.next_cursor, 1)
    assert [found.id for found in second.workspaces] == ["x"]
    assert second.next_cursor is None
