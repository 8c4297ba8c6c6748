"""The plan of an upload: what its file is, and the parts that it is ingested in."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from spass.aws.clients import TenantStore
from spass.core.errors import DeadlineExceeded
from spass.core.time import Deadline
from spass.rag.index.documents import MAX_UPLOAD_BYTES
from spass.rag.index.manifest import read_manifest
from spass.rag.ingest.lease import Receiver
from spass.rag.ingest.parts import put_parts
from spass.rag.ingest.plan import FileRefused, kind_of
from spass.rag.ingest.reading import survey
from spass.rag.ingest.supersession import check_not_superseded
from spass.rag.ingest.transitions import set_planned
from spass.rag.ingest.upload_record import UploadRecord

SMALL_BYTES: Final = 16 * 2**20
"""A file up to this size is one part, which the worker that planned it ingests itself."""
PART_BYTES: Final = 8 * 2**20

SURVEY_SECONDS: Final = 600.0
"""A worker that had this time and could not read the file through will not succeed another time."""
_SURVEY_TIMEOUT: Final = "survey_timeout"


class SurveyTooLong(DeadlineExceeded):
    """The worker had too little time left to read the file through."""

    code = _SURVEY_TIMEOUT


async def plan_upload(store: TenantStore, record: UploadRecord, receiver: Receiver, deadline: Deadline) -> UploadRecord:
    """Read the file of a leased upload through, put its parts and end the lease. Nothing of a file that is refused is stored.

    Raises:
        FileRefused: the file cannot be ingested.
        Superseded: a newer object was put under its key.
        ObjectMissing: it is gone.
        SurveyTooLong: the time is up, of which there was little left.
        LeaseLost: another worker has the upload.
    """
    await check_not_superseded(store, record)
    kind = kind_of(record.filename)
    if kind is None:
        raise FileRefused("unsupported_file_type", "The name of a file must end in .jsonl, .csv, .txt or .md.")
    size = (await store.uploads.head(record.key, record.version)).size
    if not size:
        raise FileRefused("empty_file", "The file is empty.")
    if size > MAX_UPLOAD_BYTES:
        raise FileRefused("file_too_large", f"The file is {size} bytes long; {MAX_UPLOAD_BYTES} are allowed.")
    part_bytes = SMALL_BYTES if size <= SMALL_BYTES else PART_BYTES
    async with aclosing(store.uploads.blocks(record.key, record.version, 0, size)) as blocks:
        plan = await survey(kind, _in_time(blocks, deadline), part_bytes=part_bytes)
    generation = (await read_manifest(store, record.index)).generation
    await put_parts(store, record, plan.parts)
    return await set_planned(store, record, receiver, size, plan, generation)


async def _in_time(blocks: AsyncIterator[bytes], deadline: Deadline) -> AsyncIterator[bytes]:
    message = "The file could not be looked through in the time that a worker has."
    had_time = deadline.remaining() >= SURVEY_SECONDS
    async for block in blocks:
        if not deadline.remaining():
            raise FileRefused(_SURVEY_TIMEOUT, message) if had_time else SurveyTooLong(message)
        yield block
