"""Read messages that are plain dicts: ``{"role": "user", "content": "Hello"}``."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from spass.core.errors import InvalidRequest
from spass.core.messages import Json, Message, Role, ToolSpec

_ROLES: Final = {"system": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_KEYS: Final = frozenset({"role", "content"})


def read_messages(messages: Sequence[Mapping[str, str]]) -> tuple[Message, ...]:
    """Return the messages.

    Raises:
        InvalidRequest: one of them is not a message; ``param`` says where.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest('messages is a list. Write [{"role": "user", "content": "…"}].', param="messages")
    if not messages:
        raise InvalidRequest("messages is empty. Write at least one message.", param="messages")
    return tuple(_read_message(message, f"messages.{number}") for number, message in enumerate(messages))


def read_tools(tools: Sequence[Mapping[str, Json]]) -> tuple[ToolSpec, ...]:
    """Return the tools, which are in OpenAI's format.

    Raises:
        InvalidRequest: one of them is not a tool; ``param`` says where.
    """
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
    if unknown := {*map(str, message)} - _KEYS:
        raise InvalidRequest(f"{param} has the key '{min(unknown)[:64]}'. A message has role and content.", param=param)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(f"{param}.role is {role!r:.64}. Use one of: {', '.join(_ROLES)}.", param=f"{param}.role")
    if not isinstance(content, str):
        raise InvalidRequest(f"{param}.content is not a text.", param=f"{param}.content")
    return Message(_ROLES[role], content)
