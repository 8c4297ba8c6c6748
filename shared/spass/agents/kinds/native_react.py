"""The kind ``native_react``: the model thinks, acts and reads observations, all as text (Yao et al. 2022,
https://arxiv.org/abs/2210.03629), so it also works with models that have no function calling."""

from dataclasses import dataclass

from spass.agents.kinds.base import AgentContext, CallFormat, ToolLoopAgent
from spass.agents.kinds.protocols import REACT
from spass.agents.kinds.written_calls import WrittenCalls


@dataclass(frozen=True, kw_only=True)
class NativeReActAgent(ToolLoopAgent):
    """Reason and act in text (Thought, Action, Observation) until a final answer, with any model."""

    def call_format(self, context: AgentContext) -> CallFormat:
        return WrittenCalls(REACT, context.specs)
