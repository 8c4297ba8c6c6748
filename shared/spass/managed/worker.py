"""Execute the runs that come over the queue: those of ``POST …/run``, and those of ticks.

A message of ``POST …/run`` names a queued run, which the worker begins. A tick starts its run and begins it in one transaction.
A message that is delivered again finds the run begun: it is over, or another worker executes it, or that worker died.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Final

from spass.agents.live_stream import LiveStream, ReportError
from spass.aws.clients import TenantStore
from spass.calls.scope import CUT_SECONDS, JOB_MAX_WAIT, STREAM_SECONDS, Scope
from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.errors import InvalidToken, RunNotFound, SpassError
from spass.core.ids import RequestId, new_id
from spass.core.jobs import RunAgent, Tick
from spass.core.time import Deadline
from spass.managed.execution import Execution
from spass.managed.lookup import find_agent
from spass.managed.records import MAX_ATTEMPTS, ManagedAgent, Run
from spass.managed.run_turns import RunTurns
from spass.managed.runs import begin, load_run, settle_lost
from spass.managed.ticks import Ticks
from spass.tenancy.identity import Caller, Tokens

JOB_ROUTE: Final = "managed_run"
"""The name of queued and scheduled runs in the audit."""


class RunWorker:
    """The worker of the queue of runs. Its methods return True if the message is done, or False if the queue must deliver it
    again."""

    def __init__(self, turns: RunTurns, ticks: Ticks, tokens: Tokens, bus: EventBus = EMPTY_BUS) -> None:
        self._turns = turns
        self._ticks = ticks
        self._tokens = tokens
        self._bus = bus

    async def run(self, store: TenantStore, task: RunAgent, deadline: Deadline, report: ReportError) -> bool:
        """Execute a queued run.

        Raises:
            StorageUnavailable: the table does not answer; deliver the message again.
        """
        agent = await find_agent(store, task.agent)
        if agent is None or agent.active_run != task.run:
            return True
        try:
            run = await load_run(store, task.agent, task.run)
        except RunNotFound:
            return True
        return await self._begin(store, agent, run, deadline, report)

    async def tick(self, store: TenantStore, task: Tick, sent: float, deadline: Deadline, report: ReportError) -> bool:
        """Execute the run of a tick, which was ``sent`` at this time, in seconds since the epoch.

        Raises:
            StorageUnavailable: the table or the scheduler does not answer; deliver the tick again.
        """
        claimed = await self._ticks.claim(store, task, sent)
        if claimed is None:
            return True
        if not claimed.is_begun:
            return await self._begin(store, claimed.agent, claimed.run, deadline, report)
        return await self._execute(store, claimed.agent, claimed.run, deadline, report)

    async def _begin(self, store: TenantStore, agent: ManagedAgent, run: Run, deadline: Deadline, report: ReportError) -> bool:
        """Begin ``run``, or begin it again if its worker died, and execute it."""
        if run.status.is_final:
            return True
        now = self._turns.clock()
        if run.attempts >= MAX_ATTEMPTS:
            return await settle_lost(store, agent, now)
        if run.attempts and await self._turns.is_live(store, agent, run):
            return False
        begun = await begin(store, run, now)
        return begun is not None and await self._execute(store, agent, begun, deadline, report)

    async def _execute(self, store: TenantStore, agent: ManagedAgent, run: Run, deadline: Deadline, report: ReportError) -> bool:
        execution = Execution(store, run, self._turns.clock, may_retry=True)
        try:
            scope = self._scope(store, agent, run, deadline)
            spec = self._turns.check(scope, agent)
        except SpassError as error:
            await execution.fail(error, report(error))
            return execution.is_over
        with suppress(SpassError):  # the refused run has failed
            stream = await self._turns.open(scope, agent, spec, execution, report)
            if not isinstance(stream, LiveStream):  # another worker executes the run
                stream.cancel()
                return False
            await stream.wait()
            return stream.error is None or execution.is_over
        return execution.is_over

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
        return replace(scope, deadline=Deadline(min(scope.deadline.at, deadline.at - CUT_SECONDS)), max_wait=JOB_MAX_WAIT)
