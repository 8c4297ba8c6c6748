"""Find live rows by document id."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spass.core.ids import DocumentId
from spass.rag.index.bitmap import Bitmap
from spass.rag.index.ids import IdRow, Ids
from spass.rag.index.manifest import Segment
from spass.rag.index.objects import SegmentObjects


class DocumentLocation(NamedTuple):
    """Where a live document is."""

    segment: Segment
    row: int
    stored: IdRow


@dataclass(frozen=True, slots=True)
class LiveIds:
    """A segment with its ids and dead rows."""

    segment: Segment
    ids: Ids
    dead: Bitmap

    def find(self, document: str) -> DocumentLocation | None:
        row = self.ids.find(document)
        return None if row is None or row in self.dead else DocumentLocation(self.segment, row, self.ids.row(row))


async def load_live_ids(objects: SegmentObjects, segments: Sequence[Segment]) -> list[LiveIds]:
    """The ids of all of ``segments``, in their order."""

    async def load(segment: Segment) -> LiveIds:
        ids, dead = await asyncio.gather(objects.ids(segment), objects.dead(segment))
        return LiveIds(segment, ids, dead)

    return list(await asyncio.gather(*map(load, segments)))


def locate_documents(loaded: Sequence[LiveIds], documents: Iterable[DocumentId]) -> dict[DocumentId, DocumentLocation]:
    """Which of ``documents`` are alive, and where: each in one segment at most."""
    found = ((document, live.find(document)) for document in documents for live in loaded)
    return {document: place for document, place in found if place is not None}
