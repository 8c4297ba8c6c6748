"""The kind ``operative``: an agent that runs again and again, and remembers what came of the run before.

``RememberingAgent`` is the base of all kinds of operators.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from spass.agents.kinds.axes.side_calls import Effects
from spass.agents.kinds.base import MAX_TURNS, NATIVE_CALLS, AgentContext, Observe, ToolUsingAgent, observe_as_they_are, parameter
from spass.core.effects import Recalled, SearchNotes, SetState, Steps, ToolOutcome, user
from spass.core.ids import OPERATOR_ID
from spass.core.json import InvalidJson, read_object
from spass.core.messages import MAX_OUTPUT_TOKENS, Message

STATE: Final = "state"
"""The key of the state: ``memory_store`` with this key sets it."""
MAX_STATE_INPUT: Final = 4000
MAX_STATE_ANSWER: Final = 1000


@dataclass(frozen=True, kw_only=True)
class RememberingAgent(ToolUsingAgent):
    """A kind of operators."""

    remembers: ClassVar[bool] = True

    operator_id: str | None = parameter(
        None, "The operator whose session, state and notes a run uses. Without it, nothing is stored.", pattern=OPERATOR_ID
    )

    def remember(self, input: str, context: AgentContext, *data: Message, observe: Observe = observe_as_they_are) -> Steps:
        """Run the tool loop after the state of the run before, and set the next state, unless the model has stored one. ``data``
        precedes the state."""
        recalled: Recalled = yield SearchNotes(STATE, "key", 1)
        state = [user(note.content, data=True, heading="## Previous state") for note in recalled.notes]
        stored: list[str] = []

        def set_state(outcomes: Sequence[ToolOutcome]) -> Effects[Sequence[ToolOutcome]]:
            for content in filter(None, map(_stored_state, outcomes)):
                stored.append(content)
                yield SetState(content)
            return (yield from observe(outcomes))

        answer = yield from self.tool_loop(self.opening(input, context, *data, *state), NATIVE_CALLS, set_state)
        if not stored:
            yield SetState({"input": input[:MAX_STATE_INPUT], "answer": answer.content[:MAX_STATE_ANSWER]})
        return answer


@dataclass(frozen=True, kw_only=True)
class OperativeAgent(RememberingAgent):
    """Work on a schedule or on request, with a session, a state and notes that last from run to run."""

    temperature: float = parameter(0.3, "Sampling temperature.", ge=0, le=2)
    max_tokens: int = parameter(2048, "Tokens of one reply of the model, at most.", ge=1, le=MAX_OUTPUT_TOKENS)
    max_turns: int = parameter(20, "Model calls of one turn, at most.", ge=1, le=MAX_TURNS)

    def steps(self, input: str, context: AgentContext) -> Steps:
        return self.remember(input, context)


def _stored_state(outcome: ToolOutcome) -> str | None:
    """Return the state that a call of ``memory_store`` has stored, or None if it stored something else. The tool's result tells,
    because the tool strips blanks around a key."""
    if not outcome.ok or outcome.call.name != "memory_store" or outcome.result != {"key": STATE}:
        return None
    try:
        arguments = read_object(outcome.call.arguments)
    except InvalidJson:
        return None
    content = arguments.get("content")
    return content if isinstance(content, str) else None
