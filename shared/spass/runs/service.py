"""Run agents. One call starts any run: with or without a session, as a stream or not.

A request *claims* its run. If it may run, a ``Run`` is started. If another request runs or has run it, its stream is followed. If
only the outcome of an earlier request is left, that is replayed.

The response of the process that runs a turn reads the log of its ``Run``. All others follow the journal, also in this process.
"""

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from spass.agents.engine import Engine
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.run_result import RunResult, decode_run_result
from spass.core.time import Clock
from spass.runs.request import RunRequest
from spass.runs.run import Run, RunAnswer, Work
from spass.store import idempotency
from spass.store.idempotency import StoredAnswer
from spass.tenancy.config import GatewayConfig

if TYPE_CHECKING:  # a question needs neither sessions nor the journal
    from spass.journal.follower import FollowedStream
    from spass.runs.log import ReportError
    from spass.runs.turns import Turns
    from spass.sessions.service import Sessions

Started: TypeAlias = Run
"""A run that this request has started. If it is a turn, its first frame is there."""


class Runs:
    """The runs of all tenants. A process has one object of this class. ``sessions`` is called at the first turn of a session.
    ``clock`` returns seconds since the epoch."""

    def __init__(
        self, engine: Engine, sessions: "Callable[[], Sessions]", config: GatewayConfig, clock: Clock = time.time
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._config = config
        self._clock = clock

    @cached_property
    def turns(self) -> "Turns":
        """The runs in sessions. A function that runs turns loads this while it starts."""
        from spass.runs.turns import Turns

        return Turns(self._engine, self._sessions(), self._config, self._clock)

    async def answer(self, scope: Scope, agent: AgentSpec, request: RunRequest) -> RunAnswer:
        """Run to the end and return the outcome, or that of an earlier attempt of the request. A turn of a session continues if
        this is cancelled.

        Raises:
            IdempotencyInProgress, IdempotencyKeyReused: the same as ``idempotency.acquire``.
            SpassError: the run was refused or failed, and nothing of it is recorded.
        """
        if request.session is not None:
            return await (await self.turns.prepare(scope, agent, request)).start().answer()
        run = await self._ask(scope, agent, request)
        return await run.execute() if isinstance(run, Run) else RunAnswer(run, replayed=True)

    async def stream(
        self, scope: Scope, agent: AgentSpec, request: RunRequest, report: "ReportError"
    ) -> "Started | FollowedStream | RunResult":
        """Start a run with a log. ``report`` renders the error of a run that fails.

        If an earlier request with the same id runs or has run it, return its stream. If that is gone, but the outcome was
        recorded under the request's Idempotency-Key, return the outcome.

        Raises:
            SpassError: the run is refused. It leaves neither a new session nor a stream.
            IdempotencyKeyReused: the id or the key was used with another body.
        """
        if request.session is not None:
            return await self.turns.stream(scope, agent, request, report)
        run = await self._ask(scope, agent, request, report)
        return run.start() if isinstance(run, Run) else run

    async def _ask(
        self, scope: Scope, agent: AgentSpec, request: RunRequest, report: "ReportError | None" = None
    ) -> Run | RunResult:
        """Return a run without a session, or the outcome that an earlier attempt of the request recorded."""
        key, log = request.idempotency, None
        claimed = await idempotency.acquire(scope.store, key) if key is not None else None
        if isinstance(claimed, StoredAnswer):
            return decode_run_result(claimed.body)
        if report is not None:
            from spass.runs.log import RunLog

            log = RunLog(scope, agent.run(scope.caller.request_id), request.form, report, self._clock)
        work = Work(agent=agent, message=request.message, given=request.given)
        return Run(self._engine, scope, work, claim=claimed, log=log)
