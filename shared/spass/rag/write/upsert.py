"""Upsert: add rows to an index and mark the rows with the same ids as deleted, in one attempt after another until a swap
succeeds."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import anyio.to_thread

from spass.core.ids import DocumentId, new_id
from spass.rag.index.documents import NewDocument, metadata_json
from spass.rag.index.ids import IdRow
from spass.rag.index.locations import DocumentLocation, LiveIds
from spass.rag.index.manifest import MAX_SEGMENTS, Segment
from spass.rag.index.objects import DOCS, SegmentObjects
from spass.rag.index.segments import Rows, Vectors, encode_segment, json_line
from spass.rag.write.deleted_rows import mark_deleted, write_all_deleted_rows
from spass.rag.write.merge_policy import choose_merge
from spass.rag.write.segment_merge import MergeInput, evict_for_merge, put_merged_segment

_MAX_PUTS_FOR_CLOCK: Final = 2  # of the rows of one upsert, before a later clock alone no longer causes another one


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class EmbeddedDocuments:
    """New documents with their vectors, (n, d) float32, rows normalised. ``written`` is the time of the write in milliseconds
    since the epoch."""

    documents: Sequence[NewDocument]
    vectors: Vectors
    written: int = field(default_factory=_now_ms)

    def rows(self, created: Mapping[DocumentId, int]) -> Rows:
        """Return the rows in the order of ids. A document that replaces another one keeps its time of creation from
        ``created``."""
        order = sorted(range(len(self.documents)), key=lambda n: self.documents[n].id)
        ids, docs, meta = [], [], []
        for document in (self.documents[n] for n in order):
            first = created.get(document.document_id, self.written)
            ids.append(IdRow(document.id, first, self.written, len(document.text.encode())))
            docs.append(json_line({"id": document.id, "text": document.text, "metadata": document.metadata}))
            meta.append(metadata_json(document.metadata))
        return Rows(ids, docs, meta, self.vectors[order])


@dataclass(frozen=True, slots=True)
class _StoredSegment:
    """The new rows as an own segment in the bucket, and what it depends on: the ``generation``, the time ``written``, and the
    times at which documents that it replaces were ``created``."""

    generation: str
    written: int
    created: Mapping[DocumentId, int]
    segment: Segment


@dataclass(slots=True)
class Upsert:
    """One append or patch, through all its attempts.

    The first attempt merges small segments into the new one. If another writer swaps first, that work is lost, and in a busy
    index a writer always swaps before a merge is done. So later attempts do almost nothing between reading the current version
    and the swap: they put the rows once, as an own segment. They put them again only if the generation or the time of creation of
    a document has changed, and once if another writer wrote one of the documents at a later time.
    """

    new: EmbeddedDocuments
    _merge_attempted: bool = False
    _put_count: int = 0
    _put: _StoredSegment | None = None

    async def segments(
        self, objects: SegmentObjects, loaded: Sequence[LiveIds], found: Mapping[DocumentId, DocumentLocation], name: str
    ) -> tuple[Segment, ...]:
        """Put and return the segments of the next version: those ``loaded``, with the rows ``found`` deleted, and the new
        rows."""
        created = {document: location.stored.created_at for document, location in found.items()}
        must_put = not self._is_reusable(objects.generation, created)
        self._advance_write_time([location.stored for location in found.values()], must_put=must_put)
        result = mark_deleted(loaded, found.values())
        merged = {segment.id for segment in self._to_merge(result.remaining)}
        others = [segment for segment in result.remaining if segment.id not in merged]
        write_others = write_all_deleted_rows(objects, others, result.bitmaps, name)
        if merged:
            inputs = [replace(live, deleted=result.bitmaps.get(live.segment.id, live.deleted)) for live in loaded]
            put = self._put_merged(objects, created, [live for live in inputs if live.segment.id in merged])
        else:
            put = self._put_alone(objects, created)
        segment, rest = await asyncio.gather(put, write_others)
        return (*rest, segment)

    def _advance_write_time(self, replaced: Sequence[IdRow], *, must_put: bool) -> None:
        """Advance the time of the write, so that no document is older than the one that it replaces. Another writer, perhaps with
        another clock, may have written that one in the meantime. The new time is the present, which is after all concurrent
        writers.

        Rows that were put twice and can be reused keep their time: a writer that keeps losing the race must not put its rows
        again on every attempt."""
        latest = max((row.updated_at for row in replaced), default=0)
        if latest > self.new.written and (must_put or self._put_count < _MAX_PUTS_FOR_CLOCK):
            self.new = replace(self.new, written=max(latest, _now_ms()))

    def _is_reusable(self, generation: str, created: Mapping[DocumentId, int]) -> bool:
        """Return whether the segment in the bucket fits the current version, apart from its time."""
        put = self._put
        return put is not None and (put.generation, put.created) == (generation, created)

    def _to_merge(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        first, self._merge_attempted = not self._merge_attempted, True
        if first or len(segments) >= MAX_SEGMENTS:
            return choose_merge(segments, len(self.new.documents), self.new.vectors.shape[1])
        return ()

    async def _put_alone(self, objects: SegmentObjects, created: Mapping[DocumentId, int]) -> Segment:
        put, new = self._put, self.new
        if put is None or put.written != new.written or not self._is_reusable(objects.generation, created):
            put = _StoredSegment(objects.generation, new.written, created, await put_segment(objects, new.rows(created)))
            self._put = put
            self._put_count += 1
        return put.segment

    async def _put_merged(self, objects: SegmentObjects, created: Mapping[DocumentId, int], inputs: Sequence[LiveIds]) -> Segment:
        self._put_count += 1
        evict_for_merge(objects, [live.segment for live in inputs], self.new.vectors.shape[1])
        new = await anyio.to_thread.run_sync(MergeInput.of_rows, self.new.rows(created))
        return (await put_merged_segment(objects, [new, *(MergeInput.of(objects, live) for live in inputs)])).segment


async def put_segment(objects: SegmentObjects, rows: Rows) -> Segment:
    """Put ``rows`` as a new segment, which no version lists yet."""
    parts = await anyio.to_thread.run_sync(encode_segment, rows)
    segment = Segment(new_id("seg"), len(rows.ids), rows.text_bytes, len(parts[DOCS]))
    await objects.write(segment.id, parts)
    return segment
