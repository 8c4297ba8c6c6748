"""Agent kinds: pure generators of effects, found by their keys."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from spass.agents.kinds.base import AgentContext, AgentResult, BaseAgent, ToolUsingAgent, parameter
from spass.agents.kinds.registry import BUILT_IN, KINDS
from spass.core.effects import user

if TYPE_CHECKING:
    from spass.agents.kinds.claude_code import ClaudeCodeAgent
    from spass.agents.kinds.monitor_operative import MonitorOperativeAgent
    from spass.agents.kinds.native_openhands import NativeOpenHandsAgent
    from spass.agents.kinds.native_react import NativeReActAgent
    from spass.agents.kinds.openhands import OpenHandsAgent
    from spass.agents.kinds.operative import OperativeAgent
    from spass.agents.kinds.orchestrator import OrchestratorAgent
    from spass.agents.kinds.rlm import RLMAgent
    from spass.agents.kinds.simple import SimpleAgent

__all__ = [
    "KINDS",
    "AgentContext",
    "AgentResult",
    "BaseAgent",
    "ClaudeCodeAgent",
    "MonitorOperativeAgent",
    "NativeOpenHandsAgent",
    "NativeReActAgent",
    "OpenHandsAgent",
    "OperativeAgent",
    "OrchestratorAgent",
    "RLMAgent",
    "SimpleAgent",
    "ToolUsingAgent",
    "parameter",
    "user",
]

_MODULES: Final = {name: module for module, _, name in (path.rpartition(".") for path in BUILT_IN.values())}


def __getattr__(name: str) -> object:
    """Import the class of a kind when it is first used: a turn needs one of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
