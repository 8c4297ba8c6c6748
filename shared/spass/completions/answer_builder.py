"""Build the blocking answer of a chat from the events that a stream of chunks renders."""

import time
from typing import assert_never

from spass.agents.render.chunks import AnswerHead, render_usage
from spass.completions.responses import ChatCompletion, Choice, CompletionMessage, CompletionUsage
from spass.core.events import (
    Event,
    Failed,
    InferenceFinished,
    InferenceStarted,
    MessageWritten,
    Nested,
    RefusalDelta,
    ResultRecorded,
    Status,
    Token,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnFinished,
    TurnStarted,
)
from spass.core.ids import new_id
from spass.core.messages import ToolCallDelta
from spass.models.responses import CalledFunction, FunctionCall
from spass.models.types import ChatDelta, ReplyBuilder


class AnswerBuilder:
    """The answer of ``model`` so far. ``head`` is that of its chunks too."""

    def __init__(self, model: str) -> None:
        self.head = AnswerHead(new_id("chatcmpl").replace("_", "-", 1), int(time.time()), model)
        self._builder = ReplyBuilder()
        self._finished: TurnFinished | None = None

    def add(self, event: Event) -> None:
        match event:
            case Token(text=text):
                self._builder.add(ChatDelta(text))
            case RefusalDelta(text=text):
                self._builder.add(ChatDelta(refusal=text))
            case ToolCallDelta():
                self._builder.add(ChatDelta(tool_calls=(event,)))
            case TurnFinished():
                self._finished = event
            case TurnStarted() | InferenceStarted() | InferenceFinished() | MessageWritten() | ResultRecorded() | Status():
                pass
            case ToolCallStarted() | ToolProgress() | ToolCallFinished() | Nested() | Failed():
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
        return ChatCompletion(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[Choice.model_validate({"index": 0, "message": message, "finish_reason": finished.finish_reason.value})],
            usage=CompletionUsage.model_validate(render_usage(finished.usage, finished.cost)),
        )
