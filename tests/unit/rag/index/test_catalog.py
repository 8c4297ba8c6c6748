"""List the indices of a tenant."""

import pytest

from spass.core.ids import IndexId
from spass.rag.index.catalog import MAX_DELETED, read_indices
from spass.rag.index.manifest import Manifest, swap_write
from tests.unit.rag.conftest import RagHarness, documents

pytestmark = pytest.mark.anyio


async def test_indices_are_listed_in_pages_without_the_deleted_ones(harness: RagHarness) -> None:
    names = [f"i{n}" for n in range(7)]
    for name in names:
        await harness.rag.writer.append(harness.scope, IndexId(name), documents(("a", "x")))
    for name in ("i0", "i3", "i6"):
        await harness.rag.deleter.delete_index(harness.scope, IndexId(name))
    await harness.rag.writer.append(harness.scope_of("other"), IndexId("i3"), documents(("a", "x")))
    for limit in (1, 2, 3, 4, 100):
        ids: list[str] = []
        cursor = None
        while True:
            page = await read_indices(harness.scope, cursor, limit)
            assert len(page.indices) <= limit
            ids += [summary.id for summary in page.indices]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert ids == ["i1", "i2", "i4", "i5"]


async def test_a_list_looks_behind_a_bounded_number_of_deleted_indices(harness: RagHarness) -> None:
    store = harness.scope.store
    for number in range(MAX_DELETED + 10):
        await store.table.write(swap_write(store.tenant, IndexId(f"i{number:05}"), Manifest(), Manifest(version=1)))
    await harness.rag.writer.append(harness.scope, IndexId("x"), documents(("a", "x")))
    first = await read_indices(harness.scope, None, 1)
    assert first.indices == ()
    second = await read_indices(harness.scope, first.next_cursor, 1)
    assert [summary.id for summary in second.indices] == ["x"]
    assert second.next_cursor is None
