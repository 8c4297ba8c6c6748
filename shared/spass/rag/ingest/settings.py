"""Define the sizes and times of the ingest. Tests use smaller values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spass.core.time import now_s
from spass.rag.index.documents import MAX_DOCUMENTS, MAX_UPLOAD_BYTES
from spass.store.leases import LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """The sizes and times of the ingest.

    Attributes:
        max_file_bytes: a larger file is refused.
        small_bytes: a file of at most this size is one part. The worker that plans the file also ingests it.
        part_bytes: the size of the parts of a larger file.
        batch_documents: the number of documents that are appended together.
        max_refused: the largest number of documents of a part that the embedding model may refuse. If it refuses more, the
            worker assumes that the model is broken and not the documents.
        retry_pause_seconds: the maximum pause before each retry after a temporary error, one number per retry. After the last
            retry, the queue delivers the message again.
        lease_seconds: the time until a lease expires if it is not renewed.
        clock: returns the current time, in seconds since the epoch, to decide if a lease has expired.
    """

    max_file_bytes: int = MAX_UPLOAD_BYTES
    small_bytes: int = 16 * 2**20
    part_bytes: int = 8 * 2**20
    batch_documents: int = MAX_DOCUMENTS
    max_refused: int = 20
    retry_pause_seconds: tuple[float, ...] = (5.0, 20.0, 60.0)
    lease_seconds: int = LEASE_SECONDS
    clock: Callable[[], int] = now_s


DEFAULTS: Final = IngestSettings()
