"""Delete indices and documents. This does not need numpy."""

from dataclasses import dataclass, replace

from spass.calls.scope import Scope
from spass.core.ids import DocumentId, IndexId
from spass.rag.index.cache import ObjectCache
from spass.rag.index.locations import load_live_ids, locate_documents, mark_deleted, store_bitmaps
from spass.rag.index.manifest import Manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.precondition import IfMatch
from spass.rag.write.swap import NextVersion, swap
from spass.store.swap import Participant


@dataclass(frozen=True, slots=True)
class IndexDeleter:
    """Deletes indices and documents of the caller's tenant.

    Raises:
        IndexChanged: ``if_match`` does not hold; nothing was changed.
    """

    cache: ObjectCache

    async def delete_index(
        self, scope: Scope, index_id: IndexId, participant: Participant[bool] | None = None, if_match: IfMatch | None = None
    ) -> bool:
        """Delete an index and all its documents. Return False if there was none."""

        async def plan(before: Manifest, _: str) -> NextVersion[bool]:
            if not before.exists:
                return NextVersion(False, None)
            return NextVersion(True, before.next_version(Manifest()))  # a tombstone

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)

    async def delete_document(
        self,
        scope: Scope,
        index_id: IndexId,
        document_id: DocumentId,
        participant: Participant[bool] | None = None,
        if_match: IfMatch | None = None,
    ) -> bool:
        """Delete one document. If there is none, return False and make no new version."""

        async def plan(before: Manifest, attempt_name: str) -> NextVersion[bool]:
            objects = SegmentObjects(scope.store, index_id, before.generation, self.cache)
            loaded = await load_live_ids(objects, before.segments)
            locations = locate_documents(loaded, [document_id])
            if not locations:
                return NextVersion(False, None)
            segments = await store_bitmaps(objects, mark_deleted(loaded, locations.values()), attempt_name)
            return NextVersion(True, before.next_version(replace(before, segments=segments)))

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)
