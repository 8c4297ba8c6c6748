"""Clients that request compactions, and the simulated state machine that runs them."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spass.core.errors import SessionArchived, SpassError
from spass.core.ids import JobId, SessionId
from spass.core.time import Deadline
from spass.sessions.compaction.job import Job
from spass.sessions.compaction.jobs import CompactionJobs
from spass.sessions.compaction.steps import CompactionSteps
from spass.store.codec import decode
from spass.testing.faults import Crash, inject
from spass.testing.state_machine import StateMachine
from tests.simulated.aws import COMPACTION_MACHINE, JOB_TARGETS
from tests.simulated.gateway import AGENT, TENANT, Gateway
from tests.unit.idempotent_requests import idempotent_request

_MAX_ATTEMPTS: Final = 12
_WAIT_SECONDS: Final = 25.0
_DUPLICATE_ODDS: Final = 0.1
_TIMEOUT_ODDS: Final = 0.03
# The time limit of an invocation.
_STEP_SECONDS: Final = 600.0
_LONGEST_DELAY: Final = 60.0


@dataclass(slots=True)
class CompactionExecutions:
    """Compaction jobs and their executions. ``started``: the jobs with an execution. ``under_way``: the running tasks."""

    gateway: Gateway
    jobs: CompactionJobs = field(init=False)
    steps: CompactionSteps = field(init=False)
    started: set[JobId] = field(default_factory=set)
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        clock = self.gateway.schedule.now
        self.jobs = CompactionJobs(clock)
        self.steps = CompactionSteps(self.gateway.summaries, clock)
        self.gateway.aws.queues.on_message = self._on_message

    async def ask(self, session: SessionId, key: str | None, *, follow: bool) -> str:
        """Request a compaction until it ends, and return its outcome. With ``follow``, continue with the successor if another
        request compacted the session first."""
        schedule, request = self.gateway.schedule, None
        for number in range(_MAX_ATTEMPTS):
            if key is not None:
                request = idempotent_request(f"{session}/compact/{key}", "{}")
            try:
                with inject(schedule.process()):
                    scope = self.gateway.scope()
                    job = await self.jobs.start(scope, AGENT, session, fallback_model="talker", idempotency=request)
                    job = await self.jobs.wait(scope, job, _WAIT_SECONDS)
                    if job.is_finished:
                        return job.failure.code if job.failure else "succeeded"
            except SessionArchived as archived:
                if not follow:
                    return archived.code
                session = SessionId(str(archived.details["successor_session_id"]))
            except SpassError as refused:
                if refused.retry_after is None:
                    return refused.code
                await asyncio.sleep(min(refused.retry_after * 2.0**number, _LONGEST_DELAY) * schedule.rng.random())
            except Crash:
                await asyncio.sleep(schedule.random_delay(_LONGEST_DELAY))
        return "given up"

    async def settle(self) -> None:
        """Wait until all executions have ended."""
        while self.under_way:
            await asyncio.wait(self.under_way)

    def stored(self) -> list[Job]:
        """Return all stored jobs."""
        items = (item for item in self.gateway.aws.table.items() if item["sk"] == "JOB")
        return sorted((decode(Job, item) for item in items), key=lambda job: job.id)

    async def look(self, job: JobId) -> Job:
        """Return the job as its owner sees it."""
        return await self.jobs.get(self.gateway.scope(), job)

    def _on_message(self, queue: str, body: str) -> None:
        """Deliver a message once or twice, after a delay."""
        assert queue == JOB_TARGETS.compaction_queue
        message = json.loads(body)
        assert (message["job"], message["tenant"]) == ("compact", TENANT)
        for _ in range(2 if self.gateway.schedule.rng.random() < _DUPLICATE_ODDS else 1):
            self._start(self._execute(JobId(message["id"])))

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self.under_way.add(task)
        task.add_done_callback(self._on_end)
        return task

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self.under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, Crash | SpassError):
            self.gateway.schedule.errors.append(error)

    async def _execute(self, job: JobId) -> None:
        """Run the state machine for a job. The job names its execution, so a second one does not start."""
        await asyncio.sleep(self.gateway.schedule.random_delay(3.0))
        if job in self.started:
            return
        self.started.add(job)
        rng = self.gateway.schedule.rng
        machine = StateMachine(COMPACTION_MACHINE, self._attempt_step, wait=lambda seconds: asyncio.sleep(seconds * rng.random()))
        await machine.run({"tenant": TENANT, "job": job})

    async def _attempt_step(self, event: Mapping[str, str]) -> object:
        """Attempt a step. If the attempt times out, its invocation continues, concurrently with the next attempt."""
        rng = self.gateway.schedule.rng
        invocation = self._start(self._invoke(event["step"], JobId(event["job"])))
        times_out = rng.random() < _TIMEOUT_ODDS
        await asyncio.wait({invocation}, timeout=rng.random() if times_out else None)
        if not invocation.done() or invocation.cancelled() or invocation.exception() is not None:
            raise TimeoutError
        return invocation.result()

    async def _invoke(self, step: str, job: JobId) -> Mapping[str, int]:
        store, steps = self.gateway.scope().store, self.steps
        wait = 0
        with inject(self.gateway.schedule.process()):
            match step:
                case "plan":
                    await steps.plan(store, job)
                case "summarise":
                    wait = await steps.summarise(store, job, Deadline.after(_STEP_SECONDS))
                case "commit":
                    await steps.commit(store, job)
                case _:
                    await steps.fail(store, job)
        return {"wait": wait}
