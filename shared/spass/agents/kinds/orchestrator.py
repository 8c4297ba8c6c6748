"""The kind ``orchestrator``: the model calls tools and reads their results until it answers, in at most ``max_turns`` model
calls."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from spass.agents.kinds.base import AgentContext, ToolUsingAgent
from spass.agents.kinds.context import KindContext
from spass.core.effects import Steps
from spass.core.events import (
    Event,
    InferenceFinished,
    InferenceStarted,
    ToolCallFinished,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
)
from spass.core.messages import FinishReason, Message, TokenUsage


@dataclass(frozen=True, kw_only=True)
class OrchestratorAgent(ToolUsingAgent):
    """Call the model with tools until it answers without a tool call."""

    def steps(self, input: str, context: AgentContext) -> Steps:
        return (yield from self.tool_loop(self.opening(input, context)))


async def run(context: KindContext, conversation: Sequence[Message]) -> AsyncGenerator[Event, None]:
    """Yield the events of the turn that answers ``conversation``, whose last message is the user's.

    Every tool call gets its result. In the last model call the model may not call tools, so that it answers. Tool calls of that
    reply, and of a reply that was cut off, are dropped. If the model calls tools in the last reply, the turn's finish reason is
    ``max_turns``.

    Raises:
        SpassError: a model call failed after all retries, or a tool failed so that the turn cannot continue.
    """
    yield TurnStarted()
    messages = list(conversation)
    usage = TokenUsage()
    for number in range(1, context.max_turns + 1):
        last = number == context.max_turns
        yield InferenceStarted(number)
        finished: InferenceFinished | None = None
        async with aclosing(context.model(messages, number, may_call_tools=not last)) as events:
            async for event in events:
                if isinstance(event, InferenceFinished):
                    finished = _drop_calls(event, last=last)
                    yield finished
                else:
                    yield event
        if finished is None:
            raise RuntimeError("the context's model ended without InferenceFinished")
        usage += finished.usage
        calls = finished.message.tool_calls
        if not calls:
            yield TurnFinished(finished.finish_reason or FinishReason.STOP, usage)
            return
        messages.append(finished.message)
        for call in calls:
            yield ToolCallStarted(call)
        for result in await context.tools(calls):
            messages.append(result.message)
            yield ToolCallFinished(result)


def _drop_calls(finished: InferenceFinished, *, last: bool) -> InferenceFinished:
    """Return ``finished`` with only those tool calls that will be executed, and the finish reason that matches them."""
    calls, reason = finished.message.tool_calls, finished.finish_reason
    if not calls:
        return replace(finished, finish_reason=FinishReason.STOP) if reason is FinishReason.TOOL_CALLS else finished
    cut_off = reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
    if not cut_off and not last:
        return replace(finished, finish_reason=FinishReason.TOOL_CALLS)
    return replace(
        finished, message=replace(finished.message, tool_calls=()), finish_reason=reason if cut_off else FinishReason.MAX_TURNS
    )
