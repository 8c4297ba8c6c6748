"""Runs of several tenants that share one queue and its workers. A tenant at its rate limit refuses half of its runs at first."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from spass.aws.job_targets import JobTargets
from spass.core.errors import RateLimited, SpassError
from spass.core.events import Event, InferenceStarted, Token, TurnStarted
from spass.core.ids import ManagedAgentId, TenantId, new_id
from spass.core.jobs import Delivery, RunAgent, Tick, WorkKind, body_of, job_of
from spass.core.messages import Message
from spass.core.time import Deadline, timestamp
from spass.managed.records import ManagedAgent, Run, Schedule
from spass.managed.schedules import schedule_hash
from spass.managed.sweep import ManagedSweep
from spass.store import keys
from spass.store.codec import decode
from spass.tenancy.config import GatewayConfig
from spass.testing.aws import MemoryAws
from spass.testing.faults import Crash, FaultPlan, inject
from tests.simulated.fair_world import TENANTS, FairWorld
from tests.simulated.managed_world import MAX_RECEIVES, OWNER, RUNS_QUEUE, keys_put
from tests.simulated.scripted_turns import answer_with, managed_runs
from tests.unit.scopes import scope_of

LONGEST_RUN: Final = 3.0
LIMITED_ODDS: Final = 0.5


class FairRuns(FairWorld):
    """The gateway and the runs that its workers execute. ``put_backs`` counts the refusals of the rate limit."""

    kind = WorkKind.RUNS
    max_receives = MAX_RECEIVES
    longest = LONGEST_RUN
    put_backs = 0

    def open_aws(self) -> MemoryAws:
        return MemoryAws(JobTargets(queue="jobs", runs_queue=RUNS_QUEUE), self.schedule.now, work_bound=self.work_bound)

    def serve(self) -> None:
        self.runs, self.handler = managed_runs(self._respond, self.aws, _config(), self.schedule.now)

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
        scope = scope_of(self.store(tenant), OWNER, token=tenant, request=new_id("req"))
        with inject(plan), suppress(SpassError, Crash):
            await self.runs.queue(scope, agent.id, tenant)
        return agent

    async def tick(self, tenant: TenantId) -> None:
        """Create an agent whose schedule sends a tick, past every bound at sending."""
        schedule = Schedule("rate(1 minute)", input=tenant)
        agent = await self.create(tenant, schedule)
        self.aws.queues.last_delay = 0
        self.enqueue(body_of(Tick(tenant, agent.id, schedule_hash(schedule), timestamp(self.schedule.now()))))

    def receive(self, queue: str, body: str) -> None:
        if queue == RUNS_QUEUE:
            self.enqueue(body)

    def tenant_of(self, body: str) -> TenantId:
        return _job(body).tenant

    async def handle(self, tenant: TenantId, body: str, delivery: Delivery, deadline: Deadline) -> bool:
        return await self.handler(self.store(tenant), _job(body), delivery, deadline)

    async def sweep(self) -> None:
        for tenant in TENANTS:
            await ManagedSweep(self.store(tenant), None, Deadline.after(60), self.schedule.now).run()

    def stored_runs(self, tenant: TenantId) -> list[Run]:
        prefix = f"{keys.tenant_prefix(tenant)}MAGENT#"
        return [
            decode(Run, item)
            for item in self.aws.table.items()
            if str(item["pk"]).startswith(prefix) and str(item["sk"]).startswith(keys.RUN_PREFIX)
        ]

    def open_runs(self) -> list[Run]:
        return [run for tenant in TENANTS for run in self.stored_runs(tenant) if not run.status.is_final]

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
        yield InferenceStarted(1)
        async with self.working_for(tenant):
            yield Token("Done.", 1)
            for event in answer_with("Done."):
                yield event


def _job(body: str) -> RunAgent | Tick:
    job = job_of(json.loads(body))
    assert isinstance(job, RunAgent | Tick)
    return job


def _config() -> GatewayConfig:
    tenants = [{"id": tenant, "tokens": [{"id": tenant, "sha256": f"{n}" * 64}]} for n, tenant in enumerate(TENANTS)]
    return GatewayConfig.model_validate({"tenants": tenants, "models": [{"name": "talker", "context_window": 8000}]})
