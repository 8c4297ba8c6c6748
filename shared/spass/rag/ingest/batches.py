"""Group the entries of a part into batches. The documents of a batch fit into one append."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Final

from spass.rag.index.documents import NewDocument
from spass.rag.ingest.plan import Entry, Position, UploadError

_MAX_TEXT_BYTES: Final = 2**20  # of one batch; the slowest backend needs some minutes to embed them
_MAX_READ_BYTES: Final = 4 * 2**20  # of the file for one batch, so that a file with few valid documents shows progress too
_MAX_ERRORS: Final = 1000


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive ``entries`` from ``start`` on. All document ids differ. ``last`` is True for the last batch of a part."""

    start: Position
    entries: list[Entry] = field(default_factory=list)
    last: bool = False

    @property
    def documents(self) -> list[NewDocument]:
        return [entry.document for entry in self.entries if entry.document]

    @property
    def errors(self) -> list[UploadError]:
        return [entry.error for entry in self.entries if entry.error]

    @property
    def next_position(self) -> Position:
        """Return the position at which the next batch begins."""
        return self.entries[-1].next_position if self.entries else self.start

    def split(self) -> "tuple[Batch, Batch]":
        """Split a batch of at least two documents after half of its documents."""
        with_document = [number for number, entry in enumerate(self.entries) if entry.document]
        middle = with_document[len(with_document) // 2]
        first = Batch(self.start, self.entries[:middle])
        return first, Batch(first.next_position, self.entries[middle:], self.last)

    def reject_documents(self, code: str, message: str) -> "Batch":
        """Return this batch with an error instead of each document."""
        return replace(self, entries=[_reject(entry, code, message) if entry.document else entry for entry in self.entries])


def _reject(entry: Entry, code: str, message: str) -> Entry:
    return replace(entry, document=None, error=UploadError.shortened(entry.line, code, message))


async def group_into_batches(entries: AsyncIterator[Entry], start: Position, max_documents: int) -> AsyncGenerator[Batch, None]:
    """Group ``entries``, which begin at ``start``, into batches. Always yield a last batch, even an empty one.

    A document with an id that the batch already contains begins a new batch: a later append must replace the earlier document.
    """
    batch, ids, text_bytes = Batch(start), set[str](), 0
    async for entry in entries:
        document = entry.document
        size = len(document.text.encode()) if document else 0
        full = len(ids) >= max_documents or len(batch.entries) - len(ids) >= _MAX_ERRORS
        full = full or batch.next_position.offset - batch.start.offset >= _MAX_READ_BYTES
        if full or (document and ids and (document.id in ids or text_bytes + size > _MAX_TEXT_BYTES)):
            yield batch
            batch, ids, text_bytes = Batch(batch.next_position), set(), 0
        batch.entries.append(entry)
        if document:
            ids.add(document.id)
            text_bytes += size
    yield replace(batch, last=True)
