"""Write the live rows of several segments as one new segment.

The objects are written one by one, to save memory.
"""

import asyncio
import io
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio.to_thread
import numpy as np

from spass.core.ids import new_id
from spass.core.tasks import map_concurrently
from spass.rag.index.columns import decode_meta, encode_meta
from spass.rag.index.ids import Bitmap, IdRow, Ids, encode_ids
from spass.rag.index.locations import LiveIds
from spass.rag.index.manifest import CODED, VECTORS_ALONE, Segment, has_codes
from spass.rag.index.objects import CODES, DOCS, IDS, META, OFFSETS, VECTORS, SegmentObjects
from spass.rag.index.segments import (
    Offsets,
    RowNumbers,
    Rows,
    Vectors,
    decode_offsets,
    decode_vectors,
    deleted_row_numbers,
    encode_array,
    encode_codes,
    encode_segment,
)
from spass.rag.write.merge_policy import bytes_to_read

_MAX_CONCURRENT_READS: Final = 4  # of objects of one type
_PUT_TOGETHER_BYTES: Final = 32 * 2**20  # of vectors that are put together with their codes: an append's merge has fewer
_LINE_FEED: Final = 10
_MEMORY_PER_BYTE_READ: Final = 2  # the inputs and the result


@dataclass(frozen=True, slots=True)
class MergeInput:
    """The ``live`` rows (ascending) of ``ids``, and a function that reads the objects that contain them."""

    ids: Ids
    live: RowNumbers
    read: Callable[[str], Awaitable[bytes]]

    @classmethod
    def of(cls, objects: SegmentObjects, live: LiveIds) -> "MergeInput":
        """Return the input for a segment in the bucket."""
        return cls(live.ids, live_rows(live.segment.rows, live.deleted), lambda part: objects.read(live.segment.id, part))

    @classmethod
    def of_rows(cls, rows: Rows) -> "MergeInput":
        """Return the input for rows that are not in a segment yet."""
        parts = encode_segment(rows, with_codes=False)

        async def read(part: str) -> bytes:
            return parts[part]

        return cls(Ids(parts[IDS]), np.arange(len(rows.ids)), read)


def live_rows(rows: int, deleted: Bitmap) -> RowNumbers:
    """Return the numbers of the rows among ``rows`` that are not ``deleted``, ascending."""
    return np.delete(np.arange(rows), deleted_row_numbers(deleted))


def evict_for_merge(objects: SegmentObjects, segments: Sequence[Segment], dimensions: int) -> None:
    """Evict cached objects until there is memory for a merge of ``segments``."""
    objects.cache.evict_until_free(_MEMORY_PER_BYTE_READ * sum(bytes_to_read(segment, dimensions) for segment in segments))


async def put_merged_segment(objects: SegmentObjects, sources: Sequence[MergeInput]) -> LiveIds:
    """Put the live rows of all ``sources`` as one segment. No id may be live in two of them.

    Raises:
        ObjectMissing: a source was swept in the meantime.
        StorageUnavailable: the bucket does not answer through all retries; the sweep deletes the objects put so far.
    """
    ranks = await anyio.to_thread.run_sync(_ranks, sources)
    name = new_id("seg")
    rows, docs_bytes, format_, _ = await asyncio.gather(
        _put_ids(objects, name, sources, ranks),
        _put_docs(objects, name, sources, ranks),
        _put_vectors(objects, name, sources, ranks),
        _put_meta(objects, name, sources, ranks),
    )
    ids = Ids(rows)
    return LiveIds(Segment(name, len(ids), ids.text_bytes, docs_bytes, format=format_), ids, Bitmap())


def _ranks(sources: Sequence[MergeInput]) -> list[RowNumbers]:
    """Return, for each source, the numbers that its live rows get in the new segment."""
    names = [source.ids[row] for source in sources for row in source.live.tolist()]
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return np.split(rank, np.cumsum([len(source.live) for source in sources])[:-1])


async def _put_ids(objects: SegmentObjects, name: str, sources: Sequence[MergeInput], ranks: Sequence[RowNumbers]) -> bytes:
    def encode() -> bytes:
        rows: dict[int, IdRow] = {}
        for source, rank in zip(sources, ranks, strict=True):
            rows.update(zip(rank.tolist(), map(source.ids.row, source.live.tolist()), strict=True))
        return encode_ids([rows[row] for row in range(len(rows))])

    body = await anyio.to_thread.run_sync(encode)
    await objects.write(name, {IDS: body})
    return body


async def _put_vectors(objects: SegmentObjects, name: str, sources: Sequence[MergeInput], ranks: Sequence[RowNumbers]) -> int:
    """Put the vectors and, if there are enough, their codes. Return the format of the segment."""
    count = sum(map(len, ranks))
    vectors: list[Vectors] = []

    async def read(ranked: tuple[MergeInput, RowNumbers]) -> None:
        source, rank = ranked
        stored = decode_vectors(await source.read(VECTORS))
        if not vectors:
            vectors.append(np.empty((count, stored.shape[1]), np.float32))
        await anyio.to_thread.run_sync(_scatter, vectors[0], rank, stored, source.live)

    await map_concurrently(read, zip(sources, ranks, strict=True), limit=_MAX_CONCURRENT_READS)
    is_coded = has_codes(*vectors[0].shape)
    parts = {CODES: await anyio.to_thread.run_sync(encode_codes, vectors[0])} if is_coded else {}
    if vectors[0].nbytes > _PUT_TOGETHER_BYTES:
        await objects.write(name, parts)
        parts.clear()
    parts[VECTORS] = await anyio.to_thread.run_sync(encode_array, vectors.pop())
    await objects.write(name, parts)
    return CODED if is_coded else VECTORS_ALONE


def _scatter(into: Vectors, rank: RowNumbers, stored: Vectors, live: RowNumbers) -> None:
    into[rank] = stored[live]


async def _put_docs(objects: SegmentObjects, name: str, sources: Sequence[MergeInput], ranks: Sequence[RowNumbers]) -> int:
    async def read(source: MergeInput) -> tuple[bytes, RowNumbers]:
        docs, offsets = await asyncio.gather(source.read(DOCS), source.read(OFFSETS))
        return docs, decode_offsets(offsets).astype(np.int64)

    stored = await map_concurrently(read, sources, limit=_MAX_CONCURRENT_READS)
    docs, offsets = await anyio.to_thread.run_sync(_reorder_lines, stored, sources, ranks)
    del stored
    await objects.write(name, {DOCS: docs, OFFSETS: encode_array(offsets)})
    return len(docs)


def _reorder_lines(
    stored: Sequence[tuple[bytes, RowNumbers]], sources: Sequence[MergeInput], ranks: Sequence[RowNumbers]
) -> tuple[bytes, Offsets]:
    """Return the lines of all sources in their new order, and the offsets. ``stored`` are the bodies with their offsets."""
    count = sum(map(len, ranks))
    origin = np.empty((3, count), np.int64)  # by new row: the number of the body, start, end
    for number, ((_, offsets), source, rank) in enumerate(zip(stored, sources, ranks, strict=True)):
        origin[:, rank] = np.full(len(rank), number), offsets[source.live], offsets[source.live + 1]
    ends = np.zeros(count + 1, np.uint64)
    ends[1:] = np.cumsum(origin[2] - origin[1])
    bodies = [memoryview(body) for body, _ in stored]
    out = io.BytesIO()
    for number, start, end in zip(*origin.tolist(), strict=True):
        out.write(bodies[number][start:end])
    return out.getvalue(), ends


async def _put_meta(objects: SegmentObjects, name: str, sources: Sequence[MergeInput], ranks: Sequence[RowNumbers]) -> None:
    async def read(source: MergeInput) -> tuple[bytes, RowNumbers]:
        lines = decode_meta(await source.read(META))
        ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == _LINE_FEED) + 1
        return lines, np.concatenate([np.zeros(1, np.int64), ends])

    stored = await map_concurrently(read, sources, limit=_MAX_CONCURRENT_READS)
    lines, _ = await anyio.to_thread.run_sync(_reorder_lines, stored, sources, ranks)
    del stored
    await objects.write(name, {META: await anyio.to_thread.run_sync(encode_meta, lines)})
