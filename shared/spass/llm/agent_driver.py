"""Run agent kinds over the models of ``gateway.yaml`` in code beside the gateway. ``spass.llm`` offers ``driver``."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, cast

from spass.agents.driver import Driver
from spass.agents.inference import InferPerformer
from spass.agents.kinds.base import AgentContext, BaseAgent, Runner
from spass.agents.performers.code import CodePerformer
from spass.agents.performers.foreign import ForeignPerformer
from spass.aws.functions import LambdaFunction
from spass.calls.scope import REQUEST_SECONDS, Scope
from spass.core.bus import EMPTY_BUS, EventBus
from spass.core.effects import Page
from spass.core.errors import InvalidRequest, ToolNotFound
from spass.core.events import Event, Outcome, TurnFinished
from spass.core.ids import AgentName, RequestId, TenantId, new_id
from spass.core.messages import Message, Role
from spass.llm.in_process import InProcessCalls
from spass.llm.router import get_router
from spass.llm.usage_log import ROUTE
from spass.memory.process_memory import ProcessMemory
from spass.models.types import ChatRequest
from spass.redaction.log import log_to_stderr
from spass.sandbox.foreign.service import ForeignAgents
from spass.sandbox.launchers import select_sandbox
from spass.store.tenant_store import TenantStore
from spass.tenancy.identity import Caller, Identity
from spass.tools.chat_models import ChatModels
from spass.tools.registry import TOOLS
from spass.tools.search_engine import SearchEngine
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import ToolTurn, built_in, require_memory

if TYPE_CHECKING:
    from spass.store.table import TenantTable

_TOOLSETS: Final = ("plain", "models", "code", "web", "wikipedia", "notes")
"""The toolsets that work without a gateway."""
_TENANT: Final = TenantId(ROUTE)
_select_sandbox: Final = partial(select_sandbox, connect=LambdaFunction)


def driver(
    model: str,
    *,
    tools: Sequence[str] = (),
    memory: ProcessMemory | None = None,
    agent_id: str | None = None,
    seconds: float = REQUEST_SECONDS,
    bus: EventBus = EMPTY_BUS,
) -> Runner:
    """Return what runs agent kinds in this process: it is the last argument of ``BaseAgent.run``.

    Its model calls are those of ``complete``: by default they are calls of ``model``, and usage is counted for ``agent_id``. Each
    run must end within ``seconds``. ``tools`` are names of the tools that the model may call. An operator has a ``memory``, which
    lasts from run to run. Code runs in the sandbox of this machine, or in the container of a ``SandboxedAgent``, and foreign
    agents in the folders of gateway.yaml.

    Raises:
        InvalidRequest: a tool needs a gateway, or a memory.
        ToolNotFound: there is no tool of this name.
        ConfigError: gateway.yaml is missing or wrong.
    """
    for name in tools:
        _check_tool(name, memory)
    return _InProcessDriver(get_router(), model, tuple(tools), memory, agent_id, seconds, bus)


def _check_tool(name: str, memory: ProcessMemory | None) -> None:
    if name not in TOOLS:
        usable = ", ".join(tool for tool in TOOLS if TOOLS[tool].toolset in _TOOLSETS)
        raise ToolNotFound(f"There is no tool {name!r:.80}. Use one of: {usable}.", param="tools")
    if TOOLS[name].toolset not in _TOOLSETS:
        advice = "Ask an agent of a gateway, which has it, with spass.Spass().ask."
        raise InvalidRequest(f"The tool {name!r} needs what a gateway stores. {advice}", param="tools")
    if TOOLS[name].toolset == "notes" and memory is None:
        raise InvalidRequest(f"The tool {name!r} needs a memory. Call driver(…, memory=ProcessMemory()).", param="tools")


async def _fetch_page(url: str, characters: int) -> Page:
    from spass.tools.page_fetcher import PageFetcher  # only one kind fetches pages

    return await PageFetcher().fetch(url, characters)


class _NoTable:
    """The table of a process without a deployment: a call of a tool leaves no record."""

    async def write(self, write: object) -> None:
        pass

    async def transact(self, writes: object, *, token: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _NoStore:
    """The store of a process without a deployment."""

    tenant: TenantId
    table: "TenantTable" = field(default_factory=lambda: cast("TenantTable", _NoTable()))


@dataclass(frozen=True)
class _InProcessDriver:
    """See ``driver``."""

    calls: InProcessCalls
    model: str
    tools: tuple[str, ...]
    memory: ProcessMemory | None
    agent_id: str | None
    seconds: float
    bus: EventBus

    async def run(self, agent: BaseAgent, input: str, context: AgentContext) -> AsyncGenerator[Event, None]:
        """See ``Driver.run``."""
        memory = self.memory if agent.remembers else None
        if memory is not None:
            memory.begin()
        earlier = memory.conversation if memory is not None else ()
        scope = self._scope()
        specs = self._toolbox.specs(scope, self.tools) if agent.accepts_tools else ()
        names = tuple(spec.name for spec in specs)
        whole = replace(context, conversation=(*earlier, *context.conversation), tools=names, specs=specs)
        defaults = ChatRequest(self.model, (), specs, temperature=agent.temperature, max_tokens=agent.max_tokens)
        outcome = Outcome()
        with log_to_stderr():
            async with aclosing(self._driver(scope, defaults, memory).run(agent, input, whole)) as events:
                async for event in events:
                    outcome.add(event)
                    if isinstance(event, TurnFinished) and memory is not None:
                        memory.commit((Message(Role.USER, input), *outcome.messages))
                    yield event

    def _driver(self, scope: Scope, defaults: ChatRequest, memory: ProcessMemory | None) -> Driver:
        infer = InferPerformer(self.calls, scope, defaults)
        names = tuple(spec.name for spec in defaults.tools)
        run_tools = partial(self._toolbox.run_all, allowed=names, turn=ToolTurn(self.model, memory=memory))
        foreign_agents = ForeignAgents(self.calls.config.harnesses.roots)
        redact = self.calls.redactor.redact_answer
        return Driver(
            infer,
            partial(run_tools, scope),
            scope,
            open_code=lambda: CodePerformer(scope, lambda _: infer, run_tools, names, _select_sandbox, redact),
            fetch_page=_fetch_page,
            run_foreign=ForeignPerformer(self.calls, scope, self.model, foreign_agents).perform,
            memory=memory,
            bus=self.bus,
        )

    def _scope(self) -> Scope:
        store = self.calls.store or cast("TenantStore", _NoStore(_TENANT))
        identity = Identity(store.tenant, ROUTE, admin=False, allowed_models=("*",))
        caller = Caller(identity, None, RequestId(new_id("req")), None, 0, ROUTE)
        scope = Scope.for_request(caller, store, seconds=self.seconds, bus=self.bus)
        return replace(scope, agent=None if self.agent_id is None else AgentName(self.agent_id))

    @cached_property
    def _toolbox(self) -> Toolbox:
        config, models = self.calls.config, ChatModels(self.calls, self.calls.config)
        return Toolbox(
            lambda turn: (
                built_in("plain"),
                built_in("models", lambda _: (models, turn.model)),
                built_in("code", lambda _: (_select_sandbox(),)),
                built_in("web", lambda _: (SearchEngine(config.search, self.calls.key_of),)),
                built_in("wikipedia"),
                built_in("notes", lambda _: (require_memory(turn.memory),)),
            )
        )
