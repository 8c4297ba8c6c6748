"""The steps of a compaction job, called by the state machine: plan, summarise, commit; and fail, if a step fails for good.

A step may be called again after it has ended, or while an earlier call still runs. So each step first reads the job: it does
nothing if the job has ended, and it does not write a summary twice. The job holds the session, so that no turn runs. If the hold
expired between two steps, the next step takes it again; turns that were added in between are kept. An error that a step raises
makes the machine retry the step. An error that a retry would not change ends the job.

A step that meets the rate limit of its tenant before it has called a model ends, and the machine calls it again later. It keeps
the session held. After the first call of a summary that needs several, it waits in its function: it would pay for them again.
"""

import math
import random
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from spass.calls.scope import JOB_MAX_WAIT, Scope
from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.cost import Cost
from spass.core.errors import (
    InternalError,
    LimitExceeded,
    SessionArchived,
    SessionBusy,
    SessionNotFound,
    SpassError,
    StorageUnavailable,
)
from spass.core.ids import JobId, random_suffix
from spass.core.time import Clock, Deadline, epoch_s, timestamp
from spass.sessions.compaction.commit import CompactionResult, commit_compaction
from spass.sessions.compaction.job import (
    RETRIES_EXHAUSTED,
    SESSION_STAYED_BUSY,
    TIMED_OUT,
    Job,
    JobFailure,
    JobResult,
    JobStatus,
    fail_job,
    give_back_place,
    job_update,
    read_job,
)
from spass.sessions.compaction.plan import Summary
from spass.sessions.hold import acquire_hold, new_hold, release_hold, renew_hold
from spass.sessions.record import load_turns
from spass.sessions.session import HoldKind, Session, decode_session
from spass.store import keys
from spass.store.codec import decode
from spass.store.leases import renewing
from spass.store.table import TTL, ConditionFailed, TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import Delete, Put, Write

if TYPE_CHECKING:
    from spass.sessions.compaction.summary import Summarizer

_PATIENCE_SECONDS: Final = 180
"""Seconds after which a job that cannot call a model because of a rate limit fails."""
_LONGEST_WAIT: Final = 75.0
"""A minute of tokens is free after at most so many seconds. A budget that is spent is not."""
_JITTER_SECONDS: Final = 5
"""Jobs that wait for the same minute must not all come back at that moment."""

_RETRYABLE: Final = (StorageUnavailable, InternalError, SessionBusy)
"""Errors that a retry may avoid, or that an operator must look at."""


class _HeldJob(NamedTuple):
    """A job that has not ended, and the session that it holds."""

    job: Job
    session: Session


class CompactionSteps:
    """The steps of every job. ``clock`` returns seconds since the epoch.

    Each step raises the errors that the machine must retry: StorageUnavailable, and SessionBusy while another request holds the
    session.
    """

    def __init__(self, summarizer: "Summarizer", clock: Clock = time.time, bus: EventBus = EMPTY_BUS) -> None:
        self._summarizer = summarizer
        self._clock = clock
        self._bus = bus

    async def plan(self, store: TenantStore, job_id: JobId) -> None:
        """Mark the job as running. Its plan was made when it was requested, so that the request could be refused."""
        held = await self._acquire(store, job_id)
        if held is None or held.job.status is JobStatus.RUNNING:
            return
        try:
            await store.table.write(job_update(store, held.job, replace(held.job, status=JobStatus.RUNNING)))
        except ConditionFailed:
            await self._release_if_finished(store, held.job)

    async def summarise(self, store: TenantStore, job_id: JobId, deadline: Deadline, *, may_wait: bool = False) -> int:
        """Store the draft of the summary, or end the job as failed, and return 0. With ``may_wait``, if a rate limit does not let
        it begin, return the seconds after which this must be called again."""
        held = await self._acquire(store, job_id)
        if held is None or await _read_draft(store, held.job) is not None:
            return 0
        job, session = held
        scope = replace(_job_scope(store, job, deadline, self._bus), can_be_put_back=may_wait)
        try:
            async with renewing(lambda: renew_hold(store, job.plan.source, job.id, self._clock())):
                turns = await load_turns(store, session.id, session.compacted_before)
                summary = await self._summarizer.summarise_session(
                    scope, session, turns, job.plan, fallback_model=job.fallback_model
                )
            await self._store_draft(store, job, summary, scope.tally.total)
        except _RETRYABLE:
            await _add_cost(store, job, scope.tally.total)
            raise
        except SpassError as error:
            wait = self._seconds_to_wait(job, error) if may_wait and not scope.tally.has_acted else 0
            if wait and await self._keep(store, job, wait):
                return wait
            await fail_job(store, job, JobFailure.of(error), self._clock(), cost=scope.tally.total)
        return 0

    def _seconds_to_wait(self, job: Job, error: SpassError) -> int:
        """Return the seconds after which a job that ``error`` stopped may go on. 0: ``error`` is not a limit that ends soon, or
        the job has waited long enough."""
        if not isinstance(error, LimitExceeded) or error.retry_after is None or error.retry_after > _LONGEST_WAIT:
            return 0
        if job.limited_at is not None and self._clock() >= epoch_s(job.limited_at) + _PATIENCE_SECONDS:
            return 0
        return math.ceil(error.retry_after + random.uniform(0, _JITTER_SECONDS))  # noqa: S311 (jitter)

    async def _keep(self, store: TenantStore, job: Job, seconds: int) -> bool:
        """Hold the session of a job that waits for ``seconds``, and a minute longer. Return False if the job has lost it or has
        ended."""
        now = self._clock()
        try:
            await renew_hold(store, job.plan.source, job.id, now + seconds)
            if job.limited_at is None:
                await store.table.write(job_update(store, job, replace(job, limited_at=timestamp(now))))
        except ConditionFailed:
            return False
        return True

    async def commit(self, store: TenantStore, job_id: JobId) -> None:
        """Commit the compaction, or end the job as failed. Then give the job's place to the tenant's next one."""
        await self._commit(store, job_id)
        await give_back_place(store, job_id)

    async def _commit(self, store: TenantStore, job_id: JobId) -> None:
        held = await self._acquire(store, job_id)
        if held is None:
            return
        job, session = held
        summary = await _read_draft(store, job)
        if summary is None:
            if await self._release_if_finished(store, job):
                return
            raise InternalError("A compaction reached its commit without a summary.")
        live = await load_turns(store, session.id, session.compacted_before)

        def finish_job(result: CompactionResult) -> list[Write]:
            numbers = JobResult(
                job.plan.kept_from - session.compacted_before, len(result.first.messages) - 1, result.summary.model
            )
            finished = replace(job, status=JobStatus.SUCCEEDED, finished_at=result.summary.created_at, result=numbers)
            return [job_update(store, job, finished), Delete(keys.job_draft(store.tenant, job.id))]

        try:
            await commit_compaction(
                store, session, live, job.plan, summary, owner=job.id, at=self._clock(), with_effect=finish_job
            )
        except (SessionArchived, SessionNotFound) as error:
            await fail_job(store, job, JobFailure.of(error), self._clock())
        except SessionBusy:
            if not await self._release_if_finished(store, job):
                raise

    async def fail(self, store: TenantStore, job_id: JobId) -> None:
        """End the job as failed unless it has ended, release its session, and give its place back."""
        job = await read_job(store, job_id)
        if job is not None and not job.is_finished:
            await fail_job(store, job, await self._failure_reason(store, job), self._clock())
        elif job is not None:
            await release_hold(store, job.plan.source, job.id)
        await give_back_place(store, job_id)

    async def _failure_reason(self, store: TenantStore, job: Job) -> JobFailure:
        head = await store.table.get(keys.session_head(store.tenant, job.plan.source))
        hold = decode_session(head).hold if head is not None else None
        return (
            SESSION_STAYED_BUSY if hold is not None and hold.owner != job.id and hold.live(self._clock()) else RETRIES_EXHAUSTED
        )

    async def _acquire(self, store: TenantStore, job_id: JobId) -> _HeldJob | None:
        """Return the job with its session, held. None if the job has ended."""
        job = await read_job(store, job_id)
        if job is None:
            return None
        if job.is_finished:  # the attempt that ended it may have failed to release the session
            await release_hold(store, job.plan.source, job.id)
            return None
        now = self._clock()
        if now >= job.ends_at:
            await fail_job(store, job, TIMED_OUT, now)
            return None
        hold = new_hold(job.id, HoldKind.JOB, job.requester.idempotency, now)
        try:
            return _HeldJob(job, await acquire_hold(store, job.plan.source, job.agent, job.user, hold, now))
        except (SessionArchived, SessionNotFound) as error:
            await fail_job(store, job, JobFailure.of(error), now)
            return None

    async def _store_draft(self, store: TenantStore, job: Job, summary: Summary, cost: Cost) -> None:
        """Store the draft that the next step commits."""
        writes: list[Write] = [
            Put(keys.job_draft(store.tenant, job.id), {"text": summary.text, "model": summary.model, TTL: job.ends_at}),
            job_update(store, job, replace(job, cost=job.cost + cost)),
        ]
        token = random_suffix()
        try:
            await store.table.transact(writes, token=token)
        except TransactionFailed:
            await self._release_if_finished(store, job)

    async def _release_if_finished(self, store: TenantStore, job: Job) -> bool:
        """Release the session if the job was ended while a step ran, and return whether it was. The step may hold the session
        again."""
        latest = await read_job(store, job.id)
        if latest is not None and not latest.is_finished:
            return False
        await release_hold(store, job.plan.source, job.id)
        return True


def _job_scope(store: TenantStore, job: Job, deadline: Deadline, bus: EventBus) -> Scope:
    """Return the scope of the job's model calls, which are audited under the request that created the job."""
    requester = job.requester
    scope = Scope.for_job(
        store,
        deadline,
        route=requester.route,
        user=job.user,
        request_id=requester.request_id,
        token_id=requester.token_id,
        origin=requester.origin,
        depth=requester.depth,
        bypass_cache=True,
        bus=bus,
    )
    return replace(scope, max_wait=JOB_MAX_WAIT).for_agent(job.agent, job.plan.source)


async def _add_cost(store: TenantStore, job: Job, cost: Cost) -> None:
    """Add the cost of an attempt that will be retried to the job. If that fails, only the audit has it."""
    if cost.sub_calls:
        with suppress(StorageUnavailable, ConditionFailed):
            await store.table.write(job_update(store, job, replace(job, cost=job.cost + cost)))


async def _read_draft(store: TenantStore, job: Job) -> Summary | None:
    """Return the draft of the job's summary, or None."""
    item = await store.table.get(keys.job_draft(store.tenant, job.id))
    return decode(Summary, item) if item is not None else None
