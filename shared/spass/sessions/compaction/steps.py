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
from spass.sessions.compaction.commit import commit
from spass.sessions.compaction.ending import BUSY, GIVEN_UP, LATE, fail
from spass.sessions.compaction.job import Failure, Job, JobStatus, changed, read_job
from spass.sessions.compaction.model import Compacted, Summary
from spass.sessions.compaction.stored import kept_text
from spass.sessions.held import Clock
from spass.sessions.hold import job_hold, release, renew, take
from spass.sessions.record import load_turns
from spass.sessions.session import Session, session_of

if TYPE_CHECKING:
    from spass.sessions.compaction.summary import Summarizer

_AGAIN: Final = (StorageUnavailable, InternalError, SessionBusy)
"""What another try may change, or somebody has to look at."""


@dataclass(frozen=True, slots=True)
class _Taken:
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
        taken = await self._take(store, job_id)
        if taken is None or taken.job.status is JobStatus.RUNNING:
            return
        write = changed(store, taken.job, replace(taken.job, status=JobStatus.RUNNING))
        try:
            await store.table.write(write)
        except ConditionFailed:
            await self._let_go_if_ended(store, taken.job)

    async def summarise(self, store: TenantStore, job_id: JobId, deadline: Deadline) -> None:
        """There is a summary, or the job has failed."""
        taken = await self._take(store, job_id)
        if taken is None or await _draft(store, taken.job) is not None:
            return
        job = taken.job
        scope = _scope(store, job, deadline)
        try:
            async with renewing(lambda: renew(store, job.plan.source, job.id, self._clock())):
                summary = await self._summary(scope, taken)
            await self._keep(store, job, summary, scope.tally.total)
        except _AGAIN:
            await _paid(store, job, scope.tally.total)
            raise
        except SpassError as error:
            await fail(store, job, Failure.of(error), self._clock(), cost=scope.tally.total)

    async def commit(self, store: TenantStore, job_id: JobId) -> None:
        """The session goes on as its successor, or the job has failed."""
        taken = await self._take(store, job_id)
        if taken is None:
            return
        job, session = taken.job, taken.session
        summary = await _draft(store, job)
        if summary is None:
            if await self._let_go_if_ended(store, job):
                return
            raise InternalError("A compaction came to its commit without a summary.")
        live = await load_turns(store, session.id, session.compacted_before)

        def ended(made: Compacted) -> list[Write]:
            after = replace(
                job,
                status=JobStatus.SUCCEEDED,
                finished_at=made.summary.created_at,
                compacted=job.plan.kept_from - session.compacted_before,
                kept=made.first.next_seq - made.first.first_seq - 1,
            )
            return [changed(store, job, after), Delete(keys.job_draft(store.tenant, job.id))]

        try:
            await commit(store, session, live, job.plan, summary, owner=job.id, at=self._clock(), with_effect=ended)
        except (SessionArchived, SessionNotFound) as error:
            await fail(store, job, Failure.of(error), self._clock())
        except SessionBusy:
            if not await self._let_go_if_ended(store, job):
                raise

    async def fail(self, store: TenantStore, job_id: JobId) -> None:
        """The job has ended and holds nothing; as failed, unless it ended before."""
        job = await read_job(store, job_id)
        if job is not None and not job.ended:
            await fail(store, job, await self._why_given_up(store, job), self._clock())
        elif job is not None:
            await release(store, job.plan.source, job.id)

    async def _why_given_up(self, store: TenantStore, job: Job) -> Failure:
        head = await store.table.get(keys.session_head(store.tenant, job.plan.source))
        hold = session_of(head).hold if head is not None else None
        return BUSY if hold is not None and hold.owner != job.id and hold.live(self._clock()) else GIVEN_UP

    async def _take(self, store: TenantStore, job_id: JobId) -> _Taken | None:
        """The job with its session; None when there is nothing left to do for it."""
        job = await read_job(store, job_id)
        if job is None:
            return None
        if job.ended:  # and perhaps the try that ended it could not let go
            await release(store, job.plan.source, job.id)
            return None
        now = self._clock()
        if now >= job.ends_at:
            await fail(store, job, LATE, now)
            return None
        hold = job_hold(job.id, job.asker.key_hash, job.asker.body_hash, now)
        try:
            return _Taken(job, await take(store, job.plan.source, job.agent, job.user, hold, now))
        except (SessionArchived, SessionNotFound) as error:
            await fail(store, job, Failure.of(error), now)
            return None

    async def _summary(self, scope: Scope, taken: _Taken) -> Summary:
        job, session = taken.job, taken.session
        turns = await load_turns(scope.store, session.id, session.compacted_before)
        summary = await self._summarizer.summarise_session(scope, session, turns, job.plan, otherwise=job.otherwise)
        return replace(summary, text=kept_text(summary.text))

    async def _keep(self, store: TenantStore, job: Job, summary: Summary, cost: Cost) -> None:
        """The draft of what is committed in the next step."""
        writes: list[Write] = [
            Put(keys.job_draft(store.tenant, job.id), {"text": summary.text, "model": summary.model, TTL: job.ends_at}),
            changed(store, job, replace(job, model=summary.model, cost=job.cost + cost)),
        ]
        token = random_suffix()
        try:
            await store.table.transact(writes, token=token)
        except TransactionFailed:
            await self._let_go_if_ended(store, job)

    async def _let_go_if_ended(self, store: TenantStore, job: Job) -> bool:
        """Whether the job was ended while a step worked on it: then the step may have taken the session again after that."""
        found = await read_job(store, job.id)
        if found is not None and not found.ended:
            return False
        await release(store, job.plan.source, job.id)
        return True


def _scope(store: TenantStore, job: Job, deadline: Deadline) -> Scope:
    """Where the job's model calls stand: they are audited as the request's that asked for it."""
    asker = job.asker
    scope = Scope.of_job(
        store,
        deadline,
        route=asker.route,
        user=job.user,
        request_id=asker.request_id,
        token_id=asker.token_id,
        origin=asker.origin,
        depth=asker.depth,
        fresh=True,
    )
    return scope.within(job.agent, job.plan.source)


async def _paid(store: TenantStore, job: Job, cost: Cost) -> None:
    """What a try cost that comes again stands in the job too; where that cannot be written, in the account alone."""
    if cost.sub_calls:
        with suppress(StorageUnavailable, ConditionFailed):
            await store.table.write(changed(store, job, replace(job, cost=job.cost + cost)))


async def _draft(store: TenantStore, job: Job) -> Summary | None:
    """The summary that was made for the job."""
    item = await store.table.get(keys.job_draft(store.tenant, job.id))
    return Summary(str(item["text"]), str(item["model"])) if item is not None else None
