"""List and describe the indices of a tenant. This needs neither vectors nor numpy."""

from typing import Final

from spass.aws.keys import RAG_INDEX_PREFIX, rag_partition
from spass.calls.scope import Scope
from spass.core.cursors import decode_cursor, encode_cursor
from spass.core.ids import IndexId
from spass.rag.index.answers import IndexPage, IndexSummary
from spass.rag.index.manifest import decode_manifest, index_not_found, read_manifest

DEFAULT_LIMIT: Final = 100


class IndexCatalog:
    """The indices of the caller's tenant."""

    async def list(self, scope: Scope, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> IndexPage:
        """Return up to ``limit`` indices in the order of their ids.

        Raises:
            InvalidRequest: the cursor is not of this list.
        """
        owner = f"indices:{scope.store.tenant}"
        last = decode_cursor(owner, cursor) if cursor is not None else None
        found: list[IndexSummary] = []
        while True:
            wanted = limit + 1 - len(found)
            items = await scope.store.table.query(
                rag_partition(scope.store.tenant),
                prefix=RAG_INDEX_PREFIX,
                after=None if last is None else RAG_INDEX_PREFIX + last,
                limit=wanted,
            )
            for item in items:
                last = str(item["sk"]).removeprefix(RAG_INDEX_PREFIX)
                manifest = decode_manifest(item)
                if manifest.exists:
                    found.append(IndexSummary.of(IndexId(last), manifest))
            if len(found) > limit:
                return IndexPage(indices=tuple(found[:limit]), next_cursor=encode_cursor(owner, found[limit - 1].id))
            if len(items) < wanted:
                return IndexPage(indices=tuple(found), next_cursor=None)

    async def describe(self, scope: Scope, index_id: IndexId) -> IndexSummary:
        """Return the summary of an index.

        Raises:
            IndexNotFound: there is no such index.
        """
        manifest = await read_manifest(scope.store, index_id)
        if not manifest.exists:
            raise index_not_found(index_id)
        return IndexSummary.of(index_id, manifest)
