"""Group the entries of a part into batches. The documents of a batch fit into one append."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Final

from spass.rag.index.documents import MAX_DOCUMENTS, NewDocument
from spass.rag.ingest.plan import Entry, EntryError, Position

_MAX_TEXT_BYTES: Final = 2**20  # of one batch; the slowest backend needs some minutes to embed them
_MAX_READ_BYTES: Final = 4 * 2**20  # of the file for one batch, so that a file with few valid documents shows progress too
_MAX_ERRORS: Final = 1000


@dataclass(frozen=True, slots=True)
class BatchDocument:
    """A document, the line of the file on which it begins, and the position after it."""

    document: NewDocument
    line: int
    next_position: Position


@dataclass(frozen=True, slots=True)
class Batch:
    """The ``documents`` and ``errors`` of consecutive entries. All document ids differ.

    The next batch begins at ``next_position``. ``last`` is True for the last batch of a part.
    """

    documents: tuple[BatchDocument, ...]
    errors: tuple[EntryError, ...]
    next_position: Position
    last: bool

    def split(self) -> "tuple[Batch, Batch]":
        """Split a batch of at least two documents into two halves. Each error goes to the half that contains its line."""
        middle = len(self.documents) // 2
        first, second = self.documents[:middle], self.documents[middle:]
        boundary = first[-1].next_position
        errors = tuple(error for error in self.errors if error.line < boundary.line)
        later_errors = self.errors[len(errors) :]
        return Batch(first, errors, boundary, last=False), Batch(second, later_errors, self.next_position, self.last)

    def reject_document(self, code: str, message: str) -> "Batch":
        """Return this batch of one document with an error instead of the document."""
        error = EntryError(self.documents[0].line, code, message)
        errors = sorted((*self.errors, error), key=lambda error: error.line)
        return replace(self, documents=(), errors=tuple(errors))


@dataclass(slots=True)
class _OpenBatch:
    start: Position
    next_position: Position
    documents: dict[str, BatchDocument] = field(default_factory=dict)
    errors: list[EntryError] = field(default_factory=list)
    text_bytes: int = 0

    def fits(self, document: NewDocument) -> bool:
        """Return whether ``document`` fits into this batch.

        A document with an id that the batch contains already does not fit: it must replace the earlier one in a later append.
        """
        return document.id not in self.documents and self.text_bytes + len(document.text.encode()) <= _MAX_TEXT_BYTES

    def add(self, entry: Entry) -> None:
        if entry.document is not None:
            self.documents[entry.document.id] = BatchDocument(entry.document, self.next_position.line, entry.next_position)
            self.text_bytes += len(entry.document.text.encode())
        if entry.error is not None:
            self.errors.append(entry.error)
        self.next_position = entry.next_position

    @property
    def full(self) -> bool:
        return (
            len(self.documents) >= MAX_DOCUMENTS
            or len(self.errors) >= _MAX_ERRORS
            or self.next_position.offset - self.start.offset >= _MAX_READ_BYTES
        )

    def close(self, *, last: bool) -> Batch:
        return Batch(tuple(self.documents.values()), tuple(self.errors), self.next_position, last)


async def group_into_batches(entries: AsyncIterator[Entry], start: Position) -> AsyncGenerator[Batch, None]:
    """Group ``entries``, which begin at ``start``, into batches. Always yield a last batch, even an empty one."""
    batch = _OpenBatch(start, start)
    async for entry in entries:
        if batch.full or (entry.document is not None and batch.documents and not batch.fits(entry.document)):
            yield batch.close(last=False)
            batch = _OpenBatch(batch.next_position, batch.next_position)
        batch.add(entry)
    yield batch.close(last=True)
