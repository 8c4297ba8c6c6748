"""Types that describe a file to ingest: its kind, parts, entries and name."""

import hashlib
import json
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Final, Self

from spass.core.messages import Json
from spass.rag.index.documents import NewDocument


class FileKind(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    TEXT = "txt"
    MARKDOWN = "md"


def kind_of(filename: str) -> FileKind | None:
    """Return the kind of a file from its suffix (ignoring case), or None if such a file cannot be ingested."""
    ending = PurePosixPath(filename).suffix.lower().removeprefix(".")
    return FileKind(ending) if ending in {kind.value for kind in FileKind} else None


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file at which a worker can continue to read."""

    offset: int = 0
    """The number of bytes before the position."""
    line: int = 1
    """The number of the line that contains the position, from 1."""
    number: int = 1
    """The number of the next line (JSONL), row (CSV, without the header) or chunk (text), from 1."""
    fence: str = ""
    """The opening fence of the Markdown code block that is split at this position, or empty."""

    def as_json(self) -> dict[str, Json]:
        return {"offset": self.offset, "line": self.line, "number": self.number, "fence": self.fence}

    @classmethod
    def from_json(cls, stored: dict[str, Json]) -> Self:
        """Return the position that ``as_json`` encoded. Its numbers may be ``Decimal``, because DynamoDB returns them so."""
        numbers = {name: int(str(stored[name])) for name in ("offset", "line", "number")}
        return cls(**numbers, fence=str(stored["fence"]))


@dataclass(frozen=True, slots=True)
class PartRange:
    """The bytes ``[start.offset, end)`` of a file. Splitting them gives the same entries as splitting the whole file."""

    start: Position
    end: int


@dataclass(frozen=True, slots=True)
class FilePlan:
    kind: FileKind
    columns: tuple[str, ...]
    """The column names of a CSV; empty for other kinds."""
    parts: tuple[PartRange, ...]
    """At least one part, in the order of the file. Together the parts contain every entry."""


@dataclass(frozen=True, slots=True)
class EntryError:
    """The reason why the entry that begins on ``line`` cannot be stored."""

    line: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A ``document`` or an ``error`` from a line, row or chunk of a file. The next entry begins at ``next_position``."""

    document: NewDocument | None
    error: EntryError | None
    next_position: Position


class FileRefused(Exception):
    """Raised if the whole file cannot be ingested. ``line`` is the number of the faulty line, if the error is in one line."""

    def __init__(self, code: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.line = line


_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:-]+")
_MAX_NAME_CHARS: Final = 112
"""An id has at most 128 characters, of which ``#`` and the number need up to 16."""
_MAX_NAME_BYTES: Final = 1024
"""Half of the limit of metadata (2 KiB). A longer name is cut. A name is longer only if JSON escapes many of its characters."""


@dataclass(frozen=True, slots=True)
class FileName:
    """The name of a file: its S3 key below the prefix of the index or upload. It may contain slashes."""

    filename: str

    def document_id(self, number: int) -> str:
        """Return the id for an entry without an id: ``<filename>#<number>``.

        If the filename is too long or has characters that an id must not have, remove its accents, replace each run of such
        characters by ``-``, shorten it, and add 8 hex digits of the SHA-256 of the filename.
        """
        return f"{_slug(self.filename)}#{number}"

    @property
    def name(self) -> str:
        """Return the filename for the metadata of a document, cut to at most 1 KiB of JSON."""
        return _metadata_name(self.filename)


@lru_cache(maxsize=16)
def _metadata_name(filename: str) -> str:
    name = filename.encode("utf-8", "replace").decode()
    if len(json.dumps(name, ensure_ascii=False).encode()) <= _MAX_NAME_BYTES:
        return name
    shortened = name[:_MAX_NAME_BYTES]
    while len(json.dumps(shortened, ensure_ascii=False).encode()) > _MAX_NAME_BYTES - len("…".encode()):
        shortened = shortened[:-1]
    return f"{shortened}…"


@lru_cache(maxsize=16)
def _slug(filename: str) -> str:
    if len(filename) <= _MAX_NAME_CHARS and _SAFE_NAME.fullmatch(filename):
        return filename
    digest = hashlib.sha256(filename.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    plain = unicodedata.normalize("NFKD", filename).encode("ascii", "ignore").decode()
    slug = _UNSAFE.sub("-", plain).lstrip("._:-")[: _MAX_NAME_CHARS - len(digest) - 1].rstrip("-")
    return f"{slug or 'file'}-{digest}"
