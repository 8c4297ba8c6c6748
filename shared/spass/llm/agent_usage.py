"""The usage of one agent, as calls in this process report it."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AgentUsage:
    """The calls of one agent that were answered or may be billed, and their tokens."""

    request_count: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class AgentUsageReport(Protocol):
    """Report and reset the usage of agents."""

    def get_agent_usage(self, agent_id: str) -> AgentUsage:
        """Return the usage of ``agent_id``, which is 0 if it made no call."""
        ...

    def get_all_usage(self) -> dict[str, AgentUsage]:
        """Return the usage of every agent that made a call."""
        ...

    def reset_agent_usage(self, agent_id: str | None = None) -> None:
        """Set the usage of ``agent_id``, or of all agents, to 0."""
        ...
