"""The entries of a part, gathered into batches: each as much as one append takes."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Final

from spass.rag.index.documents import MAX_DOCUMENTS, NewDocument
from spass.rag.ingest.plan import Entry, EntryError, Position

_TEXT_BYTES: Final = 2**20  # of one batch's texts: some minutes of embedding at the slowest
_READ_BYTES: Final = 4 * 2**20  # of the file: progress shows where there is little in it, too
_MAX_ERRORS: Final = 1000


@dataclass(frozen=True, slots=True)
class Placed:
    """A document, the line of the file that its entry begins on, and the position behind it."""

    document: NewDocument
    line: int
    after: Position


@dataclass(frozen=True, slots=True)
class Batch:
    """``documents``, no two with the same id, and the ``errors`` between them, up to ``after``; ``last`` of its part."""

    documents: tuple[Placed, ...]
    errors: tuple[EntryError, ...]
    after: Position
    last: bool

    def halves(self) -> "tuple[Batch, Batch]":
        """This batch, of two documents at least, as two that follow each other."""
        middle = len(self.documents) // 2
        fore, rear = self.documents[:middle], self.documents[middle:]
        between = fore[-1].after
        before = tuple(error for error in self.errors if error.line < between.line)
        behind = self.errors[len(before) :]
        return Batch(fore, before, between, last=False), Batch(rear, behind, self.after, self.last)

    def without_document(self, code: str, message: str) -> "Batch":
        """This batch, of one document, without it."""
        error = EntryError(self.documents[0].line, code, message)
        errors = sorted((*self.errors, error), key=lambda error: error.line)
        return replace(self, documents=(), errors=tuple(errors))


@dataclass(slots=True)
class _Gathering:
    start: Position
    after: Position
    documents: dict[str, Placed] = field(default_factory=dict)
    errors: list[EntryError] = field(default_factory=list)
    text_bytes: int = 0

    def takes(self, document: NewDocument) -> bool:
        """Whether ``document`` may stand in the same append as what is here: of two with one id the later wins."""
        return document.id not in self.documents and self.text_bytes + len(document.text.encode()) <= _TEXT_BYTES

    def add(self, entry: Entry) -> None:
        if entry.document is not None:
            self.documents[entry.document.id] = Placed(entry.document, self.after.line, entry.after)
            self.text_bytes += len(entry.document.text.encode())
        if entry.error is not None:
            self.errors.append(entry.error)
        self.after = entry.after

    @property
    def full(self) -> bool:
        return (
            len(self.documents) >= MAX_DOCUMENTS
            or len(self.errors) >= _MAX_ERRORS
            or self.after.offset - self.start.offset >= _READ_BYTES
        )

    def batch(self, *, last: bool) -> Batch:
        return Batch(tuple(self.documents.values()), tuple(self.errors), self.after, last)


async def batches(entries: AsyncIterator[Entry], start: Position) -> AsyncGenerator[Batch, None]:
    """The batches of the entries from ``start`` on. There is always a last one, if only an empty one."""
    gathering = _Gathering(start, start)
    async for entry in entries:
        if gathering.full or (entry.document is not None and gathering.documents and not gathering.takes(entry.document)):
            yield gathering.batch(last=False)
            gathering = _Gathering(gathering.after, gathering.after)
        gathering.add(entry)
    yield gathering.batch(last=True)
