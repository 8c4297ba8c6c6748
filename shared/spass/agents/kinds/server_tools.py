"""The kind of chat completions: the gateway's tools run between the client's request and the answer. It is not registered.

The client gets one assistant message, as from a model without server tools:

- Its text is the text of all model calls, in their order, separated by empty lines. If the client requested JSON, it is the text
  of the last call only, because text before a tool call would make the JSON invalid.
- Its tool calls are calls of the client's tools, which end the loop. Calls of server tools in the same reply are dropped: their
  results could not be stored until the client returns with the others. The model can repeat them.
- The result of a call of an unknown tool is an error for the model; the client never sees it.
- The results of server tools are not part of the conversation that the client continues.
"""

from dataclasses import dataclass

from spass.agents.kinds.base import AgentContext, ToolUsingAgent
from spass.core.effects import HIDDEN, Steps


@dataclass(frozen=True, kw_only=True)
class ServerToolsAgent(ToolUsingAgent):
    """Answer a client's conversation and call the gateway's tools on the way.

    ``client_tools`` are the names of the tools that the client executes. The client's request supplies the sampling values.
    """

    client_tools: frozenset[str] = frozenset()
    answers_with_json: bool = False

    def steps(self, input: str, context: AgentContext) -> Steps:  # noqa: ARG002 (the conversation ends with the input)
        show = HIDDEN if self.answers_with_json else None
        return self.tool_loop(context.conversation, client_tools=self.client_tools, show=show)
