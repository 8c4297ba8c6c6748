"""Count the usage of agents whose code runs in this process: in its memory, or in the table of a deployment."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from spass.calls.recorder import Recorder
from spass.calls.scope import Scope
from spass.core.cost import Cost
from spass.core.ids import AgentName
from spass.core.messages import FinishReason, TokenUsage
from spass.core.time import Deadline
from spass.metering import audit
from spass.metering import usage as metering
from spass.metering.audit import CallKind
from spass.metering.usage import UsageQuery, UsageTotal
from spass.models.attempt import RoutingRecord
from spass.models.types import CallContext
from spass.store.tenant_store import TenantStore

T = TypeVar("T")

ROUTE = "in-process"
"""The ``route`` of these calls in the audit."""

_NO_TOKENS = TokenUsage()


@dataclass(frozen=True, slots=True)
class AgentUsage:
    """The calls of one agent that were answered or may be billed, and their tokens."""

    request_count: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class ProcessUsageLog:
    """Count in the memory of this process. Calls without an agent are not counted."""

    def __init__(self) -> None:
        self._usage: dict[str, AgentUsage] = {}
        self._lock = threading.Lock()

    def begin(self, kind: CallKind, model: str, agent: AgentName | None, deadline: Deadline) -> "_ProcessCall":
        del kind, model
        return _ProcessCall(self, agent, CallContext(deadline))

    def add(self, agent: AgentName, tokens: TokenUsage) -> None:
        """Count one request of ``agent``."""
        with self._lock:
            used = self._usage.get(agent, AgentUsage())
            self._usage[agent] = AgentUsage(
                used.request_count + 1,
                used.prompt_tokens + tokens.prompt_tokens,
                used.completion_tokens + tokens.completion_tokens,
            )

    def get_agent_usage(self, agent_id: str) -> AgentUsage:
        return self._usage.get(agent_id, AgentUsage())

    def get_all_usage(self) -> dict[str, AgentUsage]:
        with self._lock:
            return dict(self._usage)

    def reset_agent_usage(self, agent_id: str | None = None) -> None:
        with self._lock:
            if agent_id is None:
                self._usage.clear()
            else:
                self._usage.pop(agent_id, None)

    async def aclose(self) -> None:
        """Do nothing: memory has no connections."""


@dataclass(frozen=True, slots=True)
class _ProcessCall:
    log: ProcessUsageLog
    agent: AgentName | None
    context: CallContext

    async def finish(self, status: str, *, routing: RoutingRecord, cost: Cost, finish_reason: FinishReason | None = None) -> None:
        del cost, finish_reason
        if self.agent is not None and (status == audit.OK or routing.usage != _NO_TOKENS):
            self.log.add(self.agent, routing.usage)


class TableUsageLog:
    """Record each call in the audit and the usage of a tenant, as the gateway does.

    The reports block the calling thread while they read the table. ``close`` closes the table's connections of an event loop.
    """

    def __init__(self, store: TenantStore, close: Callable[[], None]) -> None:
        self._store = store
        self._close = close

    def begin(self, kind: CallKind, model: str, agent: AgentName | None, deadline: Deadline) -> Recorder:
        scope = Scope.for_job(self._store, deadline, route=ROUTE)
        return Recorder(scope.for_agent(agent) if agent is not None else scope, kind, model=model)

    def get_agent_usage(self, agent_id: str) -> AgentUsage:
        report = self._run(metering.usage(self._store, UsageQuery(agent=AgentName(agent_id))))
        return _agent_usage(report.total)

    def get_all_usage(self) -> dict[str, AgentUsage]:
        report = self._run(metering.usage(self._store, UsageQuery()))
        return {group.key: _agent_usage(group) for group in report.usage if group.key is not None}

    def reset_agent_usage(self, agent_id: str | None = None) -> None:
        self._run(metering.reset(self._store, None if agent_id is None else AgentName(agent_id)))

    async def aclose(self) -> None:
        self._close()
        await asyncio.sleep(0)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in an event loop of its own thread: the calling thread may already run one."""

        async def run() -> T:
            try:
                return await work
            finally:
                await self.aclose()

        with ThreadPoolExecutor(1, thread_name_prefix="usage") as thread:
            return thread.submit(asyncio.run, run()).result()


UsageLog: TypeAlias = ProcessUsageLog | TableUsageLog
"""Where calls are counted."""


def _agent_usage(total: UsageTotal) -> AgentUsage:
    return AgentUsage(total.requests, total.prompt_tokens, total.completion_tokens)
