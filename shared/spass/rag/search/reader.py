"""Query, get and list the documents in one version of an index."""

import heapq
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Final, TypeVar

from spass.calls.scope import Scope
from spass.core.errors import IndexNotFound, InvalidRequest
from spass.core.ids import DOCUMENT_ID, DocumentId, IndexId
from spass.core.paging import PAGE_BYTES, PageSizeLimit, decode_cursor, encode_cursor
from spass.core.tasks import map_concurrently
from spass.rag.index.cache import ObjectCache
from spass.rag.index.catalog import DEFAULT_LIMIT
from spass.rag.index.embedding import Embedder
from spass.rag.index.filters import Filter
from spass.rag.index.locations import DocumentLocation, LiveIds, decode_document, load_live_ids, locate_documents, read_document
from spass.rag.index.manifest import Manifest, check_model, document_not_found, index_not_found, read_current
from spass.rag.index.objects import OFFSETS, SegmentObjects
from spass.rag.index.precondition import IfMatch, View, entity_tag
from spass.rag.index.responses import Document, DocumentPage, Hit, QueryAnswer
from spass.rag.index.segments import Vectors, decode_offsets
from spass.rag.search.nearest_neighbors import Neighbor, VectorQuery, find_nearest
from spass.rag.search.selection import FieldTypes

A = TypeVar("A")

_MAX_CONCURRENT_READS: Final = 16
_CURSOR_POSITION: Final = re.compile(DOCUMENT_ID)

_TIMES: Final = b',"created_at":"2026-04-30T08:14:22.123Z","updated_at":"2026-04-30T08:14:22.123Z"'
"""The fields of a listed document that its line in the bucket does not contain."""


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
        """Return the ``top_k`` documents nearest to ``query`` that match ``filter`` and whose rounded score is at least
        ``min_score``. There may be fewer.

        Raises:
            InvalidRequest: the query is empty.
            IndexNotFound: there is no such index.
            EmbeddingModelMismatch: it was built with another model or dimension.
        """
        if not query:
            raise InvalidRequest("The query is empty.", param="query")
        vector: Vectors | None = None

        async def search(manifest: Manifest, objects: SegmentObjects) -> QueryAnswer:
            nonlocal vector
            check_model(manifest, self._embedder.model)
            if vector is None:
                vector = (await self._embedder.embed(scope, [query]))[0]
            types = FieldTypes()
            wanted = VectorQuery(vector, top_k, filter, min_score)
            neighbors = await find_nearest(objects, manifest.segments, wanted, types)
            lines = map(json.loads, await _lines(objects, neighbors))
            results = tuple(
                Hit(id=DocumentId(neighbor.id), text=line["text"], metadata=line["metadata"], score=neighbor.score)
                for neighbor, line in zip(neighbors, lines, strict=True)
            )
            warnings = tuple(types.warnings(filter)) if filter is not None else ()
            return QueryAnswer(index_id=index_id, results=results, version=manifest.version, warnings=warnings)

        return await self._read(scope, index_id, search)

    async def retrieve(self, scope: Scope, index_id: IndexId, query: str, top_k: int) -> Sequence[Hit]:
        """Return the documents to show before an agent's prompt. An absent index or an empty message adds nothing."""
        if not query:
            return ()
        try:
            return (await self.query(scope, index_id, query, top_k)).results
        except IndexNotFound:
            return ()

    async def document(self, scope: Scope, index_id: IndexId, document_id: DocumentId) -> Document:
        """Return a document.

        Raises:
            IndexNotFound: there is no such index.
            DocumentNotFound: there is no such document in it.
        """

        async def get(manifest: Manifest, objects: SegmentObjects) -> Document:
            loaded = await load_live_ids(objects, manifest.segments)
            location = locate_documents(loaded, [document_id]).get(document_id)
            if location is None:
                raise document_not_found(index_id, document_id)
            return await read_document(objects, location)

        return await self._read(scope, index_id, get)

    async def existing_ids(self, scope: Scope, index_id: IndexId, ids: Sequence[DocumentId]) -> list[DocumentId]:
        """Return those ``ids`` that are in the index, sorted: an append would replace them. Without an index there are none.
        Raise ``EmbeddingModelMismatch`` if it was built with another model or dimension, so an append would fail."""

        async def find(manifest: Manifest) -> list[DocumentId]:
            check_model(manifest, self._embedder.model)
            loaded = await load_live_ids(self._objects(scope, index_id, manifest), manifest.segments)
            return sorted(locate_documents(loaded, ids))

        return await read_current(scope.store, index_id, find)

    async def entity_tag(self, scope: Scope, index_id: IndexId, view: View) -> str:
        """Return the entity tag of ``view`` in the current version. The index need not exist."""

        async def tag(manifest: Manifest) -> str:
            return await entity_tag(view, manifest, self._objects(scope, index_id, manifest))

        return await read_current(scope.store, index_id, tag)

    def if_match(self, view: View, tag: str) -> IfMatch:
        """Return the precondition that ``view`` still has the entity tag ``tag``, for a write."""
        return IfMatch(view, tag, self._cache)

    async def documents(
        self, scope: Scope, index_id: IndexId, cursor: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> DocumentPage:
        """Return up to ``limit`` documents in the order of ids. A page also ends where the answer would become too large.

        Raises:
            IndexNotFound: there is no such index.
            InvalidRequest: the cursor is not of this list.
        """
        owner = f"documents:{scope.store.tenant}:{index_id}"
        after = decode_cursor(owner, cursor, _CURSOR_POSITION) if cursor is not None else ""

        async def page(manifest: Manifest, objects: SegmentObjects) -> DocumentPage:
            loaded = await load_live_ids(objects, manifest.segments)
            locations, more = await _page(objects, loaded, after, limit)
            lines = await _lines(objects, locations)
            fitting = len(list(takewhile(PageSizeLimit(entry_overhead=_TIMES).add, lines)))
            documents = tuple(map(decode_document, lines[:fitting], (location.stored for location in locations)))
            more = more or fitting < len(locations)
            return DocumentPage(documents=documents, next_cursor=encode_cursor(owner, documents[-1].id) if more else None)

        return await self._read(scope, index_id, page)

    async def _read(self, scope: Scope, index_id: IndexId, read: Callable[[Manifest, SegmentObjects], Awaitable[A]]) -> A:
        """Call ``read`` on the current version of an index that exists."""

        async def read_existing(manifest: Manifest) -> A:
            if not manifest.exists:
                raise index_not_found(index_id)
            return await read(manifest, self._objects(scope, index_id, manifest))

        return await read_current(scope.store, index_id, read_existing)

    def _objects(self, scope: Scope, index_id: IndexId, manifest: Manifest) -> SegmentObjects:
        return SegmentObjects(scope.store, index_id, manifest.generation, self._cache)


async def _lines(objects: SegmentObjects, locations: Sequence[Neighbor | DocumentLocation]) -> list[bytes]:
    """Read the lines of docs.jsonl at ``locations``, in their order. The lines of one segment are read together."""
    by_segment: dict[str, list[Neighbor | DocumentLocation]] = {}
    for item in locations:
        by_segment.setdefault(item.segment.id, []).append(item)

    async def read(group: list[Neighbor | DocumentLocation]) -> dict[str, bytes]:
        group.sort(key=lambda item: item.row)
        lines = await objects.lines(group[0].segment, [item.row for item in group])
        return dict(zip((item.id for item in group), lines, strict=True))

    lines: dict[str, bytes] = {}
    for group in await map_concurrently(read, by_segment.values(), limit=_MAX_CONCURRENT_READS):
        lines |= group
    return [lines[item.id] for item in locations]


def _live_locations(live: LiveIds, after: str) -> Iterator[DocumentLocation]:
    for row in range(live.ids.first_row_after(after), len(live.ids)):
        if row not in live.deleted:
            yield DocumentLocation(live.segment, row, live.ids.row(row))


async def _page(
    objects: SegmentObjects, loaded: Sequence[LiveIds], after: str, limit: int
) -> tuple[list[DocumentLocation], bool]:
    """Return the documents of one page, as far as the sizes of their lines allow, and whether there are more."""
    stored = await map_concurrently(lambda live: objects.read(live.segment.id, OFFSETS), loaded, limit=_MAX_CONCURRENT_READS)
    offsets = {live.segment.id: decode_offsets(body) for live, body in zip(loaded, stored, strict=True)}
    locations: list[DocumentLocation] = []
    size = 0
    for location in heapq.merge(*(_live_locations(live, after) for live in loaded), key=attrgetter("id")):
        ends = offsets[location.segment.id]
        size += int(ends[location.row + 1] - ends[location.row])
        if locations and (len(locations) == limit or size > PAGE_BYTES):
            return locations, True
        locations.append(location)
    return locations, False
