"""Call the tools of an agent that has a workspace, as a model does."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from spass.calls.scope import Scope
from spass.core.effects import ToolOutcome
from spass.core.ids import RequestId, UserId
from spass.core.messages import Json, ToolCall
from spass.tenancy.identity import Caller, Identity
from spass.tools.grants import Grants, PathPatterns
from spass.tools.registry import TOOLS
from spass.tools.toolbox import Toolbox
from spass.tools.toolset import ToolTurn
from tests.unit.tools.fakes import toolbox_of
from tests.unit.workspaces.harness import DEFAULT, WorkspaceHarness


@dataclass
class WorkspaceAgent:
    """An agent of the tenant of ``harness``. ``read`` and ``write`` are the patterns of its file."""

    read: Sequence[str] = ("**",)
    write: Sequence[str] = ()
    harness: WorkspaceHarness = field(default_factory=WorkspaceHarness)
    seconds: float = 60.0

    async def write_files(self, files: Mapping[str, str | bytes]) -> None:
        """Write ``files`` to the workspace, as a person does."""
        await self.harness.write({path: body.encode() if isinstance(body, str) else body for path, body in files.items()})

    async def call(self, tool: str, **arguments: Json) -> ToolOutcome:
        paths = PathPatterns(read=tuple(self.read), write=tuple(self.write))
        return await self.toolbox().execute(
            self.scope(), tool_call(tool, arguments), allowed=TOOLS, turn=ToolTurn(grants=Grants(DEFAULT, paths))
        )

    async def result(self, tool: str, **arguments: Json) -> dict[str, Json]:
        """Return the result of a call that succeeds."""
        outcome = await self.call(tool, **arguments)
        assert outcome.ok, outcome.result
        return cast("dict[str, Json]", outcome.result)

    async def error(self, tool: str, **arguments: Json) -> tuple[str, str]:
        """Return the code and the message of a call that fails."""
        outcome = await self.call(tool, **arguments)
        assert not outcome.ok, outcome.result
        assert outcome.rich == ()
        error = cast("Mapping[str, Mapping[str, str]]", outcome.result)["error"]
        return error["code"], error["message"]

    def toolbox(self) -> Toolbox:
        return toolbox_of(workspaces=self.harness.workspaces)

    def scope(self) -> Scope:
        identity = Identity(self.harness.store.tenant, "token-1", admin=False, allowed_models=("*",))
        caller = Caller(identity, UserId("u1"), RequestId("req_outer"), None, 0, "/a1/agents/{name}/chat")
        return Scope.for_request(caller, self.harness.store, seconds=self.seconds)


def tool_call(tool: str, arguments: Mapping[str, Json]) -> ToolCall:
    return ToolCall("c1", tool, json.dumps(arguments))
