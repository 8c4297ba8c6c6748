"""The composition root: the services of a process, each created on first use.

Each property imports its own packages, so that a cold start loads only the packages that its route uses.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from starlette.requests import Request

from spass.aws.job_targets import NO_JOB_TARGETS, JobTargets
from spass.tenancy.capacity import DEFAULT_CAPACITY, Capacity

if TYPE_CHECKING:
    from spass.agents.approving import Decisions
    from spass.agents.ask import Asker
    from spass.agents.availability import Availability
    from spass.agents.delegates import AgentDelegates
    from spass.agents.engine import Engine
    from spass.agents.registry import AgentRegistry
    from spass.approvals.service import Approvals
    from spass.aws.clients import Aws
    from spass.calls.pipeline import Calls
    from spass.calls.scope import Scope
    from spass.completions.agent_models import AgentModels
    from spass.completions.service import Completions
    from spass.core.bus import EventBus
    from spass.core.code_calls import Sandbox
    from spass.core.effects import Page
    from spass.core.ids import Operator, TenantId
    from spass.core.jobs import WorkKind
    from spass.limits.places import Places
    from spass.managed.agents import ManagedAgents
    from spass.managed.schedules import ScheduleWriter
    from spass.managed.ticks import Ticks
    from spass.memory.operator_memory import OperatorMemory
    from spass.models.provider_keys import ProviderKeys
    from spass.models.router import Router
    from spass.observability.settings import TracesSettings
    from spass.observability.tracer import Tracer
    from spass.rag.index.cache import ObjectCache
    from spass.rag.index.embedding import Embedder
    from spass.rag.ingest.uploads import Uploads
    from spass.rag.search.reader import Reader
    from spass.rag.write.delete import IndexDeleter
    from spass.rag.write.writer import Writer
    from spass.redaction.redactor import Redactor
    from spass.runs.managed_runs import ManagedRuns
    from spass.runs.managed_worker import RunWorker
    from spass.runs.service import Runs
    from spass.sandbox.foreign.service import ForeignAgents
    from spass.sandbox.launcher import TenantFunction
    from spass.sessions.compaction.jobs import CompactionJobs
    from spass.sessions.compaction.steps import CompactionSteps
    from spass.sessions.compaction.summary import Summarizer
    from spass.sessions.lineage_search import SessionLineageSearcher
    from spass.sessions.service import Sessions
    from spass.tenancy.bounds import Bounds
    from spass.tenancy.config import GatewayConfig
    from spass.tenancy.config_problem import ConfigProblem
    from spass.tenancy.identity import Caller, Tokens
    from spass.tenancy.settings import Cascade
    from spass.tools.base import Rag
    from spass.tools.chat_models import ChatModels
    from spass.tools.editor.protocol import Editor
    from spass.tools.page_fetcher import PageFetcher
    from spass.tools.search_engine import SearchEngine
    from spass.tools.toolbox import Toolbox
    from spass.workspaces.service import Workspaces


# These hold only the contents of the operator's files and of the environment, which are the same in every process. A module may
# have subscribed to the bus before the snapshot.
_KEPT: Final = frozenset({"settings", "config", "tokens", "agents", "bus"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The process's environment: the paths of the operator's files, and the names of the deployment's resources."""

    config: Path
    agents: Path
    table: str
    bucket: str
    tenant_role: str | None = None
    job_targets: JobTargets = NO_JOB_TARGETS
    capacity: Capacity = DEFAULT_CAPACITY
    keys_path: str | None = None
    telemetry: bool = False
    metrics_namespace: str | None = None
    traces: "TracesSettings | None" = None
    deployed: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the settings from ``SPASS_*`` variables.

        The queues are URLs, the machine is an ARN, and the keys' path is the prefix of the provider keys in SSM. If
        ``SPASS_TELEMETRY`` is 1, telemetry and traces are logged. A namespace of metrics switches them on too. Raise
        UnknownSandbox if ``SPASS_SANDBOX`` is not one of the names, and TracesMisconfigured if spans cannot be exported as the
        variables say.
        """
        if environment.get("SPASS_SANDBOX"):
            from spass.sandbox.launchers import chosen_launcher

            chosen_launcher(environment)
        return cls(
            config=Path(environment.get("SPASS_CONFIG") or "gateway.yaml"),
            agents=Path(environment.get("SPASS_AGENTS") or "agents"),
            table=environment.get("SPASS_TABLE") or "spass",
            bucket=environment.get("SPASS_BUCKET") or "spass",
            tenant_role=environment.get("SPASS_TENANT_ROLE") or None,
            job_targets=JobTargets(
                queue=environment.get("SPASS_QUEUE") or None,
                compaction_queue=environment.get("SPASS_COMPACTION_QUEUE") or None,
                compaction_machine=environment.get("SPASS_COMPACTION_MACHINE") or None,
                runs_queue=environment.get("SPASS_RUNS_QUEUE") or None,
                runs_queue_arn=environment.get("SPASS_RUNS_QUEUE_ARN") or None,
                schedule_group=environment.get("SPASS_SCHEDULE_GROUP") or None,
                schedule_role=environment.get("SPASS_SCHEDULE_ROLE") or None,
            ),
            capacity=_read_capacity(environment),
            keys_path=environment.get("SPASS_KEYS_PATH") or None,
            telemetry=environment.get("SPASS_TELEMETRY") == "1",
            metrics_namespace=environment.get("SPASS_METRICS_NAMESPACE") or None,
            traces=_read_traces(environment),
            deployed="AWS_LAMBDA_FUNCTION_NAME" in environment,
        )


def _read_traces(environment: Mapping[str, str]) -> "TracesSettings | None":
    if not environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return None
    from spass.observability.settings import TracesSettings

    return TracesSettings.from_environment(environment)


def _read_capacity(environment: Mapping[str, str]) -> Capacity:
    """Read the capacity of the deployment. What no variable names has its default."""
    variables = {
        "runs": "SPASS_RUN_WORKERS",
        "jobs": "SPASS_JOB_WORKERS",
        "compactions": "SPASS_COMPACTION_WORKERS",
        "followers": "SPASS_FOLLOWERS",
    }
    return Capacity(**{name: int(environment[variable]) for name, variable in variables.items() if environment.get(variable)})


class Services:
    """All services that routes and workers call. A process has one."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.from_environment()

    @cached_property
    def config(self) -> "GatewayConfig":
        from spass.models.backends import check_backend
        from spass.tenancy.config_file import load_gateway_config
        from spass.tools.registry import TOOLS

        config = load_gateway_config(self.settings.config, TOOLS, check_backend)
        _log_notices(config.warnings)
        return config

    @cached_property
    def tokens(self) -> "Tokens":
        from spass.tenancy.identity import Tokens

        return Tokens(self.config)

    @cached_property
    def cascade(self) -> "Cascade":
        from spass.tenancy.settings import Cascade
        from spass.tools.registry import TOOLS

        return Cascade(self.config, TOOLS)

    @cached_property
    def aws(self) -> "Aws":
        from spass.aws.clients import Aws

        settings = self.settings
        return Aws(
            table=settings.table,
            bucket=settings.bucket,
            job_targets=settings.job_targets,
            work_bound=self._work_bound,
            tenant_role=settings.tenant_role,
        )

    @cached_property
    def keys(self) -> "ProviderKeys":
        from spass.models.backends import all_key_variables
        from spass.models.provider_keys import ProviderKeys

        return ProviderKeys(all_key_variables(self.config), self.settings.keys_path, self.aws.get_parameters)

    def read_keys(self, *, all_models: bool = False) -> "ProviderKeys":
        """Read the keys of the backends that serve the embedding model of documents, and return all keys. With ``all_models``,
        read the keys of all backends and of the search provider, because a model may call tools.

        A function that calls models does this while it starts, because SSM's quota allows only one read of each key.
        """
        from spass.models.backends import all_key_variables, key_variables, serves

        model, backends = self.config.defaults.embedding_model, self.config.llm.backends
        embedding = key_variables(backend for backend in backends if serves(backend, model))
        self.keys.prefetch(all_key_variables(self.config) if all_models else embedding)
        return self.keys

    @cached_property
    def router(self) -> "Router":
        from spass.models.router import Router

        return Router(self.config.llm, self.config.models, self.keys.get, limits=lambda: self.aws.shared)

    @cached_property
    def calls(self) -> "Calls":
        from spass.calls.pipeline import Calls

        return Calls(self.config, self.router, self.cascade, redactor=self.redactor)

    @cached_property
    def redactor(self) -> "Redactor":
        from spass.calls.reply_redaction import build_redactor

        def keys_in_use() -> list[str]:
            used = self.router.keys() if "router" in self.__dict__ else []
            return [*used, *(self.keys.values_read() if "keys" in self.__dict__ else ())]

        return build_redactor(self.config, keys_in_use)

    def redact(self, text: str) -> str:
        """Return the text of an error without secrets.

        Before the first use of the configuration, the patterns of known formats suffice: no error contains a caller's text yet.
        """
        from spass.redaction.text import redact

        return self.redactor.redact(text) if "config" in self.__dict__ else redact(text)

    @cached_property
    def completions(self) -> "Completions":
        from spass.completions.service import Completions

        return Completions(self.calls, self.config, self.cascade, lambda: self.toolbox, lambda: self.agent_models)

    @cached_property
    def agent_models(self) -> "AgentModels":
        from spass.completions.agent_models import AgentModels

        return AgentModels(self.engine, lambda: self.agents)

    @cached_property
    def object_cache(self) -> "ObjectCache":
        from spass.rag.index.cache import ObjectCache

        return ObjectCache()

    @cached_property
    def deleter(self) -> "IndexDeleter":
        from spass.rag.write.delete import IndexDeleter

        return IndexDeleter(self.object_cache)

    @cached_property
    def embedder(self) -> "Embedder":
        from spass.rag.index.embedding import Embedder

        return Embedder.from_config(self.calls, self.config)

    @cached_property
    def reader(self) -> "Reader":
        from spass.rag.search.reader import Reader

        return Reader(self.embedder, self.object_cache)

    @cached_property
    def writer(self) -> "Writer":
        from spass.rag.write.writer import Writer

        return Writer(self.embedder, self.object_cache)

    @cached_property
    def rag(self) -> "Rag":
        from spass.tools.base import Rag

        return Rag(self.embedder, self.reader, self.writer, self.deleter)

    @cached_property
    def uploads(self) -> "Uploads":
        from spass.rag.ingest.uploads import Uploads

        return Uploads(self.calls, self.config)

    @cached_property
    def workspaces(self) -> "Workspaces":
        from spass.workspaces.service import Workspaces

        return Workspaces()

    @cached_property
    def toolbox(self) -> "Toolbox":
        from spass.tools.toolbox import Toolbox
        from spass.tools.toolset import gateway_toolsets

        return Toolbox(partial(gateway_toolsets, self))

    @cached_property
    def editor(self) -> "Editor":
        from spass.tools.editor.aider import AiderEditor

        return AiderEditor.from_environment(os.environ)

    @cached_property
    def tool_models(self) -> "ChatModels":
        from spass.tools.chat_models import ChatModels

        return ChatModels(self.calls, self.config)

    @cached_property
    def search_engine(self) -> "SearchEngine":
        from spass.tools.search_engine import SearchEngine

        return SearchEngine(self.config.search, self.keys.get)

    @cached_property
    def agents(self) -> "AgentRegistry":
        from spass.agents.registry import AgentRegistry

        agents = AgentRegistry.load(self.settings.agents, self.config, deployed=self.settings.deployed)
        _log_notices(agents.notices)
        return agents

    @cached_property
    def asker(self) -> "Asker":
        from spass.agents.ask import Asker

        return Asker(lambda: self.agents, self.config, self.calls, self.toolbox)

    @cached_property
    def engine(self) -> "Engine":
        from spass.agents.engine import Engine

        return Engine(
            self.calls,
            self.toolbox,
            lambda: self.reader,
            self.cascade,
            self.availability,
            self.fetch_page,
            self.open_memory,
        )

    @cached_property
    def fetcher(self) -> "PageFetcher":
        from spass.tools.page_fetcher import PageFetcher

        return PageFetcher()

    @cached_property
    def availability(self) -> "Availability":
        from spass.agents.availability import Availability

        return Availability(lambda: self.sandbox, lambda: self.foreign_agents)

    @cached_property
    def sandbox(self) -> "Sandbox":
        from spass.sandbox.launchers import select_sandbox

        def connect(name: str) -> "TenantFunction":
            return self.aws.function(name)

        return select_sandbox(os.environ, connect)

    @cached_property
    def foreign_agents(self) -> "ForeignAgents | None":
        if self.settings.deployed:
            return None
        from spass.sandbox.foreign.service import ForeignAgents

        return ForeignAgents(self.config.harnesses.roots)

    @cached_property
    def delegates(self) -> "AgentDelegates":
        from spass.agents.delegates import AgentDelegates

        return AgentDelegates(self.engine, lambda: self.agents)

    @cached_property
    def summarizer(self) -> "Summarizer":
        from spass.sessions.compaction.summary import Summarizer

        return Summarizer(self.calls, self.cascade, self.config)

    @cached_property
    def sessions(self) -> "Sessions":
        from spass.sessions.service import Sessions

        return Sessions(self.cascade, lambda: self.summarizer)

    @cached_property
    def approvals(self) -> "Approvals":
        from spass.approvals.service import Approvals

        return Approvals()

    @cached_property
    def decisions(self) -> "Decisions":
        from spass.agents.approving import Decisions

        return Decisions(lambda: self.agents, lambda: self.toolbox)

    @cached_property
    def runs(self) -> "Runs":
        from spass.runs.service import Runs

        return Runs(self.engine, lambda: self.sessions, self.config)

    @cached_property
    def bounds(self) -> "Bounds":
        from spass.tenancy.bounds import Bounds

        return Bounds(self.config, self.settings.capacity)

    @cached_property
    def places(self) -> "Places":
        from spass.limits.places import Places

        return Places(self.bounds.places)

    @cached_property
    def managed_agents(self) -> "ManagedAgents":
        from spass.managed.agents import ManagedAgents

        has_scheduler = self.settings.job_targets.schedule_group is not None
        return ManagedAgents(
            self.config, lambda: self.asker, lambda: self.engine, lambda: self.schedules if has_scheduler else None
        )

    @cached_property
    def schedules(self) -> "ScheduleWriter":
        from spass.managed.schedules import ScheduleWriter

        return ScheduleWriter(lambda: self.aws.schedules, time.time)

    @cached_property
    def ticks(self) -> "Ticks":
        from spass.managed.ticks import Ticks

        return Ticks(lambda: self.schedules, time.time)

    @cached_property
    def managed_runs(self) -> "ManagedRuns":
        from spass.runs.managed_runs import ManagedRuns

        return ManagedRuns(self.managed_agents.check, self.runs)

    @cached_property
    def run_worker(self) -> "RunWorker":
        from spass.runs.managed_worker import RunWorker

        return RunWorker(self.managed_runs, self.ticks, self.tokens, self.bus)

    @cached_property
    def compaction_jobs(self) -> "CompactionJobs":
        from spass.sessions.compaction.jobs import CompactionJobs

        return CompactionJobs()

    @cached_property
    def compaction_steps(self) -> "CompactionSteps":
        from spass.sessions.compaction.steps import CompactionSteps

        return CompactionSteps(self.summarizer, bus=self.bus)

    @cached_property
    def lineage_search(self) -> "SessionLineageSearcher":
        from spass.sessions.lineage_search import SessionLineageSearcher

        return SessionLineageSearcher()

    @cached_property
    def bus(self) -> "EventBus":
        """The bus of all events of this process. A restore from a snapshot keeps it and its subscriptions."""
        from spass.core.bus import EventBus, EventType

        def report(event_type: EventType[Any], error: BaseException) -> None:
            from spass.redaction.log import failure_line, write_line

            write_line({**failure_line(error, ""), "event": "subscriber_failed", "subscribed_to": event_type.name})

        bus = EventBus(report)
        if self.settings.telemetry or self.settings.metrics_namespace:
            from spass.metering.telemetry import Telemetry, Traces

            Telemetry(self.settings.metrics_namespace).subscribe(bus)
            Traces().subscribe(bus)
        if self.settings.traces is not None:
            from spass.observability.collector import SpanCollector

            SpanCollector(lambda: self.config).subscribe(bus)
        return bus

    @cached_property
    def tracer(self) -> "Tracer | None":
        """The tracer of this process, or None if no spans are exported."""
        traces = self.settings.traces
        if traces is None:
            return None
        from spass.aws.signing import Signer
        from spass.observability.headers import ExporterHeaders
        from spass.observability.otlp import Exporter
        from spass.observability.tracer import Tracer

        headers = ExporterHeaders(traces, self.aws.get_parameters)
        sign = Signer("xray", traces.sign_for).sign if traces.sign_for is not None else None
        return Tracer(Exporter(traces.endpoint, traces.resource, headers, sign), traces.sample)

    async def fetch_page(self, url: str, characters: int) -> "Page":
        """Return the page at ``url``, with at most so many characters of its text."""
        return await self.fetcher.fetch(url, characters)

    def open_memory(self, scope: "Scope", operator: "Operator") -> "OperatorMemory":
        """Return the memory of ``operator`` for one turn."""
        from spass.memory.operator_memory import OperatorMemory

        return OperatorMemory(scope, operator, lambda: self.embedder)

    def _work_bound(self, tenant: "TenantId", kind: "WorkKind") -> int:
        return self.bounds.work(tenant, kind)

    def scope(self, caller: "Caller") -> "Scope":
        """Return the scope of a request by ``caller``."""
        from spass.calls.scope import Scope

        return Scope.for_request(caller, self.aws.for_tenant(caller.tenant), bus=self.bus)

    def forget_snapshot(self) -> None:
        """Drop every service except those that were read from the operator's files, and the bus.

        Call this after the process was restored from a snapshot. The next use creates new clients, reads credentials and settings
        again and draws new random numbers. A snapshot may be days old, but ``time.monotonic`` has not advanced since, so cached
        settings would look fresh.
        """
        import random
        import ssl

        from spass.redaction.text import reload_environment

        random.seed()
        ssl.RAND_add(os.urandom(32), 32)  # OpenSSL's generator makes the keys of TLS connections
        reload_environment()
        if "aws" in self.__dict__:
            self.aws.close()
        for name in self.__dict__.keys() - _KEPT:
            del self.__dict__[name]

    async def aclose(self) -> None:
        """Close open connections, when a long-lived process ends."""
        if "router" in self.__dict__:
            await self.router.aclose()
        if self.__dict__.get("tracer") is not None:
            await self.__dict__["tracer"].exporter.aclose()
        if "aws" in self.__dict__:
            self.aws.close()


def _log_notices(notices: "Iterable[ConfigProblem]") -> None:
    from spass.core.time import now
    from spass.redaction.log import write_line

    for notice in notices:
        write_line({"at": now(), "level": "warning", "event": "config_notice", "notice": str(notice.without_folder())})


def get_services(request: Request) -> Services:
    """Return the services of the app that got ``request``."""
    services: Services = request.app.state.services
    return services
