"""The kind ``native_react``: the model thinks, acts and reads observations, all as text (Yao et al. 2022,
https://arxiv.org/abs/2210.03629), so it also works with models that have no function calling."""

from dataclasses import dataclass

from spass.agents.kinds.base import AgentContext, ToolUsingAgent
from spass.agents.kinds.protocols import REACT
from spass.agents.kinds.text_loop import text_loop
from spass.core.effects import Steps


@dataclass(frozen=True, kw_only=True)
class NativeReActAgent(ToolUsingAgent):
    """Reason and act in text (Thought, Action, Observation) until a final answer, with any model."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        return text_loop(self, input, context, REACT)
