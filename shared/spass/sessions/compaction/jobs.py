"""Start compaction jobs, read them, and wait for them.

One transaction takes the session's hold for the job and creates the job's record; then a message goes to the queue. A process
that dies between the two leaves a hold that expires and a job that never starts.
"""

import asyncio
import time
from contextlib import suppress
from typing import Annotated, Final, Literal

from pydantic import Field

from spass.calls.scope import Scope
from spass.core.errors import CompactionDisabled, JobNotFound, SessionBusy, StorageUnavailable
from spass.core.ids import AgentName, JobId, SessionId, new_id
from spass.core.time import Clock, timestamp
from spass.sessions.compaction.job import (
    JOB_SECONDS,
    RETRIES_EXHAUSTED,
    TIMED_OUT,
    Job,
    JobStatus,
    Requester,
    fail_job,
    give_back_place,
    read_job,
    send_job,
)
from spass.sessions.compaction.plan import plan_compaction, read_summary
from spass.sessions.hold import hold_error, new_hold, not_held_by_others, release_hold
from spass.sessions.record import load_turns
from spass.sessions.session import HoldKind, Session, decode_owned_session, read_session
from spass.store import keys
from spass.store.bucket import ObjectMissing
from spass.store.codec import encode
from spass.store.idempotency import IdempotentRequest
from spass.store.restored import check_restored
from spass.store.table import TransactionFailed
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Absent, Equals, Put, Update
from spass.tenancy.response_model import Count, DateTime, JobIdText, ResponseModel, SessionIdText, SummaryIdText


class Compaction(ResponseModel):
    """A compaction that took place."""

    job_id: JobIdText
    source_session_id: SessionIdText
    successor_session_id: SessionIdText
    summary_id: SummaryIdText
    summary_text: Annotated[str | None, Field(description="Null when the successor has been deleted since.")]
    summary_model: str
    compacted_message_count: Count
    kept_message_count: Count


class JobTicket(ResponseModel):
    """A job that continues. `Location` is its address."""

    job_id: JobIdText
    status: JobStatus


class JobError(ResponseModel):
    """The reason why a job failed."""

    code: str
    message: str


class JobView(ResponseModel):
    """A job. `result` is there when it has succeeded, `error` when it has failed."""

    id: JobIdText
    kind: Literal["compaction"] = "compaction"
    status: JobStatus
    created_at: DateTime
    finished_at: DateTime | None
    result: Compaction | None
    error: JobError | None

    @classmethod
    def of(cls, job: Job, result: Compaction | None) -> "JobView":
        return cls(
            id=job.id,
            status=job.status,
            created_at=job.created_at,
            finished_at=job.finished_at,
            result=result,
            error=JobError(code=job.failure.code, message=job.failure.message) if job.failure else None,
        )


_FIRST_DELAY: Final = 0.1  # seconds between two reads of a job; grows by half each time
_MAX_DELAY: Final = 1.0


class CompactionJobs:
    """The compaction jobs of all tenants. ``clock`` returns seconds since the epoch."""

    def __init__(self, clock: Clock = time.time) -> None:
        self._clock = clock

    async def start(
        self,
        scope: Scope,
        agent: AgentName,
        session: SessionId,
        *,
        fallback_model: str,
        idempotency: IdempotentRequest | None = None,
    ) -> Job:
        """Start a job that compacts the session, and return it. A repeated request returns the job that it started.

        ``fallback_model`` writes the summary if the tenant has set no model for summaries and the caller's token allows it.

        Raises:
            SessionNotFound, SessionAgentMismatch: the user has no such session with the agent.
            SessionArchived: it was compacted earlier.
            CompactionDisabled: its strategy is ``off``.
            SessionBusy, CompactionInProgress: a turn or another job holds it.
            NothingToCompact: it keeps all of its messages.
            IdempotencyKeyReused: the key was used with another body.
            StorageUnavailable: the outcome is unknown; the session's hold expires soon.
        """
        store, user, now = scope.store, scope.caller.require_user(), self._clock()
        source = await read_session(store, session, agent, user)
        earlier = await self._find_existing_job(store, source, idempotency, now)
        if earlier is not None and earlier.failure is None:
            return earlier
        if earlier is not None:  # the process that ended it died before it released the session
            await release_hold(store, session, earlier.id)
            source = await read_session(store, session, agent, user)
        _check_compactable(source, now)
        job = await self._new_job(scope, source, fallback_model, idempotency, now)
        await self._hold(store, source, job, now)
        await self._send_message(store, job)
        return job

    async def get(self, scope: Scope, job_id: JobId) -> Job:
        """Return the job. End a job that has exceeded its time as failed.

        Raises:
            JobNotFound: there is no such job, or it belongs to another user.
        """
        job = await read_job(scope.store, job_id)
        if job is None or job.user != scope.caller.require_user():
            raise JobNotFound("You have no such job.")
        now = self._clock()
        return await fail_job(scope.store, job, TIMED_OUT, now) if not job.is_finished and now >= job.ends_at else job

    async def wait(self, scope: Scope, job: Job, seconds: float) -> Job:
        """Return the job when it has ended, or as it was last read within ``seconds``. Failed reads are ignored. Errors are those
        of ``get``."""
        loop = asyncio.get_running_loop()
        until, delay, latest = loop.time() + seconds, _FIRST_DELAY, job
        while not latest.is_finished and (rest := until - loop.time()) > 0:
            await asyncio.sleep(min(delay, rest))
            delay = min(_MAX_DELAY, delay * 1.5)
            with suppress(StorageUnavailable):
                latest = await self.get(scope, job.id)
        return latest

    async def result(self, scope: Scope, job: Job) -> Compaction | None:
        """Return the compaction; None if the job has not succeeded."""
        if job.result is None:
            return None
        summary = await read_summary(scope.store, job.plan.successor, job.plan.summary)
        return Compaction(
            job_id=job.id,
            source_session_id=job.plan.source,
            successor_session_id=job.plan.successor,
            summary_id=job.plan.summary,
            summary_text=summary.text if summary is not None else None,
            summary_model=job.result.model,
            compacted_message_count=job.result.compacted,
            kept_message_count=job.result.kept,
        )

    async def _find_existing_job(
        self, store: TenantStore, source: Session, request: IdempotentRequest | None, now: float
    ) -> Job | None:
        """Return the job that an earlier attempt of this request started, or None. A failed job counts while it holds the
        session."""
        hold = source.hold
        if request is None:
            return None
        if source.archived_at is not None:
            owner = source.archived_by
        else:
            owner = hold.owner if hold is not None and hold.kind is HoldKind.JOB and hold.live(now) else None
        job = await read_job(store, JobId(owner)) if owner is not None else None
        if job is None or not job.is_requested_by(request.hashes):
            return None
        if job.status is JobStatus.QUEUED:  # the process that created it may have died before it sent the message
            await self._send_message(store, job)
        return job

    async def _new_job(
        self, scope: Scope, source: Session, fallback_model: str, request: IdempotentRequest | None, now: float
    ) -> Job:
        try:
            turns = await load_turns(scope.store, source.id, source.compacted_before)
        except ObjectMissing:  # another request is deleting the session, which is not held yet
            await check_restored(scope.store, keys.session_head(scope.store.tenant, source.id), "this session")
            turns = []
        live = [stored for turn in turns for stored in turn.messages]
        if len(live) != source.live_message_count:
            raise SessionBusy("Another request has just changed this session; try again.", retry_after=1)
        plan = plan_compaction(source, live)
        caller = scope.caller
        requester = Requester(
            caller.request_id,
            caller.identity.token_id,
            caller.parent_request_id,
            scope.depth,
            caller.route,
            request.hashes if request else None,
        )
        return Job(
            JobId(new_id("job")),
            JobStatus.QUEUED,
            source.user,
            source.agent,
            plan,
            fallback_model if caller.identity.allows(fallback_model) else None,
            requester,
            timestamp(now),
            int(now) + JOB_SECONDS,
        )

    async def _hold(self, store: TenantStore, source: Session, job: Job, now: float) -> None:
        """Hold the session, unchanged since it was read, and create the job's record, in one transaction."""
        hold = new_hold(job.id, HoldKind.JOB, job.requester.idempotency, now)
        unchanged = Equals("next_seq", source.next_seq) & Absent("deleted_at") & Absent("archived_at")
        take = Update(
            keys.session_head(store.tenant, source.id),
            set={"hold": encode(hold)},
            when=unchanged & not_held_by_others(now, job.id),
        )
        record = Put(keys.job(store.tenant, job.id), job.attributes(), ITEM_ABSENT)
        try:
            await store.table.transact([take, record], token=job.id)
        except TransactionFailed as failure:
            if 1 not in failure.failures:  # otherwise the record exists: our own first attempt succeeded
                raise hold_error(decode_owned_session(failure.failures[0], source.agent, source.user), now) from None
        except StorageUnavailable:
            with suppress(StorageUnavailable):
                await release_hold(store, source.id, job.id)
            raise

    async def _send_message(self, store: TenantStore, job: Job) -> None:
        """Send the job to the queue, or let it wait. If that fails, end the job and raise StorageUnavailable."""
        try:
            await send_job(store, job.id, job.created_at)
        except StorageUnavailable:
            with suppress(StorageUnavailable):
                await fail_job(store, job, RETRIES_EXHAUSTED, self._clock())
                await give_back_place(store, job.id)
            raise


def _check_compactable(source: Session, now: float) -> None:
    """Raise an error unless the session may be compacted now."""
    if source.archived_at is not None:
        raise hold_error(source, now)
    if source.compact_strategy == "off":
        raise CompactionDisabled("This session was created with compact_strategy off.")
    if source.hold is not None and source.hold.live(now):
        raise hold_error(source, now)
