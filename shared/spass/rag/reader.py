"""Query, get and page: what stands in one version of an index."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

import anyio.to_thread
import numpy as np
import numpy.typing as npt

from spass.aws.objects import ObjectMissing
from spass.calls.scope import Scope
from spass.core.cursors import decode_cursor, encode_cursor
from spass.core.errors import DocumentNotFound, InvalidRequest, StorageUnavailable
from spass.core.ids import DocumentId, IndexId
from spass.core.pages import PAGE_BYTES, PageRoom
from spass.rag.answers import Document, DocumentPage, Hit, QueryAnswer
from spass.rag.bitmap import Bitmap
from spass.rag.cache import ObjectCache
from spass.rag.embedding import Embedder
from spass.rag.indices import index_not_found
from spass.rag.kill import LiveIds, find_all, live_ids
from spass.rag.manifest import Manifest, Segment
from spass.rag.model import check_model
from spass.rag.objects import OFFSETS, VECTORS, SegmentObjects, together
from spass.rag.search import Scored, best
from spass.rag.segments import Vectors, decode_offsets, decode_vectors, document
from spass.rag.swap import read_manifest

A = TypeVar("A")

_READS_AT_ONCE: Final = 16
_BATCH_ROWS: Final = 32_768
_INLINE_SCAN: Final = 200_000  # numbers that are scanned faster than a worker thread is reached


_TIMES: Final = b',"created_at":"2026-04-30T08:14:22.123Z","updated_at":"2026-04-30T08:14:22.123Z"'
"""What a listed document holds beside its line in the bucket."""


class Place(NamedTuple):
    """A row of a segment; sorts by id."""

    id: str
    live: LiveIds
    row: int


class Reader:
    """Reads documents of the caller's tenant."""

    def __init__(self, embedder: Embedder, cache: ObjectCache) -> None:
        self._embedder = embedder
        self._cache = cache

    async def query(self, scope: Scope, index_id: IndexId, query: str, top_k: int) -> QueryAnswer:
        """The ``top_k`` documents nearest to ``query``.

        Raises:
            InvalidRequest: the query is empty.
            IndexNotFound: there is no such index.
            EmbeddingModelMismatch: it was built with another model or dimension.
        """
        if not query:
            raise InvalidRequest("The query is empty.", param="query")
        manifest = await self._manifest(scope, index_id)
        check_model(manifest, self._embedder.model)
        vector = (await self._embedder.embed(scope, [query]))[0]

        async def search(manifest: Manifest, objects: SegmentObjects) -> QueryAnswer:
            check_model(manifest, self._embedder.model)
            hits = await _search(objects, manifest.segments, vector, top_k)
            return QueryAnswer(index_id, tuple(hits), manifest.version)

        return await self._reading(scope, index_id, manifest, search)

    async def document(self, scope: Scope, index_id: IndexId, document_id: DocumentId) -> Document:
        """Raises:
        IndexNotFound: there is no such index.
        DocumentNotFound: it holds no such document.
        """

        async def get(manifest: Manifest, objects: SegmentObjects) -> Document:
            loaded = await live_ids(objects, manifest.segments)
            found = find_all(loaded, [document_id]).get(document_id)
            if found is None:
                raise DocumentNotFound(f"The index {index_id!r} holds no document {document_id!r}.", param="doc_id")
            (line,) = await _lines(objects, found.segment, [found.row])
            return document(line, found.stored)

        return await self._reading(scope, index_id, await self._manifest(scope, index_id), get)

    async def existing_ids(self, scope: Scope, index_id: IndexId, ids: Sequence[DocumentId]) -> list[DocumentId]:
        """Which of ``ids`` stand in the index, sorted: those that an append would replace. None, where there is no index.

        Raises:
            EmbeddingModelMismatch: it was built with another model or dimension, so nothing could be appended.
        """

        async def find(manifest: Manifest, objects: SegmentObjects) -> list[DocumentId]:
            check_model(manifest, self._embedder.model)
            return sorted(find_all(await live_ids(objects, manifest.segments), ids))

        manifest = await read_manifest(scope.store, index_id)
        return await self._reading(scope, index_id, manifest, find) if manifest.exists else []

    async def documents(self, scope: Scope, index_id: IndexId, cursor: str | None, limit: int) -> DocumentPage:
        """Up to ``limit`` documents in the order of ids; a page also ends where an answer would be too large.

        Raises:
            IndexNotFound: there is no such index.
            InvalidRequest: the cursor is not of this list.
        """
        owner = f"documents:{scope.store.tenant}:{index_id}"
        after = decode_cursor(owner, cursor) if cursor is not None else ""

        async def page(manifest: Manifest, objects: SegmentObjects) -> DocumentPage:
            loaded = await live_ids(objects, manifest.segments)
            places, more = await _page(objects, loaded, after, limit)
            lines = await _texts(objects, places)
            fitting = len(list(takewhile(PageRoom(beside=_TIMES).takes, lines)))
            documents = tuple(map(_document, lines[:fitting], places))
            more = more or fitting < len(places)
            return DocumentPage(documents, encode_cursor(owner, documents[-1].id) if more else None)

        return await self._reading(scope, index_id, await self._manifest(scope, index_id), page)

    async def _manifest(self, scope: Scope, index_id: IndexId) -> Manifest:
        manifest = await read_manifest(scope.store, index_id)
        if not manifest.exists:
            raise index_not_found(index_id)
        return manifest

    async def _reading(
        self,
        scope: Scope,
        index_id: IndexId,
        manifest: Manifest,
        read: Callable[[Manifest, SegmentObjects], Awaitable[A]],
    ) -> A:
        """``read`` on ``manifest``, or, if what it lists has been swept meanwhile, once more on the version in force."""
        try:
            return await read(manifest, SegmentObjects(scope.store, index_id, manifest.generation, self._cache))
        except ObjectMissing:
            manifest = await self._manifest(scope, index_id)
        try:
            return await read(manifest, SegmentObjects(scope.store, index_id, manifest.generation, self._cache))
        except ObjectMissing:
            raise StorageUnavailable("The index is changing; try again.", retry_after=1) from None


class _Candidate(NamedTuple):
    """Sorts best first, equal scores in the order of ids."""

    negative_score: float
    id: str
    live: LiveIds
    row: int


async def _search(objects: SegmentObjects, segments: Sequence[Segment], query: Vectors, top_k: int) -> list[Hit]:
    candidates: list[_Candidate] = []
    for batch in _batches(segments):
        reads = asyncio.gather(*(objects.read(segment.id, VECTORS) for segment in batch))
        loaded, stored = await asyncio.gather(live_ids(objects, batch), reads)
        for live, vectors in zip(loaded, stored, strict=True):
            scored = await _scan(decode_vectors(vectors), query, top_k, live.dead)
            candidates += (_Candidate(-score, live.ids[row], live, row) for row, score in scored)
        candidates = heapq.nsmallest(top_k, candidates, key=lambda candidate: candidate[:2])
    places = [Place(found.id, found.live, found.row) for found in candidates]
    documents = map(_document, await _texts(objects, places), places)
    return [
        Hit(DocumentId(found.id), text.text, text.metadata, -found.negative_score + 0.0)
        for found, text in zip(candidates, documents, strict=True)
    ]


def _batches(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """The segments to load at once: the small ones together, while an index larger than the cache streams through it."""
    batch: list[Segment] = []
    for segment in segments:
        if batch and sum(other.rows for other in batch) + segment.rows > _BATCH_ROWS:
            yield batch
            batch = []
        batch.append(segment)
    if batch:
        yield batch


async def _scan(vectors: Vectors, query: Vectors, top_k: int, dead: Bitmap) -> list[Scored]:
    alive = _alive(len(vectors), dead)
    if vectors.size <= _INLINE_SCAN:
        return best(vectors, query, top_k, alive)
    return await anyio.to_thread.run_sync(best, vectors, query, top_k, alive)


def _alive(rows: int, dead: Bitmap) -> npt.NDArray[np.bool_] | None:
    if not dead.bits:
        return None
    bits = np.unpackbits(np.frombuffer(dead.bits, np.uint8), bitorder="little")
    alive = np.ones(rows, np.bool_)
    alive[: len(bits)] = ~bits[:rows].astype(np.bool_)
    return alive


async def _spans(objects: SegmentObjects, segment: Segment, rows: Sequence[int]) -> list[tuple[int, int]]:
    offsets = decode_offsets(await objects.read(segment.id, OFFSETS))
    return [(int(offsets[row]), int(offsets[row + 1])) for row in rows]


async def _lines(objects: SegmentObjects, segment: Segment, rows: Sequence[int]) -> list[bytes]:
    return await objects.lines(segment, await _spans(objects, segment, rows))


async def _texts(objects: SegmentObjects, places: Sequence[Place]) -> list[bytes]:
    """The stored lines at ``places``, in their order; each segment's are read together."""
    by_segment: dict[str, list[Place]] = {}
    for place in places:
        by_segment.setdefault(place.live.segment.id, []).append(place)

    async def load(group: list[Place]) -> dict[str, bytes]:
        group.sort(key=lambda place: place.row)
        lines = await _lines(objects, group[0].live.segment, [place.row for place in group])
        return {place.id: line for place, line in zip(group, lines, strict=True)}

    loaded = await together(map(load, by_segment.values()), at_once=_READS_AT_ONCE)
    lines = {name: line for group in loaded for name, line in group.items()}
    return [lines[place.id] for place in places]


def _document(line: bytes, place: Place) -> Document:
    return document(line, place.live.ids.row(place.row))


def _from(live: LiveIds, after: str) -> Iterator[Place]:
    for row in range(live.ids.after(after), len(live.ids)):
        if row not in live.dead:
            yield Place(live.ids[row], live, row)


async def _page(objects: SegmentObjects, loaded: Sequence[LiveIds], after: str, limit: int) -> tuple[list[Place], bool]:
    """The places of one page as far as their sizes say, and whether there are more behind it."""
    stored = await together((objects.read(live.segment.id, OFFSETS) for live in loaded), at_once=_READS_AT_ONCE)
    offsets = {live.segment.id: decode_offsets(body) for live, body in zip(loaded, stored, strict=True)}
    places: list[Place] = []
    size = 0
    for place in heapq.merge(*(_from(live, after) for live in loaded), key=lambda place: place.id):
        ends = offsets[place.live.segment.id]
        size += int(ends[place.row + 1] - ends[place.row])
        if places and (len(places) == limit or size > PAGE_BYTES):
            return places, True
        places.append(place)
    return places, False
