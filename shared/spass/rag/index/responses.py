"""The answers of rag, as clients see them."""

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from spass.core.ids import DocumentId, IndexId
from spass.rag.index.manifest import Manifest
from spass.tenancy.response_model import LEAVE_OUT_IF_EMPTY, Count, DateTime, JsonObject, NextCursor, ResponseModel


class IndexSummary(ResponseModel):
    """An index: its size, its embedding model and its version."""

    id: IndexId
    doc_count: Count
    total_text_bytes: Count
    embedding_model: str
    dimensions: Count
    version: Count
    created_at: DateTime
    updated_at: DateTime

    @classmethod
    def of(cls, index: IndexId, manifest: Manifest) -> "IndexSummary":
        return cls(
            id=index,
            doc_count=manifest.doc_count,
            total_text_bytes=manifest.text_bytes,
            embedding_model=manifest.embedding_model,
            dimensions=manifest.dimensions,
            version=manifest.version,
            created_at=manifest.created_at,
            updated_at=manifest.updated_at,
        )


class IndexPage(ResponseModel):
    """A page of the tenant's indices."""

    indices: tuple[IndexSummary, ...]
    next_cursor: NextCursor


class WriteAnswer(ResponseModel):
    """The index holds `doc_count` documents after the write, which wrote `ingested` of them. They replaced `replaced` earlier
    ones: all of them, if the whole index was replaced."""

    index_id: IndexId
    doc_count: Count
    ingested: Count
    replaced: Count
    version: Count
    generation: Annotated[str, Field(exclude=True)] = ""
    """The generation that was written to. Clients do not see it."""


class Document(ResponseModel):
    """A document with its text and metadata."""

    id: DocumentId
    text: str
    metadata: JsonObject
    created_at: DateTime
    updated_at: DateTime


class DocumentPage(ResponseModel):
    """A page of an index's documents."""

    documents: tuple[Document, ...]
    next_cursor: NextCursor


class Hit(ResponseModel):
    """A document that was found. `score` is the cosine similarity, rounded to six decimals."""

    id: DocumentId
    text: str
    metadata: JsonObject
    score: Annotated[float, WithJsonSchema({"type": "number", "minimum": -1, "maximum": 1})]


class QueryWarning(ResponseModel):
    """A condition of the filter that cannot mean what it says: on a field that no document has, or that compares a number with a
    field whose values are all strings."""

    code: Literal["field_unknown", "type_mismatch"]
    field: str
    message: str


class QueryAnswer(ResponseModel):
    """The best documents of `version`, best first. Equal scores are in the order of ids. `warnings` is absent if there are
    none."""

    index_id: IndexId
    results: tuple[Hit, ...]
    version: Count
    warnings: Annotated[tuple[QueryWarning, ...], LEAVE_OUT_IF_EMPTY] = ()
