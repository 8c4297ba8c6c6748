"""The kind ``claude_code``: a run of the Claude Agent SDK."""

from dataclasses import dataclass, replace
from typing import ClassVar

from spass.agents.kinds.base import AgentContext, Need, parameter
from spass.agents.kinds.foreign import MAX_TIMEOUT, ForeignAgent
from spass.core.effects import ForeignRun


@dataclass(frozen=True, kw_only=True)
class ClaudeCodeAgent(ForeignAgent):
    """Develop software in a workspace with the Claude Agent SDK. The SDK selects the model and its sampling."""

    needs: ClassVar[Need | None] = "claude_code"

    timeout: int = parameter(300, "Seconds that the agent may work.", ge=1, le=MAX_TIMEOUT)
    session_id: str = parameter("", "The `metadata.session_id` of an earlier run in the same workspace, to continue it.")
    allowed_tools: tuple[str, ...] | None = parameter(None, "Names of Claude Code's tools that it may use. The default is all.")

    def foreign_run(self, input: str, context: AgentContext) -> ForeignRun:
        """Return the run. A continued session has its own memory of the conversation."""
        known = replace(context, conversation=()) if self.session_id else context
        tools = None if self.allowed_tools is None else tuple(self.allowed_tools)
        return replace(self.run_of("claude_code", input, known), session_id=self.session_id, allowed_tools=tools)
