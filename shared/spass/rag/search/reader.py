"""Query, get and list the documents in one version of an index."""

import heapq
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Final, TypeVar

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
from spass.rag.index.locations import DocumentLocation, LiveIds, load_live_ids, locate_documents
from spass.rag.index.manifest import Manifest, index_not_found, read_manifest
from spass.rag.index.objects import OFFSETS, SegmentObjects, gather_limited
from spass.rag.index.precondition import IfMatch, View, entity_tag
from spass.rag.index.segments import decode_document, decode_offsets
from spass.rag.search.nearest_neighbors import Neighbor, VectorQuery, find_nearest

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
        manifest = await self._manifest(scope, index_id)
        check_model(manifest, self._embedder.model)
        vector = (await self._embedder.embed(scope, [query]))[0]
        vector_query = VectorQuery(vector, top_k, filter, min_score)

        async def search(manifest: Manifest, objects: SegmentObjects) -> QueryAnswer:
            check_model(manifest, self._embedder.model)
            found = await find_nearest(objects, manifest.segments, vector_query)
            return QueryAnswer(index_id=index_id, results=await _load_hits(objects, found), version=manifest.version)

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
        """Return a document.

        Raises:
            IndexNotFound: there is no such index.
            DocumentNotFound: there is no such document in it.
        """

        async def get(manifest: Manifest, objects: SegmentObjects) -> Document:
            loaded = await load_live_ids(objects, manifest.segments)
            found = locate_documents(loaded, [document_id]).get(document_id)
            if found is None:
                raise DocumentNotFound(f"The index {index_id!r} holds no document {document_id!r}.", param="doc_id")
            (line,) = await _lines(objects, [found])
            return decode_document(line, found.stored)

        return await self._reading(scope, index_id, await self._manifest(scope, index_id), get)

    async def existing_ids(self, scope: Scope, index_id: IndexId, ids: Sequence[DocumentId]) -> list[DocumentId]:
        """Return those ``ids`` that are in the index, sorted: an append would replace them. Without an index there are none.

        Raises:
            EmbeddingModelMismatch: it was built with another model or dimension, so an append would fail.
        """

        async def find(manifest: Manifest, objects: SegmentObjects) -> list[DocumentId]:
            check_model(manifest, self._embedder.model)
            return sorted(locate_documents(await load_live_ids(objects, manifest.segments), ids))

        manifest = await read_manifest(scope.store, index_id)
        return await self._reading(scope, index_id, manifest, find) if manifest.exists else []

    async def entity_tag(self, scope: Scope, index_id: IndexId, view: View) -> str:
        """Return the entity tag of ``view`` in the current version. The index need not exist.

        Raises:
            IndexNotFound: the index was deleted during the read.
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
        """Return up to ``limit`` documents in the order of ids. A page also ends where the answer would become too large.

        Raises:
            IndexNotFound: there is no such index.
            InvalidRequest: the cursor is not of this list.
        """
        owner = f"documents:{scope.store.tenant}:{index_id}"
        after = decode_cursor(owner, cursor, _CURSOR_POSITION) if cursor is not None else ""

        async def page(manifest: Manifest, objects: SegmentObjects) -> DocumentPage:
            loaded = await load_live_ids(objects, manifest.segments)
            found, more = await _page(objects, loaded, after, limit)
            lines = await _lines(objects, found)
            fitting = len(list(takewhile(PageSizeLimit(entry_overhead=_TIMES).add, lines)))
            documents = tuple(map(decode_document, lines[:fitting], (location.stored for location in found)))
            more = more or fitting < len(found)
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
        """Call ``read`` on ``manifest``. If a segment of it was swept in the meantime, call it once more on the current
        version."""
        try:
            return await read(manifest, SegmentObjects(scope.store, index_id, manifest.generation, self._cache))
        except ObjectMissing:
            manifest = await self._manifest(scope, index_id)
        try:
            return await read(manifest, SegmentObjects(scope.store, index_id, manifest.generation, self._cache))
        except ObjectMissing:
            raise StorageUnavailable("The index is changing; try again.", retry_after=1) from None


async def _load_hits(objects: SegmentObjects, found: Sequence[Neighbor]) -> tuple[Hit, ...]:
    return tuple(map(_hit, found, await _lines(objects, found)))


def _hit(found: Neighbor, line: bytes) -> Hit:
    stored = json.loads(line)
    return Hit(id=DocumentId(found.id), text=stored["text"], metadata=stored["metadata"], score=found.score)


async def _lines(objects: SegmentObjects, found: Sequence[Neighbor | DocumentLocation]) -> list[bytes]:
    """Read the lines of docs.jsonl of ``found``, in their order. The lines of one segment are read together."""
    by_segment: dict[str, list[Neighbor | DocumentLocation]] = {}
    for one in found:
        by_segment.setdefault(one.segment.id, []).append(one)

    async def read(group: list[Neighbor | DocumentLocation]) -> dict[str, bytes]:
        group.sort(key=lambda one: one.row)
        spans = await objects.spans(group[0].segment, [one.row for one in group])
        return dict(zip((one.id for one in group), await objects.lines(group[0].segment, spans), strict=True))

    lines: dict[str, bytes] = {}
    for group in await gather_limited(map(read, by_segment.values()), at_once=_MAX_CONCURRENT_READS):
        lines |= group
    return [lines[one.id] for one in found]


def _live_locations(live: LiveIds, after: str) -> Iterator[DocumentLocation]:
    for row in range(live.ids.first_row_after(after), len(live.ids)):
        if row not in live.deleted:
            yield DocumentLocation(live.segment, row, live.ids.row(row))


async def _page(
    objects: SegmentObjects, loaded: Sequence[LiveIds], after: str, limit: int
) -> tuple[list[DocumentLocation], bool]:
    """Return the documents of one page, as far as the sizes of their lines allow, and whether there are more."""
    stored = await gather_limited((objects.read(live.segment.id, OFFSETS) for live in loaded), at_once=_MAX_CONCURRENT_READS)
    offsets = {live.segment.id: decode_offsets(body) for live, body in zip(loaded, stored, strict=True)}
    found: list[DocumentLocation] = []
    size = 0
    for location in heapq.merge(*(_live_locations(live, after) for live in loaded), key=attrgetter("id")):
        ends = offsets[location.segment.id]
        size += int(ends[location.row + 1] - ends[location.row])
        if found and (len(found) == limit or size > PAGE_BYTES):
            return found, True
        found.append(location)
    return found, False
