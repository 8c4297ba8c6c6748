"""Messages as OpenAI's clients send them. The content is a text, or parts, which may be images in a user's message."""

import base64
import binascii
import re
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from spass.completions.body import NestedObject
from spass.core.messages import Image, Message, Role, ToolCall

_DATA_URL: Final = re.compile(r"data:image/(png|jpe?g|gif|webp);base64,", re.IGNORECASE)
_IMAGE_URL: Final = re.compile(r"https://[^\s/?#@]+([/?#]\S*)?")
_MAX_URL_CHARACTERS: Final = 8192
_UNSUPPORTED_PARTS: Final = ("image_url", "input_audio", "file")
_DETAILS: Final[dict[object, Literal["auto", "low", "high"] | None]] = {None: None, "auto": "auto", "low": "low", "high": "high"}

_TEXT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_IMAGE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "type": {"const": "image_url"},
        "image_url": {
            "type": "object",
            "properties": {
                "url": {
                    "type": "string",
                    "description": "An https: address, or the picture itself as a data: URL in base64.",
                    "pattern": r"^(https://[a-z0-9.]+|data:image/(png|jpeg|gif|webp);base64,([A-Za-z0-9+/]{4})+)$",
                },
                "detail": {"enum": ["auto", "low", "high", None]},
            },
            "required": ["url"],
        },
    },
    "required": ["type", "image_url"],
}


def _schema(part: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": part}]})


def _join_text(value: object) -> object:
    """Join a list of text parts with line breaks. Return any other value unchanged."""
    return "\n".join(map(_read_text, value)) if isinstance(value, list) else value


def _read_parts(value: object) -> tuple[str | Image, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise PydanticKnownError("string_type")
    return tuple(
        _read_image(part) if _part_type(part) == "image_url" else _read_text(part, "text or image_url") for part in value
    )


def _part_type(part: object) -> object:
    return part.get("type") if isinstance(part, dict) else None


def _read_text(part: object, supported: str = "text") -> str:
    kind = _part_type(part)
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise _part_error('a content part is {"type": "text", "text": "…"}')
    if kind not in ("text", "refusal"):
        named = f"of type '{kind}'" if kind in _UNSUPPORTED_PARTS else "of this type"
        raise _part_error(f"parts {named} are not supported here by this gateway; send {supported}")
    text = part.get(kind)
    if not isinstance(text, str):
        raise _part_error('a content part is {"type": "text", "text": "…"}')
    return text


def _read_image(part: object) -> Image:
    image = part.get("image_url") if isinstance(part, dict) else None
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(image, dict) or not isinstance(url, str):
        raise _part_error('a picture is {"type": "image_url", "image_url": {"url": "…", "detail": "auto"}}')
    detail = image.get("detail")
    if not isinstance(detail, str | None) or detail not in _DETAILS:
        raise _part_error("a picture's detail is auto, low or high")
    return Image(_normalize_url(url), _DETAILS[detail])


def _normalize_url(url: str) -> str:
    if url[:5].lower() != "data:":
        if len(url) > _MAX_URL_CHARACTERS or not _IMAGE_URL.fullmatch(url):
            raise _part_error("a picture's url is an https: address or a data: URL")
        return url
    prefix = _DATA_URL.match(url)
    if not prefix:
        raise _part_error("a picture's data: URL begins with data:image/…;base64, where … is png, jpeg, gif or webp")
    data = url[prefix.end() :]
    try:
        picture = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        picture = b""
    if not picture:
        raise _part_error("a picture's data: URL does not hold valid base64")
    return f"data:image/{prefix[1].lower().replace('jpg', 'jpeg')};base64,{data}"


def _part_error(message: str) -> PydanticCustomError:
    return PydanticCustomError("content_part", "{message}", {"message": message})


Text = Annotated[str, BeforeValidator(_join_text), _schema(_TEXT_SCHEMA)]
TextAndImages = Annotated[
    tuple[str | Image, ...], BeforeValidator(_read_parts), _schema({"anyOf": [_TEXT_SCHEMA, _IMAGE_SCHEMA]})
]
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
