"""The rag room as one thing, for whoever holds a whole gateway: everything an index can do."""

from collections.abc import Sequence
from typing import cast

from spass.aws.swap import Participant
from spass.calls.scope import Scope
from spass.core.errors import IndexNotFound
from spass.core.ids import DocumentId, IndexId
from spass.rag.index.answers import Document, DocumentPage, Hit, IndexPage, IndexSummary, QueryAnswer, WriteAnswer
from spass.rag.index.cache import ObjectCache
from spass.rag.index.catalog import DEFAULT_LIMIT, IndexCatalog
from spass.rag.index.documents import DocumentPatch, NewDocument
from spass.rag.index.embedding import Embedder, EmbeddingCalls
from spass.rag.index.embedding_model import EmbeddingModel
from spass.rag.index.filters import Filter
from spass.rag.index.precondition import IfMatch, View
from spass.rag.search.reader import Reader
from spass.rag.write.delete import IndexDeleter
from spass.rag.write.patch import Patcher
from spass.rag.write.writer import Writer
from spass.tenancy.config import GatewayConfig


class Rag:
    """Indices and documents of the caller's tenant. ``cache`` is this process's."""

    def __init__(self, calls: EmbeddingCalls, config: GatewayConfig, cache: ObjectCache) -> None:
        name = config.defaults.embedding_model
        # The loader refuses a catalogue in which an embedding model has no dimensions.
        embedder = Embedder(calls, EmbeddingModel(name, cast(int, config.model(name).dimensions)))
        self._embedder = embedder
        self._cache = cache
        self._catalog = IndexCatalog()
        self._deleter = IndexDeleter(cache)
        self._writer = Writer(embedder, cache)
        self._patcher = Patcher(embedder, cache)
        self._reader = Reader(embedder, cache)

    async def replace(
        self,
        scope: Scope,
        index_id: IndexId,
        documents: Sequence[NewDocument],
        participant: Participant[WriteAnswer] | None = None,
        if_match: IfMatch | None = None,
    ) -> WriteAnswer:
        """Make ``documents`` all that the index holds; it is created if absent. What stands
        ``participant`` takes effect in the same transaction, and only while ``if_match`` holds.

        Raises:
            IndexChanged: ``if_match`` does not hold; nothing was changed.
            InvalidRequest, TooManyDocuments, DocumentTooLarge, DuplicateDocumentId: over a limit; nothing was called or changed.
            UpstreamError: the embedding model answered no usable vectors; nothing was changed.
        """
        return await self._writer.replace(scope, index_id, documents, participant, if_match)

    async def append(
        self,
        scope: Scope,
        index_id: IndexId,
        documents: Sequence[NewDocument],
        participant: Participant[WriteAnswer] | None = None,
        if_match: IfMatch | None = None,
    ) -> WriteAnswer:
        """Add ``documents``, each in place of the one with its id; else as ``replace``.

        Raises:
            EmbeddingModelMismatch: the index was built with another model or dimension.
        """
        return await self._writer.append(scope, index_id, documents, participant, if_match)

    async def list(self, scope: Scope, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> IndexPage:
        """See ``IndexCatalog.list``."""
        return await self._catalog.list(scope, cursor, limit)

    async def describe(self, scope: Scope, index_id: IndexId) -> IndexSummary:
        """See ``IndexCatalog.describe``."""
        return await self._catalog.describe(scope, index_id)

    async def delete_index(
        self, scope: Scope, index_id: IndexId, participant: Participant[bool] | None = None, if_match: IfMatch | None = None
    ) -> bool:
        """See ``IndexDeleter.delete_index``."""
        return await self._deleter.delete_index(scope, index_id, participant, if_match)

    async def documents(
        self, scope: Scope, index_id: IndexId, cursor: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> DocumentPage:
        """See ``Reader.documents``."""
        return await self._reader.documents(scope, index_id, cursor, limit)

    async def document(self, scope: Scope, index_id: IndexId, document_id: DocumentId) -> Document:
        """See ``Reader.document``."""
        return await self._reader.document(scope, index_id, document_id)

    async def check_may_embed(self, scope: Scope) -> None:
        """See ``Embedder.check_may_embed``."""
        await self._embedder.check_may_embed(scope)

    async def existing_ids(self, scope: Scope, index_id: IndexId, ids: Sequence[DocumentId]) -> Sequence[DocumentId]:
        """See ``Reader.existing_ids``."""
        return await self._reader.existing_ids(scope, index_id, ids)

    async def entity_tag(self, scope: Scope, index_id: IndexId, view: View) -> str:
        """See ``Reader.entity_tag``."""
        return await self._reader.entity_tag(scope, index_id, view)

    def if_match(self, view: View, tag: str) -> IfMatch:
        """Return the precondition that ``view`` still has the entity tag ``tag``, for a write."""
        return IfMatch(view, tag, self._cache)

    async def patch(
        self,
        scope: Scope,
        index_id: IndexId,
        document_id: DocumentId,
        patch: DocumentPatch,
        participant: Participant[Document] | None = None,
        if_match: IfMatch | None = None,
    ) -> Document:
        """See ``Patcher.patch``."""
        return await self._patcher.patch(scope, index_id, document_id, patch, participant, if_match)

    async def delete_document(
        self,
        scope: Scope,
        index_id: IndexId,
        document_id: DocumentId,
        participant: Participant[bool] | None = None,
        if_match: IfMatch | None = None,
    ) -> bool:
        """See ``IndexDeleter.delete_document``."""
        return await self._deleter.delete_document(scope, index_id, document_id, participant, if_match)

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
        """See ``Reader.query``."""
        return await self._reader.query(scope, index_id, query, top_k, filter=filter, min_score=min_score)

    async def retrieve(self, scope: Scope, index_id: IndexId, query: str, top_k: int) -> Sequence[Hit]:
        """Passive retrieval: what goes before an agent's prompt. An absent index, or an empty message, adds nothing."""
        if not query:
            return ()
        try:
            return (await self.query(scope, index_id, query, top_k)).results
        except IndexNotFound:
            return ()
