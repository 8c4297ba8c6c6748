"""A toolset is a source of tools. The toolbox joins toolsets, limits them to the tools of an agent, and runs their calls."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from pydantic import ValidationError

from spass.calls.scope import Scope
from spass.core.errors import AdminRequired
from spass.core.messages import Json, ToolSpec
from spass.tools.arguments import describe_validation_error
from spass.tools.base import Returned, Tool
from spass.tools.grants import NO_GRANTS, Grants
from spass.tools.registry import load_tool, tools_of

if TYPE_CHECKING:  # only a decision about a gated call needs it
    from spass.approvals.ending import Ending
    from spass.core.memory import Memory


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
    ``seconds`` is their time limit, if it is not that of the class."""

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
