"""The one message that answers a chat: its events, from a call of the pipeline or an agent's turn, and its blocking form."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Final, assert_never

from spass.agents.render.chunks import chunk_head, render_usage
from spass.completions.responses import ChatCompletion, CompletionMessage
from spass.core import events
from spass.core.cost import CostTally
from spass.core.ids import new_id
from spass.core.messages import FinishReason, ToolCallDelta
from spass.models.responses import CalledFunction, FunctionCall
from spass.models.types import ChatDelta, ReplyBuilder

_TEXT_SEPARATOR: Final = "\n\n"


async def pipeline_events(deltas: AsyncGenerator[ChatDelta, None], tally: CostTally) -> AsyncGenerator[events.Event, None]:
    """Yield the events of the answer that arrives in ``deltas``. The client answers all tool calls. ``tally`` is the request's.
    Raise the errors of ``Calls.chat``."""
    builder = ReplyBuilder(bool)
    async with aclosing(deltas):
        async for delta in deltas:
            pieces = builder.add(delta)
            if delta.content:
                yield events.Token(delta.content, 1)
            if delta.refusal:
                yield events.RefusalDelta(delta.refusal)
            for piece in pieces:
                yield piece
            if delta.finish_reason is not None and delta.usage is not None:
                yield events.TurnFinished(delta.finish_reason, delta.usage, tally.total)


async def all_texts(turn: AsyncGenerator[events.Event, None]) -> AsyncGenerator[events.Event, None]:
    """Yield the events of an answer that is the text of all model calls, separated by empty lines. Raise SpassError if the turn
    failed."""
    last_step: int | None = None
    async with aclosing(turn):
        async for event in turn:
            match event:
                case events.Token(text=text, step=step) if text:
                    yield event if last_step in (None, step) else events.Token(_TEXT_SEPARATOR + text, step)
                    last_step = step
                case _:
                    yield _for_clients(event)


async def last_text(turn: AsyncGenerator[events.Event, None]) -> AsyncGenerator[events.Event, None]:
    """Yield the events of an answer that is the text of the last step.

    Only the end of the turn shows which step is the last. Its tokens are kept until then. An empty token says at once that the
    model answers, so that the response begins. Raise SpassError if the turn failed.
    """
    kept: list[events.Token] = []
    async with aclosing(turn):
        async for event in turn:
            match event:
                case events.Token(step=step):
                    if kept and kept[0].step != step:
                        kept.clear()
                    kept.append(event)
                    yield events.Token("", step)
                case events.ToolCallStarted():
                    yield events.Token("", 1)
                case events.TurnFinished():
                    for token in kept:
                        yield token
                    yield _for_clients(event)
                case _:
                    yield _for_clients(event)


def _for_clients(event: events.Event) -> events.Event:
    """Return ``event`` without a finish reason that OpenAI does not know. Raise SpassError if the event is the failure of the
    turn."""
    match event:
        case events.Failed(error=error):
            raise error
        case events.TurnFinished(finish_reason=FinishReason.MAX_TURNS | FinishReason.CANCELLED | FinishReason.DEADLINE):
            return replace(event, finish_reason=FinishReason.LENGTH)
        case _:
            return event


class AnswerBuilder:
    """The answer of ``model`` so far. ``head`` is that of its chunks too."""

    def __init__(self, model: str) -> None:
        self.head = chunk_head(new_id("chatcmpl").replace("_", "-", 1), int(time.time()), model)
        self._builder = ReplyBuilder()
        self._finished: events.TurnFinished | None = None

    def add(self, event: events.Event) -> None:
        match event:
            case events.Token(text=text):
                self._builder.add(ChatDelta(text))
            case events.RefusalDelta(text=text):
                self._builder.add(ChatDelta(refusal=text))
            case ToolCallDelta():
                self._builder.add(ChatDelta(tool_calls=(event,)))
            case events.TurnFinished():
                self._finished = event
            case events.TurnStarted() | events.InferenceStarted() | events.InferenceFinished() | events.MessageWritten():
                pass
            case events.ResultRecorded() | events.Status() | events.ToolCallStarted() | events.ToolProgress():
                pass
            case events.ToolCallFinished() | events.Nested() | events.Failed():
                pass
            case _:
                assert_never(event)

    def build(self) -> ChatCompletion:
        """Return the answer, once it has ended."""
        if self._finished is None:
            raise RuntimeError("the answer has not ended")
        reply, finished = self._builder.reply, self._finished
        calls = tuple(
            FunctionCall(id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments))
            for call in reply.message.tool_calls
        )
        has_no_text = not reply.message.content and (calls or reply.refusal)
        message = CompletionMessage(
            content=None if has_no_text else reply.message.content, refusal=reply.refusal or None, tool_calls=calls
        )
        choice = {"index": 0, "message": message, "finish_reason": finished.finish_reason.value}
        usage = render_usage(finished.usage, finished.cost)
        return ChatCompletion.model_validate({**self.head, "object": "chat.completion", "choices": [choice], "usage": usage})
