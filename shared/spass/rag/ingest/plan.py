"""A file that is ingested: its kind, its parts, and the entries in it."""

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
    """Return the kind by the suffix of ``filename``, in any case; None for a file that cannot be ingested."""
    ending = PurePosixPath(filename).suffix.lower().removeprefix(".")
    return FileKind(ending) if ending in {kind.value for kind in FileKind} else None


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file where reading can begin. All its fields are needed to continue there."""

    offset: int = 0
    """Bytes before it."""
    line: int = 1
    """The number of the line it is on, from 1."""
    number: int = 1
    """The number of the next line (JSONL), row (CSV; the header is none), or chunk (text)."""
    fence: str = ""
    """Inside of a fenced block of code of Markdown that had to be cut: the marks that opened it."""

    def as_json(self) -> dict[str, Json]:
        return {"offset": self.offset, "line": self.line, "number": self.number, "fence": self.fence}

    @classmethod
    def from_json(cls, stored: dict[str, Json]) -> Self:
        """Return the position that ``as_json`` described. Its numbers may be decimals, as a table returns them."""
        numbers = {name: int(str(stored[name])) for name in ("offset", "line", "number")}
        return cls(**numbers, fence=str(stored["fence"]))


@dataclass(frozen=True, slots=True)
class PartRange:
    """The bytes ``[start.offset, end)`` of a file. Their entries are the same as when the whole file is read."""

    start: Position
    end: int


@dataclass(frozen=True, slots=True)
class FilePlan:
    kind: FileKind
    columns: tuple[str, ...]
    """The header of a CSV; of other kinds empty."""
    parts: tuple[PartRange, ...]
    """At least one, in order. Together they are all of the file that is to be read."""


@dataclass(frozen=True, slots=True)
class EntryError:
    """The reason why the entry that begins on ``line`` cannot be stored."""

    line: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A line, row or chunk: a ``document`` or an ``error``. Reading can continue at ``after``."""

    document: NewDocument | None
    error: EntryError | None
    after: Position


class FileRefused(Exception):
    """The whole file is refused. ``line`` has the reason, if one line has."""

    def __init__(self, code: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.line = line


_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:-]+")
_NAME_LENGTH: Final = 112
"""Of the 128 characters of an id: what leaves room for ``#`` and 15 digits."""
_SOURCE_BYTES: Final = 1024
"""Of the 2 KiB of metadata: a key of S3 is no longer, unless JSON has to escape much of it."""


@dataclass(frozen=True, slots=True)
class FileName:
    """The name of the file, which may hold slashes: its key below that of the index."""

    filename: str

    def document_id(self, number: int) -> str:
        """The id of an entry that names none: ``<filename>#<number>``.

        A name that no id can hold is written without accents, with ``-`` for what even so is none of its characters, and with 8
        hex digits of the SHA-256 of the whole name.
        """
        return f"{_slug(self.filename)}#{number}"

    @property
    def name(self) -> str:
        """The file's name as metadata holds it: cut where it would fill more than half of them."""
        return _metadata_name(self.filename)


@lru_cache(maxsize=16)
def _metadata_name(filename: str) -> str:
    name = filename.encode("utf-8", "replace").decode()
    if len(json.dumps(name, ensure_ascii=False).encode()) <= _SOURCE_BYTES:
        return name
    kept = name[:_SOURCE_BYTES]
    while len(json.dumps(kept, ensure_ascii=False).encode()) > _SOURCE_BYTES - len("…".encode()):
        kept = kept[:-1]
    return f"{kept}…"


@lru_cache(maxsize=16)
def _slug(filename: str) -> str:
    if len(filename) <= _NAME_LENGTH and _SAFE_NAME.fullmatch(filename):
        return filename
    digest = hashlib.sha256(filename.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    plain = unicodedata.normalize("NFKD", filename).encode("ascii", "ignore").decode()
    slug = _UNSAFE.sub("-", plain).lstrip("._:-")[: _NAME_LENGTH - len(digest) - 1].rstrip("-")
    return f"{slug or 'file'}-{digest}"
