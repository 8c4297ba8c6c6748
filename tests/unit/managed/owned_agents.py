"""Managed agents of several owners over stores in memory, behind the services of a gateway with scripted models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from spass.calls.scope import Scope
from spass.core.errors import InvalidRequest, SpassError, StorageUnavailable
from spass.core.ids import ManagedAgentId, TenantId
from spass.managed.agents import ManagedAgents
from spass.managed.body import CreateManagedAgent, PatchManagedAgent
from spass.managed.records import ManagedAgent, Schedule, find_agent
from spass.managed.responses import ManagedAgentView
from spass.managed.schedules import ScheduleWriter
from spass.store.tenant_store import TenantStore
from spass.testing.aws import MemoryAws
from spass.testing.gateway import ScriptedServices
from spass.testing.model import ScriptedModel
from spass.web.services import Settings
from tests.unit.scopes import scope_of

CONFIG = """
llm:
  backends: [{name: scripted, provider: ollama, supported_models: [small, dear]}]
models:
  - {name: orphan, context_window: 8000}
  - {name: small, context_window: 8000}
  - {name: dear, context_window: 8000}
  - {name: mini-embed, kind: embedding, dimensions: 8, context_window: 256}
defaults: {embedding_model: mini-embed}
tenants: [{id: demo}, {id: demo-2}]
"""
PLAIN = "name: plain\nmodel: small\nsystem_prompt: Answer.\n"


@dataclass
class RecordedSchedules(ScheduleWriter):
    """A scheduler that remembers what it was told to do. ``entries`` has what the table said at the last call."""

    entries: dict[ManagedAgentId, Schedule] = field(default_factory=dict)
    fails: bool = False
    error: SpassError = field(default_factory=lambda: StorageUnavailable("The scheduler does not answer."))

    def check(self, schedule: Schedule) -> None:
        if not schedule.expression.startswith("rate("):
            raise InvalidRequest("The expression is wrong.", param="schedule.expression")

    async def apply(self, store: TenantStore, agent_id: ManagedAgentId) -> None:
        if self.fails:
            raise self.error
        found = await find_agent(store, agent_id)
        self.entries.pop(agent_id, None)
        if found is not None and found.schedule is not None:
            self.entries[agent_id] = found.schedule

    async def remove(self, store: TenantStore, agent_id: ManagedAgentId) -> None:
        if self.fails:
            raise self.error
        self.entries.pop(agent_id, None)


@dataclass
class OwnedAgents:
    """The service, with a clock that advances by a second for each request."""

    folder: Path
    now: float = 1_800_000_000.0
    schedules: RecordedSchedules = field(default_factory=RecordedSchedules)

    @cached_property
    def aws(self) -> MemoryAws:
        return MemoryAws(clock=lambda: self.now)

    @cached_property
    def services(self) -> ScriptedServices:
        config, agents = self.folder / "gateway.yaml", self.folder / "agents"
        agents.mkdir()
        config.write_text(CONFIG)
        (agents / "plain.yaml").write_text(PLAIN)
        return ScriptedServices(Settings(config, agents, "spass", "spass"), ScriptedModel(), self.aws)

    @cached_property
    def agents(self) -> ManagedAgents:
        services = self.services
        return ManagedAgents(
            services.config, lambda: services.asker, lambda: services.engine, lambda: self.schedules, lambda: self.now
        )

    def scope(
        self, user: str | None = "ana", *, tenant: str = "demo", token: str = "token-1", models: tuple[str, ...] = ("*",)
    ) -> Scope:
        self.now += 1
        store = self.aws.for_tenant(TenantId(tenant))
        return scope_of(store, user, token=token, models=models, route="/v1/managed-agents")

    async def create(self, scope: Scope | None = None, **values: Any) -> ManagedAgent:
        body = CreateManagedAgent.model_validate({"name": "helper", "agent": "simple", **values})
        return await self.agents.create(scope or self.scope(), body)

    async def patch(self, agent: ManagedAgent, scope: Scope | None = None, **values: Any) -> ManagedAgent:
        return await self.agents.patch(scope or self.scope(), agent.id, PatchManagedAgent.model_validate(values))

    async def listed(self, scope: Scope, limit: int = 100) -> list[ManagedAgentView]:
        """Return all agents of an owner, page by page."""
        found, cursor = list[ManagedAgentView](), None
        while True:
            page = await self.agents.page(scope, cursor, limit)
            found += page.agents
            cursor = page.next_cursor
            if cursor is None:
                return found

    def stored(self) -> list[Mapping[str, Any]]:
        return [*self.aws.table.items()]
