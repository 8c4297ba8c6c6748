"""The toolsets of a gateway. A further source of tools is one more toolset here."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from spass.calls.scope import Scope
from spass.tools.base import ToolError
from spass.tools.toolset import Needs, Toolset, ToolTurn, built_in

if TYPE_CHECKING:  # the first call of a tool imports what it needs
    from spass.core.code_calls import Sandbox
    from spass.core.memory import Memory
    from spass.tenancy.settings import Cascade
    from spass.tools.agent_workspace import AgentWorkspace
    from spass.tools.base import Rag
    from spass.tools.chat_models import ChatModels
    from spass.tools.delegates import Delegates
    from spass.tools.editor.protocol import Editor
    from spass.tools.lineage_searcher import LineageSearcher
    from spass.tools.search.engine import SearchEngine
    from spass.workspaces.service import Workspaces

NO_OPERATOR: Final = "no_operator"
_READ_AND_COMMIT_SECONDS: Final = 30.0
"""Seconds of an edit beside those of its editor."""


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
    """Return the memory of the operator whose turn it is.

    Raises:
        ToolError: the call is not made in the turn of an operator.
    """
    if memory is None:
        raise ToolError("This tool needs an operator, and none runs here. Answer without it.", code=NO_OPERATOR)
    return memory
