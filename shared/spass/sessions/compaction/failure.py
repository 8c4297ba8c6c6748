"""End a job as failed."""

from dataclasses import replace
from typing import Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.table import TransactionFailed
from spass.aws.writes import Delete, Write
from spass.core.cost import NO_COST, Cost
from spass.core.errors import SessionBusy, StorageUnavailable, UpstreamTimeout
from spass.core.ids import random_suffix
from spass.core.time import timestamp
from spass.sessions.compaction.job import Job, JobFailure, JobStatus, job_update, read_job
from spass.sessions.hold import release_hold

TIMED_OUT: Final = JobFailure(UpstreamTimeout.code, "The compaction did not end within its time; the session is as it was.")
RETRIES_EXHAUSTED: Final = JobFailure(
    StorageUnavailable.code, "The compaction could not be carried out; the session is as it was. Try again.", retry_after=1
)
SESSION_STAYED_BUSY: Final = JobFailure(
    SessionBusy.code,
    "Others held the session for as long as the compaction waited; it is as they left it. Try again.",
    retry_after=1,
)


async def fail_job(store: TenantStore, job: Job, failure: JobFailure, at: float, *, cost: Cost = NO_COST) -> Job:
    """End ``job`` as failed unless it has ended, delete its draft, release its session, and return the job as stored.

    ``cost`` is added to the job's cost. ``at`` is in seconds since the epoch. Afterwards no step of the job can commit, because
    its commit requires that the job has not ended.

    Raises:
        StorageUnavailable: the outcome is unknown.
    """
    ended = replace(
        job,
        status=JobStatus.FAILED,
        finished_at=timestamp(at),
        failure=failure,
        cost=job.cost + cost,
    )
    writes: list[Write] = [job_update(store, job, ended), Delete(keys.job_draft(store.tenant, job.id))]
    token = random_suffix()
    try:
        await store.table.transact(writes, token=token)
    except TransactionFailed:  # ended by our own first attempt, whose reply was lost, or by another process
        ended = await read_job(store, job.id) or ended
    await release_hold(store, job.plan.source, job.id)
    return ended
