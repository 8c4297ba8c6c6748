"""Types that describe a file to ingest: its kind, parts, entries and errors."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Final, Self

from pydantic import WithJsonSchema

from spass.rag.index.documents import NewDocument
from spass.tenancy.response_model import ResponseModel

_MESSAGE_CHARACTERS: Final = 200


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
    """The number of the next line (JSONL), row (CSV, without the header) or passage (text), from 1."""
    fence: str = ""
    """The opening fence of the Markdown code block that is split at this position, or empty."""


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


class UploadError(ResponseModel):
    """An error in one line of a file. `line` is null if it is about the whole file."""

    line: Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1})] | None
    code: str
    message: str

    @classmethod
    def shortened(cls, line: int | None, code: str, message: str) -> Self:
        """Return an error whose message is cut to 200 characters."""
        return cls(line=line, code=code, message=message[:_MESSAGE_CHARACTERS])


@dataclass(frozen=True, slots=True)
class Entry:
    """A ``document`` or an ``error`` from a line, row or passage of a file, which begins on ``line``."""

    line: int
    document: NewDocument | None
    error: UploadError | None
    next_position: Position
    """The position after this entry."""


class IngestRefused(Exception):
    """Raised if an entry or the whole file cannot be ingested. ``line`` is the faulty line, or None if there is not one."""

    def __init__(self, code: str, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.error = UploadError.shortened(line, code, message)
