"""Start the runs that requests ask for: a streamed message runs in the function of its request, and ``POST …/run`` queues a run.
``managed_worker.py`` executes queued and scheduled runs.

A run that has begun is executed as a turn of the agent's session, in a stream that has the run's id. The turn's commit also ends
the run. A run that fails is ended before the last event of its stream. Two processes never execute one run: its stream has a
lease.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from spass.agents.render.managed_frames import ManagedFormat
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.cost import CostTally
from spass.core.errors import (
    GATEWAY_STOPPED,
    IdempotencyInProgress,
    InternalError,
    NothingToRun,
    RateLimited,
    SessionBusy,
    SpassError,
    StorageUnavailable,
    internal_error,
)
from spass.core.ids import ManagedAgentId, RunId
from spass.core.messages import Json
from spass.core.run_result import RunResult
from spass.core.time import Clock, epoch_s
from spass.journal.follower import FollowedStream
from spass.journal.head import read_head, stream_digest
from spass.managed import mailbox
from spass.managed.following import follow_run
from spass.managed.records import MAX_ATTEMPTS, MailboxMessage, ManagedAgent, Run, RunTrigger, check_not_paused, read_agent
from spass.managed.run_start import new_run, nothing_to_run, start
from spass.managed.runs import RunSuccess, begin, fail, read_run, settle_lost
from spass.managed.sending import send_lost, send_run, take_back
from spass.runs.log import ReportError
from spass.runs.run import RunRequest, StreamIdentity
from spass.runs.service import Runs, Started
from spass.store import idempotency
from spass.store.idempotency import Claim, IdempotentRequest, StoredResponse
from spass.store.jobs import MAX_DELAY_SECONDS
from spass.store.tenant_store import TenantStore

CheckAgent: TypeAlias = Callable[[Scope, ManagedAgent], AgentSpec]
"""Return the agent that runs for a managed agent now. Raise what refuses it: an unknown name, a right, a missing backend."""

_ACQUIRE_DELAYS: Final = (0.2, 0.4, 0.8)
_PASSING: Final = (StorageUnavailable, SessionBusy)
"""Errors after which a queued run is executed again: they say nothing about the run."""
_DELAYS: Final = (0.1, 0.4, 1.0)  # seconds before each retry
_PATIENCE_SECONDS: Final = 24 * 3600
"""Age in seconds of a run that is not put back any more because of a rate limit."""
_DEFAULT_DELAY: Final = 60.0
_MAX_DOUBLINGS: Final = 10
"""Doublings of the delay of a run that has paid for an embedding; ``MAX_DELAY_SECONDS`` bounds it before that."""
_JITTER_SECONDS: Final = 5
"""Runs that wait for the same minute must not all come back at that moment."""


@dataclass(slots=True)
class Execution:
    """One execution of ``run``. A failure ends the run, unless the queue delivers it again (``may_retry``) and that may help.

    The model reads the messages ``delivered``, and ``tally`` counts its calls. ``is_over``: a failure has ended the run.
    ``put_back_for``: the run is queued once more, and must be delivered after so many seconds.
    """

    store: TenantStore
    run: Run
    clock: Clock
    may_retry: bool
    delivered: Sequence[MailboxMessage] = ()
    tally: CostTally | None = None
    is_over: bool = False
    put_back_for: int | None = None

    def success(self, text: str) -> RunSuccess:
        """Return the end of a run that has answered ``text``, for the transaction that records its turn."""
        return RunSuccess(self.store, self.run, self.delivered, text, self.clock)

    async def fail(self, error: SpassError, rendered: Mapping[str, Json]) -> bool:
        """End the run as failed. If the table does not answer, the next request, tick or sweep that reads the run ends it. Return
        True if the run was put back instead, as if it had not begun."""
        if self._may_wait(error) and await self._put_back(error):
            return True
        is_passing = isinstance(error, _PASSING) or error is GATEWAY_STOPPED
        if is_passing and self.may_retry and self.run.attempts < MAX_ATTEMPTS:
            return False
        for delay in (*_DELAYS, None):
            try:
                ended = await fail(self.store, self.run, rendered, self.clock())
            except StorageUnavailable:
                if delay is not None:
                    await asyncio.sleep(delay)
            else:
                self.is_over = ended is None or ended.status.is_final
                return False
        return False

    def _may_wait(self, error: SpassError) -> bool:
        """Return whether the run met a rate limit before it has acted, so that nothing is lost or repeated if it waits."""
        if not (self.may_retry and isinstance(error, RateLimited)) or self.tally is None or self.tally.has_acted:
            return False
        return self.clock() < epoch_s(self.run.created_at) + _PATIENCE_SECONDS

    async def _put_back(self, error: SpassError) -> bool:
        wait = _DEFAULT_DELAY if error.retry_after is None else error.retry_after
        if self.tally is not None and self.tally.total.sub_calls:  # its embedding is paid again each time, so that is less often
            wait = max(wait, 1.0) * 2 ** min(self.run.put_backs, _MAX_DOUBLINGS)
        seconds = min(MAX_DELAY_SECONDS, math.ceil(wait + random.uniform(0, _JITTER_SECONDS)))  # noqa: S311 (jitter)
        try:
            if not await take_back(self.store, self.run, self.clock() + seconds):
                return False
        except StorageUnavailable:
            return False
        self.put_back_for = seconds
        return True


class ManagedRuns:
    """The runs of managed agents. A process has one object of this class. ``clock`` returns seconds since the epoch."""

    def __init__(self, check: CheckAgent, runs: Runs, clock: Clock = time.time) -> None:
        self.check = check
        self.clock = clock
        self._runs = runs

    async def stream(
        self, scope: Scope, agent_id: ManagedAgentId, content: str, report: ReportError, request: IdempotentRequest | None = None
    ) -> Started | FollowedStream:
        """Put ``content`` into the agent's mailbox and run the agent, or follow the run of an earlier ``request`` with this key.
        The message is stored, and the turn has begun.

        Raises:
            AgentNotFound, AgentPaused, SessionBusy: the agent cannot run now; nothing is stored.
            NoBackendAvailable, ModelNotFound, ToolNotFound: the agent cannot be run any more; nothing is stored.
            IdempotencyKeyReused: the key was used with another body; nothing is stored.
            SpassError: the turn was refused. The run has failed, and the message is pending.
        """
        scope = _without_admin(scope).as_owner
        agent = await read_agent(scope.store, scope.caller.owner, agent_id)
        if request is None:
            return await self._start(scope, agent, content, report, None)
        claim = await _acquire(scope.store, request)
        if isinstance(claim, StoredResponse):
            run = await read_run(scope.store, agent_id, RunId(str(claim.body["id"])))
            return await self._repeat(scope, agent, run, report)
        try:
            return await self._start(scope, agent, content, report, claim)
        except SpassError:
            with suppress(SpassError):
                await claim.release()  # has no effect if the run has started
            raise

    async def queue(self, scope: Scope, agent_id: ManagedAgentId, own_input: str | None, claim: Claim | None = None) -> Run:
        """Queue a run of the agent with its pending messages and ``own_input``. With a ``claim``, the same transaction stores the
        answer.

        Raises:
            NothingToRun: there is neither an input nor a pending message.
            AgentNotFound, AgentPaused, SessionBusy: the agent cannot run now.
            NoBackendAvailable, ModelNotFound, ToolNotFound: the agent cannot be run any more.
            LeaseLost: another attempt has the claim.
            StorageUnavailable: the table does not answer; whether the run is queued is unknown.
        """
        scope = _without_admin(scope).as_owner
        store = scope.store
        agent = await read_agent(store, scope.caller.owner, agent_id)
        check_not_paused(agent)
        self.check(scope, agent)
        if own_input is None and not agent.pending and await settle_lost(store, agent, self.clock()):
            raise nothing_to_run()
        token = scope.caller.identity.token_id
        run = new_run(agent, RunTrigger.RUN, token, self.clock(), depth=scope.depth, own_input=own_input)
        try:
            run = await start(store, agent, run, None, self.clock(), claim)
        except SessionBusy as busy:
            await self.send_lost(scope, agent_id, RunId(str(busy.details["run_id"])))
            raise
        await send_run(store, run)
        return run

    async def send_lost(self, scope: Scope, agent_id: ManagedAgentId, run_id: RunId) -> None:
        """Send a run again that an earlier request may have started without sending it."""
        await send_lost(scope.store, agent_id, run_id, self.clock())

    async def open(
        self, scope: Scope, agent: ManagedAgent, spec: AgentSpec, execution: Execution, report: ReportError
    ) -> Started | FollowedStream:
        """Begin the turn of a run, or follow the stream if another process has begun it. ``agent`` is as it was read right
        before the run started, or later.

        Raises:
            SpassError: the turn was refused. The run has failed, unless it is executed again.
        """
        run = execution.run
        try:
            execution.delivered = await mailbox.pending(scope.store, agent)
            texts = [*(message.content for message in execution.delivered), *([run.input] if run.input is not None else [])]
            if not texts:
                raise NothingToRun("The run had no input, and the mailbox no pending message.")
            request = RunRequest(
                "\n\n".join(texts),
                agent.operator,
                stream=StreamIdentity(run.id, stream_namespace=agent.stream_agent),
                form=ManagedFormat(run.id, epoch_s(run.created_at)),
                execution=execution,
            )
            stream = await self._runs.stream(scope, spec, request, report)
        except Exception as failure:
            error = failure if isinstance(failure, SpassError) else internal_error(failure)
            await execution.fail(error, report(error))
            raise error from failure
        if isinstance(stream, RunResult):
            raise InternalError("A run without an Idempotency-Key was recorded before.")
        return stream

    async def is_live(self, store: TenantStore, agent: ManagedAgent, run: Run) -> bool:
        """Return whether a process executes ``run`` now, as far as the lease of its stream tells."""
        head = await read_head(store, stream_digest(agent.owner, agent.stream_agent, run.id))
        return head is not None and head.is_live(self.clock())

    async def _start(
        self, scope: Scope, agent: ManagedAgent, content: str, report: ReportError, claim: Claim | None
    ) -> Started | FollowedStream:
        spec = self.check(scope, agent)
        run = new_run(agent, RunTrigger.MESSAGE, scope.caller.identity.token_id, self.clock(), depth=scope.depth)
        await start(scope.store, agent, run, content, self.clock(), claim)
        agent = replace(agent, pending=agent.pending + 1)
        return await self._open(scope, agent, spec, run, report)

    async def _repeat(self, scope: Scope, agent: ManagedAgent, run: Run, report: ReportError) -> Started | FollowedStream:
        """Follow ``run``, or execute it if its process died before the turn was recorded."""
        if run.status.is_final or await self.is_live(scope.store, agent, run):
            stream = await follow_run(scope, agent.id, run.id, None)
            if stream is None:
                raise InternalError("A stream from its start has no last event.")
            return stream
        spec = self.check(scope, agent)
        run = await begin(scope.store, run, self.clock()) or run
        return await self._open(scope, agent, spec, run, report)

    async def _open(
        self, scope: Scope, agent: ManagedAgent, spec: AgentSpec, run: Run, report: ReportError
    ) -> Started | FollowedStream:
        execution = Execution(scope.store, run, self.clock, may_retry=False)
        return await self.open(scope.streaming, agent, spec, execution, report)


async def _acquire(store: TenantStore, request: IdempotentRequest) -> Claim | StoredResponse:
    """Return the right to start the run of ``request``, or the answer with the run that an earlier request has started.

    Raises:
        IdempotencyInProgress: an earlier request has not started its run yet.
        IdempotencyKeyReused: the key was used with another body, with or without a stream.
    """
    for delay in _ACQUIRE_DELAYS:
        with suppress(IdempotencyInProgress):
            return await idempotency.acquire(store, request)
        await asyncio.sleep(delay)
    return await idempotency.acquire(store, request)


def _without_admin(scope: Scope) -> Scope:
    caller = replace(scope.caller, identity=replace(scope.caller.identity, admin=False))
    return replace(scope, caller=caller)
