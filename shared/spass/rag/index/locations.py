"""Find live rows by document id, read their documents, and mark them as deleted. This does not need numpy."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from spass.core.ids import DocumentId
from spass.core.time import timestamp
from spass.rag.index.ids import Bitmap, IdRow, Ids
from spass.rag.index.manifest import MAX_INLINE_BITMAP_BYTES, Segment
from spass.rag.index.objects import SegmentObjects
from spass.rag.index.responses import Document


class DocumentLocation(NamedTuple):
    """A live document: its segment, the number of its row, and its entry in ``ids``."""

    segment: Segment
    row: int
    stored: IdRow

    @property
    def id(self) -> str:
        return self.stored.id


@dataclass(frozen=True, slots=True)
class LiveIds:
    """A segment with its ids and its deletion bitmap."""

    segment: Segment
    ids: Ids
    deleted: Bitmap

    def find(self, document: str) -> DocumentLocation | None:
        row = self.ids.find(document)
        return None if row is None or row in self.deleted else DocumentLocation(self.segment, row, self.ids.row(row))


async def load_live_ids(objects: SegmentObjects, segments: Sequence[Segment]) -> list[LiveIds]:
    """Load the ids and deletion bitmaps of ``segments``, in their order."""

    async def load(segment: Segment) -> LiveIds:
        ids, deleted = await asyncio.gather(objects.ids(segment), objects.deletion_bitmap(segment))
        return LiveIds(segment, ids, deleted)

    return list(await asyncio.gather(*map(load, segments)))


def locate_documents(loaded: Sequence[LiveIds], documents: Iterable[DocumentId]) -> dict[DocumentId, DocumentLocation]:
    """Return the locations of those ``documents`` that are live. A document is live in at most one segment."""
    locations = ((document, live.find(document)) for document in documents for live in loaded)
    return {document: location for document, location in locations if location is not None}


async def read_document(objects: SegmentObjects, location: DocumentLocation) -> Document:
    """Read the document at ``location``."""
    (line,) = await objects.lines(location.segment, [location.row])
    return decode_document(line, location.stored)


def decode_document(line: bytes, row: IdRow) -> Document:
    """Return the document with this line of docs.jsonl and this row of ids."""
    stored = json.loads(line)
    return Document(
        id=DocumentId(row.id),
        text=stored["text"],
        metadata=stored["metadata"],
        created_at=timestamp(row.created_at / 1000),
        updated_at=timestamp(row.updated_at / 1000),
    )


def mark_deleted(loaded: Sequence[LiveIds], rows: Iterable[DocumentLocation]) -> list[LiveIds]:
    """Mark ``rows`` of ``loaded`` as deleted. Return the segments that still have live rows, with their new bitmaps. A segment
    whose bitmap has changed does not refer to a stored bitmap until ``store_bitmaps`` stores it."""
    by_segment: dict[str, list[DocumentLocation]] = {}
    for row in rows:
        by_segment.setdefault(row.segment.id, []).append(row)
    remaining: list[LiveIds] = []
    for live in loaded:
        if deleted := by_segment.get(live.segment.id):
            segment = replace(
                live.segment,
                deleted_rows=live.segment.deleted_rows + len(deleted),
                text_bytes=live.segment.text_bytes - sum(row.stored.text_bytes for row in deleted),
                inline_bitmap=b"",
                bitmap_object="",
            )
            live = LiveIds(segment, live.ids, live.deleted.with_rows(row.row for row in deleted))  # noqa: PLW2901
        if live.segment.live_rows:
            remaining.append(live)
    return remaining


async def store_bitmaps(objects: SegmentObjects, marked: Iterable[LiveIds], swap: str) -> tuple[Segment, ...]:
    """Return the segments of ``marked``, each with a reference to its bitmap. A new bitmap is stored in the manifest if it is
    small, or else in an object named by ``swap``."""

    async def store(live: LiveIds) -> Segment:
        segment = live.segment
        if not segment.deleted_rows or segment.inline_bitmap or segment.bitmap_object:
            return segment
        packed = live.deleted.packed()
        if len(packed) <= MAX_INLINE_BITMAP_BYTES:
            return replace(segment, inline_bitmap=packed)
        name = f"dead-{swap}"
        await objects.write(segment.id, {name: packed})
        return replace(segment, bitmap_object=name)

    return tuple(await asyncio.gather(*map(store, marked)))
