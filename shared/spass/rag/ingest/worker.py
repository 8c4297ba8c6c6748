"""Process a message about an upload: plan the file, then ingest its parts.

If a file has one part, the worker that plans it also ingests it. If it has more, each part is a separate message.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, TypeVar

from spass.core.bus import EventBus
from spass.core.errors import (
    DeadlineExceeded,
    Internal,
    InternalError,
    LimitExceeded,
    SpassError,
    StorageUnavailable,
    Unavailable,
    UploadNotFound,
    Upstream,
)
from spass.core.jobs import Delivery, IngestPart, IngestUpload, WorkKind
from spass.core.messages import Json
from spass.core.time import Deadline, now
from spass.rag.index.manifest import read_manifest
from spass.rag.ingest.lease import IngestSettings, MessageDone, MessageLease, MessageRedelivered
from spass.rag.ingest.part_run import LAST_SECONDS, PartRun
from spass.rag.ingest.parts import lease_part, part_key, publish_parts, put_parts
from spass.rag.ingest.places import FileTask, delay_after, enter, leave
from spass.rag.ingest.plan import IngestRefused, UploadError, kind_of
from spass.rag.ingest.reading import survey
from spass.rag.ingest.transitions import (
    check_not_superseded,
    end_done,
    end_failed,
    lease_file,
    lease_upload,
    restart,
    set_planned,
    set_status,
    supersede_older,
)
from spass.rag.ingest.upload_record import Status, UploadRecord, read_record, upload_key
from spass.rag.ingest.uploaded_file import UploadedFile
from spass.rag.write.writer import Writer
from spass.redaction.log import write_line
from spass.store.bucket import ObjectMissing
from spass.store.keys import Key
from spass.store.leases import LeaseLost, renewing
from spass.store.tenant_store import TenantStore

T = TypeVar("T")
_Failure: TypeAlias = IngestRefused | ObjectMissing | SpassError

_RETRIED: Final = (Unavailable, Upstream, DeadlineExceeded)
_TEMPORARY: Final = (*_RETRIED, LimitExceeded, Internal)

_SURVEY_SECONDS: Final = 600.0
"""If a worker had at least this time and could not read the whole file, a retry will not succeed either."""
_SURVEY_TIMEOUT: Final = "survey_timeout"


@dataclass
class IngestWorker:
    """A worker that processes one message."""

    writer: Writer
    store: TenantStore
    delivery: Delivery
    deadline: Deadline
    settings: IngestSettings
    bus: EventBus

    def __post_init__(self) -> None:
        self._lease = MessageLease(self.delivery.message, self.settings)

    async def run(self, task: FileTask) -> bool:
        """Process ``task`` if its tenant has a place among the workers, or put it into the tenant's line. Return True if the
        message is done, and False if the queue must deliver it again."""
        if isinstance(task, UploadedFile):
            await supersede_older(self.store, task)
        if not await enter(self.store, task, self.delivery):
            return True
        done = True
        try:
            await self._process(task)
        except MessageDone as end:
            if end.keeps_place:
                return True
        except (MessageRedelivered, LeaseLost):
            done = False
        if done or self.delivery.last:
            await leave(self.store, task, self.delivery)
        return done

    async def _process(self, task: FileTask) -> None:
        match task:
            case UploadedFile():
                await self._upload(await lease_file(self.store, task, self._lease))
            case IngestUpload():
                await self._upload(await lease_upload(self.store, task.index, task.upload, self._lease))
            case IngestPart():
                await self._part_message(task)

    async def _upload(self, record: UploadRecord | None) -> None:
        if record is None or record.ended:
            return
        if record.parts is None:
            plan = partial(plan_upload, self.store, record, self._lease, self.deadline)
            record = await self._work(record, upload_key(self.store, record), plan)
        if record.stopped:
            record = await restart(self.store, record)
        if record.parts == 1:
            await self._part(record, 0)
        else:
            await self._next(record)

    async def _part_message(self, job: IngestPart) -> None:
        try:
            record = await read_record(self.store, job.index, job.upload)
        except UploadNotFound:
            return
        may_restart = record.stopped and record.failed_part in (None, job.part)
        if job.part not in range(record.parts or 0) or not (record.active or may_restart):
            return
        if record.stopped:
            record = await restart(self.store, record, working_on=job.part)
        await self._part(record, job.part)

    async def _part(self, record: UploadRecord, number: int) -> None:
        await self._work(record, part_key(self.store, record, number), partial(self._ingest, record, number), part=number)

    async def _ingest(self, record: UploadRecord, number: int) -> None:
        """Ingest a part until it is done or the time is up, then send the next message."""
        part = await lease_part(self.store, record, number, self._lease)
        if not part.done:
            if record.status is Status.QUEUED:
                await set_status(self.store, record, Status.RUNNING)
            await check_not_superseded(self.store, record)
            run = PartRun(self.writer, self.store, record, self.deadline, self.settings, self.bus)
            if not await run.run(part):
                await self._release(record, part.key, number)
                await self.store.jobs.send(IngestPart(self.store.tenant, record.index, record.id, number))
                return
        await self._next(await read_record(self.store, record.index, record.id))

    async def _next(self, record: UploadRecord) -> None:
        """Send the next parts, or end the upload if all parts are done."""
        if record.parts_done == record.parts:
            await end_done(self.store, record)
        else:
            await publish_parts(self.store, record)

    async def _work(self, record: UploadRecord, key: Key, attempt: Callable[[], Awaitable[T]], part: int | None = None) -> T:
        """Run ``attempt`` while renewing the lease on ``key``, and return its result.

        Raises:
            MessageDone, MessageRedelivered: it failed, or it was put back because of a rate limit.
            LeaseLost: another worker has the lease.
        """
        try:
            async with renewing(partial(self._lease.renew, self.store, key)):
                return await self._retry(record, attempt)
        except (LeaseLost, MessageDone, MessageRedelivered):
            raise
        except (IngestRefused, ObjectMissing, SpassError) as error:
            if (seconds := delay_after(error)) is not None:
                await self._release(record, key, part)
                # A new message, because a changed visibility would count as a delivery.
                await self.store.jobs.send_body(WorkKind.FILES, self.delivery.body, delay=seconds)
                raise MessageDone(keeps_place=True) from error
            is_temporary = isinstance(error, _TEMPORARY)
            with suppress(StorageUnavailable) if is_temporary else nullcontext():
                await self._fail(record, key, error, part, is_temporary=is_temporary)
            raise (MessageRedelivered() if is_temporary else MessageDone()) from error
        except Exception:
            with suppress(StorageUnavailable):
                await self._fail(record, key, InternalError("An internal error occurred."), part, is_temporary=True)
            raise

    async def _retry(self, record: UploadRecord, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run ``attempt``, and retry it after temporary errors. This is faster than leaving it to the queue, which hides the
        message for the maximum lifetime of a worker."""
        for pause in self.settings.retry_pause_seconds:
            try:
                return await attempt()
            except LeaseLost:
                raise
            except _RETRIED as error:
                if self.deadline.remaining() < pause + LAST_SECONDS:
                    raise
                _log_trouble(record, error)
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 (jitter)
        return await attempt()

    async def _fail(self, record: UploadRecord, key: Key, error: _Failure, part: int | None, *, is_temporary: bool) -> None:
        """Release the lease. Fail the upload if the error is permanent, or if the queue will not deliver the message again. Raise
        ``LeaseLost`` if another worker has the lease."""
        if is_temporary:
            _log_trouble(record, error)
        await self._release(record, key, part)
        if self.delivery.last or not is_temporary:
            await end_failed(self.store, record, _upload_error(error), is_temporary=is_temporary, part=part)

    async def _release(self, record: UploadRecord, key: Key, part: int | None) -> None:
        """Release the lease. Set the status to queued if no other worker can be working on the upload. Raise ``LeaseLost`` if
        another worker has the lease."""
        if part is None:
            await self._lease.release(self.store, key, status=Status.QUEUED)
        else:
            await self._lease.release(self.store, key)
            if record.parts == 1:
                await set_status(self.store, record, Status.QUEUED)


def _log_trouble(record: UploadRecord, error: _Failure) -> None:
    fields: dict[str, Json] = {"index": record.index, "upload": record.id, "error": _upload_error(error).code}
    write_line({"at": now(), "level": "warning", "event": "ingest_trouble"} | fields)


def _upload_error(error: _Failure) -> UploadError:
    match error:
        case IngestRefused():
            return error.error
        case ObjectMissing():
            return UploadError(line=None, code="object_missing", message="The file was removed before all of it was ingested.")
        case _:
            return UploadError(line=None, code=error.code, message=error.message)


class SurveyTooLong(DeadlineExceeded):
    """Raised if the worker did not have enough time to read the whole file. A retry may succeed."""

    code = _SURVEY_TIMEOUT


async def plan_upload(store: TenantStore, record: UploadRecord, lease: MessageLease, deadline: Deadline) -> UploadRecord:
    """Read the whole file of a leased upload, put its parts and release the lease. Store nothing if the file is refused.

    Raises:
        IngestRefused: the file cannot be ingested.
        Superseded: a newer object was put under its key.
        ObjectMissing: the file was deleted.
        SurveyTooLong: the time is up, and the worker began with less than ``_SURVEY_SECONDS``.
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
    had_enough_time = deadline.remaining() >= _SURVEY_SECONDS
    async for block in blocks:
        if not deadline.remaining():
            raise IngestRefused(_SURVEY_TIMEOUT, message) if had_enough_time else SurveyTooLong(message)
        yield block
