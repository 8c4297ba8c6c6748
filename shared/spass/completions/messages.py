"""Messages as OpenAI's clients send them."""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from spass.completions.body import NestedObject
from spass.completions.content import Text, TextAndImages
from spass.core.messages import Image, Message, Role, ToolCall

Id = Annotated[str, Field(min_length=1, max_length=256)]


class SystemMessage(NestedObject):
    role: Literal["system", "developer"]
    content: Text
    name: str | None = None

    def message(self) -> Message:
        return Message(Role.SYSTEM, self.content, name=self.name)


class UserMessage(NestedObject):
    role: Literal["user"]
    content: TextAndImages
    name: str | None = None

    def message(self) -> Message:
        texts = [part for part in self.content if not isinstance(part, Image)]
        parts = self.content if len(texts) < len(self.content) else ()
        return Message(Role.USER, "\n".join(texts), name=self.name, parts=parts)


class FunctionCall(NestedObject):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    arguments: str


class WireToolCall(NestedObject):
    id: Id
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(NestedObject):
    role: Literal["assistant"]
    content: Text | None = None
    tool_calls: list[WireToolCall] | None = None
    name: str | None = None
    refusal: str | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and not self.tool_calls and self.refusal is None:
            raise PydanticCustomError("empty_message", "an assistant message has content or tool_calls")
        return self

    def message(self) -> Message:
        calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in self.tool_calls or ())
        return Message(Role.ASSISTANT, self.content or self.refusal or "", calls, name=self.name)


class ToolMessage(NestedObject):
    role: Literal["tool"]
    content: Text
    tool_call_id: Id
    name: str | None = None

    def message(self) -> Message:
        return Message(Role.TOOL, self.content, tool_call_id=self.tool_call_id, name=self.name)


WireMessage: TypeAlias = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


def check_tool_answers(messages: list[WireMessage]) -> list[WireMessage]:
    """Check that every tool message answers a call of the assistant message before it, and every call is answered once."""
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise _tool_order(number, "a tool message must answer a tool call of the assistant message before it, once")
            open_calls.discard(message.tool_call_id)
        elif open_calls:
            raise _tool_order(number, "the tool calls before this message are not all answered")
        elif isinstance(message, AssistantMessage):
            open_calls = {call.id for call in message.tool_calls or ()}
            if len(open_calls) < len(message.tool_calls or ()):
                raise _tool_order(number, "two tool calls have the same id")
    if open_calls:
        raise _tool_order(len(messages) - 1, "the tool calls of the last messages are not all answered")
    return messages


def _tool_order(number: int, problem: str) -> PydanticCustomError:
    return PydanticCustomError("tool_order", "message {number}: {problem}", {"number": number, "problem": problem})
