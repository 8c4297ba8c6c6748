"""The places of a tenant's compactions: as many are in work as its share, and the rest waits in order (``WorkLine``)."""

from spass.core.ids import JobId
from spass.core.jobs import StartCompaction, WorkKind, body_of
from spass.core.time import Timestamp
from spass.sessions.compaction.job import read_job
from spass.store.tenant_store import TenantStore

_KIND = WorkKind.COMPACTIONS


async def send(store: TenantStore, job: JobId, created_at: Timestamp) -> None:
    """Send a job to its queue, or put it into the tenant's line. A second call has no effect.

    Raises:
        StorageUnavailable: the table or the queue does not answer; the job may have been sent.
    """
    start = StartCompaction(store.tenant, job)
    if await store.line.take(_KIND, job):
        await store.jobs.send(start)
    else:
        await store.line.wait(_KIND, job, created_at, body_of(start))


async def give_back(store: TenantStore, job: JobId) -> None:
    """Give back the place of a job that has ended, and send what waits.

    An earlier attempt may have died after it had taken a place for the next job, so that one is sent once more: a second start of
    its execution has no effect.

    Raises:
        StorageUnavailable: the table or the queue does not answer; repeat the call.
    """
    await store.line.give_back(_KIND, job, is_repeated=True)


async def repair(store: TenantStore, now: float) -> None:
    """Give back the places of jobs that have ended, whose executions died before they did it, and send what waits.

    Raises:
        StorageUnavailable: the table or the queue does not answer.
    """

    async def is_over(name: str) -> bool:
        job = await read_job(store, JobId(name))
        return job is None or job.is_finished or now >= job.ends_at

    await store.line.repair(_KIND, is_over)
