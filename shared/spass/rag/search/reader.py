"""Query, get and page: what stands in one version of an index."""

import heapq
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

from spass.aws.objects import ObjectMissing
from spass.calls.scope import Scope
from spass.core.cursors import decode_cursor, encode_cursor
from spass.core.errors import DocumentNotFound, IndexNotFound, InvalidRequest, StorageUnavailable
from spass.core.ids import DOCUMENT_ID, DocumentId, IndexId
from spass.core.page_size import PAGE_BYTES, PageSizeLimit
from spass.rag.index.answers import Document, DocumentPage, Hit, QueryAnswer
from spass.rag.index.cache import ObjectCache
from spass.rag.index.catalog import DEFAULT_LIMIT
from spass.rag.index.embedding import Embedder
from spass.rag.index.embedding_model import check_model
from spass.rag.index.filters import Filter
from spass.rag.index.locations import LiveIds, load_live_ids, locate_documents
from spass.rag.index.manifest import Manifest, Segment, index_not_found, read_manifest
from spass.rag.index.objects import OFFSETS, SegmentObjects, gather_limited
from spass.rag.index.precondition import IfMatch, View, entity_tag
from spass.rag.index.segments import decode_document, decode_offsets
from spass.rag.search.nearest_neighbors import Neighbor, VectorQuery, find_nearest

A = TypeVar("A")

_MAX_CONCURRENT_READS: Final = 16
_POSITION: Final = re.compile(DOCUMENT_ID)

_TIMES: Final = b',"created_at":"2026-04-30T08:14:22.123Z","updated_at":"2026-04-30T08:14:22.123Z"'
"""What a listed document holds beside its line in the bucket."""


class RowPosition(NamedTuple):
    """A row of a segment; sorts by id."""

    id: str
    segment: Segment
    row: int


class Reader:
    """Reads documents of the caller's tenant."""

    def __init__(self, embedder: Embedder, cache: ObjectCache) -> None:
        self._embedder = embedder
        self._cache = cache

    async def query(
        self,
        scope: Scope,
        index_id: IndexId,
        query: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002 (its name on the wire)
        min_score: float | None = None,
    ) -> QueryAnswer:
        """The ``top_k`` documents nearest to ``query`` among those that meet ``filter``; fewer where fewer meet it, or fewer
        reach ``min_score``, which is compared with the score as answered.

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
        question = VectorQuery(vector, top_k, filter, min_score)

        async def search(manifest: Manifest, objects: SegmentObjects) -> QueryAnswer:
            check_model(manifest, self._embedder.model)
            found = await find_nearest(objects, manifest.segments, question)
            return QueryAnswer(index_id=index_id, results=await _hits(objects, found), version=manifest.version)

        return await self._reading(scope, index_id, manifest, search)

    async def retrieve(self, scope: Scope, index_id: IndexId, query: str, top_k: int) -> Sequence[Hit]:
        """Return the documents to show before an agent's prompt. An absent index or an empty message adds nothing."""
        if not query:
            return ()
        try:
            return (await self.query(scope, index_id, query, top_k)).results
        except IndexNotFound:
            return ()

    async def document(self, scope: Scope, index_id: IndexId, document_id: DocumentId) -> Document:
        """Raises:
        IndexNotFound: there is no such index.
        DocumentNotFound: it holds no such document.
        """

        async def get(manifest: Manifest, objects: SegmentObjects) -> Document:
            loaded = await load_live_ids(objects, manifest.segments)
            found = locate_documents(loaded, [document_id]).get(document_id)
            if found is None:
                raise DocumentNotFound(f"The index {index_id!r} holds no document {document_id!r}.", param="doc_id")
            (line,) = await _texts(objects, [RowPosition(document_id, found.segment, found.row)])
            return decode_document(line, found.stored)

        return await self._reading(scope, index_id, await self._manifest(scope, index_id), get)

    async def existing_ids(self, scope: Scope, index_id: IndexId, ids: Sequence[DocumentId]) -> list[DocumentId]:
        """Which of ``ids`` stand in the index, sorted: those that an append would replace. None, where there is no index.

        Raises:
            EmbeddingModelMismatch: it was built with another model or dimension, so nothing could be appended.
        """

        async def find(manifest: Manifest, objects: SegmentObjects) -> list[DocumentId]:
            check_model(manifest, self._embedder.model)
            return sorted(locate_documents(await load_live_ids(objects, manifest.segments), ids))

        manifest = await read_manifest(scope.store, index_id)
        return await self._reading(scope, index_id, manifest, find) if manifest.exists else []

    async def entity_tag(self, scope: Scope, index_id: IndexId, view: View) -> str:
        """Return the tag of what ``view`` shows of the index now, which need not exist.

        Raises:
            IndexNotFound: the index was deleted meanwhile.
        """

        async def tag(manifest: Manifest, objects: SegmentObjects) -> str:
            return await entity_tag(view, manifest, objects)

        return await self._reading(scope, index_id, await read_manifest(scope.store, index_id), tag)

    def if_match(self, view: View, tag: str) -> IfMatch:
        """Return the precondition that ``view`` still has the entity tag ``tag``, for a write."""
        return IfMatch(view, tag, self._cache)

    async def documents(
        self, scope: Scope, index_id: IndexId, cursor: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> DocumentPage:
        """Up to ``limit`` documents in the order of ids; a page also ends where an answer would be too large.

        Raises:
            IndexNotFound: there is no such index.
            InvalidRequest: the cursor is not of this list.
        """
        owner = f"documents:{scope.store.tenant}:{index_id}"
        after = decode_cursor(owner, cursor, _POSITION) if cursor is not None else ""

        async def page(manifest: Manifest, objects: SegmentObjects) -> DocumentPage:
            loaded = await load_live_ids(objects, manifest.segments)
            places, more = await _page(objects, loaded, after, limit)
            lines = await _texts(objects, [place for place, _ in places])
            fitting = len(list(takewhile(PageSizeLimit(entry_overhead=_TIMES).add, lines)))
            rows = (live.ids.row(place.row) for place, live in places)
            documents = tuple(map(decode_document, lines[:fitting], rows))
            more = more or fitting < len(places)
            return DocumentPage(documents=documents, next_cursor=encode_cursor(owner, documents[-1].id) if more else None)

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


async def _hits(objects: SegmentObjects, found: Sequence[Neighbor]) -> tuple[Hit, ...]:
    lines = await _texts(objects, [RowPosition(one.id, one.segment, one.row) for one in found])
    return tuple(_hit(one, line) for one, line in zip(found, lines, strict=True))


def _hit(found: Neighbor, line: bytes) -> Hit:
    stored = json.loads(line)
    return Hit(id=DocumentId(found.id), text=stored["text"], metadata=stored["metadata"], score=found.score)


async def _texts(objects: SegmentObjects, places: Sequence[RowPosition]) -> list[bytes]:
    """The stored lines at ``places``, in their order; each segment's are read together."""
    by_segment: dict[str, list[RowPosition]] = {}
    for place in places:
        by_segment.setdefault(place.segment.id, []).append(place)

    async def load(group: list[RowPosition]) -> dict[str, bytes]:
        group.sort(key=lambda place: place.row)
        spans = await objects.spans(group[0].segment, [place.row for place in group])
        lines = await objects.lines(group[0].segment, spans)
        return {place.id: line for place, line in zip(group, lines, strict=True)}

    loaded = await gather_limited(map(load, by_segment.values()), at_once=_MAX_CONCURRENT_READS)
    lines = {name: line for group in loaded for name, line in group.items()}
    return [lines[place.id] for place in places]


def _iter_live_rows(live: LiveIds, after: str) -> Iterator[tuple[RowPosition, LiveIds]]:
    for row in range(live.ids.after(after), len(live.ids)):
        if row not in live.dead:
            yield RowPosition(live.ids[row], live.segment, row), live


async def _page(
    objects: SegmentObjects, loaded: Sequence[LiveIds], after: str, limit: int
) -> tuple[list[tuple[RowPosition, LiveIds]], bool]:
    """The places of one page as far as their sizes say, and whether there are more behind it."""
    stored = await gather_limited((objects.read(live.segment.id, OFFSETS) for live in loaded), at_once=_MAX_CONCURRENT_READS)
    offsets = {live.segment.id: decode_offsets(body) for live, body in zip(loaded, stored, strict=True)}
    places: list[tuple[RowPosition, LiveIds]] = []
    size = 0
    for place, live in heapq.merge(*(_iter_live_rows(live, after) for live in loaded), key=lambda pair: pair[0].id):
        ends = offsets[place.segment.id]
        size += int(ends[place.row + 1] - ends[place.row])
        if places and (len(places) == limit or size > PAGE_BYTES):
            return places, True
        places.append((place, live))
    return places, False
