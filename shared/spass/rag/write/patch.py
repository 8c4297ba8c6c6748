"""Patch: change the text or the metadata of one document. Its vector changes only if its text does."""

import time
from dataclasses import dataclass, field

import numpy as np

from spass.aws.swap import Participant
from spass.calls.scope import Scope
from spass.core.errors import DocumentNotFound
from spass.core.ids import DocumentId, IndexId
from spass.core.time import now, now_s, timestamp
from spass.rag.index.answers import Document
from spass.rag.index.cache import ObjectCache
from spass.rag.index.documents import DocumentPatch, NewDocument, check_patch, metadata_json
from spass.rag.index.embedding import Embedder
from spass.rag.index.embedding_model import check_model
from spass.rag.index.locations import DocumentLocation, load_live_ids, locate_documents
from spass.rag.index.manifest import Manifest, index_not_found
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.precondition import IfMatch
from spass.rag.index.segments import Vectors, decode_document, decode_rows
from spass.rag.write.deleted_rows import garbage_paths
from spass.rag.write.swap import NextVersion, swap
from spass.rag.write.upsert import EmbeddedDocuments, Upsert


@dataclass(frozen=True, slots=True)
class Patcher:
    """Patches documents of the caller's tenant."""

    embedder: Embedder
    cache: ObjectCache

    async def patch(
        self,
        scope: Scope,
        index_id: IndexId,
        document_id: DocumentId,
        patch: DocumentPatch,
        participant: Participant[Document] | None = None,
        if_match: IfMatch | None = None,
    ) -> Document:
        """Patch a document and return it. If another writer changes the document first, the patch applies to the result of that
        write: its text, metadata and vector come from the version that this one replaces.

        Raises:
            InvalidRequest, DocumentTooLarge: the patch exceeds a limit; nothing was called or changed.
            IndexNotFound, DocumentNotFound: there is nothing to patch.
            EmbeddingModelMismatch: a new text needs a vector, and the index was built with another model or dimension.
            IndexChanged: ``if_match`` does not hold.
        """
        check_patch(patch)
        state = _PatchState(self.embedder, scope, document_id, patch)

        async def plan(before: Manifest, name: str) -> NextVersion[Document]:
            if not before.exists:
                raise index_not_found(index_id)
            objects = SegmentObjects(scope.store, index_id, before.generation, self.cache)
            loaded = await load_live_ids(objects, before.segments)
            found = locate_documents(loaded, [document_id])
            if document_id not in found:
                raise DocumentNotFound(f"The index {index_id!r} holds no document {document_id!r}.", param="doc_id")
            upsert = await state.upsert_for(before, objects, found[document_id])
            segments = await upsert.segments(objects, loaded, found, name)
            garbage = garbage_paths(before.generation, before.segments, segments)
            after = before.next_version(before.with_segments(segments, now()), garbage=garbage, removed_at=now_s())
            return NextVersion(_patch_result(upsert.new, found[document_id]), after)

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)


@dataclass(slots=True)
class _PatchState:
    """One patch through all its attempts. Its text is embedded once, and its row is put once as long as it stays the same."""

    embedder: Embedder
    scope: Scope
    document_id: DocumentId
    patch: DocumentPatch
    _vector: Vectors | None = None
    _upsert: Upsert | None = None
    _written: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    async def upsert_for(self, before: Manifest, objects: SegmentObjects, found: DocumentLocation) -> Upsert:
        """Return the upsert of the patched row, given the location of the document in the version ``before``."""
        stored = await _read_document(objects, found)
        text = self.patch.text_after(stored.text)
        metadata = self.patch.metadata_after(stored.metadata)
        if text == stored.text:
            vector = await _read_vector(objects, found, before.dimensions)
        else:
            check_model(before, self.embedder.model)
            vector = await self._embed(text)
        patched = NewDocument.model_construct(id=self.document_id, text=text, metadata=metadata)
        new = EmbeddedDocuments([patched], vector, self._written)
        if self._upsert is None or not _same_rows(self._upsert.new, new):
            self._upsert = Upsert(new)
        return self._upsert

    async def _embed(self, text: str) -> Vectors:
        if self._vector is None:
            self._vector = await self.embedder.embed(self.scope, [text])
        return self._vector


async def _read_document(objects: SegmentObjects, found: DocumentLocation) -> Document:
    (line,) = await objects.lines(found.segment, await objects.spans(found.segment, [found.row]))
    return decode_document(line, found.stored)


async def _read_vector(objects: SegmentObjects, found: DocumentLocation, dimensions: int) -> Vectors:
    """Return (1, d) float32, exactly as stored."""
    return decode_rows(await objects.vector(found.segment, found.row, dimensions), 1, header=False)


def _same_rows(one: EmbeddedDocuments, other: EmbeddedDocuments) -> bool:
    """Return whether the rows are the same, apart from their times. Metadata are compared as JSON, because ``True == 1``."""
    (left,), (right,) = one.documents, other.documents
    same_document = left.text == right.text and metadata_json(left.metadata) == metadata_json(right.metadata)
    return same_document and np.array_equal(one.vectors, other.vectors)


def _patch_result(new: EmbeddedDocuments, found: DocumentLocation) -> Document:
    (row,) = new.rows({new.documents[0].document_id: found.stored.created_at}).ids
    (patched,) = new.documents
    created, updated = timestamp(row.created_at / 1000), timestamp(row.updated_at / 1000)
    return Document(id=patched.document_id, text=patched.text, metadata=patched.metadata, created_at=created, updated_at=updated)
