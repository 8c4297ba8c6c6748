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
from spass.rag.answers import IndexPage, IndexSummary
from spass.rag.cache import ObjectCache
from spass.rag.kill import find_all, kill, live_ids, outdated, write_all_dead
from spass.rag.manifest import Manifest, manifest_of
from spass.rag.objects import SegmentObjects
from spass.rag.precondition import IfMatch
from spass.rag.swap import Step, read_manifest, swap

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
                manifest = manifest_of(item)
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

        async def plan(before: Manifest, _: str) -> Step[bool]:
            if not before.exists:
                return Step(False, None)
            tombstone = Manifest(updated_at=now())
            return Step(True, before.followed_by(tombstone, retired=[before.generation], at=now_s()))

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

        async def plan(before: Manifest, name: str) -> Step[bool]:
            objects = SegmentObjects(scope.store, index_id, before.generation, self.cache)
            loaded = await live_ids(objects, before.segments)
            found = find_all(loaded, [document_id])
            if not found:
                return Step(False, None)
            killed = kill(loaded, found.values())
            segments = await write_all_dead(objects, killed.left, killed.changed, name)
            after = before.with_segments(segments, now())
            retired = outdated(before.generation, before.segments, segments)
            return Step(True, before.followed_by(after, retired=retired, at=now_s()))

        return await swap(scope.store, index_id, scope.deadline, plan, beside, if_match)
