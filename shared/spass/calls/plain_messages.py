"""Read messages that are plain dicts: ``{"role": "user", "content": "Hello"}``."""

from collections.abc import Mapping, Sequence
from typing import Final

from spass.core.errors import InvalidRequest
from spass.core.messages import Message, Role

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
