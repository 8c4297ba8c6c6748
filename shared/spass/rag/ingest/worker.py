"""What a worker does with an upload: look at the file, plan its parts, work through them, or leave them to the state machine."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Final

from spass.aws.clients import TenantStore
from spass.aws.leases import LeaseLost, renewing
from spass.aws.log import write_line
from spass.aws.objects import ObjectMissing
from spass.core.errors import (
    DeadlineExceeded,
    Internal,
    InternalError,
    LimitExceeded,
    SpassError,
    StorageUnavailable,
    Unavailable,
    Upstream,
)
from spass.core.ids import IndexId, UploadId
from spass.core.jobs import Delivery, IngestUpload
from spass.core.messages import Json
from spass.core.time import Deadline, now
from spass.rag.index.documents import MAX_UPLOAD_BYTES
from spass.rag.index.manifest import read_manifest
from spass.rag.ingest import custody
from spass.rag.ingest.custody import Hand, Standing
from spass.rag.ingest.newest import check_newest, note_newest
from spass.rag.ingest.part import LAST_SECONDS, PartEnd, PartRun
from spass.rag.ingest.plan import FileRefused, kind_of
from spass.rag.ingest.progress import first_errors, put_parts
from spass.rag.ingest.reading import survey
from spass.rag.ingest.record import UploadError, UploadRecord, read_record
from spass.rag.ingest.uploaded_file import UploadedFile
from spass.rag.service import Rag

SMALL_BYTES: Final = 16 * 2**20
"""A file up to this size is one part: its worker is done with it sooner than a state machine has started."""
PART_BYTES: Final = 8 * 2**20

PAUSES: Final = (5.0, 20.0, 60.0)
"""Seconds, at most, before a worker tries again what did not work; then it leaves it to the queue."""

SURVEY_SECONDS: Final = 600.0
"""A file that cannot be looked through in so long a time will not be another time."""
SURVEY_TIMEOUT: Final = "survey_timeout"

PASSING: Final = (Unavailable, Upstream, DeadlineExceeded, LimitExceeded, Internal)
"""What may go better another time."""


class SurveyTooLong(DeadlineExceeded):
    """Looking a file through is not gone on with, but begun again."""

    code = SURVEY_TIMEOUT


class Ingest:
    """Ingests files for whoever hands out messages. Every method answers whether the message is done with; if not, it shall be
    delivered again."""

    def __init__(self, rag: Rag) -> None:
        self._rag = rag

    async def file(self, store: TenantStore, file: UploadedFile, delivery: Delivery, deadline: Deadline) -> bool:
        """Ingest the object that was put, unless that was done, or is being done, already. An older one under its key is not
        gone on with."""
        await note_newest(store, file.index, file.key, file.sequencer)
        taken = await custody.take_put(store, file, Hand(delivery.message))
        return await self._work(store, taken, delivery, deadline)

    async def upload(self, store: TenantStore, index: IndexId, upload: UploadId, delivery: Delivery, deadline: Deadline) -> bool:
        """Go on with an upload that was begun."""
        taken = await custody.take(store, index, upload, Hand(delivery.message))
        return await self._work(store, taken, delivery, deadline)

    async def _work(self, store: TenantStore, taken: UploadRecord | Standing, delivery: Delivery, deadline: Deadline) -> bool:
        if isinstance(taken, Standing):
            return taken is not Standing.HELD_FOR_THIS
        try:
            async with renewing(lambda: custody.renew(store, taken)):
                return await self._run_on(store, taken, deadline)
        except LeaseLost:
            return False
        except (FileRefused, ObjectMissing, SpassError) as error:
            if not isinstance(error, PASSING):
                await fail(store, taken, error)
                return True
            await self._passing(store, taken, error, delivery)
            return False
        except Exception:
            await self._passing(store, taken, InternalError("Something of ours went wrong."), delivery)
            raise

    async def _passing(self, store: TenantStore, record: UploadRecord, error: SpassError, delivery: Delivery) -> None:
        """Let go until the message comes again; when it will not, say so."""
        log_trouble(record, error)
        with suppress(StorageUnavailable):
            if delivery.last:
                await fail(store, record, error)
            else:
                await custody.put_back(store, record)

    async def _run_on(self, store: TenantStore, record: UploadRecord, deadline: Deadline) -> bool:
        """``_run``, and again after a pause where trouble is of the passing sort: the queue would hold the message back for as
        long as a worker may live."""
        owner = record.owner
        for pause in PAUSES:
            try:
                return await self._run(store, record, deadline)
            except LeaseLost:
                raise
            except (Unavailable, Upstream, DeadlineExceeded, LimitExceeded) as error:
                if deadline.remaining() < pause + LAST_SECONDS:
                    raise
                log_trouble(record, error)
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 (jitter)
            record = await read_record(store, record.index, record.id)
            if record.owner != owner:
                raise LeaseLost("Another worker has this upload.", retry_after=1)
        return await self._run(store, record, deadline)

    async def _run(self, store: TenantStore, record: UploadRecord, deadline: Deadline) -> bool:
        await check_newest(store, record)
        if record.parts is None:
            record = await self._surveyed(store, record, deadline)
        parts = range(record.parts or 0)
        if store.jobs.in_parts and len(parts) > 1:
            await store.jobs.start_parts(record.index, record.id, parts, failures=record.machine_failures)
            await custody.give_to_machine(store, record)
            return True
        run = PartRun(self._rag, store, record, deadline)
        for number in parts:
            if await run.run(number, record.owner) is PartEnd.TIME_UP:
                await custody.put_back(store, record)
                await store.jobs.send(IngestUpload(store.tenant, record.index, record.id))
                return True
        await finish(store, record.index, record.id)
        return True

    async def _surveyed(self, store: TenantStore, record: UploadRecord, deadline: Deadline) -> UploadRecord:
        """The record with its parts planned. Nothing of a file that is refused has been stored.

        Raises:
            FileRefused: the file cannot be ingested.
            ObjectMissing: it is gone.
            SurveyTooLong: the time is up, of which there was little left.
        """
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
        return await custody.set_planned(store, record, size, plan, generation)


def log_trouble(record: UploadRecord, error: SpassError) -> None:
    """A line on what keeps an upload from going on for now."""
    known: dict[str, Json] = {"index": record.index, "upload": record.id, "error": error.code}
    write_line({"at": now(), "level": "warning", "event": "ingest_trouble"} | known)


async def _in_time(blocks: AsyncIterator[bytes], deadline: Deadline) -> AsyncIterator[bytes]:
    message = "The file could not be looked through in the time that a worker has."
    had_time = deadline.remaining() >= SURVEY_SECONDS
    async for block in blocks:
        if not deadline.remaining():
            raise FileRefused(SURVEY_TIMEOUT, message) if had_time else SurveyTooLong(message)
        yield block


async def fail(store: TenantStore, record: UploadRecord, error: FileRefused | ObjectMissing | SpassError) -> None:
    """Fail the upload: for good, or, where that may pass, until somebody is told to go on."""
    resumable = isinstance(error, PASSING)
    latest = await read_record(store, record.index, record.id)
    await custody.end_failed(store, record, upload_error(error), await first_errors(store, latest), resumable=resumable)


def upload_error(error: FileRefused | ObjectMissing | SpassError) -> UploadError:
    """What the record says of ``error``."""
    match error:
        case FileRefused():
            return UploadError(line=error.line, code=error.code, message=error.message)
        case ObjectMissing():
            return UploadError(line=None, code="object_missing", message="The file was removed before all of it was ingested.")
        case _:
            return UploadError(line=None, code=error.code, message=error.message)


async def finish(store: TenantStore, index: IndexId, upload: UploadId) -> UploadRecord:
    """End an upload if all its parts are done; it as it was before."""
    record = await read_record(store, index, upload)
    await custody.end_finished(store, record, await first_errors(store, record))
    return record
