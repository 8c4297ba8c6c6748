"""The kind ``openhands``: a conversation of the OpenHands SDK."""

from dataclasses import dataclass, replace
from typing import ClassVar

from spass.agents.kinds.base import AgentContext, Need
from spass.agents.kinds.foreign import ForeignAgent
from spass.core.effects import ForeignRun


@dataclass(frozen=True, kw_only=True)
class OpenHandsAgent(ForeignAgent):
    """Develop software in a workspace with the OpenHands SDK, its terminal and its file editor."""

    needs: ClassVar[Need | None] = "openhands"

    def foreign_run(self, input: str, context: AgentContext) -> ForeignRun:
        return replace(self.run_of("openhands", input, context), temperature=self.temperature, max_tokens=self.max_tokens)
