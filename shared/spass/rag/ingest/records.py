"""Records of a file, and the rules of the HTTP route for the documents in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, ValidationError

from spass.core.errors import SpassError
from spass.rag.index.documents import MAX_METADATA_BYTES, MAX_TEXT_BYTES, NewDocument, metadata_json
from spass.rag.ingest.plan import Entry, EntryError, FileName, Position

_LONGEST_ESCAPE: Final = len(r"\u0041")
MAX_RECORD_BYTES: Final = _LONGEST_ESCAPE * (MAX_TEXT_BYTES + MAX_METADATA_BYTES) + 12 * 1024
"""72 KiB. The largest document with every character escaped, and room for its id, keys and blanks between them."""
_UNNAMED: Final = "unnamed"
_SHOWN: Final = 64  # characters of a name that the file chose
_MAX_MESSAGE: Final = 300


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A line or row. ``data`` is without its line end; it is None if it is longer than ``MAX_RECORD_BYTES``."""

    data: bytes | None
    at: Position
    after: Position


class EntryRefused(Exception):
    """An entry cannot be stored."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:_MAX_MESSAGE]


def entry_of(record: RawRecord, fields: Callable[[bytes], Mapping[str, object]], source: FileName) -> Entry:
    """Return the entry of ``record``. ``fields`` parses its bytes, and may raise ``EntryRefused``."""
    try:
        if record.data is None:
            raise EntryRefused("line_too_long", f"It is longer than {MAX_RECORD_BYTES} bytes and was skipped.")
        return Entry(_checked_document(fields(record.data), source, record.at.number), None, record.after)
    except EntryRefused as problem:
        return Entry(None, EntryError(record.at.line, problem.code, problem.message), record.after)


def _checked_document(fields: Mapping[str, object], source: FileName, number: int) -> NewDocument:
    """Return the document of ``fields``. One without an id gets that of entry ``number`` of its file.

    Raises:
        EntryRefused: the HTTP route would refuse it too.
    """
    named = "id" in fields
    try:
        document = NewDocument.model_validate(fields if named else {**fields, "id": _UNNAMED})
        _check_size("text", len(document.text.encode()), MAX_TEXT_BYTES)
        _check_size("metadata", len(metadata_json(document.metadata)), MAX_METADATA_BYTES)
    except ValidationError as error:
        raise EntryRefused("invalid_request", _first(error)) from None
    except SpassError as error:
        raise EntryRefused(error.code, error.message) from None
    return document if named else named_document(document.text, document.metadata, source, number)


def named_document(text: str, metadata: Mapping[str, JsonValue], source: FileName, number: int) -> NewDocument:
    """Return a document that keeps the rules, with the id of entry ``number``, which no client may choose."""
    return NewDocument.model_construct(id=source.document_id(number), text=text, metadata=dict(metadata))


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise EntryRefused("document_too_large", f"{name} is {size} bytes long; {limit} are allowed.")


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    where = ".".join(str(part)[:_SHOWN] for part in found[0]["loc"])
    message = f"{where}: {found[0]['msg'].removeprefix('Value error, ')}"
    return f"{message} (and {len(found) - 1} more)" if len(found) > 1 else message
