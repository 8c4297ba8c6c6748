"""Agent kinds: pure generators of effects, found by their keys."""

from spass.agents.kinds.base import AgentContext, AgentResult, BaseAgent, ToolUsingAgent, parameter
from spass.agents.kinds.registry import KINDS
from spass.core.effects import user

__all__ = ["KINDS", "AgentContext", "AgentResult", "BaseAgent", "ToolUsingAgent", "parameter", "user"]
