"""A conversation as a summary model reads it: one JSON object a line.

What somebody wrote stands in a JSON string, in which no line can end, so it is never taken for another speaker's line nor for
the end of the material. No word is lost: the lines of all parts, read again, are the messages.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spass.core.json import replace_surrogates
from spass.core.messages import Message, Role

MIN_PART_BYTES: Final = 256
"""Bytes: any line can be cut so that its pieces fit."""

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME: Final = 64  # of a tool, as everywhere
_TAIL: Final = '"}'
_CONTINUED_FIELD: Final = '"continued": true, '

# JSON lets these stand in a string as they are; to a reader, or to the input defence, a line ends there.
_LINE_ENDS: Final = re.compile("[\x85\u2028\u2029]")
_ESCAPE_CUT: Final = re.compile(rb"\\(?:u[0-9a-f]{0,3})?\Z")


@dataclass(frozen=True, slots=True)
class Line:
    """What one speaker said, one call or one result. ``labels`` is the JSON before the text, ``body`` the text as it stands in a
    JSON string."""

    labels: str
    body: str
    continued: bool = False

    @classmethod
    def of(cls, text: str, field: str, **labels: str | int) -> "Line":
        """The line ``{…labels, field: text}``."""
        named = "".join(f"{_json(name)}: {_json(value)}, " for name, value in labels.items())
        return cls(f'{named}"{field}": "', _json(text)[1:-1])

    def __str__(self) -> str:
        return f"{self._head}{self.body}{_TAIL}"

    @property
    def size(self) -> int:
        """Bytes of UTF-8, the line's end included."""
        return len(self._head) + len(self.body.encode()) + len(_TAIL) + 1

    @property
    def _head(self) -> str:
        return "{" + _CONTINUED_FIELD * self.continued + self.labels

    def pieces(self, room: int) -> Iterator["Line"]:
        """The line itself, or as many as it takes that none is larger than ``room``, between words where possible."""
        if self.size <= room:
            yield self
            return
        body = self.body.encode()
        width = room - len("{" + _CONTINUED_FIELD + self.labels + _TAIL) - 1
        start = 0
        while start < len(body):
            end = _cut_position(body, start, start + width)
            yield Line(self.labels, body[start:end].decode(), self.continued or start > 0)
            start = end


def transcript_lines(messages: Sequence[Message]) -> list[Line]:
    """The lines of ``messages`` as a session keeps them. System prompts are never part of it."""
    tools = {call.id: call.name for message in messages for call in message.tool_calls}
    return [line for message in messages for line in _message_lines(message, tools.get(message.tool_call_id or "", ""))]


def pack_lines(lines: Sequence[Line], room: int) -> list[tuple[Line, ...]]:
    """``lines`` in their order, in parts of at most ``room`` bytes, which is at least ``MIN_PART_BYTES``. A line is cut only
    if it
    does not fit a part of its own."""
    parts: list[list[Line]] = []
    left = 0
    for line in lines:
        for piece in line.pieces(room):
            if not parts or piece.size > left:
                parts.append([])
                left = room
            parts[-1].append(piece)
            left -= piece.size
    return [tuple(part) for part in parts]


def join_lines(lines: Sequence[Line]) -> str:
    return "\n".join(map(str, lines))


def _message_lines(message: Message, tool: str) -> Iterator[Line]:
    match message.role:
        case Role.USER:
            yield Line.of(message.content, "user")
        case Role.ASSISTANT:
            if message.content or not message.tool_calls:
                yield Line.of(message.content, "assistant")
            for call in message.tool_calls:
                yield Line.of(call.arguments, "arguments", assistant_calls=_name(call.name))
        case Role.TOOL:
            yield Line.of(message.content, "result", tool=_name(tool))
        case Role.SYSTEM:
            pass


def _name(tool: str) -> str:
    return _NOT_IN_A_NAME.sub("_", tool[:_LONGEST_NAME])


def _json(value: str | int) -> str:
    written = json.dumps(value, ensure_ascii=False)
    if written.isascii():
        return written
    # No provider accepts half a surrogate pair.
    return _LINE_ENDS.sub(lambda end: f"\\u{ord(end.group()):04x}", replace_surrogates(written))


def _cut_position(body: bytes, start: int, end: int) -> int:
    """Where to cut ``body``, at ``end`` or a little before: behind a blank if there is one near, never in a character or an
    escape."""
    if end >= len(body):
        return len(body)
    near = body.rfind(b" ", end - (end - start) // 4, end)
    if near >= 0:
        return near + 1
    while body[end] & 0xC0 == 0x80:
        end -= 1
    return end - _split_escape_bytes(body[max(start, end - 6) : end], body[start:end])


def _split_escape_bytes(last: bytes, piece: bytes) -> int:
    """How many bytes at the end of ``piece``, whose ``last`` few they are, begin an escape that goes on behind it."""
    begun = _ESCAPE_CUT.search(last)
    if begun is None:
        return 0
    before = piece[: len(piece) - len(begun.group())]
    backslashes = len(before) - len(before.rstrip(b"\\"))
    return 0 if backslashes % 2 else len(begun.group())
