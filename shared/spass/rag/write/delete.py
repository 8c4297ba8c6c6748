"""Delete indices and documents. This needs neither vectors nor numpy."""

from dataclasses import dataclass

from spass.aws.swap import Participant
from spass.calls.scope import Scope
from spass.core.ids import DocumentId, IndexId
from spass.core.time import now, now_s
from spass.rag.index.cache import ObjectCache
from spass.rag.index.locations import load_live_ids, locate_documents
from spass.rag.index.manifest import Manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.precondition import IfMatch
from spass.rag.write.deleted_rows import garbage_paths, mark_deleted, write_all_deleted_rows
from spass.rag.write.swap import NextVersion, swap


@dataclass(frozen=True, slots=True)
class IndexDeleter:
    """Deletes indices and documents of the caller's tenant."""

    cache: ObjectCache

    async def delete_index(
        self, scope: Scope, index_id: IndexId, participant: Participant[bool] | None = None, if_match: IfMatch | None = None
    ) -> bool:
        """Delete an index and all its documents. Return False if there was none.

        Raises:
            IndexChanged: ``if_match`` does not hold.
        """

        async def plan(before: Manifest, _: str) -> NextVersion[bool]:
            if not before.exists:
                return NextVersion(False, None)
            tombstone = Manifest(updated_at=now())
            return NextVersion(True, before.next_version(tombstone, garbage=[before.generation], removed_at=now_s()))

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)

    async def delete_document(
        self,
        scope: Scope,
        index_id: IndexId,
        document_id: DocumentId,
        participant: Participant[bool] | None = None,
        if_match: IfMatch | None = None,
    ) -> bool:
        """Delete one document. If there is none, return False and make no new version.

        Raises:
            IndexChanged: ``if_match`` does not hold.
        """

        async def plan(before: Manifest, name: str) -> NextVersion[bool]:
            objects = SegmentObjects(scope.store, index_id, before.generation, self.cache)
            loaded = await load_live_ids(objects, before.segments)
            found = locate_documents(loaded, [document_id])
            if not found:
                return NextVersion(False, None)
            result = mark_deleted(loaded, found.values())
            segments = await write_all_deleted_rows(objects, result.remaining, result.bitmaps, name)
            after = before.with_segments(segments, now())
            garbage = garbage_paths(before.generation, before.segments, segments)
            return NextVersion(True, before.next_version(after, garbage=garbage, removed_at=now_s()))

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)
