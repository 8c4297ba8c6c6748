"""The kind ``orchestrator``: the model calls tools and reads their results until it answers."""

from dataclasses import dataclass
from typing import Literal

from spass.agents.kinds.base import AgentContext, ToolUsingAgent, parameter
from spass.agents.kinds.protocols import STRUCTURED
from spass.agents.kinds.text_loop import text_loop
from spass.core.effects import Steps


@dataclass(frozen=True, kw_only=True)
class OrchestratorAgent(ToolUsingAgent):
    """Call the model with tools until it answers without a tool call."""

    mode: Literal["function_calling", "structured"] = parameter(
        "function_calling", "How the model calls tools: by function calling, or in text with markers such as TOOL:."
    )

    def steps(self, input: str, context: AgentContext) -> Steps:
        if self.mode == "structured":
            return text_loop(self, input, context, STRUCTURED)
        return self.tool_loop(self.opening(input, context))
