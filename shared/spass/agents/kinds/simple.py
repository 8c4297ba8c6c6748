"""The kind ``simple``: one call of the model, without tools."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from spass.agents.kinds.base import MAX_TURNS, AgentContext, BaseAgent, parameter
from spass.core.effects import Answer, Infer, Steps, user
from spass.core.messages import Message, Role


@dataclass(frozen=True, kw_only=True)
class SimpleAgent(BaseAgent):
    """Call the model once, without tools."""

    multi_turn: ClassVar[bool] = False

    max_turns: int = parameter(1, "Model calls of one turn, at most. This kind makes one.", ge=1, le=MAX_TURNS)

    def steps(self, input: str, context: AgentContext) -> Steps:
        reply = yield Infer(
            self.opening(input, replace(context, conversation=tuple(tools_as_text(context.conversation)))), "none"
        )
        return Answer(reply.content)


def tools_as_text(conversation: Sequence[Message]) -> Iterator[Message]:
    """Yield the conversation with its tool calls and their results as text. Providers refuse them in a request without tools."""
    for message in conversation:
        if message.role is Role.TOOL:
            yield user(f"Result of the call {message.tool_call_id}: {message.content}", data=True)
        elif message.tool_calls:
            calls = [f"Call {call.id}: {call.name} {call.arguments}" for call in message.tool_calls]
            yield replace(message, content="\n".join([*filter(None, [message.content]), *calls]), tool_calls=())
        else:
            yield message
