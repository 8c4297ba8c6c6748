"""What an append brings to an index: new rows, as the segments of one version after another until one is swapped in."""

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

_MAX_PUTS_FOR_CLOCK: Final = 2  # of one append's rows, before only what is right makes another one needed


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class EmbeddedDocuments:
    """New documents with their vectors, (n, d) float32, rows normalised. ``written``, in milliseconds since the epoch, is the
    time of the write."""

    documents: Sequence[NewDocument]
    vectors: Vectors
    written: int = field(default_factory=_now_ms)

    def rows(self, created: Mapping[DocumentId, int]) -> Rows:
        """Them as rows in the order of ids; what was there under the same id keeps when it was ``created``."""
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
    """The new rows alone, as they lie in the bucket: in the life ``generation``, ``written`` then, and true of what was
    ``created`` when."""

    generation: str
    written: int
    created: Mapping[DocumentId, int]
    segment: Segment


@dataclass(slots=True)
class Upsert:
    """One append, through all its tries.

    The first merges small segments into the new one. Whoever swaps meanwhile makes that work void, and a busy index has always
    somebody who swaps sooner than a merge is read and put. So a later try does nearly nothing between reading the version in
    force and swapping: its rows were put by themselves, once, and are put anew only if another life of the index has begun or
    another writer changed when one of the documents was created; for one that wrote a document later, only once.
    """

    new: EmbeddedDocuments
    _tried: bool = False
    _puts: int = 0
    _put: _StoredSegment | None = None

    async def segments(
        self, objects: SegmentObjects, loaded: Sequence[LiveIds], found: Mapping[DocumentId, DocumentLocation], name: str
    ) -> tuple[Segment, ...]:
        """The segments of the next version, all put: those ``loaded`` with the rows ``found`` dead, and the new rows."""
        created = {document: place.stored.created_at for document, place in found.items()}
        self._advance_write_time([place.stored for place in found.values()], anew=not self._fits(objects.generation, created))
        killed = mark_deleted(loaded, found.values())
        merged = {segment.id for segment in self._to_merge(killed.left)}
        left = write_all_deleted_rows(objects, [other for other in killed.left if other.id not in merged], killed.changed, name)
        if merged:
            inputs = [replace(live, dead=killed.changed.get(live.segment.id, live.dead)) for live in loaded]
            put = self._put_merged(objects, created, [live for live in inputs if live.segment.id in merged])
        else:
            put = self._put_alone(objects, created)
        segment, rest = await asyncio.gather(put, left)
        return (*rest, segment)

    def _advance_write_time(self, replaced: Sequence[IdRow], *, anew: bool) -> None:
        """No document is written before what it takes the place of, which another writer may have put meanwhile, or by another
        clock. A time that has to change becomes the present one: that is after all writers who are under way already. Rows that
        were put twice, and need not be put ``anew`` for another reason, keep theirs: who is overtaken time and again shall not
        put them time and again."""
        latest = max((row.updated_at for row in replaced), default=0)
        if latest > self.new.written and (anew or self._puts < _MAX_PUTS_FOR_CLOCK):
            self.new = replace(self.new, written=max(latest, _now_ms()))

    def _fits(self, generation: str, created: Mapping[DocumentId, int]) -> bool:
        """Whether the rows lie in the bucket as this version of the index needs them."""
        put = self._put
        return put is not None and (put.generation, put.created) == (generation, created)

    def _to_merge(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        first, self._tried = not self._tried, True
        if first or len(segments) >= MAX_SEGMENTS:
            return choose_merge(segments, len(self.new.documents), self.new.vectors.shape[1])
        return ()

    async def _put_alone(self, objects: SegmentObjects, created: Mapping[DocumentId, int]) -> Segment:
        put, new = self._put, self.new
        if put is None or put.written != new.written or not self._fits(objects.generation, created):
            put = _StoredSegment(objects.generation, new.written, created, await put_segment(objects, new.rows(created)))
            self._put = put
            self._puts += 1
        return put.segment

    async def _put_merged(self, objects: SegmentObjects, created: Mapping[DocumentId, int], inputs: Sequence[LiveIds]) -> Segment:
        self._puts += 1
        evict_for_merge(objects, [live.segment for live in inputs], self.new.vectors.shape[1])
        new = await anyio.to_thread.run_sync(MergeInput.of_rows, self.new.rows(created))
        return (await put_merged_segment(objects, [new, *(MergeInput.of(objects, live) for live in inputs)])).segment


async def put_segment(objects: SegmentObjects, rows: Rows) -> Segment:
    """Put ``rows`` as a new segment that no version lists yet."""
    parts = await anyio.to_thread.run_sync(encode_segment, rows)
    segment = Segment(new_id("seg"), len(rows.ids), rows.text_bytes, len(parts[DOCS]))
    await objects.write(segment.id, parts)
    return segment
