"""The kind ``orchestrator``: the model answers, or asks for tools, reads their results and goes on, ``max_turns`` calls at
most."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from spass.agents.kinds.context import KindContext
from spass.core.events import (
    Event,
    InferenceFinished,
    InferenceStarted,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
)
from spass.core.messages import FinishReason, Message


async def run(context: KindContext, conversation: Sequence[Message]) -> AsyncGenerator[Event, None]:
    """One turn that answers ``conversation``, whose last message is the user's.

    No tool call is ever left without its result. In the last model call the model may not call tools, so that it answers; if it
    asks for one all the same, or is cut off while asking, the calls are dropped. ``max_turns`` is the finish reason of a turn
    that still wanted a tool at its end.

    Raises:
        SpassError: a model call failed for good, or a tool so that the turn cannot go on.
    """
    yield TurnStarted()
    spoken = list(conversation)
    for number in range(1, context.max_turns + 1):
        last = number == context.max_turns
        yield InferenceStarted(number)
        finished: InferenceFinished | None = None
        async with aclosing(context.model(spoken, may_call_tools=not last)) as events:
            async for event in events:
                if isinstance(event, InferenceFinished):
                    finished = _settled(event, last=last)
                    yield finished
                else:
                    yield event
        if finished is None:
            raise RuntimeError("the context's model ended without InferenceFinished")
        calls = finished.message.tool_calls
        if not calls:
            yield TurnFinished(finished.finish_reason)
            return
        spoken.append(finished.message)
        for call in calls:
            yield ToolCallStarted(call)
        for answer in await context.tools(calls):
            spoken.append(answer.message)
            yield answer


def _settled(finished: InferenceFinished, *, last: bool) -> InferenceFinished:
    """``finished`` with the tool calls that will be run, and a reason that fits them."""
    calls, reason = finished.message.tool_calls, finished.finish_reason
    if not calls:
        return replace(finished, finish_reason=FinishReason.STOP) if reason is FinishReason.TOOL_CALLS else finished
    cut_off = reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
    if not cut_off and not last:
        return replace(finished, finish_reason=FinishReason.TOOL_CALLS)
    return InferenceFinished(replace(finished.message, tool_calls=()), reason if cut_off else FinishReason.MAX_TURNS)
