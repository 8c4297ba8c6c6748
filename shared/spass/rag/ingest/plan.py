"""What bulk ingest knows of a file: its kind, the parts it is read in, and what stands in it."""

import hashlib
import json
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final, Self

from spass.core.messages import Json
from spass.rag.index.documents import NewDocument


class Kind(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    TEXT = "txt"
    MARKDOWN = "md"


def kind_of(filename: str) -> Kind | None:
    """The kind that the ending of ``filename`` says, in letters of any case; None for a file that cannot be ingested."""
    ending = PurePosixPath(filename).suffix.lower().removeprefix(".")
    return Kind(ending) if ending in {kind.value for kind in Kind} else None


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a file where reading can begin. All of it must be kept to go on from there, ``fence`` as well."""

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
        """The inverse of ``as_json``, of whole numbers of any type (a table may give decimals)."""
        numbers = {name: int(str(stored[name])) for name in ("offset", "line", "number")}
        return cls(**numbers, fence=str(stored["fence"]))


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes ``[start.offset, end)`` of a file. They read the same alone as within the whole."""

    start: Position
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    kind: Kind
    columns: tuple[str, ...]
    """The header of a CSV; of other kinds empty."""
    parts: tuple[Part, ...]
    """At least one; together all of the file that is to be read, in order."""


@dataclass(frozen=True, slots=True)
class EntryError:
    """Why the entry that begins on ``line`` cannot be stored."""

    line: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A line, row or chunk: exactly one of ``document`` and ``error`` is there. Reading can go on from ``after``."""

    document: NewDocument | None
    error: EntryError | None
    after: Position


class FileRefused(Exception):
    """Nothing of the file may be stored. ``line`` is where the reason stands, if it stands on one."""

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
class Source:
    """The name of the file, which may hold slashes: its key below that of the index."""

    filename: str

    def document_id(self, number: int) -> str:
        """The id of an entry that names none: ``<filename>#<number>``.

        A name that no id can hold is written without accents, with ``-`` for what even so is none of its characters, and with 8
        hex digits of the SHA-256 of the whole name.
        """
        return f"{self._slug}#{number}"

    @property
    def name(self) -> str:
        """The file's name as metadata holds it: cut where it would fill more than half of them."""
        name = self.filename.encode("utf-8", "replace").decode()
        if len(json.dumps(name, ensure_ascii=False).encode()) <= _SOURCE_BYTES:
            return name
        kept = name[:_SOURCE_BYTES]
        while len(json.dumps(kept, ensure_ascii=False).encode()) > _SOURCE_BYTES - len("…".encode()):
            kept = kept[:-1]
        return f"{kept}…"

    @property
    def _slug(self) -> str:
        if len(self.filename) <= _NAME_LENGTH and _SAFE_NAME.fullmatch(self.filename):
            return self.filename
        digest = hashlib.sha256(self.filename.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        plain = unicodedata.normalize("NFKD", self.filename).encode("ascii", "ignore").decode()
        slug = _UNSAFE.sub("-", plain).lstrip("._:-")[: _NAME_LENGTH - len(digest) - 1].rstrip("-")
        return f"{slug or 'file'}-{digest}"


class Parts:
    """Collects the parts of a file while it is surveyed."""

    def __init__(self, start: Position, part_bytes: int) -> None:
        self._start = start
        self._part_bytes = part_bytes
        self._closed: list[Part] = []

    @property
    def wanted(self) -> int:
        """The least offset at which the part may end."""
        return self._start.offset + self._part_bytes

    def may_end(self, at: Position) -> None:
        """The part ends ``at`` this place, if it is long enough."""
        if at.offset >= self.wanted:
            self._closed.append(Part(self._start, at.offset))
            self._start = at

    def until(self, end: int) -> tuple[Part, ...]:
        """All of them, the last up to the ``end`` of the file."""
        rest = [Part(self._start, end)] if end > self._start.offset or not self._closed else []
        return (*self._closed, *rest)
