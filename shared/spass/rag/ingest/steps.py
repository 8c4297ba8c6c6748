"""The steps of the state machine that ingests the parts of a large file side by side. Each may be repeated at any time."""

from spass.aws.clients import TenantStore
from spass.aws.leases import LeaseLost
from spass.aws.objects import ObjectMissing
from spass.core.errors import InternalError, SpassError, UploadNotFound
from spass.core.ids import IndexId, UploadId, random_suffix
from spass.core.time import Deadline
from spass.rag.ingest import custody
from spass.rag.ingest.newest import check_newest
from spass.rag.ingest.part import PartEnd, PartRun
from spass.rag.ingest.progress import first_errors
from spass.rag.ingest.record import Status, UploadError, UploadRecord, read_record
from spass.rag.ingest.worker import PASSING, fail, finish, log_trouble, upload_error
from spass.rag.service import Rag


class Steps:
    """The steps of one ``execution`` of the machine on one upload, by how many of its executions had failed when it started. Once
    it has failed itself, or a later one works on the upload, its steps have nothing to do."""

    def __init__(self, rag: Rag, store: TenantStore, index: IndexId, upload: UploadId, execution: int) -> None:
        self._rag = rag
        self._store = store
        self._index = index
        self._upload = upload
        self._execution = execution

    async def part(self, number: int, deadline: Deadline) -> bool:
        """Work on a part; whether nothing is left to do on it.

        Raises:
            SpassError: what may pass; the machine tries again.
        """
        record = await self._record()
        if record is None:
            return True
        try:
            if record.status is not Status.RUNNING:
                record = await custody.revive(self._store, record, self._execution)
            await check_newest(self._store, record)
            end = await PartRun(self._rag, self._store, record, deadline).run(number, random_suffix())
        except LeaseLost:
            return False
        except (ObjectMissing, SpassError) as error:
            if isinstance(error, PASSING):
                log_trouble(record, error)
                await custody.note_trouble(self._store, record, upload_error(error))
                raise
            await fail(self._store, record, error)
            return True
        return end is PartEnd.DONE

    async def finish(self) -> None:
        """End the upload.

        Raises:
            InternalError: not all of its parts are done.
        """
        if await self._record() is None:
            return
        record = await finish(self._store, self._index, self._upload)
        if record.parts_done != record.parts:
            raise InternalError("Parts of the upload are left.")

    async def fail(self) -> None:
        """The machine gives up: the upload has failed, until the queue is told to go on, which starts the machine anew."""
        record = await self._record()
        if record is not None:
            error = record.trouble or UploadError(line=None, code=InternalError.code, message="The work on this file failed.")
            others = await first_errors(self._store, record)
            await custody.end_failed(self._store, record, error, others, resumable=True, by_machine=True, execution_ended=True)

    async def _record(self) -> UploadRecord | None:
        """None when there is nothing left to do."""
        try:
            record = await read_record(self._store, self._index, self._upload)
        except UploadNotFound:
            return None
        return None if record.ended or self._execution < record.execution else record
