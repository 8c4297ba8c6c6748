"""The kind ``openhands``: a conversation of the OpenHands SDK."""

from dataclasses import dataclass, replace
from typing import ClassVar

from spass.agents.kinds.base import AgentContext, Need
from spass.agents.kinds.harness import HarnessAgent
from spass.core.effects import HarnessSpec


@dataclass(frozen=True, kw_only=True)
class OpenHandsAgent(HarnessAgent):
    """Develop software in a workspace with the OpenHands SDK, its terminal and its file editor."""

    needs: ClassVar[Need | None] = "openhands"

    def harness_spec(self, input: str, context: AgentContext) -> HarnessSpec:
        return replace(self.spec_of("openhands", input, context), temperature=self.temperature, max_tokens=self.max_tokens)
