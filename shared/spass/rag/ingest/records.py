"""Turn the records of a file into documents, with the same checks as the HTTP route."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, ValidationError

from spass.core.errors import SpassError
from spass.rag.index.documents import MAX_METADATA_BYTES, MAX_TEXT_BYTES, NewDocument, metadata_json
from spass.rag.ingest.plan import Entry, EntryError, FileName, Position
from spass.tenancy.validation_messages import explain_error

_ESCAPE_BYTES: Final = len(r"\u0041")
MAX_RECORD_BYTES: Final = _ESCAPE_BYTES * (MAX_TEXT_BYTES + MAX_METADATA_BYTES) + 12 * 1024
"""72 KiB: the largest document with every character escaped, plus space for its id, its keys and blanks."""
_PLACEHOLDER_ID: Final = "unnamed"  # while a document without an id is checked
_MAX_SHOWN_NAME: Final = 64  # characters; a name comes from the file and may have any length
_MAX_MESSAGE: Final = 300  # characters


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A line of JSONL or a row of CSV. It begins at ``position``, and the next record begins at ``next_position``.

    ``data`` does not include the line end. It is None if the record is longer than ``MAX_RECORD_BYTES``.
    """

    data: bytes | None
    position: Position
    next_position: Position


class EntryRefused(Exception):
    """Raised if an entry is not a valid document."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:_MAX_MESSAGE]


def parse_entry(record: RawRecord, parse: Callable[[bytes], Mapping[str, object]], source: FileName) -> Entry:
    """Return an entry with the document of ``record``, or with the error if the record is not a valid document.

    ``parse`` returns the fields of the document from the bytes of the record, or raises ``EntryRefused``.
    """
    try:
        if record.data is None:
            raise EntryRefused("line_too_long", f"It is longer than {MAX_RECORD_BYTES} bytes and was skipped.")
        return Entry(_validate_document(parse(record.data), source, record.position.number), None, record.next_position)
    except EntryRefused as refusal:
        return Entry(None, EntryError(record.position.line, refusal.code, refusal.message), record.next_position)


def _validate_document(fields: Mapping[str, object], source: FileName, number: int) -> NewDocument:
    """Return the document with ``fields``. If it has no id, give it the id of entry ``number`` of its file.

    Raises:
        EntryRefused: the document is not valid. The HTTP route would also refuse it.
    """
    has_id = "id" in fields
    try:
        document = NewDocument.model_validate(fields if has_id else {**fields, "id": _PLACEHOLDER_ID})
        _check_size("text", len(document.text.encode()), MAX_TEXT_BYTES)
        _check_size("metadata", len(metadata_json(document.metadata)), MAX_METADATA_BYTES)
    except ValidationError as error:
        raise EntryRefused("invalid_request", _describe(error)) from None
    except SpassError as error:
        raise EntryRefused(error.code, error.message) from None
    return document if has_id else build_document(document.text, document.metadata, source, number)


def build_document(text: str, metadata: Mapping[str, JsonValue], source: FileName, number: int) -> NewDocument:
    """Return a document with the id of entry ``number`` of ``source``.

    Do not validate it: the id contains ``#``, which is not valid in the id that a client chooses.
    """
    return NewDocument.model_construct(id=source.document_id(number), text=text, metadata=dict(metadata))


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise EntryRefused("document_too_large", f"{name} is {size} bytes long; {limit} are allowed.")


def _describe(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    where = ".".join(str(part)[:_MAX_SHOWN_NAME] for part in problems[0]["loc"])
    message = f"{where}: {explain_error(problems[0]['type'], problems[0]['msg'])}"
    return f"{message} (and {len(problems) - 1} more)" if len(problems) > 1 else message
