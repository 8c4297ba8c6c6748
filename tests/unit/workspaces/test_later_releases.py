"""What a later release has stored in the head of a workspace or of an index stays when this one changes it."""

import pytest

from spass.core.ids import IndexId, TenantId, WorkspaceId
from spass.core.time import Timestamp
from spass.rag.index import manifest
from spass.store import keys
from spass.store.writes import Update
from spass.testing.aws import MemoryAws
from spass.workspaces import head
from spass.workspaces.head import WorkspaceHead
from spass.workspaces.tree import Tree

pytestmark = pytest.mark.anyio

AT = Timestamp("2026-01-01T00:00:00.000Z")


async def test_a_change_of_a_workspace_keeps_an_unknown_attribute() -> None:
    store, name = MemoryAws().for_tenant(TenantId("acme")), WorkspaceId("notes")
    first = WorkspaceHead().next("gen_1", "tree_1", Tree({}), AT)
    await store.table.write(head.swap_write(store.tenant, name, WorkspaceHead(), first))
    key = keys.workspace(store.tenant, name)
    await store.table.write(Update(key, set={"later": "kept"}))
    before = await head.read_head(store, name)
    await store.table.write(head.swap_write(store.tenant, name, before, before.next("gen_1", "tree_2", Tree({}), AT)))
    item = await store.table.get(key)
    assert item is not None
    assert (item["tree"], item["version"], item["later"]) == ("tree_2", 2, "kept")


async def test_a_change_of_an_index_keeps_an_unknown_attribute() -> None:
    store, name = MemoryAws().for_tenant(TenantId("acme")), IndexId("books")
    first = manifest.Manifest(generation="gen_1", version=1, revision=1)
    await store.table.write(manifest.swap_write(store.tenant, name, manifest.Manifest(), first))
    key = keys.rag_manifest(store.tenant, name)
    await store.table.write(Update(key, set={"later": "kept"}))
    before = await manifest.read_manifest(store, name)
    await store.table.write(manifest.swap_write(store.tenant, name, before, before.next_version(before)))
    item = await store.table.get(key)
    assert item is not None
    assert (item["version"], item["revision"], item["later"]) == (2, 2, "kept")
