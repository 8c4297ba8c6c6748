"""List and describe the indices of a tenant. This does not need numpy."""

from typing import Final

from spass.calls.scope import Scope
from spass.core.ids import IndexId
from spass.core.paging import decode_cursor, fill_page
from spass.rag.index.manifest import index_not_found, list_manifests, read_manifest
from spass.rag.index.responses import IndexPage, IndexSummary

DEFAULT_LIMIT: Final = 100
MAX_DELETED: Final = 1000
"""Deleted indices among which one request looks for others. Their manifests stay, so that versions never decrease."""
_MIN_PAGE_SIZE: Final = 100
"""Manifests that one query reads at least: a page of few indices may lie behind many deleted ones."""


async def read_indices(scope: Scope, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> IndexPage:
    """Return up to ``limit`` indices in the order of their ids. A page ends early after many indices that were deleted. Raise
    ``InvalidRequest`` if the cursor is not of this list."""
    owner = f"indices:{scope.store.tenant}"
    after = decode_cursor(owner, cursor) if cursor is not None else None
    manifests = list_manifests(scope.store, after=after, page_size=max(limit + 1, _MIN_PAGE_SIZE))
    views = ((index, IndexSummary.of(index, found) if found.exists else None) async for index, found in manifests)
    indices, next_cursor = await fill_page(owner, views, limit, most_skipped=MAX_DELETED)
    return IndexPage(indices=tuple(indices), next_cursor=next_cursor)


async def describe_index(scope: Scope, index_id: IndexId) -> IndexSummary:
    """Return the summary of an index. Raise ``IndexNotFound`` if there is no such index."""
    manifest = await read_manifest(scope.store, index_id)
    if not manifest.exists:
        raise index_not_found(index_id)
    return IndexSummary.of(index_id, manifest)
