"""Execute the runs that come over the queue: those of ``POST …/run``, and those of ticks.

A message of ``POST …/run`` names a queued run, which the worker begins. A tick starts its run and begins it in one transaction.
A message that is delivered again finds the run begun: it is over, or another worker executes it, or that worker died.

A run has a place among the tenant's runs from its sending to its end, wherever a worker dies in between. A run without a place,
as one that was put back, takes one when its message is delivered, or waits in the tenant's line. The worker that has done its
message gives the place back, and so sends the tenant's next run.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from spass.calls.scope import CUT_SECONDS, JOB_MAX_WAIT, STREAM_SECONDS, Scope
from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.errors import InvalidToken, RunNotFound, SpassError
from spass.core.ids import ManagedAgentId, RequestId, RunId, new_id
from spass.core.jobs import Delivery, RunAgent, Tick, WorkKind
from spass.core.time import Deadline, epoch_s
from spass.managed.records import MAX_ATTEMPTS, ManagedAgent, Run, find_agent
from spass.managed.runs import begin, load_run, settle_lost
from spass.managed.sending import send_later, take_place, work_name
from spass.managed.ticks import Ticks
from spass.runs.log import ReportError
from spass.runs.managed_runs import Execution, ManagedRuns
from spass.runs.service import Started
from spass.store.tenant_store import TenantStore
from spass.tenancy.identity import Caller, Tokens

JOB_ROUTE: Final = "managed_run"
"""The name of queued and scheduled runs in the audit."""

_EARLY_SECONDS: Final = 10
"""Difference that the clocks of workers and of the queue may have."""


class _End(Enum):
    """The end of an execution. ``OVER``: the run needs no place any more. ``AGAIN``: the queue must deliver the message again.
    ``WAITING``: another message was or will be sent for the run."""

    OVER = 1
    AGAIN = 2
    WAITING = 3


@dataclass(frozen=True, slots=True)
class _Work:
    """A message of a tenant, which must be done until the deadline."""

    store: TenantStore
    delivery: Delivery
    deadline: Deadline
    report: ReportError

    async def give_back(self, agent: ManagedAgentId, run: RunId) -> None:
        """Give the place of a run back."""
        await self.store.line.give_back(WorkKind.RUNS, work_name(agent, run), is_repeated=self.delivery.receives > 1)


class RunWorker:
    """The worker of the queue of runs. Its methods return True if the message is done, or False if the queue must deliver it
    again."""

    def __init__(self, runs: ManagedRuns, ticks: Ticks, tokens: Tokens, bus: EventBus = EMPTY_BUS) -> None:
        self._runs = runs
        self._ticks = ticks
        self._tokens = tokens
        self._bus = bus

    async def run(self, store: TenantStore, task: RunAgent, delivery: Delivery, deadline: Deadline, report: ReportError) -> bool:
        """Execute a queued run.

        Raises:
            StorageUnavailable: the table or the queue does not answer; deliver the message again.
        """
        work = _Work(store, delivery, deadline, report)
        end = await self._run(work, task)
        if end is _End.OVER:
            await work.give_back(task.agent, task.run)
        return end is not _End.AGAIN

    async def tick(self, store: TenantStore, task: Tick, delivery: Delivery, deadline: Deadline, report: ReportError) -> bool:
        """Execute the run of a tick, or put it into the line if the tenant has no place.

        Raises:
            StorageUnavailable: the table, the queue or the scheduler does not answer; deliver the tick again.
        """
        work = _Work(store, delivery, deadline, report)
        claimed = await self._ticks.claim(store, task, delivery.sent)
        if claimed is None:
            if delivery.receives > 1:  # an earlier attempt may have died with its place
                await work.give_back(task.agent, self._ticks.run_of(task, delivery.sent))
            return True
        execute = self._execute if claimed.is_begun else self._begin
        end = await execute(work, claimed.agent, claimed.run)
        if end is _End.OVER:
            await work.give_back(claimed.agent.id, claimed.run.id)
        return end is not _End.AGAIN

    async def _run(self, work: _Work, task: RunAgent) -> _End:
        store, agent = work.store, await find_agent(work.store, task.agent)
        if agent is None or agent.active_run != task.run:
            return _End.OVER
        try:
            run = await load_run(store, task.agent, task.run)
        except RunNotFound:
            return _End.OVER
        if run.status.is_final:
            return _End.OVER
        if work.delivery.receives == 1 and self._is_early(run):
            return _End.WAITING
        return await self._begin(work, agent, run) if await take_place(store, run) else _End.WAITING

    def _is_early(self, run: Run) -> bool:
        """Return whether ``run`` was put back and its message comes later: what was delivered now is a repetition."""
        if run.begun_at is not None or run.due_at is None:
            return False
        return self._runs.clock() < epoch_s(run.due_at) - _EARLY_SECONDS

    async def _begin(self, work: _Work, agent: ManagedAgent, run: Run) -> _End:
        """Begin ``run``, or begin it again if its worker died, and execute it."""
        if run.status.is_final:
            return _End.OVER
        store, now = work.store, self._runs.clock()
        if run.attempts >= MAX_ATTEMPTS:
            return _End.OVER if await settle_lost(store, agent, now) else _End.AGAIN
        if run.attempts and await self._runs.is_live(store, agent, run):
            return _End.AGAIN
        begun = await begin(store, run, now)
        return await self._execute(work, agent, begun) if begun is not None else _End.AGAIN

    async def _execute(self, work: _Work, agent: ManagedAgent, run: Run) -> _End:
        store, report = work.store, work.report
        execution = Execution(store, run, self._runs.clock, may_retry=True)
        try:
            scope = self._scope(store, agent, run, work.deadline)
            spec = self._runs.check(scope, agent)
        except SpassError as error:
            await execution.fail(error, report(error))
            return _End.OVER if execution.is_over else _End.AGAIN
        execution.tally = scope.tally
        is_over = False
        with suppress(SpassError):  # the refused run has failed, or waits
            stream = await self._runs.open(scope, agent, spec, execution, report)
            if not isinstance(stream, Started):  # another worker executes the run
                stream.cancel()
                return _End.AGAIN
            await stream.wait()
            is_over = stream.error is None
        if execution.put_back_for is not None:
            await work.give_back(agent.id, run.id)
            await send_later(store, run, execution.put_back_for)
            return _End.WAITING
        return _End.OVER if is_over or execution.is_over else _End.AGAIN

    def _scope(self, store: TenantStore, agent: ManagedAgent, run: Run, deadline: Deadline) -> Scope:
        """Return the scope of a run: that of its token as it is now, without admin rights.

        Raises:
            InvalidToken: the token is gone.
        """
        identity = self._tokens.by_id(store.tenant, run.token_id)
        if identity is None:
            raise InvalidToken(
                f"The token '{run.token_id}', as which this agent runs, is gone. PATCH the agent with a token that exists."
            )
        caller = Caller(replace(identity, admin=False), agent.owner, RequestId(new_id("req")), None, run.depth, JOB_ROUTE)
        scope = Scope.for_request(caller, store, seconds=STREAM_SECONDS, bus=self._bus)
        end = Deadline(min(scope.deadline.at, deadline.at - CUT_SECONDS))
        return replace(scope, deadline=end, max_wait=JOB_MAX_WAIT, can_be_put_back=True)
