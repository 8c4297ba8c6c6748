"""Replace and append: embed the documents, put a segment, and swap the manifest."""

from collections.abc import Sequence

from spass.aws.swap import Participant
from spass.calls.scope import Scope
from spass.core.ids import IndexId, new_id
from spass.core.time import now, now_s
from spass.rag.index.answers import WriteAnswer
from spass.rag.index.cache import ObjectCache
from spass.rag.index.documents import NewDocument, check_limits
from spass.rag.index.embedding import Embedder
from spass.rag.index.embedding_model import check_model
from spass.rag.index.locations import load_live_ids, locate_documents
from spass.rag.index.manifest import Manifest, read_manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.precondition import IfMatch
from spass.rag.write.deleted_rows import garbage_paths
from spass.rag.write.swap import NextVersion, swap
from spass.rag.write.upsert import EmbeddedDocuments, Upsert, put_segment


class Writer:
    """Writes documents of the caller's tenant."""

    def __init__(self, embedder: Embedder, cache: ObjectCache) -> None:
        self._embedder = embedder
        self._cache = cache

    async def replace(
        self,
        scope: Scope,
        index_id: IndexId,
        documents: Sequence[NewDocument],
        participant: Participant[WriteAnswer] | None = None,
        if_match: IfMatch | None = None,
    ) -> WriteAnswer:
        """Replace all documents of the index by ``documents``, in a new generation. The index is created if it does not exist.

        Raises:
            IndexChanged: ``if_match`` does not hold.
        """
        check_limits(documents)
        new = await self._embed(scope, documents)
        generation = new_id("gen")
        objects = SegmentObjects(scope.store, index_id, generation, self._cache)
        segment = await put_segment(objects, new.rows({}))

        async def plan(before: Manifest, _: str) -> NextVersion[WriteAnswer]:
            after = self._empty_manifest(generation, before).with_segments([segment], now())
            garbage = [before.generation] if before.exists else []
            return self._next_version(index_id, before, after, garbage, new, replaced=before.doc_count)

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)

    async def append(
        self,
        scope: Scope,
        index_id: IndexId,
        documents: Sequence[NewDocument],
        participant: Participant[WriteAnswer] | None = None,
        if_match: IfMatch | None = None,
    ) -> WriteAnswer:
        """Add ``documents``; each replaces the one with its id. The index is created if it does not exist.

        Raises:
            EmbeddingModelMismatch: the index was built with another model or dimension.
            IndexChanged: ``if_match`` does not hold.
        """
        check_limits(documents)
        check_model(await read_manifest(scope.store, index_id), self._embedder.model)
        new = await self._embed(scope, documents)
        upsert = Upsert(new)

        async def plan(before: Manifest, name: str) -> NextVersion[WriteAnswer]:
            check_model(before, self._embedder.model)
            after = before if before.exists else self._empty_manifest(new_id("gen"), before)
            objects = SegmentObjects(scope.store, index_id, after.generation, self._cache)
            loaded = await load_live_ids(objects, before.segments)
            found = locate_documents(loaded, [document.document_id for document in documents])
            segments = await upsert.segments(objects, loaded, found, name)
            garbage = garbage_paths(before.generation, before.segments, segments)
            return self._next_version(index_id, before, after.with_segments(segments, now()), garbage, new, replaced=len(found))

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)

    async def _embed(self, scope: Scope, documents: Sequence[NewDocument]) -> EmbeddedDocuments:
        return EmbeddedDocuments(documents, await self._embedder.embed(scope, [document.text for document in documents]))

    def _empty_manifest(self, generation: str, before: Manifest) -> Manifest:
        """Return the manifest of ``generation`` without documents. An index that exists keeps its time of creation."""
        model = self._embedder.model
        return Manifest(
            generation=generation,
            embedding_model=model.name,
            dimensions=model.dimensions,
            created_at=before.created_at if before.exists else now(),
        )

    def _next_version(
        self,
        index_id: IndexId,
        before: Manifest,
        after: Manifest,
        garbage: Sequence[str],
        new: EmbeddedDocuments,
        *,
        replaced: int,
    ) -> NextVersion[WriteAnswer]:
        next_ = before.next_version(after, garbage=garbage, removed_at=now_s())
        answer = WriteAnswer(
            index_id=index_id,
            doc_count=next_.doc_count,
            ingested=len(new.documents),
            replaced=replaced,
            version=next_.version,
            generation=next_.generation,
        )
        return NextVersion(answer, next_)
