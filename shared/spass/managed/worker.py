"""Execute the runs that come over the queue: those of ``POST …/run``, and those of ticks.

A message of ``POST …/run`` names a queued run, which the worker begins. A tick starts its run and begins it in one transaction.
A message that is delivered again finds the run begun: it is over, or another worker executes it, or that worker died.

A run has a place among the tenant's runs from its sending to its end, wherever a worker dies in between. The worker that has done
its message gives the place back, and so sends the tenant's next run.
"""

from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Final

from spass.agents.live_stream import LiveStream, ReportError
from spass.aws.clients import TenantStore
from spass.calls.scope import CUT_SECONDS, JOB_MAX_WAIT, STREAM_SECONDS, Scope
from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.errors import InvalidToken, RunNotFound, SpassError
from spass.core.ids import ManagedAgentId, RequestId, RunId, new_id
from spass.core.jobs import Delivery, RunAgent, Tick, WorkKind
from spass.core.time import Deadline
from spass.managed.execution import Execution
from spass.managed.lookup import find_agent
from spass.managed.records import MAX_ATTEMPTS, ManagedAgent, Run
from spass.managed.run_turns import RunTurns
from spass.managed.runs import begin, load_run, settle_lost
from spass.managed.sending import send_later, work_name
from spass.managed.ticks import Ticks
from spass.tenancy.identity import Caller, Tokens

JOB_ROUTE: Final = "managed_run"
"""The name of queued and scheduled runs in the audit."""


class _End(Enum):
    """The end of an execution. ``AGAIN``: the queue must deliver the message again. ``PUT_BACK``: the run is queued once more and
    has its place; another message was sent for it."""

    OVER = 1
    AGAIN = 2
    PUT_BACK = 3


class RunWorker:
    """The worker of the queue of runs. Its methods return True if the message is done, or False if the queue must deliver it
    again."""

    def __init__(self, turns: RunTurns, ticks: Ticks, tokens: Tokens, bus: EventBus = EMPTY_BUS) -> None:
        self._turns = turns
        self._ticks = ticks
        self._tokens = tokens
        self._bus = bus

    async def run(self, store: TenantStore, task: RunAgent, delivery: Delivery, deadline: Deadline, report: ReportError) -> bool:
        """Execute a queued run.

        Raises:
            StorageUnavailable: the table or the queue does not answer; deliver the message again.
        """
        end = await self._run(store, task, deadline, report)
        if end is _End.OVER:
            await _give_back(store, task.agent, task.run, delivery)
        return end is not _End.AGAIN

    async def tick(self, store: TenantStore, task: Tick, delivery: Delivery, deadline: Deadline, report: ReportError) -> bool:
        """Execute the run of a tick, or put it into the line if the tenant has no place.

        Raises:
            StorageUnavailable: the table, the queue or the scheduler does not answer; deliver the tick again.
        """
        claimed, end = await self._ticks.claim(store, task, delivery.sent), _End.OVER
        if claimed is None:
            if delivery.receives > 1:  # an earlier attempt may have died with its place
                await _give_back(store, task.agent, self._ticks.run_of(task, delivery.sent), delivery)
            return True
        if claimed.is_begun:
            end = await self._execute(store, claimed.agent, claimed.run, deadline, report)
        else:
            end = await self._begin(store, claimed.agent, claimed.run, deadline, report)
        if end is _End.OVER:
            await _give_back(store, claimed.agent.id, claimed.run.id, delivery)
        return end is not _End.AGAIN

    async def _run(self, store: TenantStore, task: RunAgent, deadline: Deadline, report: ReportError) -> _End:
        agent = await find_agent(store, task.agent)
        if agent is None or agent.active_run != task.run:
            return _End.OVER
        try:
            run = await load_run(store, task.agent, task.run)
        except RunNotFound:
            return _End.OVER
        return await self._begin(store, agent, run, deadline, report)

    async def _begin(self, store: TenantStore, agent: ManagedAgent, run: Run, deadline: Deadline, report: ReportError) -> _End:
        """Begin ``run``, or begin it again if its worker died, and execute it."""
        if run.status.is_final:
            return _End.OVER
        now = self._turns.clock()
        if run.attempts >= MAX_ATTEMPTS:
            return _End.OVER if await settle_lost(store, agent, now) else _End.AGAIN
        if run.attempts and await self._turns.is_live(store, agent, run):
            return _End.AGAIN
        begun = await begin(store, run, now)
        return await self._execute(store, agent, begun, deadline, report) if begun is not None else _End.AGAIN

    async def _execute(self, store: TenantStore, agent: ManagedAgent, run: Run, deadline: Deadline, report: ReportError) -> _End:
        execution = Execution(store, run, self._turns.clock, may_retry=True)
        try:
            scope = self._scope(store, agent, run, deadline)
            spec = self._turns.check(scope, agent)
        except SpassError as error:
            await execution.fail(error, report(error))
            return _End.OVER if execution.is_over else _End.AGAIN
        execution.tally = scope.tally
        is_over = False
        with suppress(SpassError):  # the refused run has failed, or waits
            stream = await self._turns.open(scope, agent, spec, execution, report)
            if not isinstance(stream, LiveStream):  # another worker executes the run
                stream.cancel()
                return _End.AGAIN
            await stream.wait()
            is_over = stream.error is None
        if execution.put_back_for is not None:
            await send_later(store, run, execution.put_back_for)
            return _End.PUT_BACK
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


async def _give_back(store: TenantStore, agent: ManagedAgentId, run: RunId, delivery: Delivery) -> None:
    await store.line.give_back(WorkKind.RUNS, work_name(agent, run), is_repeated=delivery.receives > 1)
