"""The short name of the kind ``native_react``."""

from spass.agents.kinds.native_react import NativeReActAgent as ReActAgent

__all__ = ["ReActAgent"]
