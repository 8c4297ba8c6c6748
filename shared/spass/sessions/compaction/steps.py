"""A compaction, step by step, as the state machine calls for it: plan, summarise, commit; and fail, when a step cannot be done.

A step may be called again after it was done, or while an earlier call of it still runs. So each begins by looking: a job that has
ended is left alone, a summary that is there is not made again. The session's hold, in the job's name, keeps turns away; where it
ran out between two steps it is taken again, and what turns came meanwhile are kept. What a step raises makes the machine call it
again; what another try would not change ends the job.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spass.aws import keys
from spass.aws.clients import TenantStore
from spass.aws.leases import renewing
from spass.aws.table import TTL, ConditionFailed, TransactionFailed
from spass.aws.writes import Delete, Put, Write
from spass.calls.scope import Scope
from spass.core.cost import Cost
from spass.core.errors import (
    InternalError,
    SessionArchived,
    SessionBusy,
    SessionNotFound,
    SpassError,
    StorageUnavailable,
)
from spass.core.ids import JobId, random_suffix
from spass.core.time import Deadline
from spass.sessions.compaction.commit import commit_compaction
from spass.sessions.compaction.failure import RETRIES_EXHAUSTED, SESSION_STAYED_BUSY, TIMED_OUT, fail_job
from spass.sessions.compaction.job import Job, JobFailure, JobStatus, job_update, read_job
from spass.sessions.compaction.summary_store import storable_text
from spass.sessions.compaction.types import CompactionResult, Summary
from spass.sessions.held_session import Clock
from spass.sessions.hold import acquire_hold, new_job_hold, release_hold, renew_hold
from spass.sessions.record import load_turns
from spass.sessions.session import Session, decode_session

if TYPE_CHECKING:
    from spass.sessions.compaction.summary import Summarizer

_RETRYABLE: Final = (StorageUnavailable, InternalError, SessionBusy)
"""What another try may change, or somebody has to look at."""


@dataclass(frozen=True, slots=True)
class _HeldJob:
    """A job that has not ended, and its session, held for it."""

    job: Job
    session: Session


class CompactionSteps:
    """The steps of every job. ``clock`` gives seconds since the epoch. Each step raises what the machine shall try again:
    StorageUnavailable, and a Conflict while another request holds the session.
    """

    def __init__(self, summarizer: "Summarizer", clock: Clock = time.time) -> None:
        self._summarizer = summarizer
        self._clock = clock

    async def plan(self, store: TenantStore, job_id: JobId) -> None:
        """The job is under way. (What it does was decided when it was asked for, so that the one who asked could be refused.)"""
        taken = await self._acquire(store, job_id)
        if taken is None or taken.job.status is JobStatus.RUNNING:
            return
        write = job_update(store, taken.job, replace(taken.job, status=JobStatus.RUNNING))
        try:
            await store.table.write(write)
        except ConditionFailed:
            await self._release_if_finished(store, taken.job)

    async def summarise(self, store: TenantStore, job_id: JobId, deadline: Deadline) -> None:
        """There is a summary, or the job has failed."""
        taken = await self._acquire(store, job_id)
        if taken is None or await _read_draft(store, taken.job) is not None:
            return
        job = taken.job
        scope = _job_scope(store, job, deadline)
        try:
            async with renewing(lambda: renew_hold(store, job.plan.source, job.id, self._clock())):
                summary = await self._summary(scope, taken)
            await self._keep(store, job, summary, scope.tally.total)
        except _RETRYABLE:
            await _add_cost(store, job, scope.tally.total)
            raise
        except SpassError as error:
            await fail_job(store, job, JobFailure.of(error), self._clock(), cost=scope.tally.total)

    async def commit(self, store: TenantStore, job_id: JobId) -> None:
        """The session goes on as its successor, or the job has failed."""
        taken = await self._acquire(store, job_id)
        if taken is None:
            return
        job, session = taken.job, taken.session
        summary = await _read_draft(store, job)
        if summary is None:
            if await self._release_if_finished(store, job):
                return
            raise InternalError("A compaction came to its commit without a summary.")
        live = await load_turns(store, session.id, session.compacted_before)

        def ended(made: CompactionResult) -> list[Write]:
            after = replace(
                job,
                status=JobStatus.SUCCEEDED,
                finished_at=made.summary.created_at,
                compacted=job.plan.kept_from - session.compacted_before,
                kept=made.first.next_seq - made.first.first_seq - 1,
            )
            return [job_update(store, job, after), Delete(keys.job_draft(store.tenant, job.id))]

        try:
            await commit_compaction(store, session, live, job.plan, summary, owner=job.id, at=self._clock(), with_effect=ended)
        except (SessionArchived, SessionNotFound) as error:
            await fail_job(store, job, JobFailure.of(error), self._clock())
        except SessionBusy:
            if not await self._release_if_finished(store, job):
                raise

    async def fail(self, store: TenantStore, job_id: JobId) -> None:
        """The job has ended and holds nothing; as failed, unless it ended before."""
        job = await read_job(store, job_id)
        if job is not None and not job.ended:
            await fail_job(store, job, await self._failure_reason(store, job), self._clock())
        elif job is not None:
            await release_hold(store, job.plan.source, job.id)

    async def _failure_reason(self, store: TenantStore, job: Job) -> JobFailure:
        head = await store.table.get(keys.session_head(store.tenant, job.plan.source))
        hold = decode_session(head).hold if head is not None else None
        return (
            SESSION_STAYED_BUSY if hold is not None and hold.owner != job.id and hold.live(self._clock()) else RETRIES_EXHAUSTED
        )

    async def _acquire(self, store: TenantStore, job_id: JobId) -> _HeldJob | None:
        """The job with its session; None when there is nothing left to do for it."""
        job = await read_job(store, job_id)
        if job is None:
            return None
        if job.ended:  # and perhaps the try that ended it could not let go
            await release_hold(store, job.plan.source, job.id)
            return None
        now = self._clock()
        if now >= job.ends_at:
            await fail_job(store, job, TIMED_OUT, now)
            return None
        hold = new_job_hold(job.id, job.requester.key_hash, job.requester.body_hash, now)
        try:
            return _HeldJob(job, await acquire_hold(store, job.plan.source, job.agent, job.user, hold, now))
        except (SessionArchived, SessionNotFound) as error:
            await fail_job(store, job, JobFailure.of(error), now)
            return None

    async def _summary(self, scope: Scope, taken: _HeldJob) -> Summary:
        job, session = taken.job, taken.session
        turns = await load_turns(scope.store, session.id, session.compacted_before)
        summary = await self._summarizer.summarise_session(scope, session, turns, job.plan, otherwise=job.otherwise)
        return replace(summary, text=storable_text(summary.text))

    async def _keep(self, store: TenantStore, job: Job, summary: Summary, cost: Cost) -> None:
        """The draft of what is committed in the next step."""
        writes: list[Write] = [
            Put(keys.job_draft(store.tenant, job.id), {"text": summary.text, "model": summary.model, TTL: job.ends_at}),
            job_update(store, job, replace(job, model=summary.model, cost=job.cost + cost)),
        ]
        token = random_suffix()
        try:
            await store.table.transact(writes, token=token)
        except TransactionFailed:
            await self._release_if_finished(store, job)

    async def _release_if_finished(self, store: TenantStore, job: Job) -> bool:
        """Whether the job was ended while a step worked on it: then the step may have taken the session again after that."""
        found = await read_job(store, job.id)
        if found is not None and not found.ended:
            return False
        await release_hold(store, job.plan.source, job.id)
        return True


def _job_scope(store: TenantStore, job: Job, deadline: Deadline) -> Scope:
    """Where the job's model calls stand: they are audited as the request's that asked for it."""
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
    )
    return scope.for_agent(job.agent, job.plan.source)


async def _add_cost(store: TenantStore, job: Job, cost: Cost) -> None:
    """What a try cost that comes again stands in the job too; where that cannot be written, in the account alone."""
    if cost.sub_calls:
        with suppress(StorageUnavailable, ConditionFailed):
            await store.table.write(job_update(store, job, replace(job, cost=job.cost + cost)))


async def _read_draft(store: TenantStore, job: Job) -> Summary | None:
    """The summary that was made for the job."""
    item = await store.table.get(keys.job_draft(store.tenant, job.id))
    return Summary(str(item["text"]), str(item["model"])) if item is not None else None
