"""PATCH: another text or other metadata for one document. The rest of it stays, and its vector does too while its text does."""

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
        """The document as it stands after ``patch``. What another writer made of it meanwhile is patched, not overwritten: its
        text is compared, and its vector taken, from the version that this one follows.

        Raises:
            InvalidRequest, DocumentTooLarge: over a limit; nothing was called or changed.
            IndexNotFound, DocumentNotFound: there is nothing to patch.
            EmbeddingModelMismatch: a new text needs a vector, and the index was built with another model or dimension.
            IndexChanged: ``if_match`` does not hold.
        """
        check_patch(patch)
        work = _PatchState(self.embedder, scope, document_id, patch)

        async def plan(before: Manifest, name: str) -> NextVersion[Document]:
            if not before.exists:
                raise index_not_found(index_id)
            objects = SegmentObjects(scope.store, index_id, before.generation, self.cache)
            loaded = await load_live_ids(objects, before.segments)
            found = locate_documents(loaded, [document_id])
            if document_id not in found:
                raise DocumentNotFound(f"The index {index_id!r} holds no document {document_id!r}.", param="doc_id")
            addition = await work.on(before, objects, found[document_id])
            segments = await addition.segments(objects, loaded, found, name)
            retired = garbage_paths(before.generation, before.segments, segments)
            after = before.next_version(before.with_segments(segments, now()), retired=retired, at=now_s())
            return NextVersion(_patch_result(addition.new, found[document_id]), after)

        return await swap(scope.store, index_id, scope.deadline, plan, participant, if_match)


@dataclass(slots=True)
class _PatchState:
    """One patch through all its tries: its text is embedded once, and its row put once while it comes out the same."""

    embedder: Embedder
    scope: Scope
    document_id: DocumentId
    patch: DocumentPatch
    _vector: Vectors | None = None
    _addition: Upsert | None = None
    _written: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    async def on(self, before: Manifest, objects: SegmentObjects, found: DocumentLocation) -> Upsert:
        """The patched row, given where the document stands in the version ``before``."""
        stored = await _read_document(objects, found)
        text = self.patch.text_after(stored.text)
        metadata = self.patch.metadata_after(stored.metadata)
        if text == stored.text:
            vector = await _read_vector(objects, found, before.dimensions)
        else:
            check_model(before, self.embedder.model)
            vector = await self._embedded(text)
        patched = NewDocument.model_construct(id=self.document_id, text=text, metadata=metadata)
        new = EmbeddedDocuments([patched], vector, self._written)
        if self._addition is None or not _same_rows(self._addition.new, new):
            self._addition = Upsert(new)
        return self._addition

    async def _embedded(self, text: str) -> Vectors:
        if self._vector is None:
            self._vector = await self.embedder.embed(self.scope, [text])
        return self._vector


async def _read_document(objects: SegmentObjects, found: DocumentLocation) -> Document:
    (line,) = await objects.lines(found.segment, await objects.spans(found.segment, [found.row]))
    return decode_document(line, found.stored)


async def _read_vector(objects: SegmentObjects, found: DocumentLocation, dimensions: int) -> Vectors:
    """(1, d) float32: the very numbers that are stored."""
    return decode_rows(await objects.vector(found.segment, found.row, dimensions), 1, header=False)


def _same_rows(one: EmbeddedDocuments, other: EmbeddedDocuments) -> bool:
    """Whether the rows come out the same but for their times, which the addition settles; to the byte: in Python, ``True`` is
    ``1``."""
    (left,), (right,) = one.documents, other.documents
    same_document = left.text == right.text and metadata_json(left.metadata) == metadata_json(right.metadata)
    return same_document and np.array_equal(one.vectors, other.vectors)


def _patch_result(new: EmbeddedDocuments, found: DocumentLocation) -> Document:
    (row,) = new.rows({new.documents[0].document_id: found.stored.created_at}).ids
    (patched,) = new.documents
    created, updated = timestamp(row.created_at / 1000), timestamp(row.updated_at / 1000)
    return Document(id=patched.document_id, text=patched.text, metadata=patched.metadata, created_at=created, updated_at=updated)
