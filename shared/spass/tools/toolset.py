"""Toolsets, the sources of tools, and the toolsets of a gateway. A further source of tools is one more toolset here."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from pydantic import ValidationError

from spass.calls.scope import Scope
from spass.core.errors import AdminRequired
from spass.core.messages import Json, ToolSpec
from spass.tools.base import Returned, Tool, ToolError, describe_validation_error
from spass.tools.grants import NO_GRANTS, Grants
from spass.tools.registry import load_tool, tools_of

if TYPE_CHECKING:  # the first call of a tool imports what it needs
    from spass.approvals.ending import Ending
    from spass.core.code_calls import Sandbox
    from spass.core.memory import Memory
    from spass.tenancy.settings import Cascade
    from spass.tools.agent_workspace import AgentWorkspace
    from spass.tools.base import Rag
    from spass.tools.builtin.delegate import Delegates
    from spass.tools.builtin.lineage_search import LineageSearcher
    from spass.tools.chat_models import ChatModels
    from spass.tools.editor.protocol import Editor
    from spass.tools.search_engine import SearchEngine
    from spass.workspaces.service import Workspaces


class ReadyCall(Protocol):
    """A call with valid arguments, which has not begun and is cancelled ``seconds`` after its beginning. ``Tool`` describes the
    methods. The call tells the client about its progress by ``scope.reports``."""

    @property
    def seconds(self) -> float: ...

    async def run(self, scope: Scope) -> Returned: ...

    async def run_approved(self, scope: Scope, effect: Mapping[str, Json], ending: "Ending") -> Returned: ...


class Toolset(Protocol):
    """A source of tools. It holds what its tools need."""

    @property
    def names(self) -> Collection[str]: ...

    def specs(self, scope: Scope, names: Collection[str]) -> Sequence[ToolSpec]:
        """Return the tools ``names``, which are all of this toolset, as a model sees them: those that the caller may call."""
        ...

    def call(self, scope: Scope, name: str, arguments: Mapping[str, Json]) -> ReadyCall:
        """Return a call of the tool ``name`` of this toolset.

        Raises:
            AdminRequired: the tool needs an admin's token.
            InvalidArguments: the arguments are not valid for the tool.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolTurn:
    """What the calls of one turn have in common: the ``model`` that makes them, if one does, what the agent's file lets its tools
    do, and the ``memory`` of the operator whose turn it is. A call over HTTP has none of them."""

    model: str | None = None
    grants: Grants = NO_GRANTS
    memory: "Memory | None" = None


NO_TURN: Final = ToolTurn()

Needs: TypeAlias = tuple[object, ...]
"""What the methods of a tool receive after the scope."""
OpenNeeds: TypeAlias = Callable[[Scope], Needs]


@dataclass(frozen=True, slots=True)
class BoundTool:
    """The call of a ``Tool``. ``open`` returns what it needs."""

    tool: Tool
    open: OpenNeeds
    seconds: float

    async def run(self, scope: Scope) -> Returned:
        return await self.tool.run(scope, *self.open(scope))

    async def run_approved(self, scope: Scope, effect: Mapping[str, Json], ending: "Ending") -> Returned:
        return await self.tool.run_approved(effect, ending, scope, *self.open(scope))


@dataclass(slots=True)
class ToolClasses:
    """A toolset of ``Tool`` classes, each loaded at its first use. ``open`` returns what the tools need for the call of a scope.
    ``seconds`` is their time limit, if it is not the limit of the class."""

    names: Collection[str]
    open: OpenNeeds = lambda _: ()
    seconds: float | None = None
    load: Callable[[str], type[Tool]] = load_tool

    def specs(self, scope: Scope, names: Collection[str]) -> Sequence[ToolSpec]:
        tools = [self.load(name) for name in names]
        return [tool.spec() for tool in tools if scope.caller.identity.admin or not tool.admin_only]

    def call(self, scope: Scope, name: str, arguments: Mapping[str, Json]) -> BoundTool:
        tool = self.load(name)
        if tool.admin_only and not scope.caller.identity.admin:
            raise AdminRequired(
                f"{name} needs a token that gateway.yaml marks as admin; the token of this request is not. Do not call it "
                "again; an administrator can make this change.",
                param="name",
            )
        try:
            call = tool.model_validate(arguments)
        except ValidationError as error:
            raise describe_validation_error(error, arguments) from None
        return BoundTool(call, self.open, self.seconds or tool.timeout)


def built_in(toolset: str, needs: OpenNeeds = lambda _: (), seconds: float | None = None) -> ToolClasses:
    """Return a toolset of ``registry.TOOLS``."""
    return ToolClasses(tools_of(toolset), needs, seconds)


NO_OPERATOR: Final = "no_operator"
_READ_AND_COMMIT_SECONDS: Final = 30.0
"""Seconds that an edit takes besides its editor."""


class ToolServices(Protocol):
    """The services that tools need, each created at its first use."""

    @property
    def tool_models(self) -> "ChatModels": ...
    @property
    def sandbox(self) -> "Sandbox": ...
    @property
    def search_engine(self) -> "SearchEngine": ...
    @property
    def rag(self) -> "Rag": ...
    @property
    def delegates(self) -> "Delegates": ...
    @property
    def cascade(self) -> "Cascade": ...
    @property
    def lineage_search(self) -> "LineageSearcher": ...
    @property
    def workspaces(self) -> "Workspaces": ...
    @property
    def editor(self) -> "Editor": ...


def gateway_toolsets(services: ToolServices, turn: ToolTurn) -> Sequence[Toolset]:
    """Return all toolsets, for the calls of ``turn``."""
    grants = turn.grants

    def workspace(scope: Scope) -> "AgentWorkspace":
        from spass.tools.agent_workspace import AgentWorkspace

        return AgentWorkspace.open(scope, grants, services.workspaces)

    def edit(scope: Scope) -> Needs:
        return (workspace(scope), services.editor, services.tool_models, turn.model)

    return (
        built_in("plain"),
        built_in("models", lambda _: (services.tool_models, turn.model)),
        built_in("code", lambda _: (services.sandbox,)),
        built_in("web", lambda _: (services.search_engine,)),
        built_in("wikipedia"),
        built_in("knowledge", lambda _: (services.rag,)),
        built_in("delegates", lambda scope: (workspace(scope), services.delegates)),
        built_in("settings", lambda _: (services.cascade,)),
        built_in("notes", lambda _: (require_memory(turn.memory),)),
        built_in("lineage", lambda _: (services.lineage_search,)),
        built_in("workspace", lambda scope: (workspace(scope),)),
        built_in("editing", edit, grants.editor.timeout + _READ_AND_COMMIT_SECONDS),
    )


def require_memory(memory: "Memory | None") -> "Memory":
    """Return the memory of the operator whose turn it is. Raise ToolError if the call is not made in the turn of an operator."""
    if memory is None:
        raise ToolError("This tool needs an operator, and none runs here. Answer without it.", code=NO_OPERATOR)
    return memory
