"""The kind ``operative``: an agent that runs again and again, and remembers what came of the run before."""

from dataclasses import dataclass

from spass.agents.kinds.base import MAX_TURNS, AgentContext, parameter
from spass.agents.kinds.remembering import RememberingAgent
from spass.core.effects import Steps
from spass.core.messages import MAX_OUTPUT_TOKENS


@dataclass(frozen=True, kw_only=True)
class OperativeAgent(RememberingAgent):
    """Work on a schedule or on request, with a session, a state and notes that last from run to run."""

    temperature: float = parameter(0.3, "Sampling temperature.", ge=0, le=2)
    max_tokens: int = parameter(2048, "Tokens of one reply of the model, at most.", ge=1, le=MAX_OUTPUT_TOKENS)
    max_turns: int = parameter(20, "Model calls of one turn, at most.", ge=1, le=MAX_TURNS)

    def steps(self, input: str, context: AgentContext) -> Steps:
        return self.remember(input, context)
