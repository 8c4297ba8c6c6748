"""The kind ``orchestrator``: the model calls tools and reads their results until it answers."""

from dataclasses import dataclass

from spass.agents.kinds.base import AgentContext, ToolUsingAgent
from spass.core.effects import Steps


@dataclass(frozen=True, kw_only=True)
class OrchestratorAgent(ToolUsingAgent):
    """Call the model with tools until it answers without a tool call."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        return (yield from self.tool_loop(self.opening(input, context)))
