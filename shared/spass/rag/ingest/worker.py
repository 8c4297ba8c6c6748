"""Process a message about an upload: plan the file, then ingest its parts.

If a file has one part, the worker that plans it also ingests it. If it has more, each part is a separate message.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Final, TypeAlias, TypeVar

from spass.aws import keys
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
    UploadNotFound,
    Upstream,
)
from spass.core.jobs import Delivery, IngestPart, IngestUpload
from spass.core.messages import Json
from spass.core.time import Deadline, now
from spass.rag.ingest.lease import Lease, Receiver, Refusal
from spass.rag.ingest.part_run import LAST_SECONDS, PartRun
from spass.rag.ingest.parts import PartRecord, lease_part, part_key
from spass.rag.ingest.plan import FileRefused
from spass.rag.ingest.planning import plan_upload
from spass.rag.ingest.publish import publish_parts
from spass.rag.ingest.supersession import check_not_superseded, supersede_older
from spass.rag.ingest.transitions import end_done, end_failed, lease_file, lease_upload, restart, set_status
from spass.rag.ingest.upload_record import Status, UploadError, UploadRecord, read_record
from spass.rag.ingest.uploaded_file import UploadedFile
from spass.rag.write.writer import Writer

T = TypeVar("T")
_Failure: TypeAlias = FileRefused | ObjectMissing | SpassError

PAUSES: Final = (5.0, 20.0, 60.0)
"""Maximum pauses in seconds before each retry after a temporary error. After the last retry, the queue redelivers the message."""

_MAY_PASS: Final = (Unavailable, Upstream, DeadlineExceeded, LimitExceeded, Internal)


class IngestWorker:
    """A worker that processes one message. Every public method returns True if the message is done, and False if the queue must
    deliver it again."""

    def __init__(self, writer: Writer, store: TenantStore, delivery: Delivery, deadline: Deadline) -> None:
        self._writer = writer
        self._store = store
        self._delivery = delivery
        self._deadline = deadline
        self._receiver = Receiver(delivery.message)

    async def file(self, file: UploadedFile) -> bool:
        """Ingest a file that was put into the bucket, unless it is done or leased. Stop older files with its key."""
        await supersede_older(self._store, file)
        return await self._upload(await lease_file(self._store, file, self._receiver))

    async def upload(self, job: IngestUpload) -> bool:
        """Continue an upload whose file has arrived."""
        return await self._upload(await lease_upload(self._store, job.index, job.upload, self._receiver))

    async def part(self, job: IngestPart) -> bool:
        """Continue a part of an upload."""
        try:
            record = await read_record(self._store, job.index, job.upload)
        except UploadNotFound:
            return True
        may_restart = record.stopped and record.failed_part in (None, job.part)
        if job.part not in range(record.parts or 0) or not (record.active or may_restart):
            return True
        if record.stopped:
            record = await restart(self._store, record, working_on=job.part)
        return await self._part(record, job.part)

    async def _upload(self, leased: UploadRecord | Refusal) -> bool:
        if isinstance(leased, Refusal):
            return leased is not Refusal.LEASED_FOR_THIS_MESSAGE
        record = leased
        if record.parts is None:
            lease = Lease(self._store, keys.upload(self._store.tenant, record.index, record.id), self._receiver.owner)
            planned = await self._work(record, lease, lambda: self._plan(leased))
            if isinstance(planned, bool):
                return planned
            record = planned
        if record.stopped:
            record = await restart(self._store, record)
        if record.parts == 1:
            return await self._part(record, 0)
        await self._next(record)
        return True

    async def _plan(self, record: UploadRecord) -> UploadRecord:
        return await plan_upload(self._store, record, self._receiver, self._deadline)

    async def _part(self, record: UploadRecord, number: int) -> bool:
        lease = Lease(self._store, part_key(self._store, record, number), self._receiver.owner)
        return await self._work(record, lease, lambda: self._ingest(record, number, lease), part=number)

    async def _ingest(self, record: UploadRecord, number: int, lease: Lease) -> bool:
        """Ingest a part until it is done or the time is up, then send the next message. Return whether this message is done."""
        part = await lease_part(self._store, record, number, self._receiver)
        if isinstance(part, PartRecord):
            if record.status is Status.QUEUED:
                await set_status(self._store, record, Status.RUNNING)
            await check_not_superseded(self._store, record)
            if not await PartRun(self._writer, self._store, record, self._deadline).run(part):
                if not await self._release(record, lease, number):
                    return False
                await self._store.jobs.send(IngestPart(self._store.tenant, record.index, record.id, number))
                return True
        elif part is not Refusal.ENDED:
            return part is not Refusal.LEASED_FOR_THIS_MESSAGE
        await self._next(await read_record(self._store, record.index, record.id))
        return True

    async def _next(self, record: UploadRecord) -> None:
        """Send the next parts, or end the upload if all parts are done."""
        if record.parts_done == record.parts:
            await end_done(self._store, record)
        else:
            await publish_parts(self._store, record)

    async def _work(
        self, record: UploadRecord, lease: Lease, attempt: Callable[[], Awaitable[T]], part: int | None = None
    ) -> T | bool:
        """Run ``attempt`` while renewing ``lease``, and return its result. If it fails, return whether the message is done."""
        try:
            async with renewing(lease.renew):
                return await self._retry(record, attempt)
        except LeaseLost:
            return False
        except (FileRefused, ObjectMissing, SpassError) as error:
            may_pass = isinstance(error, _MAY_PASS)
            with suppress(StorageUnavailable) if may_pass else nullcontext():
                return await self._stop(record, lease, error, part, may_pass=may_pass) and not may_pass
            return False
        except Exception:
            with suppress(StorageUnavailable):
                await self._stop(record, lease, InternalError("An internal error occurred."), part, may_pass=True)
            raise

    async def _retry(self, record: UploadRecord, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run ``attempt``, and retry it after temporary errors.

        Retrying here is faster than leaving it to the queue, which hides the message for the maximum lifetime of a worker.
        """
        for pause in PAUSES:
            try:
                return await attempt()
            except LeaseLost:
                raise
            except (Unavailable, Upstream, DeadlineExceeded, LimitExceeded) as error:
                if self._deadline.remaining() < pause + LAST_SECONDS:
                    raise
                _log_trouble(record, error)
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 (jitter)
        return await attempt()

    async def _stop(self, record: UploadRecord, lease: Lease, error: _Failure, part: int | None, *, may_pass: bool) -> bool:
        """Release the lease. Fail the upload if the error is permanent, or if the queue will not deliver the message again.

        Return False if another worker has the lease.
        """
        if may_pass:
            _log_trouble(record, error)
        if not await self._release(record, lease, part):
            return False
        if self._delivery.last or not may_pass:
            await end_failed(self._store, record, _upload_error(error), may_pass=may_pass, part=part)
        return True

    async def _release(self, record: UploadRecord, lease: Lease, part: int | None) -> bool:
        """Release the lease. Set the status to queued if no other worker can be working on the upload."""
        if part is None:
            return await lease.release(status=Status.QUEUED)
        released = await lease.release()
        if released and record.parts == 1:
            await set_status(self._store, record, Status.QUEUED)
        return released


def _log_trouble(record: UploadRecord, error: _Failure) -> None:
    fields: dict[str, Json] = {"index": record.index, "upload": record.id, "error": _upload_error(error).code}
    write_line({"at": now(), "level": "warning", "event": "ingest_trouble"} | fields)


def _upload_error(error: _Failure) -> UploadError:
    match error:
        case FileRefused():
            return UploadError(line=error.line, code=error.code, message=error.message)
        case ObjectMissing():
            return UploadError(line=None, code="object_missing", message="The file was removed before all of it was ingested.")
        case _:
            return UploadError(line=None, code=error.code, message=error.message)
