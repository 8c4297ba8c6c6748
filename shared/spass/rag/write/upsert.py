"""Upsert: add rows to an index and mark the rows with the same ids as deleted, in one attempt after another until a swap
succeeds."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio.to_thread
import numpy as np

from spass.core.ids import DocumentId, new_id
from spass.rag.index.documents import NewDocument, metadata_json
from spass.rag.index.ids import IdRow
from spass.rag.index.locations import DocumentLocation, LiveIds
from spass.rag.index.manifest import CODED, MAX_SEGMENTS, VECTORS_ALONE, Segment
from spass.rag.index.objects import CODES, DOCS, SegmentObjects
from spass.rag.index.segments import Rows, Vectors, encode_segment, json_line
from spass.rag.write.deleted_rows import mark_deleted, store_bitmaps
from spass.rag.write.merge_policy import choose_merge
from spass.rag.write.segment_merge import MergeInput, evict_for_merge, put_merged_segment

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

        All times are in milliseconds since the epoch; ``written_at_ms`` is the time of the write.
        """
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
