"""Divide messages that are longer than a model call permits. Aider sends all files of an edit in one message."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from spass.calls.defence import MAX_CHARACTERS
from spass.core.messages import Message, Role

_BETWEEN: Final = "The message continues."
"""The other side says this between two parts, because many chat templates require that user and assistant take turns."""


def divide_long_messages(messages: Sequence[Message], limit: int = MAX_CHARACTERS) -> list[Message]:
    """Return the same conversation in messages of at most ``limit`` characters. A part ends at the end of a line, if possible."""
    return [part for message in messages for part in _parts(message, limit)]


def _parts(message: Message, limit: int) -> Iterator[Message]:
    other, rest = Role.USER if message.role is Role.ASSISTANT else Role.ASSISTANT, message.content
    while len(rest) > limit:
        end = rest.rfind("\n", 0, limit) + 1 or limit
        yield replace(message, content=rest[:end])
        yield Message(other, _BETWEEN)
        rest = rest[end:]
    yield replace(message, content=rest)
