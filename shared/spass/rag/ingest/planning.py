"""Plan an upload: check its file, and divide it into parts."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

from spass.core.errors import DeadlineExceeded
from spass.core.time import Deadline
from spass.rag.index.manifest import read_manifest
from spass.rag.ingest.lease import MessageLease
from spass.rag.ingest.parts import put_parts
from spass.rag.ingest.plan import IngestRefused, kind_of
from spass.rag.ingest.reading import survey
from spass.rag.ingest.supersession import check_not_superseded
from spass.rag.ingest.transitions import set_planned
from spass.rag.ingest.upload_record import UploadRecord
from spass.store.tenant_store import TenantStore

SURVEY_SECONDS: Final = 600.0
"""If a worker had at least this time and could not read the whole file, a retry will not succeed either."""
_SURVEY_TIMEOUT: Final = "survey_timeout"


class SurveyTooLong(DeadlineExceeded):
    """Raised if the worker did not have enough time to read the whole file. A retry may succeed."""

    code = _SURVEY_TIMEOUT


async def plan_upload(store: TenantStore, record: UploadRecord, lease: MessageLease, deadline: Deadline) -> UploadRecord:
    """Read the whole file of a leased upload, put its parts and release the lease. Store nothing if the file is refused.

    Raises:
        IngestRefused: the file cannot be ingested.
        Superseded: a newer object was put under its key.
        ObjectMissing: the file was deleted.
        SurveyTooLong: the time is up, and the worker began with less than ``SURVEY_SECONDS``.
        LeaseLost: another worker has leased the upload, or the upload has ended.
    """
    await check_not_superseded(store, record)
    settings = lease.settings
    kind = kind_of(record.filename)
    if kind is None:
        raise IngestRefused("unsupported_file_type", "The name of a file must end in .jsonl, .csv, .txt or .md.")
    size = (await store.uploads.head(record.key, record.version)).size
    if not size:
        raise IngestRefused("empty_file", "The file is empty.")
    if size > settings.max_file_bytes:
        raise IngestRefused("file_too_large", f"The file has {size} bytes; at most {settings.max_file_bytes} are allowed.")
    part_bytes = settings.small_bytes if size <= settings.small_bytes else settings.part_bytes
    async with aclosing(store.uploads.blocks(record.key, record.version, 0, size)) as blocks:
        plan = await survey(kind, _read_until(blocks, deadline), part_bytes=part_bytes)
    generation = (await read_manifest(store, record.index)).generation
    await put_parts(store, record, plan.parts)
    return await set_planned(store, record, lease, size, plan, generation)


async def _read_until(blocks: AsyncIterator[bytes], deadline: Deadline) -> AsyncIterator[bytes]:
    """Yield ``blocks``, or raise ``IngestRefused`` or ``SurveyTooLong`` at the deadline."""
    message = "The file could not be read in the time that a worker has."
    had_enough_time = deadline.remaining() >= SURVEY_SECONDS
    async for block in blocks:
        if not deadline.remaining():
            raise IngestRefused(_SURVEY_TIMEOUT, message) if had_enough_time else SurveyTooLong(message)
        yield block
