"""Replace, append and patch: embed the documents, put a segment, and swap the manifest."""

from collections.abc import Sequence
from dataclasses import replace

from spass.calls.scope import Scope
from spass.core.ids import DocumentId, IndexId, new_id
from spass.core.time import now, timestamp
from spass.rag.index.answers import Document, WriteAnswer
from spass.rag.index.cache import ObjectCache
from spass.rag.index.documents import DocumentPatch, NewDocument, check_limits, check_patch
from spass.rag.index.embedding import Embedder
from spass.rag.index.embedding_model import check_model
from spass.rag.index.locations import load_live_ids, locate_documents, read_document
from spass.rag.index.manifest import Manifest, document_not_found, index_not_found, read_manifest
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.precondition import IfMatch
from spass.rag.index.segments import Vectors, decode_rows
from spass.rag.write.swap import NextVersion, swap
from spass.rag.write.upsert import EmbeddedDocuments, Upsert
from spass.store.swap import Participant


class Writer:
    """Writes documents of the caller's tenant.

    A ``participant`` adds its writes to the transaction of the swap, e.g. the stored answer of an idempotency key.
    """

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
        """Replace all documents of the index by ``documents``, in a new generation. Create the index if it does not exist.

        Raises:
            IndexChanged: ``if_match`` does not hold.
        """
        check_limits(documents)
        return await self._write(scope, index_id, documents, participant, if_match, replaces_all=True)

    async def append(
        self,
        scope: Scope,
        index_id: IndexId,
        documents: Sequence[NewDocument],
        participant: Participant[WriteAnswer] | None = None,
        if_match: IfMatch | None = None,
    ) -> WriteAnswer:
        """Add ``documents``. A new document replaces the stored document with the same id. Create the index if it does not exist.

        Raises:
            EmbeddingModelMismatch: the index was built with another model or dimension.
            IndexChanged: ``if_match`` does not hold.
        """
        check_limits(documents)
        check_model(await read_manifest(scope.store, index_id), self._embedder.model)
        return await self._write(scope, index_id, documents, participant, if_match, replaces_all=False)

    async def _write(
        self,
        scope: Scope,
        index_id: IndexId,
        documents: Sequence[NewDocument],
        participant: Participant[WriteAnswer] | None,
        if_match: IfMatch | None,
        *,
        replaces_all: bool,
    ) -> WriteAnswer:
        new = EmbeddedDocuments(documents, await self._embedder.embed(scope, [document.text for document in documents]))
        upsert, generation = Upsert(), new_id("gen")

        async def plan(before: Manifest, attempt_name: str) -> NextVersion[WriteAnswer]:
            base = before
            if replaces_all or not before.exists:
                base = self._empty_manifest(generation, before)
            check_model(base, self._embedder.model)
            objects = SegmentObjects(scope.store, index_id, base.generation, self._cache)
            loaded = await load_live_ids(objects, base.segments)
            old_locations = locate_documents(loaded, [document.document_id for document in documents])
            segments = await upsert.segments(new, objects, loaded, old_locations, attempt_name)
            # The version is counted from ``before``, even if ``base`` is the empty manifest of a new generation.
            after = before.next_version(replace(base, segments=segments))
            answer = WriteAnswer(
                index_id=index_id,
                doc_count=after.doc_count,
                ingested=len(documents),
                replaced=before.doc_count if replaces_all else len(old_locations),
                version=after.version,
                generation=after.generation,
            )
            return NextVersion(answer, after)

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)

    def _empty_manifest(self, generation: str, before: Manifest) -> Manifest:
        """Return a manifest of ``generation`` without documents. If the index exists, keep its time of creation."""
        model = self._embedder.model
        return Manifest(
            generation=generation,
            embedding_model=model.name,
            dimensions=model.dimensions,
            created_at=before.created_at if before.exists else now(),
        )

    async def patch(
        self,
        scope: Scope,
        index_id: IndexId,
        document_id: DocumentId,
        patch: DocumentPatch,
        participant: Participant[Document] | None = None,
        if_match: IfMatch | None = None,
    ) -> Document:
        """Patch a document and return it. If another writer changes the document first, apply the patch to the new version of the
        document. The text is embedded only if the patch changes it, and only once.

        Raises:
            InvalidRequest, DocumentTooLarge: the patch exceeds a limit. No model was called and nothing was changed.
            IndexNotFound, DocumentNotFound: there is nothing to patch.
            EmbeddingModelMismatch: the patch changes the text, and the index was built with another model or dimension.
            IndexChanged: ``if_match`` does not hold.
        """
        check_patch(patch)
        upsert = Upsert()
        new_vector: Vectors | None = None

        async def plan(before: Manifest, attempt_name: str) -> NextVersion[Document]:
            nonlocal new_vector
            if not before.exists:
                raise index_not_found(index_id)
            objects = SegmentObjects(scope.store, index_id, before.generation, self._cache)
            loaded = await load_live_ids(objects, before.segments)
            old_locations = locate_documents(loaded, [document_id])
            if document_id not in old_locations:
                raise document_not_found(index_id, document_id)
            location = old_locations[document_id]
            stored = await read_document(objects, location)
            text, metadata = patch.text_after(stored.text), patch.metadata_after(stored.metadata)
            if text == stored.text:
                row = await objects.vector(location.segment, location.row, before.dimensions)
                vector = decode_rows(row, 1, header=False)
            else:
                check_model(before, self._embedder.model)
                if new_vector is None:
                    new_vector = await self._embedder.embed(scope, [text])
                vector = new_vector
            new = EmbeddedDocuments([NewDocument.model_construct(id=document_id, text=text, metadata=metadata)], vector)
            segments = await upsert.segments(new, objects, loaded, old_locations, attempt_name)
            updated_at = timestamp(upsert.written_at_ms / 1000)
            answer = stored.model_copy(update={"text": text, "metadata": metadata, "updated_at": updated_at})
            return NextVersion(answer, before.next_version(replace(before, segments=segments)))

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)
