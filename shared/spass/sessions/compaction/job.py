"""The record of a compaction job: ids, counts and times, and no text of the conversation.

A tenant has places for as many compactions as its share. The rest waits in order (``WorkLine``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

from spass.core import errors
from spass.core.cost import NO_COST, Cost
from spass.core.errors import SessionBusy, SpassError, StorageUnavailable, SummaryFailed, UpstreamTimeout
from spass.core.ids import AgentName, JobId, RequestId, UserId, random_suffix
from spass.core.jobs import StartCompaction, WorkKind, body_of
from spass.core.messages import Json
from spass.core.time import Timestamp, epoch_s, timestamp
from spass.core.traceparent import current_traceparent
from spass.redaction.text import redact_provider_text
from spass.sessions.compaction.plan import CompactionPlan
from spass.sessions.hold import release_hold
from spass.store import keys
from spass.store.codec import decode, encode
from spass.store.idempotency import RequestHashes
from spass.store.table import TTL, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, OneOf, Update, Value

JOB_SECONDS: Final = 3600
"""The time limit of a job. A job that exceeds it ends as failed."""
_TTL_SECONDS: Final = 30 * 24 * 3600
_STORED_DETAILS: Final = ("reason", "successor_session_id")


class JobStatus(StrEnum):
    """The state of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Requester:
    """The request that created a job: its token and its place in the tree of calls, for the audit, and its idempotency key."""

    request_id: RequestId
    token_id: str
    origin: RequestId | None
    depth: int
    route: str
    idempotency: RequestHashes | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job: the numbers of ``compacted`` and ``kept`` messages and the ``model`` that wrote the summary."""

    compacted: int
    kept: int
    model: str


@dataclass(frozen=True, slots=True)
class JobFailure:
    """The reason why a job failed. ``retry_after`` is in seconds."""

    code: str
    message: str
    retry_after: int | None = None
    details: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, error: SpassError) -> Self:
        after = error.retry_after
        details = {name: value for name, value in error.details.items() if name in _STORED_DETAILS}
        return cls(error.code, redact_provider_text(error.message), None if after is None else max(1, math.ceil(after)), details)

    def error(self, job: JobId) -> SpassError:
        """Return the failure as an error to raise."""
        kind = _ERRORS.get(self.code, SummaryFailed)
        return kind(self.message, details={**self.details, "job_id": job}, retry_after=self.retry_after)


TIMED_OUT: Final = JobFailure(UpstreamTimeout.code, "The compaction did not end within its time; the session is unchanged.")
RETRIES_EXHAUSTED: Final = JobFailure(
    StorageUnavailable.code, "The compaction failed after several attempts; the session is unchanged. Try again.", retry_after=1
)
SESSION_STAYED_BUSY: Final = JobFailure(
    SessionBusy.code,
    "Other requests held the session until the compaction stopped waiting; it was not compacted. Try again.",
    retry_after=1,
)


@dataclass(frozen=True, slots=True)
class Job:
    """The compaction of ``plan.source``, a session of ``user`` with ``agent``.

    ``fallback_model`` writes the summary if the tenant has set no model; None if the requester's token may not use it. The job
    ends at ``ends_at`` at the latest, in seconds since the epoch. ``limited_at`` is when it first waited for its tenant's rate
    limit. ``cost`` is that of its model calls so far.
    """

    id: JobId
    status: JobStatus
    user: UserId
    agent: AgentName
    plan: CompactionPlan
    fallback_model: str | None
    requester: Requester
    created_at: Timestamp
    ends_at: int
    finished_at: Timestamp | None = None
    result: JobResult | None = None
    failure: JobFailure | None = None
    limited_at: Timestamp | None = None
    cost: Cost = NO_COST

    @property
    def is_finished(self) -> bool:
        return self.status in (JobStatus.SUCCEEDED, JobStatus.FAILED)

    def is_requested_by(self, request: RequestHashes | None) -> bool:
        """Return whether a request with the same Idempotency-Key created it.

        Raises:
            IdempotencyKeyReused: the key is the same and the body is not.
        """
        creator = self.requester.idempotency
        if request is None or creator is None or creator.digest != request.digest:
            return False
        if creator.body_hash != request.body_hash:
            raise errors.IdempotencyKeyReused("This Idempotency-Key was used with another body; use a new key for a new request.")
        return True

    def attributes(self) -> dict[str, Value]:
        """Return the item's attributes."""
        return encode(self) | {TTL: epoch_s(self.created_at) + _TTL_SECONDS}


async def read_job(store: TenantStore, job: JobId) -> Job | None:
    """Return the job, or None if there is none."""
    item = await store.table.get(keys.job(store.tenant, job))
    return decode(Job, item) if item is not None else None


def job_update(store: TenantStore, before: Job, after: Job) -> Update:
    """Return the write that changes the job ``before`` into ``after``. It fails if the job has ended meanwhile."""
    old = before.attributes()
    changed = {name: value for name, value in after.attributes().items() if old.get(name) != value}
    new = {"status": after.status, **changed}  # an update must set something, even if nothing has changed
    return Update(keys.job(store.tenant, before.id), set=new, when=OneOf("status", [JobStatus.QUEUED, JobStatus.RUNNING]))


async def fail_job(store: TenantStore, job: Job, failure: JobFailure, at: float, *, cost: Cost = NO_COST) -> Job:
    """End ``job`` as failed unless it has ended, delete its draft, release its session, and return the job as stored.

    ``cost`` is added to the job's cost. ``at`` is in seconds since the epoch. Afterwards no step of the job can commit, because
    its commit requires that the job has not ended.

    Raises:
        StorageUnavailable: the outcome is unknown.
    """
    ended = replace(job, status=JobStatus.FAILED, finished_at=timestamp(at), failure=failure, cost=job.cost + cost)
    token = random_suffix()
    try:
        await store.table.transact([job_update(store, job, ended), Delete(keys.job_draft(store.tenant, job.id))], token=token)
    except TransactionFailed:  # ended by our own first attempt, whose reply was lost, or by another process
        ended = await read_job(store, job.id) or ended
    await release_hold(store, job.plan.source, job.id)
    return ended


_ERRORS: Final[Mapping[str, type[SpassError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, SpassError) and vars(kind).get("code")  # a refinement shares its parent's
}


async def send_job(store: TenantStore, job: JobId, created_at: Timestamp) -> None:
    """Send a job to its queue, or put it into the tenant's line. A second call has no effect.

    Raises:
        StorageUnavailable: the table or the queue does not answer; the job may have been sent.
    """
    start = StartCompaction(store.tenant, job)
    if await store.line.take(WorkKind.COMPACTIONS, job):
        await store.jobs.send(start)
    else:
        await store.line.wait(WorkKind.COMPACTIONS, job, created_at, body_of(start, current_traceparent()))


async def give_back_place(store: TenantStore, job: JobId) -> None:
    """Give back the place of a job that has ended, and send what waits.

    An earlier attempt may have died after it had taken a place for the next job, so that one is sent once more: a second start of
    its execution has no effect.

    Raises:
        StorageUnavailable: the table or the queue does not answer; repeat the call.
    """
    await store.line.give_back(WorkKind.COMPACTIONS, job, is_repeated=True)


async def repair_places(store: TenantStore, now: float) -> None:
    """Give back the places of jobs that have ended, whose executions died before they did it, and send what waits."""

    async def is_over(name: str) -> bool:
        job = await read_job(store, JobId(name))
        return job is None or job.is_finished or now >= job.ends_at

    await store.line.repair(WorkKind.COMPACTIONS, is_over)
