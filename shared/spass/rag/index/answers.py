"""What the rag room answers. The fields are those of the wire."""

from collections.abc import Mapping
from dataclasses import dataclass

from spass.core.ids import DocumentId, IndexId
from spass.core.messages import Json
from spass.core.time import Timestamp
from spass.rag.index.manifest import Manifest


@dataclass(frozen=True, slots=True)
class IndexSummary:
    id: IndexId
    doc_count: int
    total_text_bytes: int
    embedding_model: str
    dimensions: int
    version: int
    created_at: Timestamp
    updated_at: Timestamp

    @classmethod
    def of(cls, index: IndexId, manifest: Manifest) -> "IndexSummary":
        return cls(
            index,
            manifest.doc_count,
            manifest.text_bytes,
            manifest.embedding_model,
            manifest.dimensions,
            manifest.version,
            manifest.created_at,
            manifest.updated_at,
        )


@dataclass(frozen=True, slots=True)
class IndexPage:
    indices: tuple[IndexSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """``doc_count`` documents stand after the write, ``ingested`` of them written by it; it took the place of ``replaced``
    earlier ones (all of them when the whole index was replaced). ``generation``, the life of the index that was written to, is
    not for the wire."""

    index_id: IndexId
    doc_count: int
    ingested: int
    replaced: int
    version: int
    generation: str = ""

    def body(self) -> dict[str, Json]:
        """The answer as JSON."""
        return {
            "index_id": self.index_id,
            "doc_count": self.doc_count,
            "ingested": self.ingested,
            "replaced": self.replaced,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class Document:
    id: DocumentId
    text: str
    metadata: Mapping[str, Json]
    created_at: Timestamp
    updated_at: Timestamp


@dataclass(frozen=True, slots=True)
class DocumentPage:
    documents: tuple[Document, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found. ``score`` is the cosine similarity in [-1, 1], rounded to six decimals."""

    id: DocumentId
    text: str
    metadata: Mapping[str, Json]
    score: float


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The best documents of ``version``, best first, equal scores in the order of ids."""

    index_id: IndexId
    results: tuple[Hit, ...]
    version: int
