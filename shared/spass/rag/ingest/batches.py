"""Batches of the entries of a part: each holds as much as one append takes."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Final

from spass.rag.index.documents import MAX_DOCUMENTS, NewDocument
from spass.rag.ingest.plan import Entry, EntryError, Position

_TEXT_BYTES: Final = 2**20  # of one batch's texts: some minutes of embedding at the slowest
_READ_BYTES: Final = 4 * 2**20  # of the file: progress shows where there is little in it, too
_MAX_ERRORS: Final = 1000


@dataclass(frozen=True, slots=True)
class BatchDocument:
    """A document, the line of the file that it begins on, and the position after it."""

    document: NewDocument
    line: int
    after: Position


@dataclass(frozen=True, slots=True)
class Batch:
    """``documents``, no two of them with the same id, and the ``errors`` between them, up to ``after``; ``last`` of its part."""

    documents: tuple[BatchDocument, ...]
    errors: tuple[EntryError, ...]
    after: Position
    last: bool

    def halves(self) -> "tuple[Batch, Batch]":
        """Split a batch of at least two documents."""
        middle = len(self.documents) // 2
        first, second = self.documents[:middle], self.documents[middle:]
        between = first[-1].after
        errors = tuple(error for error in self.errors if error.line < between.line)
        return Batch(first, errors, between, last=False), Batch(second, self.errors[len(errors) :], self.after, self.last)

    def without_document(self, code: str, message: str) -> "Batch":
        """Return a batch of one document with an error in its place."""
        error = EntryError(self.documents[0].line, code, message)
        errors = sorted((*self.errors, error), key=lambda error: error.line)
        return replace(self, documents=(), errors=tuple(errors))


@dataclass(slots=True)
class _OpenBatch:
    start: Position
    after: Position
    documents: dict[str, BatchDocument] = field(default_factory=dict)
    errors: list[EntryError] = field(default_factory=list)
    text_bytes: int = 0

    def takes(self, document: NewDocument) -> bool:
        """Return True if ``document`` fits. Of two with the same id the later wins, so they are not in the same append."""
        return document.id not in self.documents and self.text_bytes + len(document.text.encode()) <= _TEXT_BYTES

    def add(self, entry: Entry) -> None:
        if entry.document is not None:
            self.documents[entry.document.id] = BatchDocument(entry.document, self.after.line, entry.after)
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

    def close(self, *, last: bool) -> Batch:
        return Batch(tuple(self.documents.values()), tuple(self.errors), self.after, last)


async def batches(entries: AsyncIterator[Entry], start: Position) -> AsyncGenerator[Batch, None]:
    """Yield the batches of the entries from ``start`` on. There is always a last one; it may be empty."""
    batch = _OpenBatch(start, start)
    async for entry in entries:
        if batch.full or (entry.document is not None and batch.documents and not batch.takes(entry.document)):
            yield batch.close(last=False)
            batch = _OpenBatch(batch.after, batch.after)
        batch.add(entry)
    yield batch.close(last=True)
