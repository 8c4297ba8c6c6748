"""The input defence: sanitize a request before it is sent to a model. Stored texts do not change."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from spass.calls.datamark import NOTE, MarkRemover, choose_mark, wrap_as_data
from spass.calls.text_cleaning import clean_text
from spass.core.errors import InputRefused
from spass.core.messages import Image, Json, Message, Role, ToolCall, ToolCallDelta, ToolSpec
from spass.models.types import ChatDelta, ChatRequest

MAX_CHARACTERS: Final = 1_000_000
"""Characters of one message, including the arguments of its tool calls but not its images."""

_DESCRIPTION_FIELDS: Final = ("description", "title")
_BLANK_LETTERS: Final = "\u2800"  # the blank Braille pattern, which is not white space


@dataclass(frozen=True, slots=True)
class SanitizedRequest:
    """A ``request`` that may be sent to a model. ``mark_remover`` is None if no text in it was marked."""

    request: ChatRequest
    mark_remover: "_DeltaMarkRemover | None" = None

    @property
    def mark(self) -> str | None:
        return self.mark_remover.mark if self.mark_remover else None

    def feed(self, delta: ChatDelta) -> ChatDelta:
        """Return the next delta of the answer without our marks, which a model may repeat."""
        return self.mark_remover.feed(delta) if self.mark_remover else delta


def sanitize_request(request: ChatRequest) -> SanitizedRequest:
    """Return ``request`` without invisible characters and role tokens of chat templates, and with looked-up text marked as data.
    Raise ``InputRefused`` if a message is too long or has no visible character: ``details.reason`` says which."""
    messages = [_sanitize_message(message) for message in request.messages]
    tools = _sanitize_tools(request.tools)
    response_format = _sanitize_format(request.response_format)
    if tools is not request.tools or response_format is not request.response_format:
        request = replace(request, tools=tools, response_format=response_format)
    if any(map(_is_data, messages)):
        mark = choose_mark(text for message in messages for text in _texts(message))
        marked = [
            message.rewritten(lambda text: wrap_as_data(text, mark)) if _is_data(message) else message for message in messages
        ]
        return SanitizedRequest(replace(request, messages=_with_note(_with_headings(marked))), _DeltaMarkRemover(mark))
    messages = _with_headings(messages)
    if _same(messages, request.messages):
        return SanitizedRequest(request)
    return SanitizedRequest(replace(request, messages=tuple(messages)))


def is_blank(text: str) -> bool:
    """Return whether ``text`` has no character that a model can see."""
    return _is_invisible(clean_text(text))


def _is_invisible(clean: str) -> bool:
    return not clean.strip().strip(_BLANK_LETTERS)


def _is_data(message: Message) -> bool:
    return message.data or message.role is Role.TOOL


def _texts(message: Message) -> Sequence[str]:
    return (message.heading, message.content, *(call.arguments for call in message.tool_calls))


def _with_headings(messages: Sequence[Message]) -> list[Message]:
    return [message.with_heading_in_text() for message in messages]


def _with_note(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Add the note on marks to the end of the system prompt: many templates allow only one system message."""
    first = messages[0]
    if first.role is Role.SYSTEM and not _is_data(first):
        return (replace(first, content=f"{first.content}\n\n{NOTE}"), *messages[1:])
    return (Message(Role.SYSTEM, NOTE), *messages)


def _sanitize_message(message: Message) -> Message:
    """Return ``message`` with clean texts, or the same object if they were clean."""
    if sum(map(len, _texts(message))) > MAX_CHARACTERS:
        raise InputRefused(
            f"A message has more than {MAX_CHARACTERS} characters.", param="messages", details={"reason": "message_too_long"}
        )
    content = clean_text(message.content)
    calls = tuple(_sanitize_call(call) for call in message.tool_calls)
    name, call_id = message.name and clean_text(message.name), message.tool_call_id and _clean_id(message.tool_call_id)
    heading = clean_text(message.heading)
    before = (message.content, message.heading, *message.tool_calls, message.name, message.tool_call_id)
    if _same((content, heading, *calls, name, call_id), before):
        return message
    _check_visible(message, heading + content)
    clean = message.rewritten(clean_text) if message.parts else replace(message, content=content)
    return replace(clean, heading=heading, tool_calls=calls, name=name or None, tool_call_id=call_id)


def _clean_id(identity: str) -> str:
    """Return the clean id of a call. It is the same for the call and for its result, so that they stay a pair."""
    return clean_text(identity) or "call"


def _check_visible(message: Message, clean: str) -> None:
    has_image = any(isinstance(part, Image) for part in message.parts)
    if message.role is Role.USER and not has_image and _is_invisible(clean):
        raise InputRefused("A message has no visible character.", param="messages", details={"reason": "nothing_visible"})


def _sanitize_call(call: ToolCall) -> ToolCall:
    """Clean an earlier call of the model, which may contain text that the model read. Some providers parse the JSON and so decode
    its escapes. So clean the decoded values too."""
    arguments = clean_text(call.arguments)
    if "\\u" in arguments:
        try:
            value: Json = json.loads(arguments)
            clean = _clean_value(value)
            if clean != value:
                arguments = json.dumps(clean, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
    identity, name = call.id and _clean_id(call.id), clean_text(call.name) or "tool"
    unchanged = arguments is call.arguments and identity is call.id and name is call.name
    return call if unchanged else replace(call, id=identity, name=name, arguments=arguments)


def _clean_value(value: Json) -> Json:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(name): _clean_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_clean_value(inner) for inner in value]
    return value


def _sanitize_tools(tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
    """Return ``tools`` with clean descriptions, because a client may copy them from elsewhere. Names and values do not change."""
    descriptions = "\n".join(text for tool in tools for text in (tool.description, *_descriptions(tool.parameters)))
    if clean_text(descriptions) is descriptions:
        return tools
    return tuple(
        replace(tool, description=clean_text(tool.description), parameters=_with_clean_descriptions(tool.parameters))
        for tool in tools
    )


def _sanitize_format(schema: Mapping[str, Json] | None) -> Mapping[str, Json] | None:
    """Return ``schema`` with clean descriptions: some chat templates write the schema of the answer into the prompt."""
    descriptions = "\n".join(_descriptions(schema))
    return schema if schema is None or clean_text(descriptions) is descriptions else _with_clean_descriptions(schema)


def _descriptions(schema: Json) -> Iterator[str]:
    remaining = [schema]
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict):
            yield from (text for name in _DESCRIPTION_FIELDS if isinstance(text := value.get(name), str))
            remaining += value.values()
        elif isinstance(value, list | tuple):
            remaining += value


def _with_clean_descriptions(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    def clean_object(part: dict[str, Json]) -> dict[str, Json]:
        return part | {name: clean_text(text) for name in _DESCRIPTION_FIELDS if isinstance(text := part.get(name), str)}

    clean_schema: Mapping[str, Json] = json.loads(json.dumps(schema), object_hook=clean_object)
    return clean_schema


def _same(after: Sequence[object], before: Sequence[object]) -> bool:
    return all(one is other for one, other in zip(after, before, strict=True))


class _DeltaMarkRemover:
    """Remove marks from the deltas of one answer: from its text, its refusal, and the arguments of each call separately."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._content = MarkRemover(mark)
        self._refusal = MarkRemover(mark)
        self._calls: dict[int, MarkRemover] = {}

    def feed(self, delta: ChatDelta) -> ChatDelta:
        content, refusal = self._content.feed(delta.content), self._refusal.feed(delta.refusal)
        calls = tuple(map(self._feed_call, delta.tool_calls))
        if delta.finish_reason is not None:
            content += self._content.flush()
            refusal += self._refusal.flush()
            held = ((index, remover.flush()) for index, remover in self._calls.items())
            calls += tuple(ToolCallDelta(index, arguments=text) for index, text in held if text)
        return replace(delta, content=content, refusal=refusal, tool_calls=calls)

    def _feed_call(self, call: ToolCallDelta) -> ToolCallDelta:
        remover = self._calls.setdefault(call.index, MarkRemover(self.mark, json=True))
        return replace(call, arguments=remover.feed(call.arguments))
