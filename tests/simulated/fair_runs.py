"""Runs of several tenants that share one queue and its workers, over a table in memory and a loop with virtual time."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from spass.agents.spec import AgentSpec
from spass.agents.streams import Streams
from spass.aws import keys
from spass.aws.attributes import Item
from spass.aws.clients import TenantStore
from spass.aws.job_targets import JobTargets
from spass.calls.scope import Scope
from spass.core.errors import RateLimited, SpassError
from spass.core.events import Event, InferenceFinished, InferenceStarted, Token, TurnFinished, TurnStarted
from spass.core.ids import ManagedAgentId, RequestId, TenantId, UserId, new_id
from spass.core.jobs import Delivery, RunAgent, Tick, WorkKind, body_of, job_of
from spass.core.messages import FinishReason, Message, Role
from spass.core.time import Deadline, timestamp
from spass.jobs.runs import runs_handler
from spass.managed.records import ManagedAgent, Run, Schedule, decode_run
from spass.managed.run_turns import RunTurns
from spass.managed.runner import ManagedRuns
from spass.managed.schedules import ScheduleWriter, schedule_hash
from spass.managed.sweep import ManagedSweep
from spass.managed.ticks import Ticks
from spass.managed.worker import RunWorker
from spass.sessions.service import Sessions
from spass.tenancy.config import GatewayConfig
from spass.tenancy.identity import Caller, Identity, Tokens
from spass.tenancy.settings import Cascade
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, FaultPlan, inject
from tests.simulated.managed_world import (
    MAX_RECEIVES,
    OWNER,
    RUNS_QUEUE,
    VISIBILITY_SECONDS,
    WORKER_SECONDS,
    QueuedMessage,
    keys_put,
    render_error,
)
from tests.simulated.racing_chats import ScriptedEngine
from tests.simulated.schedule import NO_FAULTS
from tests.simulated.schedule import Schedule as Simulation

HEAVY: Final = TenantId("heavy")
LIGHT: Final = TenantId("light")
TENANTS: Final = (HEAVY, LIGHT)
LONGEST_RUN: Final = 3.0
LIMITED_ODDS: Final = 0.5
_IDLE_SECONDS: Final = 100.0
_SPEC: Final = AgentSpec(name="orchestrator", model="talker")


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that has begun to work, ``at`` this second."""

    tenant: TenantId
    at: float


@dataclass
class FairRuns:
    """The gateway, whose tenants may have ``workers`` workers while they are alone.

    ``begun`` are the runs whose agents have begun to work, ``most`` is how many of a tenant worked at a time. ``trespasses`` are
    writes that must not happen. ``limited`` are the tenants at their rate limit, which refuses half of their runs at first, and
    ``put_backs`` counts these refusals.
    """

    schedule: Simulation
    workers: int
    queue: list[QueuedMessage] = field(default_factory=list)
    begun: list[Begun] = field(default_factory=list)
    working: Counter[TenantId] = field(default_factory=Counter)
    most: Counter[TenantId] = field(default_factory=Counter)
    trespasses: list[str] = field(default_factory=list)
    limited: set[TenantId] = field(default_factory=set)
    put_backs: int = 0
    is_over: bool = False
    _arrival: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        clock, config = self.schedule.now, _config()
        self.schedule.fault_rates = NO_FAULTS
        self.aws = MemoryAws(JobTargets(queue="jobs", runs_queue=RUNS_QUEUE, run_workers=self.workers), clock)
        self.aws.queues.on_message = self._receive
        self.aws.table.watch = self._watch
        sessions = Sessions(Cascade(config), lambda: (_ for _ in ()).throw(AssertionError), clock=clock)
        turns = RunTurns(lambda _scope, _agent: _SPEC, Streams(ScriptedEngine(self._respond), sessions, config, clock), clock)
        ticks = Ticks(lambda: ScheduleWriter(lambda: self.aws.schedules, clock), clock)
        self.runs = ManagedRuns(turns)
        self.handler = runs_handler(RunWorker(turns, ticks, Tokens(config)), render_error)

    def store(self, tenant: TenantId) -> TenantStore:
        return self.aws.for_tenant(tenant)

    async def create(self, tenant: TenantId, schedule: Schedule | None = None) -> ManagedAgent:
        at = timestamp(self.schedule.now())
        agent = ManagedAgent(
            id=ManagedAgentId(new_id("agt")),
            name="helper",
            agent="orchestrator",
            owner=OWNER,
            token_id=tenant,
            schedule=schedule,
            created_at=at,
            updated_at=at,
        )
        await self.store(tenant).table.write(keys_put(self.store(tenant), agent))
        return agent

    async def ask(self, tenant: TenantId, plan: FaultPlan) -> ManagedAgent:
        """Create an agent and ask for a run of it."""
        agent = await self.create(tenant)
        caller = Caller(Identity(tenant, tenant, False, ("*",)), UserId(OWNER), RequestId(new_id("req")), None, 0, "")
        with inject(plan), suppress(SpassError, Crash):
            await self.runs.queue(Scope.for_request(caller, self.store(tenant)), agent.id, tenant)
        return agent

    async def tick(self, tenant: TenantId) -> None:
        """Create an agent whose schedule sends a tick, past every bound at sending."""
        schedule = Schedule("rate(1 minute)", input=tenant)
        agent = await self.create(tenant, schedule)
        self._enqueue(body_of(Tick(tenant, agent.id, schedule_hash(schedule), timestamp(self.schedule.now()))), 0)

    async def work(self, process: Callable[[TenantId], FaultPlan]) -> None:
        """Be one worker until all is over."""
        while not self.is_over:
            message = next((message for message in self.queue if message.visible_at <= self.schedule.now()), None)
            if message is None:
                await self._wait_for_message()
                continue
            message.receives += 1
            if message.receives > MAX_RECEIVES:
                self.queue.remove(message)
                continue
            message.visible_at = self.schedule.now() + VISIBILITY_SECONDS
            await self._deliver(message, process)

    async def _wait_for_message(self) -> None:
        """Wait until a message is sent, or until a hidden one may be visible."""
        visible = min((message.visible_at for message in self.queue), default=self.schedule.now() + _IDLE_SECONDS)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrival.wait(), max(0.01, visible - self.schedule.now()))

    async def _deliver(self, message: QueuedMessage, process: Callable[[TenantId], FaultPlan]) -> None:
        job = job_of(json.loads(message.body))
        assert isinstance(job, RunAgent | Tick)
        plan, delivery = process(job.tenant), Delivery("message", message.receives)
        with inject(plan):
            try:
                is_done = await self.handler(self.store(job.tenant), job, delivery, Deadline.after(WORKER_SECONDS))
            except (SpassError, Crash):
                return
        if is_done and not plan.crashed:
            self.queue.remove(message)

    async def sweep(self) -> None:
        for tenant in TENANTS:
            await ManagedSweep(self.store(tenant), None, Deadline.after(60), self.schedule.now).run()

    def stored_runs(self, tenant: TenantId) -> list[Run]:
        prefix = f"{keys.tenant_prefix(tenant)}MAGENT#"
        return [
            decode_run(item)
            for item in self.aws.table.items()
            if str(item["pk"]).startswith(prefix) and str(item["sk"]).startswith(keys.RUN_PREFIX)
        ]

    def open_runs(self) -> list[Run]:
        return [run for tenant in TENANTS for run in self.stored_runs(tenant) if not run.status.is_final]

    def left(self) -> list[Item]:
        """Return what still has a place or waits."""
        partition = keys.work_partition(WorkKind.RUNS)
        lines = [keys.waiting_partition(tenant, WorkKind.RUNS) for tenant in TENANTS]
        items = self.aws.table.items()
        return [item for item in items if (item["pk"] == partition and item.get("count")) or item["pk"] in lines]

    def begun_at(self, tenant: TenantId) -> float | None:
        """Return when the first run of a tenant began."""
        return next((run.at for run in self.begun if run.tenant == tenant), None)

    def _receive(self, queue: str, body: str) -> None:
        if queue == RUNS_QUEUE:
            self._enqueue(body, self.aws.queues.last_delay)

    def _enqueue(self, body: str, delay: float) -> None:
        self.queue.append(QueuedMessage(body, self.schedule.now() + delay))
        arrival, self._arrival = self._arrival, asyncio.Event()
        arrival.set()

    def _watch(self, _: Item | None, after: Item | None) -> None:
        if after is None or after["pk"] != keys.work_partition(WorkKind.RUNS):
            return
        out: Any = after.get("out", frozenset())
        if after.get("count", 0) != len(out) or len(out) > self.workers:
            self.trespasses.append(f"places: {after!r}")

    async def _respond(
        self, question: str, load: Callable[[], Awaitable[Sequence[Message]]], _: object
    ) -> AsyncGenerator[Event, None]:
        """Act as the agent. The question is the tenant."""
        tenant = TenantId(question)
        yield TurnStarted()
        await load()
        if tenant in self.limited and self.schedule.rng.random() < LIMITED_ODDS:
            self.put_backs += 1
            raise RateLimited("The tenant's limit is reached.", retry_after=20)
        self.begun.append(Begun(tenant, self.schedule.now()))
        self.working[tenant] += 1
        self.most[tenant] = max(self.most[tenant], self.working[tenant])
        try:
            yield InferenceStarted(1)
            await asyncio.sleep(LONGEST_RUN * (0.5 + 0.5 * self.schedule.rng.random()))
            yield Token("Done.", 1)
            yield InferenceFinished(Message(Role.ASSISTANT, "Done."), FinishReason.STOP)
            yield TurnFinished(FinishReason.STOP)
        finally:
            self.working[tenant] -= 1


def _config() -> GatewayConfig:
    tenants = [{"id": tenant, "tokens": [{"id": tenant, "sha256": f"{n}" * 64}]} for n, tenant in enumerate(TENANTS)]
    return GatewayConfig.model_validate({"tenants": tenants, "models": [{"name": "talker", "context_window": 8000}]})
