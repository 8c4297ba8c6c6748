"""Indices as a whole: list, describe, delete, and the deletion of one document. None of it needs numpy."""

from dataclasses import dataclass
from typing import Final

from spass.aws.beside import Beside
from spass.aws.keys import RAG_INDEX_PREFIX, rag_partition
from spass.calls.scope import Scope
from spass.core.cursors import decode_cursor, encode_cursor
from spass.core.errors import IndexNotFound
from spass.core.ids import DocumentId, IndexId
from spass.core.time import now, now_s
from spass.rag.index.answers import IndexPage, IndexSummary
from spass.rag.index.cache import ObjectCache
from spass.rag.index.manifest import Manifest, decode_manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.precondition import IfMatch
from spass.rag.write.deleted_rows import garbage_paths, load_live_ids, locate_documents, mark_deleted, write_all_deleted_rows
from spass.rag.write.swap import NextVersion, read_manifest, swap

DEFAULT_LIMIT: Final = 100


def index_not_found(index_id: IndexId) -> IndexNotFound:
    return IndexNotFound(f"There is no index {index_id!r}.", param="index_id")


@dataclass(frozen=True, slots=True)
class Indices:
    """The indices of the caller's tenant. ``cache`` is this process's, shared with whoever else reads segments."""

    cache: ObjectCache

    async def list(self, scope: Scope, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> IndexPage:
        """Up to ``limit`` indices in the order of their ids.

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
                return IndexPage(tuple(found[:limit]), encode_cursor(owner, found[limit - 1].id))
            if len(items) < wanted:
                return IndexPage(tuple(found), None)

    async def describe(self, scope: Scope, index_id: IndexId) -> IndexSummary:
        """Raises:
        IndexNotFound: there is no such index.
        """
        manifest = await read_manifest(scope.store, index_id)
        if not manifest.exists:
            raise index_not_found(index_id)
        return IndexSummary.of(index_id, manifest)

    async def delete(
        self, scope: Scope, index_id: IndexId, beside: Beside[bool] | None = None, if_match: IfMatch | None = None
    ) -> bool:
        """Delete an index and all its documents; False if there was none.

        Raises:
            IndexChanged: ``if_match`` does not hold.
        """

        async def plan(before: Manifest, _: str) -> NextVersion[bool]:
            if not before.exists:
                return NextVersion(False, None)
            tombstone = Manifest(updated_at=now())
            return NextVersion(True, before.next_version(tombstone, retired=[before.generation], at=now_s()))

        return await swap(scope.store, index_id, scope.deadline, plan, beside, if_match)

    async def delete_document(
        self,
        scope: Scope,
        index_id: IndexId,
        document_id: DocumentId,
        beside: Beside[bool] | None = None,
        if_match: IfMatch | None = None,
    ) -> bool:
        """Delete one document; False, and no new version, if it was not there.

        Raises:
            IndexChanged: ``if_match`` does not hold.
        """

        async def plan(before: Manifest, name: str) -> NextVersion[bool]:
            objects = SegmentObjects(scope.store, index_id, before.generation, self.cache)
            loaded = await load_live_ids(objects, before.segments)
            found = locate_documents(loaded, [document_id])
            if not found:
                return NextVersion(False, None)
            killed = mark_deleted(loaded, found.values())
            segments = await write_all_deleted_rows(objects, killed.left, killed.changed, name)
            after = before.with_segments(segments, now())
            retired = garbage_paths(before.generation, before.segments, segments)
            return NextVersion(True, before.next_version(after, retired=retired, at=now_s()))

        return await swap(scope.store, index_id, scope.deadline, plan, beside, if_match)
