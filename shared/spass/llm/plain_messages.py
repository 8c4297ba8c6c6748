"""Read messages and tools that are plain dicts in OpenAI's format: ``{"role": "user", "content": "Hello"}``."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from spass.core.errors import InvalidRequest
from spass.core.messages import Json, Message, Role, ToolCall, ToolSpec

_KEYS: Final = {
    Role.SYSTEM: ("role", "content"),
    Role.USER: ("role", "content"),
    Role.ASSISTANT: ("role", "content", "tool_calls"),
    Role.TOOL: ("role", "content", "tool_call_id"),
}


def read_messages(messages: Sequence[Mapping[str, object]]) -> tuple[Message, ...]:
    """Return the messages. Raise InvalidRequest if one of them is not a message; ``param`` says where."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest('messages is a list. Write [{"role": "user", "content": "…"}].', param="messages")
    if not messages:
        raise InvalidRequest("messages is empty. Write at least one message.", param="messages")
    return tuple(_read_message(message, f"messages.{number}") for number, message in enumerate(messages))


def read_tools(tools: Sequence[Mapping[str, Json]]) -> tuple[ToolSpec, ...]:
    """Return the tools, which are in OpenAI's format. Raise InvalidRequest if one of them is not a tool; ``param`` says where."""
    return tuple(_read_tool(tool, f"tools.{number}") for number, tool in enumerate(tools))


def _read_tool(tool: object, param: str) -> ToolSpec:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if isinstance(function, Mapping):
        name, parameters = function.get("name"), function.get("parameters", {"type": "object", "properties": {}})
        description = function.get("description", "")
        is_named = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
        if is_named and isinstance(description, str) and isinstance(parameters, Mapping):
            return ToolSpec(str(name), description, parameters)
    example = '{"type": "function", "function": {"name": "…", "description": "…", "parameters": {"type": "object", …}}}'
    raise InvalidRequest(f"{param} is not a tool. Write {example}", param=param)


def _read_message(message: object, param: str) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f'{param} is not a dict. Write {{"role": "user", "content": "…"}}.', param=param)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _KEYS:
        raise InvalidRequest(f"{param}.role is {role!r:.64}. Use one of: {', '.join(_KEYS)}.", param=f"{param}.role")
    keys = _KEYS[Role(role)]
    if unknown := {*map(str, message)} - {*keys}:
        article = "An" if role == Role.ASSISTANT else "A"
        raise InvalidRequest(
            f"{param} has the key '{min(unknown)[:64]}'. {article} {role} message has {', '.join(keys[:-1])} and {keys[-1]}.",
            param=param,
        )
    calls = message.get("tool_calls") or ()
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        raise InvalidRequest(f"{param}.content is not a text.", param=f"{param}.content")
    if role != Role.TOOL:
        return Message(Role(role), content, _read_calls(calls, f"{param}.tool_calls"))
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        message_text = f"{param}.tool_call_id is not a text. Copy the id of the call that the message answers."
        raise InvalidRequest(message_text, param=f"{param}.tool_call_id")
    return Message(Role.TOOL, content, tool_call_id=call_id)


def _read_calls(calls: object, param: str) -> tuple[ToolCall, ...]:
    if isinstance(calls, str | Mapping) or not isinstance(calls, Sequence):
        raise InvalidRequest(f"{param} is not a list.", param=param)
    return tuple(_read_call(call, f"{param}.{number}") for number, call in enumerate(calls))


def _read_call(call: object, param: str) -> ToolCall:
    match call:
        case ToolCall():
            return call
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}} if call_id and name:
            return ToolCall(call_id, name, arguments)
    example = '{"id": "…", "type": "function", "function": {"name": "…", "arguments": "{}"}}'
    raise InvalidRequest(f"{param} is not a call of a tool. Copy it from reply.tool_calls, or write {example}", param=param)
