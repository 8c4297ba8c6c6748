"""Run agents: build the kind that an agent's file describes, its context and its driver."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from spass.agents.availability import Availability
from spass.agents.driver import CodeRunner, Driver, FetchPagePerformer
from spass.agents.inference import InferPerformer
from spass.agents.kinds.base import AgentContext, BaseAgent
from spass.agents.spec import AgentSpec
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.calls.text_cleaning import strip_invisible
from spass.core.effects import ForeignResult, ForeignRun
from spass.core.errors import InternalError
from spass.core.events import Event
from spass.core.ids import AgentName, IndexId, Operator, WorkspaceId
from spass.core.memory import Memory, MemoryOfTurn
from spass.core.messages import Json, Message, Role
from spass.models.types import ChatRequest
from spass.rag.search.prompt import render_context
from spass.tenancy.settings import Cascade
from spass.tools.grants import Grants
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import ToolTurn

if TYPE_CHECKING:
    from spass.agents.performers.code import CallToolsWithin
    from spass.rag.search.reader import Reader

_MAX_RETRIEVAL_CHARACTERS: Final = 2000
"""Characters of a message that are searched for. More text does not improve the search, and embedding it takes seconds."""
NOTHING_GIVEN: Final = AgentContext()


OpenMemory: TypeAlias = Callable[[Scope, Operator], MemoryOfTurn]
"""Return the memory of an operator, for one turn."""


def no_memory(_scope: Scope, _operator: Operator) -> MemoryOfTurn:
    """Refuse to open a memory: this engine has none. Raise InternalError always."""
    raise InternalError("This engine has no memory of operators. Give it open_memory.")


class History(Protocol):
    """The messages before that of the turn, as a session has them (``sessions.conversation``)."""

    async def history(self) -> Sequence[Message]:
        """Return the messages. This may compact the session first, which takes seconds."""
        ...

    async def shorten(self) -> Sequence[Message] | None:
        """Compact the session and return the shorter history, or None if it cannot be compacted."""
        ...


class Engine:
    """Run the turns of all agents. A process has one engine.

    ``open_reader`` is called by the first turn that retrieves passages: its package imports numpy.
    """

    def __init__(
        self,
        calls: Calls,
        toolbox: Toolbox,
        open_reader: "Callable[[], Reader]",
        cascade: Cascade,
        availability: Availability | None = None,
        fetch_page: FetchPagePerformer | None = None,
        open_memory: OpenMemory = no_memory,
    ) -> None:
        self.open_memory = open_memory
        self._fetch_page = fetch_page
        self._availability = availability or Availability()
        self._calls = calls
        self._cascade = cascade
        self._toolbox = toolbox
        self._open_reader = open_reader

    def check(self, scope: Scope, spec: AgentSpec) -> BaseAgent:
        """Return the agent, if the caller may run it. Call this before the first write and the first byte of the answer.

        Raises:
            ModelNotAllowed: the caller's token may not use the agent's model.
            SandboxUnavailable, KindUnavailable: this gateway cannot run the agent's kind.
            InvalidRequest: the agent may not work in its workspace.
        """
        spec.check_token(scope.caller.identity.allows)
        agent = spec.build()
        self._availability.check(spec, agent)
        return agent

    def run(
        self,
        scope: Scope,
        spec: AgentSpec,
        message: str,
        history: History | None = None,
        *,
        given: AgentContext = NOTHING_GIVEN,
        nested_in: Grants | None = None,
        memory: Memory | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Return the events of one turn, in which the agent answers ``message``. ``Driver.run`` describes them.

        ``history`` is that of the session, if there is one. It is read after the first event, and shortened at most once, when
        the provider rejects the conversation as too long. ``given`` is what the caller adds: messages after the history, memory
        results and metadata. The prompt contains retrieved passages before the message; no event contains them. A delegate works
        within a call of an agent whose grants are ``nested_in``, and in the workspace of that agent. ``memory`` is that of the
        operator that runs. Raise the errors of ``check``.
        """
        agent = _without_blank_prompt(self.check(scope, spec))
        scope = replace(scope, agent=AgentName(spec.name), kind=spec.kind)
        grants = replace(spec.grants, workspace=_workspace(scope, spec, nested_in))
        specs = self._toolbox.specs(scope, spec.tools) if agent.accepts_tools else ()
        defaults = ChatRequest(spec.model, (), specs, temperature=agent.temperature, max_tokens=agent.max_tokens)
        names = tuple(tool.name for tool in specs)
        run_tools = partial(self._toolbox.run_all, allowed=names, turn=ToolTurn(spec.model, grants, memory))
        driver = Driver(
            InferPerformer(self._calls, scope, defaults),
            partial(run_tools, scope),
            scope,
            open_code=partial(self._open_code, scope, defaults, run_tools),
            fetch_page=self._fetch_page,
            run_foreign=partial(self._run_foreign, scope, spec.model),
            memory=memory,
            bus=scope.bus,
            is_nested=nested_in is not None,
        )

        async def prepare() -> AgentContext:
            earlier = await history.history() if history is not None else ()
            conversation = _with_content([*earlier, *given.conversation])
            retrieved = await self._retrieve(scope, spec, message)
            return AgentContext(conversation, names, (*retrieved, *given.memory_results), given.metadata, specs)

        async def shorten() -> Sequence[Message] | None:
            shorter = await history.shorten() if history is not None else None
            return _with_content([*shorter, *given.conversation]) if shorter is not None else None

        if spec.container is not None:
            from spass.agents.sandboxed import contain

            agent = contain(agent, spec.container)
        return driver.run(agent, message, prepare, shorten)

    def _open_code(self, scope: Scope, defaults: ChatRequest, run_tools: "CallToolsWithin") -> CodeRunner:
        from spass.agents.performers.code import CodePerformer

        def infer(of_cell: Scope) -> InferPerformer:
            return InferPerformer(self._calls, of_cell, defaults)

        tools = tuple(tool.name for tool in defaults.tools)
        redact = self._calls.redactor.redact_answer
        return CodePerformer(scope, infer, run_tools, tools, self._availability.sandbox, redact)

    async def _run_foreign(self, scope: Scope, model: str, spec: ForeignRun) -> ForeignResult:
        from spass.agents.performers.foreign import ForeignPerformer

        return await ForeignPerformer(self._calls, scope, model, self._availability.foreign_agents).perform(spec)

    async def _retrieve(self, scope: Scope, spec: AgentSpec, message: str) -> tuple[Json, ...]:
        """Return the passages for ``message`` as one text, if there are any."""
        if spec.rag_index is None:
            return ()
        index = IndexId(spec.rag_index)
        top_k = spec.rag_top_k or (await self._cascade.effective(scope.store, bypass_cache=scope.bypass_cache)).config.rag_top_k
        hits = await self._open_reader().retrieve(scope, index, message[:_MAX_RETRIEVAL_CHARACTERS], top_k)
        text = render_context(hits, index)
        return (text,) if text else ()


def _workspace(scope: Scope, spec: AgentSpec, nested_in: Grants | None) -> WorkspaceId | None:
    """Return the workspace of a turn: that of the calling agent, else the session's, else the agent's own."""
    if nested_in is not None:
        return nested_in.workspace
    session = scope.current_session
    return (session.workspace if session is not None else None) or spec.grants.workspace


def _without_blank_prompt(agent: BaseAgent) -> BaseAgent:
    """Return the agent without a system prompt of only invisible characters, which some providers reject."""
    return agent if strip_invisible(agent.system_prompt).strip() else replace(agent, system_prompt="")


def _with_content(history: Sequence[Message]) -> tuple[Message, ...]:
    """Return the history without empty answers. It may contain one, but some providers reject it."""
    return tuple(message for message in history if message.content or message.tool_calls or message.role is not Role.ASSISTANT)
