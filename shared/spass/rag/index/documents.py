"""The request bodies of the routes of indices, and their limits."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, ConfigDict, FailFast, Field, FiniteFloat, JsonValue, model_validator
from pydantic.config import JsonDict

from spass.core.errors import DocumentTooLarge, DuplicateDocumentId, InvalidRequest, TooManyDocuments
from spass.core.ids import RAG_ID, DocumentId
from spass.core.json import dump, nests_deeper
from spass.core.messages import Json
from spass.core.text_checks import limit_bytes, reject_blank
from spass.tenancy.strict_body import StrictBody

MAX_DOCUMENTS: Final = 256
MAX_TEXT_BYTES: Final = 8192
MAX_QUERY_BYTES: Final = 8192
MAX_METADATA_BYTES: Final = 2048
MAX_METADATA_DEPTH: Final = 32
MAX_TOP_K: Final = 50
MAX_UPLOAD_BYTES: Final = 5 * 1024**3
"""The limit of S3 for one POST."""

_FILENAME: Final = r"^[^/\\\x00-\x1f\x7f]{1,255}$"
_MEDIA_TYPE: Final = r"^[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}( *; *[A-Za-z0-9_-]{1,40}=[A-Za-z0-9_.-]{1,40})?$"

_NON_BLANK_SCHEMA: Final[JsonDict] = {"pattern": r"\S"}

QueryText = Annotated[
    str,
    Field(min_length=1, max_length=MAX_QUERY_BYTES, json_schema_extra=_NON_BLANK_SCHEMA),
    AfterValidator(reject_blank),
    AfterValidator(limit_bytes(MAX_QUERY_BYTES)),
]
"""The text to search for. A text over the limit is too long for every embedding model and is refused before it is tokenized."""

# ``maxLength`` is only in the schema: ``check_limits`` refuses a longer text with a more specific error than pydantic's.
_TEXT_SCHEMA: Final[JsonDict] = {
    **_NON_BLANK_SCHEMA,
    "maxLength": MAX_TEXT_BYTES,
    "description": f"At most {MAX_TEXT_BYTES} bytes of UTF-8.",
}

Text = Annotated[str, Field(min_length=1, json_schema_extra=_TEXT_SCHEMA), AfterValidator(reject_blank)]


class NewDocument(StrictBody):
    """A document as a client writes it. The client chooses the id."""

    id: Annotated[str, Field(pattern=RAG_ID)]
    text: Text
    metadata: dict[str, JsonValue] = Field(default={})

    @property
    def document_id(self) -> DocumentId:
        return DocumentId(self.id)


class WriteRequest(StrictBody):
    """The body of a replace and of an append."""

    # ``maxItems`` is only in the schema: ``check_limits`` refuses more documents with a more specific error than pydantic's.
    documents: Annotated[list[NewDocument], Field(min_length=1, json_schema_extra={"maxItems": MAX_DOCUMENTS}), FailFast()]


class DocumentPatch(StrictBody):
    """The body of a PATCH: a new text, new metadata, or both. A field that is absent stays as it is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    text: Text = Field(default_factory=str)
    metadata: dict[str, JsonValue] = Field(default_factory=dict, description="Replaces all metadata of the document.")

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("give text, metadata or both")
        return self

    def text_after(self, text: str) -> str:
        """Return the text after the patch, given the ``text`` before."""
        return self.text if "text" in self.model_fields_set else text

    def metadata_after(self, metadata: Mapping[str, Json]) -> dict[str, Any]:
        """Return the metadata after the patch, given the ``metadata`` before."""
        return self.metadata if "metadata" in self.model_fields_set else dict(metadata)


class QueryRequest(StrictBody):
    """The body of a query."""

    query: QueryText
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] = 5
    filter: Annotated[
        dict[str, JsonValue],
        Field(
            default_factory=dict,
            description="Conditions on the metadata of a document, by field: a value, or an object with one or more operators: "
            '`{"$in": […], "$gte": …, "$lte": …, "$ne": …}`. A document must meet all of them.',
        ),
    ]
    min_score: Annotated[FiniteFloat | None, Field(description="Documents with a lower score are left out.")] = None


class UploadRequest(StrictBody):
    """The body of a request for an upload. It describes the file that the client will send."""

    filename: Annotated[str, Field(pattern=_FILENAME, description="Ends in `.jsonl`, `.csv`, `.txt` or `.md`.")]
    content_type: Annotated[str, Field(pattern=_MEDIA_TYPE)]
    size: Annotated[int, Field(ge=1, le=MAX_UPLOAD_BYTES, description="The maximum size of the file, in bytes.")]


def metadata_json(metadata: dict[str, Any], param: str = "metadata") -> bytes:
    """Return the metadata as compact JSON in UTF-8, the form that is stored. The caller checks its length.

    ``param`` is the path of the metadata in the request, e.g. ``documents.3.metadata``.

    Raises:
        InvalidRequest: it contains a value that JSON cannot write, such as NaN, or is nested deeper than 32 levels.
    """
    if nests_deeper(metadata, MAX_METADATA_DEPTH):
        raise InvalidRequest(f"The metadata is nested deeper than {MAX_METADATA_DEPTH} levels.", param=param)
    try:
        return dump(metadata).encode()
    except ValueError:
        raise InvalidRequest(
            "The metadata contains a value that JSON cannot represent: NaN, an infinite number or half of a surrogate pair.",
            param=param,
        ) from None


def check_limits(documents: Sequence[NewDocument]) -> None:
    """Refuse a write that exceeds a limit, before anything is embedded or stored.

    Raises:
        InvalidRequest: there are no documents.
        TooManyDocuments: there are more than 256.
        DocumentTooLarge: a text has more than 8192 bytes of UTF-8, or metadata has more than 2048 bytes of JSON.
        DuplicateDocumentId: two documents have the same id.
    """
    if not documents:
        raise InvalidRequest("Send at least one document.", param="documents")
    if len(documents) > MAX_DOCUMENTS:
        raise TooManyDocuments(
            f"A request may have at most {MAX_DOCUMENTS} documents; this one has {len(documents)}. Send several requests.",
            param="documents",
        )
    ids: set[str] = set()
    for number, document in enumerate(documents):
        param = f"documents.{number}"
        if document.id in ids:
            raise DuplicateDocumentId(f"The id {document.id!r} occurs twice in this request.", param=f"{param}.id")
        ids.add(document.id)
        check_sizes(document.text, document.metadata, f"{param}.")


def check_sizes(text: str, metadata: dict[str, Any], path: str = "") -> None:
    """Refuse a text or metadata that exceed a limit. ``path`` is the prefix of their names in the request, as ``documents.3.``.

    Raises:
        InvalidRequest, DocumentTooLarge: as ``check_limits``.
    """
    _check_size(text.encode(), MAX_TEXT_BYTES, f"{path}text")
    _check_size(metadata_json(metadata, f"{path}metadata"), MAX_METADATA_BYTES, f"{path}metadata")


def _check_size(encoded: bytes, limit: int, param: str) -> None:
    if len(encoded) > limit:
        raise DocumentTooLarge(f"{param} has {len(encoded)} bytes; at most {limit} are allowed.", param=param)
