"""Split a file into records, such as the lines of JSONL, and turn them into documents with the same checks as the HTTP route."""

import hashlib
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from pydantic import JsonValue, ValidationError

from spass.core.errors import SpassError
from spass.core.json import InvalidJson, dump_bytes, read_object
from spass.core.messages import Json
from spass.rag.index.documents import MAX_METADATA_BYTES, MAX_METADATA_DEPTH, MAX_TEXT_BYTES, NewDocument, check_sizes
from spass.rag.ingest.plan import Entry, IngestRefused, Position
from spass.tenancy.validation_messages import explain_error

_ESCAPE_BYTES: Final = len(r"\u0041")
MAX_RECORD_BYTES: Final = _ESCAPE_BYTES * (MAX_TEXT_BYTES + MAX_METADATA_BYTES) + 12 * 1024
"""72 KiB: the largest document with every character escaped, plus space for its id, its keys and blanks."""
_LINE_END: Final = b"\r\n"
_PLACEHOLDER_ID: Final = "unnamed"  # while a document without an id is checked
_MAX_SHOWN_NAME: Final = 64  # characters; a name comes from the file and may have any length

_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:-]+")
_MAX_ID_CHARS: Final = 112
"""An id has at most 128 characters, of which ``#`` and the number need up to 16."""
_MAX_METADATA_BYTES: Final = 1024
"""Half of the limit of metadata (2 KiB). A name is longer only if JSON escapes many of its characters."""

_MAX_DEPTH: Final = MAX_METADATA_DEPTH + 4
"""Larger than the limit of metadata, so that the check of metadata reports the error instead of the parser."""


class LineCount:
    """Count lines that end with LF, CR or CRLF, or only with LF. ``line`` is the number of the current line."""

    def __init__(self, line: int = 1, *, cr_ends_line: bool = True) -> None:
        self.line = line
        self._cr_ends_line = cr_ends_line
        self._after_cr = False

    def add(self, data: bytes) -> None:
        self.line += data.count(b"\n")
        if not self._cr_ends_line or not data:
            return
        if b"\r" in data:
            self.line += data.count(b"\r") - data.count(b"\r\n")
        if self._after_cr and data.startswith(b"\n"):
            self.line -= 1
        self._after_cr = data.endswith(b"\r")


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A line of JSONL or a row of CSV, from ``position`` to ``next_position``. ``data`` does not include the line end. It is None
    if the record is longer than ``MAX_RECORD_BYTES``."""

    data: bytes | None
    position: Position
    next_position: Position


class RecordSplitter(ABC):
    """Split a file into records. Skip blank lines between them. ``lines`` counts the lines from ``position`` on."""

    _BLANK_LINES: ClassVar[re.Pattern[bytes]]
    _NUMBERED_BY_LINE: ClassVar[bool] = False
    """True if a record has the number of its line. Otherwise blank lines have no number."""

    def __init__(self, position: Position, lines: LineCount) -> None:
        self._position = position  # of the next record
        self._lines = lines
        self._counted = 0  # bytes of the current data whose lines were counted
        self._partial = b""
        self._size = 0  # bytes of the record so far, also those that were dropped because the record is too long

    @property
    def end(self) -> int:
        """Return the offset of the next record."""
        return self._position.offset

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[RawRecord]:
        """Yield the records that end in ``data``. If ``data`` is ``final``, also yield the last record. The caller must exhaust
        the iterator. Raise ``IngestRefused`` if a CSV file ends within quotes."""
        self._counted = 0
        begin = self._skip_blank_lines(data, 0)
        while (end := self._record_end(data, begin)) is not None:
            if record := self._end_record(data, begin, end):
                yield record
            begin = self._skip_blank_lines(data, end)
        if final:
            if record := self._end_record(data, begin, len(data)):
                yield record
            return
        self._count(data, len(data))
        self._size += len(data) - begin
        self._partial = self._partial + data[begin:] if self._size <= MAX_RECORD_BYTES + len(_LINE_END) else b""

    def may_end(self) -> bool:
        """Return True: a part may end after every record."""
        return True

    @abstractmethod
    def _record_end(self, data: bytes, begin: int) -> int | None:
        """Return the offset after the record that continues at ``begin``, or None if it does not end in ``data``."""

    def _skip_blank_lines(self, data: bytes, begin: int) -> int:
        blank = None if self._size else self._BLANK_LINES.match(data, begin)
        if blank is None or blank.end() == begin:
            return begin
        self._move(data, blank.end(), blank.end() - begin, blank=True)
        return blank.end()

    def _end_record(self, data: bytes, begin: int, end: int) -> RawRecord | None:
        """Return the record that ends at the offset ``end`` of ``data``, or None if it is blank."""
        size = self._size + end - begin
        too_long = size > MAX_RECORD_BYTES + len(_LINE_END)
        record = b"" if too_long else (self._partial + data[begin:end]).rstrip(_LINE_END)
        blank = not too_long and not record.strip()
        start = self._position
        self._move(data, end, size, blank=blank)
        self._partial, self._size = b"", 0
        if blank:
            return None
        return RawRecord(None if too_long or len(record) > MAX_RECORD_BYTES else record, start, self._position)

    def _move(self, data: bytes, end: int, size: int, *, blank: bool) -> None:
        """Move the position ``size`` bytes forward, to the offset ``end`` of ``data``."""
        self._count(data, end)
        line = self._lines.line
        number = line if self._NUMBERED_BY_LINE else self._position.number + (not blank)
        self._position = Position(self._position.offset + size, line, number)

    def _count(self, data: bytes, until: int) -> None:
        self._lines.add(data[self._counted : until])
        self._counted = until


class LineSplitter(RecordSplitter):
    """Split a file into lines at LF. A CR before the LF counts as a blank."""

    _BLANK_LINES = re.compile(rb"(?:[ \t\r]*+\n)*+")
    _NUMBERED_BY_LINE = True

    def __init__(self, position: Position) -> None:
        super().__init__(position, LineCount(position.line, cr_ends_line=False))

    def _record_end(self, data: bytes, begin: int) -> int | None:
        return data.find(b"\n", begin) + 1 or None


def fields_of_line(line: bytes) -> Mapping[str, Json]:
    """Return the fields of the document on ``line``. Raise ``IngestRefused`` if the line is not a JSON object in UTF-8."""
    try:
        return read_object(line.decode(), max_depth=_MAX_DEPTH)
    except UnicodeDecodeError:
        raise IngestRefused("not_utf8", "The line is not UTF-8.") from None
    except InvalidJson as error:
        reason = error.reason if error.position is None else f"it is not valid JSON from character {error.position + 1} on"
        raise IngestRefused("invalid_request", f"The line is not a document: {reason}.") from None


def parse_entry(record: RawRecord, parse: Callable[[bytes], Mapping[str, object]], filename: str) -> Entry:
    """Return an entry with the document of ``record``, or with the error if the record is not a valid document. ``parse`` returns
    the fields of the document from the bytes of the record, or raises ``IngestRefused``."""
    start = record.position
    document, error = None, None
    try:
        if record.data is None:
            raise IngestRefused("line_too_long", f"The line or row is longer than {MAX_RECORD_BYTES} bytes and was skipped.")
        document = _validate_document(parse(record.data), filename, start.number)
    except IngestRefused as refusal:
        error = refusal.error.model_copy(update={"line": start.line})
    return Entry(start.line, document, error, record.next_position)


def _validate_document(fields: Mapping[str, object], filename: str, number: int) -> NewDocument:
    """Return the document with ``fields``. If it has no id, give it the id of entry ``number`` of its file. Raise
    ``IngestRefused`` if the document is not valid. The HTTP route would also refuse it."""
    has_id = "id" in fields
    try:
        document = NewDocument.model_validate(fields if has_id else {**fields, "id": _PLACEHOLDER_ID})
        check_sizes(document.text, document.metadata)
    except ValidationError as error:
        raise IngestRefused("invalid_request", _describe(error)) from None
    except SpassError as error:
        raise IngestRefused(error.code, error.message) from None
    return document if has_id else build_document(document.text, document.metadata, filename, number)


def build_document(text: str, metadata: Mapping[str, JsonValue], filename: str, number: int) -> NewDocument:
    """Return a document with the id of entry ``number`` of a file. It is not validated: a client's own id must not contain
    ``#``."""
    return NewDocument.model_construct(id=document_id(filename, number), text=text, metadata=dict(metadata))


def _describe(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    where = ".".join(str(part)[:_MAX_SHOWN_NAME] for part in problems[0]["loc"])
    message = f"{where}: {explain_error(problems[0]['type'], problems[0]['msg'])}"
    return f"{message} (and {len(problems) - 1} more)" if len(problems) > 1 else message


def document_id(filename: str, number: int) -> str:
    """Return the id for an entry without an id: ``<filename>#<number>``.

    If the filename is too long or has characters that an id must not have, remove its accents, replace each run of such
    characters by ``-``, shorten it, and add 8 hex digits of the SHA-256 of the filename.
    """
    return f"{_slug(filename)}#{number}"


@lru_cache(maxsize=16)
def metadata_name(filename: str) -> str:
    """Return the filename for the metadata of a document, cut to at most 1 KiB of JSON."""
    name = filename.encode("utf-8", "replace").decode()
    if len(dump_bytes(name)) <= _MAX_METADATA_BYTES:
        return name
    shortened = name[:_MAX_METADATA_BYTES]
    while len(dump_bytes(shortened)) > _MAX_METADATA_BYTES - len("…".encode()):
        shortened = shortened[:-1]
    return f"{shortened}…"


@lru_cache(maxsize=16)
def _slug(filename: str) -> str:
    if len(filename) <= _MAX_ID_CHARS and _SAFE_NAME.fullmatch(filename):
        return filename
    digest = hashlib.sha256(filename.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    plain = unicodedata.normalize("NFKD", filename).encode("ascii", "ignore").decode()
    slug = _UNSAFE.sub("-", plain).lstrip("._:-")[: _MAX_ID_CHARS - len(digest) - 1].rstrip("-")
    return f"{slug or 'file'}-{digest}"
