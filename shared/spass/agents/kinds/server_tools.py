"""The kind of chat completions: the gateway's tools run between the client's request and the answer. It is not registered.

The client gets one assistant message, as from a model without server tools:

- Its text is the text of all model calls, in their order, separated by empty lines. If the client requested JSON, it is the text
  of the last call only, because text before a tool call would make the JSON invalid.
- Its tool calls are calls of the client's tools, which end the loop. Calls of server tools in the same reply are dropped: their
  results could not be stored until the client returns with the others. The model can repeat them.
- The result of a call of an unknown tool is an error for the model; the client never sees it.
- The results of server tools are not part of the conversation that the client continues.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spass.agents.kinds.base import NATIVE_CALLS, AgentContext, BaseAgent, CallFormat, Step, ToolLoopAgent
from spass.core.effects import HIDDEN, Answer, AssistantReply, Infer
from spass.core.messages import Message


@dataclass(frozen=True, slots=True)
class _ClientCalls(CallFormat):
    """Native calls, some of which the client answers."""

    client_tools: frozenset[str]
    answers_with_json: bool

    def opening(self, agent: BaseAgent, input: str, context: AgentContext) -> tuple[Message, ...]:  # noqa: ARG002
        return context.conversation  # it ends with the input

    def infer(self, messages: tuple[Message, ...]) -> Infer:
        return Infer(messages, show=HIDDEN if self.answers_with_json else None)

    def read(self, reply: AssistantReply) -> Step:
        if calls := tuple(call for call in reply.tool_calls if call.name in self.client_tools):
            return Answer(reply.content, calls=calls)
        return NATIVE_CALLS.read(reply)

    def answer_at_limit(self, texts: Sequence[str]) -> Answer:
        return Answer(texts[-1])  # the client has the texts before


@dataclass(frozen=True, kw_only=True)
class ServerToolsAgent(ToolLoopAgent):
    """Answer a client's conversation and call the gateway's tools on the way.

    ``client_tools`` are the names of the tools that the client executes. The client's request supplies the sampling values.
    """

    client_tools: frozenset[str] = frozenset()
    answers_with_json: bool = False

    def call_format(self, context: AgentContext) -> CallFormat:  # noqa: ARG002
        return _ClientCalls(self.client_tools, self.answers_with_json)
