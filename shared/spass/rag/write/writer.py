"""Replace, append and patch: embed the documents, put a segment, and swap the manifest, in one attempt after another."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import anyio.to_thread
import numpy as np

from spass.calls.scope import Scope
from spass.core.ids import DocumentId, IndexId, new_id
from spass.core.time import now, timestamp
from spass.rag.index.cache import ObjectCache
from spass.rag.index.documents import DocumentPatch, NewDocument, check_limits, check_sizes, metadata_json
from spass.rag.index.embedding import Embedder
from spass.rag.index.ids import IdRow
from spass.rag.index.locations import (
    DocumentLocation,
    LiveIds,
    load_live_ids,
    locate_documents,
    mark_deleted,
    read_document,
    store_bitmaps,
)
from spass.rag.index.manifest import (
    CODED,
    MAX_SEGMENTS,
    VECTORS_ALONE,
    Manifest,
    Segment,
    check_model,
    document_not_found,
    index_not_found,
    read_manifest,
)
from spass.rag.index.objects import CODES, DOCS, SegmentObjects
from spass.rag.index.precondition import IfMatch
from spass.rag.index.responses import Document, WriteAnswer
from spass.rag.index.segments import Rows, Vectors, decode_rows, encode_segment, json_line
from spass.rag.write.merge_policy import choose_merge
from spass.rag.write.segment_merge import MergeInput, evict_for_merge, put_merged_segment
from spass.rag.write.swap import NextVersion, swap
from spass.store.swap import Participant

_MAX_PUTS_FOR_CLOCK: Final = 2  # of the rows of one upsert, before a later clock alone no longer causes another one


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class EmbeddedDocuments:
    """New documents with their vectors, (n, d) float32, rows normalised."""

    documents: Sequence[NewDocument]
    vectors: Vectors

    def rows(self, created: Mapping[DocumentId, int], written_at_ms: int) -> Rows:
        """Return the rows in the order of ids. A document that replaces another one keeps its time of creation from ``created``.
        Times are in milliseconds since the epoch."""
        order = sorted(range(len(self.documents)), key=lambda n: self.documents[n].id)
        ids, docs, meta = [], [], []
        for document in (self.documents[n] for n in order):
            first = created.get(document.document_id, written_at_ms)
            ids.append(IdRow(document.id, first, written_at_ms, len(document.text.encode())))
            docs.append(json_line({"id": document.id, "text": document.text, "metadata": document.metadata}))
            meta.append(metadata_json(document.metadata))
        return Rows(ids, docs, meta, self.vectors[order])


@dataclass(frozen=True, slots=True)
class _StoredSegment:
    """A segment in the bucket that has ``rows`` and no others. It belongs to ``generation``."""

    generation: str
    written_at_ms: int
    rows: Rows
    segment: Segment

    def has(self, generation: str, rows: Rows) -> bool:
        same_rows = (self.rows.ids, self.rows.docs) == (rows.ids, rows.docs)
        return self.generation == generation and same_rows and np.array_equal(self.rows.vectors, rows.vectors)


@dataclass(slots=True)
class Upsert:
    """One write of documents, through all its attempts.

    The first attempt merges small segments into the new one. If another writer swaps first, that work is lost, and in a busy
    index a writer always swaps before a merge is done. So later attempts do almost nothing between reading the current version
    and the swap: they put the rows once, as an own segment. They put them again only if the generation or a row has changed, and
    once if another writer wrote one of the documents at a later time.

    ``written_at_ms`` is the time of the write in milliseconds since the epoch.
    """

    written_at_ms: int = field(default_factory=_now_ms)
    _merge_attempted: bool = False
    _put_count: int = 0
    _stored: _StoredSegment | None = None

    async def segments(
        self,
        new: EmbeddedDocuments,
        objects: SegmentObjects,
        loaded: Sequence[LiveIds],
        replaced: Mapping[DocumentId, DocumentLocation],
        swap: str,
    ) -> tuple[Segment, ...]:
        """Return the segments of the next version: those ``loaded`` without the rows ``replaced``, and one with the rows of
        ``new``. All are in the bucket. ``swap`` names the new bitmaps."""
        created = {document: location.stored.created_at for document, location in replaced.items()}
        stored = self._stored
        if stored is not None and not stored.has(objects.generation, new.rows(created, stored.written_at_ms)):
            stored = None
        self._advance_time([location.stored for location in replaced.values()], must_put=stored is None)
        rows = new.rows(created, self.written_at_ms)
        remaining = mark_deleted(loaded, replaced.values())
        merged = {segment.id for segment in self._choose_merge([live.segment for live in remaining], new)}
        if merged:
            put = self._put_merged(objects, rows, [live for live in remaining if live.segment.id in merged])
        else:
            put = self._put_alone(objects, rows, stored)
        bitmaps = store_bitmaps(objects, [live for live in remaining if live.segment.id not in merged], swap)
        segment, others = await asyncio.gather(put, bitmaps)
        return (*others, segment)

    def _advance_time(self, replaced: Sequence[IdRow], *, must_put: bool) -> None:
        """Advance the time of the write, so that no document is older than the one that it replaces. Another writer, perhaps with
        another clock, may have written that one in the meantime. The new time is the present, which is after all concurrent
        writers.

        Rows that were put twice and can be reused keep their time: a writer that keeps losing the race must not put its rows
        again on every attempt."""
        latest = max((row.updated_at for row in replaced), default=0)
        if latest > self.written_at_ms and (must_put or self._put_count < _MAX_PUTS_FOR_CLOCK):
            self.written_at_ms = max(latest, _now_ms())

    def _choose_merge(self, segments: Sequence[Segment], new: EmbeddedDocuments) -> Sequence[Segment]:
        if self._merge_attempted and len(segments) < MAX_SEGMENTS:
            return ()
        self._merge_attempted = True
        return choose_merge(segments, len(new.documents), new.vectors.shape[1])

    async def _put_alone(self, objects: SegmentObjects, rows: Rows, stored: _StoredSegment | None) -> Segment:
        if stored is not None and stored.written_at_ms == self.written_at_ms:
            return stored.segment
        self._put_count += 1
        segment = await put_segment(objects, rows)
        self._stored = _StoredSegment(objects.generation, self.written_at_ms, rows, segment)
        return segment

    async def _put_merged(self, objects: SegmentObjects, rows: Rows, inputs: Sequence[LiveIds]) -> Segment:
        self._put_count += 1
        evict_for_merge(objects, [live.segment for live in inputs], rows.vectors.shape[1])
        new = await anyio.to_thread.run_sync(MergeInput.of_rows, rows)
        return (await put_merged_segment(objects, [new, *(MergeInput.of(objects, live) for live in inputs)])).segment


async def put_segment(objects: SegmentObjects, rows: Rows) -> Segment:
    """Put ``rows`` as a new segment, which no version lists yet."""
    parts = await anyio.to_thread.run_sync(encode_segment, rows)
    format_ = CODED if CODES in parts else VECTORS_ALONE
    segment = Segment(new_id("seg"), len(rows.ids), rows.text_bytes, len(parts[DOCS]), format=format_)
    await objects.write(segment.id, parts)
    return segment


class Writer:
    """Writes documents of the caller's tenant.

    A ``participant`` adds its writes to the transaction of the swap, e.g. the stored answer of an idempotency key.

    Raises:
        IndexChanged: ``if_match`` does not hold; nothing was changed.
        EmbeddingModelMismatch: the index was built with another model or dimension. A replacement may change them.
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
        """Replace all documents of the index by ``documents``, in a new generation. Create the index if it does not exist."""
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
        """Add ``documents``. A new document replaces the stored document with the same id. Create the index if it does not
        exist."""
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
        upsert, generation, model = Upsert(), new_id("gen"), self._embedder.model

        async def plan(before: Manifest, attempt_name: str) -> NextVersion[WriteAnswer]:
            base = before
            if replaces_all or not before.exists:
                created_at = before.created_at if before.exists else now()
                base = Manifest(generation, 0, model.name, model.dimensions, created_at)
            check_model(base, model)
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
        """
        check_sizes(patch.text, patch.metadata)
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
