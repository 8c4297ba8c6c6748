"""The kind ``orchestrator``: the model calls tools and reads their results until it answers."""

from dataclasses import dataclass
from typing import Literal

from spass.agents.kinds.base import NATIVE_CALLS, AgentContext, CallFormat, ToolLoopAgent, parameter
from spass.agents.kinds.protocols import STRUCTURED
from spass.agents.kinds.written_calls import WrittenCalls


@dataclass(frozen=True, kw_only=True)
class OrchestratorAgent(ToolLoopAgent):
    """Call the model with tools until it answers without a tool call."""

    mode: Literal["function_calling", "structured"] = parameter(
        "function_calling", "How the model calls tools: by function calling, or in text with markers such as TOOL:."
    )

    def call_format(self, context: AgentContext) -> CallFormat:
        return WrittenCalls(STRUCTURED, context.specs) if self.mode == "structured" else NATIVE_CALLS
