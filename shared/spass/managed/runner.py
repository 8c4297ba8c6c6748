"""Execute the runs of managed agents: a streamed message in the function of its request, other runs in a worker.

A run is a turn of the agent's session, whose stream has the run's id. The turn's commit also ends the run. A run that fails is
ended before the last event of its stream. Two workers never execute one run: its stream has a lease.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from spass.agents.following import FollowedStream
from spass.agents.live_stream import LiveStream, ReportError
from spass.agents.render.chunks import AnswerHead
from spass.agents.render.events import StreamName
from spass.agents.render.managed_frames import ManagedFrames
from spass.agents.spec import AgentSpec
from spass.agents.streams import StreamedMessage, Streams
from spass.aws import idempotency
from spass.aws.clients import TenantStore
from spass.aws.idempotency import Claim, IdempotentRequest, StoredAnswer
from spass.aws.log import failure_line, write_line
from spass.calls.scope import CUT_SECONDS, JOB_MAX_WAIT, STREAM_SECONDS, Scope
from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.errors import (
    IdempotencyInProgress,
    InternalError,
    InvalidToken,
    NothingToRun,
    RunNotFound,
    SpassError,
    StorageUnavailable,
    internal_error,
)
from spass.core.ids import ManagedAgentId, RequestId, RunId, SessionId, new_id
from spass.core.jobs import RunAgent
from spass.core.outcome import AgentRun, TurnOutcome
from spass.core.time import Clock, Deadline, epoch_s
from spass.journal.head import read_head, stream_digest
from spass.managed import mailbox
from spass.managed.execution import Execution
from spass.managed.following import follow_run
from spass.managed.lookup import check_not_paused, find_agent, read_agent
from spass.managed.records import MAX_ATTEMPTS, MailboxMessage, ManagedAgent, Run, RunTrigger
from spass.managed.run_end import finish_writes
from spass.managed.run_start import new_run, start
from spass.managed.runs import begin, load_run, read_run, settle_lost
from spass.sessions.turn_request import CommitWith
from spass.tenancy.identity import Caller, Tokens

JOB_ROUTE: Final = "managed_run"
"""The name of queued and scheduled runs in the audit."""
_SEND_DELAYS: Final = (0.1, 0.4)  # seconds before each retry
_ACQUIRE_DELAYS: Final = (0.2, 0.4, 0.8)


CheckAgent: TypeAlias = Callable[[Scope, ManagedAgent], AgentSpec]
"""Return the agent that runs for a managed agent now. Raise what refuses it: an unknown name, a right, a missing backend."""


class ManagedRuns:
    """The runs of all managed agents. A process has one object of this class. ``clock`` returns seconds since the epoch."""

    def __init__(
        self, check: CheckAgent, streams: Streams, tokens: Tokens, bus: EventBus = EMPTY_BUS, clock: Clock = time.time
    ) -> None:
        self._check = check
        self._streams = streams
        self._tokens = tokens
        self._bus = bus
        self._clock = clock

    async def stream(
        self, scope: Scope, agent_id: ManagedAgentId, content: str, report: ReportError, request: IdempotentRequest | None = None
    ) -> LiveStream | FollowedStream:
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
        if isinstance(claim, StoredAnswer):
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
        self._check(scope, agent)
        if own_input is None and not agent.pending and await settle_lost(store, agent, self._clock()):
            raise NothingToRun("There is nothing to run: the mailbox has no pending message. Send a message, or an input.")
        token = scope.caller.identity.token_id
        run = new_run(agent, RunTrigger.RUN, token, self._clock(), depth=scope.depth, own_input=own_input)
        run = await start(store, agent, run, None, self._clock(), claim)
        await send_run(store, run)
        return run

    async def execute(
        self, store: TenantStore, agent_id: ManagedAgentId, run_id: RunId, deadline: Deadline, report: ReportError
    ) -> bool:
        """Execute a queued run. Return True if it is over, or False if the queue must deliver its message again.

        Raises:
            StorageUnavailable: the table does not answer; deliver the message again.
        """
        agent = await find_agent(store, agent_id)
        if agent is None or agent.active_run != run_id:
            return True
        try:
            run = await load_run(store, agent_id, run_id)
        except RunNotFound:
            return True
        if run.status.is_final:
            return True
        if run.attempts >= MAX_ATTEMPTS:
            return await settle_lost(store, agent, self._clock())
        if run.attempts and await self._is_live(store, agent, run):
            return False
        begun = await begin(store, run, self._clock())
        if begun is None:
            return False
        return await self._execute(store, agent, Execution(store, begun, self._clock, may_retry=True), deadline, report)

    async def _execute(
        self, store: TenantStore, agent: ManagedAgent, execution: Execution, deadline: Deadline, report: ReportError
    ) -> bool:
        try:
            scope = self._scope(store, agent, execution.run, deadline)
            spec = self._check(scope, agent)
        except SpassError as error:
            await execution.fail(error, report(error))
            return execution.is_over
        with suppress(SpassError):  # the refused run has failed
            stream = await self._open(scope, agent, spec, execution, report)
            if not isinstance(stream, LiveStream):  # another worker executes the run
                stream.cancel()
                return False
            await stream.wait()
            return stream.error is None or execution.is_over
        return execution.is_over

    async def _open(
        self, scope: Scope, agent: ManagedAgent, spec: AgentSpec, execution: Execution, report: ReportError
    ) -> LiveStream | FollowedStream:
        """Begin the turn of a run, or follow the stream if another process has begun it.

        Raises:
            SpassError: the turn was refused. The run has failed, unless it is executed again.
        """
        store, run = scope.store, execution.run
        try:
            messages = await mailbox.pending(store, agent)
            texts = [*(message.content for message in messages), *([run.input] if run.input is not None else [])]
            if not texts:
                raise NothingToRun("The run had no input, and the mailbox no pending message.")
            message = StreamedMessage(
                message_id=run.id,
                body_hash="",
                content="\n\n".join(texts),
                session=None,
                operator=agent.operator,
                filed_under=agent.stream_agent,
                participant=partial(self._finish, store, run, messages),
                on_failure=execution.fail,
                render=partial(_render, run),
            )
            stream = await self._streams.open(scope, spec, message, report)
        except Exception as failure:
            error = failure if isinstance(failure, SpassError) else internal_error(failure)
            await execution.fail(error, report(error))
            raise error from failure
        if isinstance(stream, TurnOutcome):
            raise InternalError("A run without an Idempotency-Key was recorded before.")
        return stream

    async def _finish(
        self, store: TenantStore, run: Run, delivered: Sequence[MailboxMessage], outcome: TurnOutcome
    ) -> CommitWith:
        return await finish_writes(store, run, outcome, delivered, self._clock())

    async def _start(
        self, scope: Scope, agent: ManagedAgent, content: str, report: ReportError, claim: Claim | None
    ) -> LiveStream | FollowedStream:
        spec = self._check(scope, agent)
        run = new_run(agent, RunTrigger.MESSAGE, scope.caller.identity.token_id, self._clock(), depth=scope.depth)
        await start(scope.store, agent, run, content, self._clock(), claim)
        agent = replace(agent, pending=agent.pending + 1)
        return await self._open(scope.streaming, agent, spec, Execution(scope.store, run, self._clock, may_retry=False), report)

    async def _repeat(self, scope: Scope, agent: ManagedAgent, run: Run, report: ReportError) -> LiveStream | FollowedStream:
        """Follow ``run``, or execute it if its process died before the turn was recorded."""
        if run.status.is_final or await self._is_live(scope.store, agent, run):
            stream = await follow_run(scope, agent.id, run.id, None)
            if stream is None:
                raise InternalError("A stream from its start has no last event.")
            return stream
        spec = self._check(scope, agent)
        run = await begin(scope.store, run, self._clock()) or run
        return await self._open(scope.streaming, agent, spec, Execution(scope.store, run, self._clock, may_retry=False), report)

    async def _is_live(self, store: TenantStore, agent: ManagedAgent, run: Run) -> bool:
        head = await read_head(store, stream_digest(agent.owner, agent.stream_agent, run.id))
        return head is not None and head.is_live(self._clock())

    def _scope(self, store: TenantStore, agent: ManagedAgent, run: Run, deadline: Deadline) -> Scope:
        """Return the scope of a queued run: that of its token as it is now, without admin rights.

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


async def _acquire(store: TenantStore, request: IdempotentRequest) -> Claim | StoredAnswer:
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


async def send_run(store: TenantStore, run: Run) -> None:
    """Send a queued run to its queue. If that fails, the hourly sweep sends it."""
    for delay in (*_SEND_DELAYS, None):
        try:
            await store.jobs.send(RunAgent(store.tenant, run.agent_id, run.id))
        except StorageUnavailable as error:
            if delay is None:
                write_line({**failure_line(error, ""), "event": "run_not_sent", "run_id": run.id})
            else:
                await asyncio.sleep(delay)
        else:
            return


def _without_admin(scope: Scope) -> Scope:
    caller = replace(scope.caller, identity=replace(scope.caller.identity, admin=False))
    return replace(scope, caller=caller)


def _render(run: Run, request_id: RequestId, _session: SessionId | None, _name: StreamName, agent_run: AgentRun) -> ManagedFrames:
    return ManagedFrames(AnswerHead(run.id, epoch_s(run.created_at), agent_run.model), request_id)
