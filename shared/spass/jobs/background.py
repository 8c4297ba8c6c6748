"""Handle the queue of jobs: uploaded files, their parts, segments to merge, calls to account for."""

from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.jobs import AccountCall, Delivery, IngestPart, IngestUpload, MergeSegments, RunAgent, StartCompaction, Tick
from spass.core.time import Deadline
from spass.jobs.dispatch import Handler, NotHandled, Task
from spass.metering import audit
from spass.rag.index.cache import ObjectCache
from spass.rag.ingest.lease import DEFAULTS, IngestSettings
from spass.rag.ingest.places import enter, leave
from spass.rag.ingest.uploaded_file import UploadedFile
from spass.rag.ingest.worker import IngestWorker
from spass.rag.write.merge_job import merge
from spass.rag.write.writer import Writer
from spass.store.tenant_store import TenantStore


def background_handler(
    writer: Writer, cache: ObjectCache, ingest: IngestSettings = DEFAULTS, bus: EventBus = EMPTY_BUS
) -> Handler:
    """Return the handler of the queue of jobs."""

    async def handle(store: TenantStore, task: Task, delivery: Delivery, deadline: Deadline) -> bool:
        match task:
            case UploadedFile() | IngestUpload() | IngestPart():
                return await IngestWorker(writer, store, delivery, deadline, ingest, bus).run(task)
            case MergeSegments():
                if await enter(store, task, delivery):
                    try:
                        await merge(store, cache, task.index, deadline)
                    finally:
                        await leave(store, task, delivery)
            case AccountCall():
                await audit.account(store, task.record)
            case StartCompaction() | RunAgent() | Tick():
                raise NotHandled("compactions and runs have queues of their own")
        return True

    return handle
