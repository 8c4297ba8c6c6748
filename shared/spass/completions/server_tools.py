"""Run a chat with the gateway's tools: the kind ``server_tools`` on the driver."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from spass.agents.driver import Driver
from spass.agents.inference import InferPerformer
from spass.agents.kinds.base import AgentContext
from spass.agents.kinds.server_tools import ServerToolsAgent
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.completions.answer import all_texts
from spass.core.events import Event
from spass.core.messages import ToolSpec
from spass.models.types import ChatRequest
from spass.tools.toolset import ToolTurn

if TYPE_CHECKING:
    from spass.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The server tools of one chat, and the toolbox that runs them."""

    toolbox: "Toolbox"
    specs: tuple[ToolSpec, ...]

    def events(self, calls: Calls, scope: Scope, request: ChatRequest) -> AsyncGenerator[Event, None]:
        """Return the events of the chat, of which a client sees text, refusals and calls of its own tools.

        The iteration raises ``SpassError``: the same as ``Calls.chat``, or a tool failed so that the chat cannot continue.
        """
        client_tools = frozenset(tool.name for tool in request.tools)
        answers_with_json = request.response_format is not None and request.response_format.get("type") != "text"
        infer = InferPerformer(calls, scope, replace(request, tools=(*request.tools, *self.specs)))
        names = [tool.name for tool in self.specs]
        call_tools = partial(self.toolbox.run_all, scope, allowed=names, turn=ToolTurn(request.model))
        driver = Driver(infer, call_tools, scope, client_tools=client_tools)
        agent = ServerToolsAgent(client_tools=client_tools, answers_with_json=answers_with_json)
        return all_texts(driver.run(agent, "", AgentContext(request.messages)))
