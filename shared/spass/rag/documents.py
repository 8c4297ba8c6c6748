"""What a client sends to the rag room, and its limits."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, JsonValue

from spass.core.errors import DocumentTooLarge, DuplicateDocumentId, InvalidRequest, TooManyDocuments
from spass.core.ids import RAG_ID, DocumentId
from spass.core.texts import bounded, with_words

MAX_DOCUMENTS: Final = 256
MAX_TEXT_BYTES: Final = 8192
MAX_QUERY_BYTES: Final = 8192
MAX_METADATA_BYTES: Final = 2048
MAX_METADATA_DEPTH: Final = 32
MAX_TOP_K: Final = 50


_HOLDS_WORDS: Final = {"pattern": r"\S"}

QueryText = Annotated[
    str,
    Field(min_length=1, max_length=MAX_QUERY_BYTES, json_schema_extra=_HOLDS_WORDS),
    AfterValidator(with_words),
    AfterValidator(bounded(MAX_QUERY_BYTES)),
]
"""What is searched for. A longer text would keep a processor busy, for what no embedding model reads to its end."""


class NewDocument(BaseModel):
    """A document as a client writes it. Its id is the client's."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Annotated[str, Field(pattern=RAG_ID)]
    text: Annotated[str, Field(min_length=1, json_schema_extra=_HOLDS_WORDS), AfterValidator(with_words)]
    metadata: dict[str, JsonValue] = {}

    @property
    def document_id(self) -> DocumentId:
        return DocumentId(self.id)


class WriteRequest(BaseModel):
    """The body of a replace and of an append."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    documents: Annotated[list[NewDocument], Field(min_length=1), FailFast()]


class QueryRequest(BaseModel):
    """The body of a query."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    query: QueryText
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] = 5


def metadata_json(metadata: dict[str, Any], where: str = "metadata") -> bytes:
    """Metadata as it counts against its limit and as it is stored: UTF-8 JSON without blanks.

    Raises:
        InvalidRequest: it holds what JSON cannot write, such as NaN, or is nested deeper than 32 levels.
    """
    level: list[object] = [metadata]
    for _ in range(MAX_METADATA_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
    if any(isinstance(value, dict | list) for value in level):
        raise InvalidRequest(f"The metadata is nested deeper than {MAX_METADATA_DEPTH} levels.", param=where)
    try:
        return json.dumps(metadata, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        raise InvalidRequest("The metadata is not JSON that can be stored.", param=where) from None


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def check_limits(documents: Sequence[NewDocument]) -> None:
    """Refuse a write over a limit, before anything is embedded or stored.

    Raises:
        InvalidRequest: there are no documents.
        TooManyDocuments: more than 256.
        DocumentTooLarge: a text over 8192 bytes of UTF-8, or metadata over 2 KiB of JSON.
        DuplicateDocumentId: an id stands twice.
    """
    if not documents:
        raise InvalidRequest("Send at least one document.", param="documents")
    if len(documents) > MAX_DOCUMENTS:
        raise TooManyDocuments(
            f"A request may hold {MAX_DOCUMENTS} documents, this one holds {len(documents)}; send several.", param="documents"
        )
    seen: set[str] = set()
    for number, document in enumerate(documents):
        where = f"documents.{number}"
        if document.id in seen:
            raise DuplicateDocumentId(f"The id {document.id!r} stands twice in this request.", param=f"{where}.id")
        seen.add(document.id)
        _check_size(len(document.text.encode()), MAX_TEXT_BYTES, f"{where}.text")
        _check_size(len(metadata_json(document.metadata, f"{where}.metadata")), MAX_METADATA_BYTES, f"{where}.metadata")


def _check_size(size: int, limit: int, where: str) -> None:
    if size > limit:
        raise DocumentTooLarge(f"{where} is {size} bytes long; {limit} are allowed.", param=where)
