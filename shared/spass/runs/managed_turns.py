"""Execute a run that has begun: as a turn of the agent's session, in a stream that has the run's id.

The turn's commit also ends the run. A run that fails is ended before the last event of its stream. Two processes never execute
one run: its stream has a lease.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from spass.agents.render.managed_frames import ManagedFormat
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.errors import InternalError, NothingToRun, SpassError, internal_error
from spass.core.run_result import RunResult
from spass.core.time import Clock, epoch_s
from spass.journal.follower import FollowedStream
from spass.journal.head import read_head, stream_digest
from spass.managed import mailbox
from spass.managed.execution import Execution
from spass.managed.records import ManagedAgent, Run
from spass.runs.log import ReportError
from spass.runs.request import ManagedRun, RunRequest, StreamIdentity
from spass.runs.service import Started
from spass.runs.turns import Turns
from spass.store.tenant_store import TenantStore

CheckAgent: TypeAlias = Callable[[Scope, ManagedAgent], AgentSpec]
"""Return the agent that runs for a managed agent now. Raise what refuses it: an unknown name, a right, a missing backend."""


@dataclass(frozen=True, slots=True)
class RunTurns:
    """The turns of all runs. A process has one object of this class. ``clock`` returns seconds since the epoch."""

    check: CheckAgent
    turns: Turns
    clock: Clock = time.time

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
            messages = await mailbox.pending(scope.store, agent)
            texts = [*(message.content for message in messages), *([run.input] if run.input is not None else [])]
            if not texts:
                raise NothingToRun("The run had no input, and the mailbox no pending message.")
            request = RunRequest(
                "\n\n".join(texts),
                agent.operator,
                stream=StreamIdentity(run.id, stream_namespace=agent.stream_agent),
                form=ManagedFormat(run.id, epoch_s(run.created_at)),
                managed=ManagedRun(execution, messages),
            )
            stream = await self.turns.stream(scope, spec, request, report)
        except Exception as failure:
            error = failure if isinstance(failure, SpassError) else internal_error(failure)
            await execution.fail(error, report(error))
            raise error from failure
        if isinstance(stream, RunResult):
            raise InternalError("A run without an Idempotency-Key was recorded before.")
        return stream

    async def is_live(self, store: TenantStore, agent: ManagedAgent, run: Run) -> bool:
        """Return whether a process executes ``run`` now, as far as the lease of its stream tells.

        Raises:
            StorageUnavailable: the table does not answer.
        """
        head = await read_head(store, stream_digest(agent.owner, agent.stream_agent, run.id))
        return head is not None and head.is_live(self.clock())
