"""Find the blocks of code in a reply, and write cells and their results as text.

A block begins and ends as in CommonMark (https://spec.commonmark.org/0.31.2/#fenced-code-blocks), except that its fence may be
indented by up to 64 blanks and has at most six signs. An unclosed block ends with the reply.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from spass.agents.kinds.protocols import REACT, observation, write_call
from spass.core.code_calls import CODE_TOOL
from spass.core.effects import CellResult, user
from spass.core.json import InvalidJson, dump, read_object
from spass.core.messages import Json, Message, Role, ToolCall

PYTHON: Final = ("python", "python3", "py")
"""The languages of a block of Python code."""
MAX_BLOCKS: Final = 32
"""Blocks of one reply that may run: as many as tool calls."""

_OUTPUT: Final = "Output:"
_FENCE_LENGTHS: Final = range(3, 7)
_FENCE: Final = re.compile(r"(?P<indent>[ \t]{0,64})(?P<fence>(?P<sign>[`~])(?P=sign){2,})(?P<info>.*)", re.DOTALL)
_LANGUAGE: Final = re.compile(r"[ \t]{0,3}(?P<language>\w*)(?![\w#+.-])")
_TICKS: Final = re.compile(r"`{3,}")


@dataclass(frozen=True, slots=True)
class Block:
    """The code of a block in one of the languages that were asked for."""

    code: str


@dataclass(frozen=True, slots=True)
class CodeReply:
    """The ``blocks`` of a reply, in order. ``text`` is the text before the first one, or all text if there are none."""

    blocks: tuple[str, ...]
    text: str


def parse_code_reply(text: str, languages: Sequence[str]) -> CodeReply:
    """Return the blocks of ``languages`` in a reply, and the text before them."""
    pieces = split_blocks(text, languages)
    text = pieces[0].strip() if isinstance(pieces[0], str) else ""
    return CodeReply(tuple(piece.code for piece in pieces if isinstance(piece, Block)), text)


def block_markers(languages: Sequence[str]) -> tuple[str, ...]:
    """Return what a filter of shown text must stop at, so that it shows nothing of a block of ``languages``."""
    starts = [name for name in languages if not any(name != other and name.startswith(other) for other in languages)]
    openings = product("`~", _FENCE_LENGTHS, ("", " "), starts)
    return tuple(f"{sign * length}{blank}{language}" for sign, length, blank, language in openings)


def split_blocks(text: str, languages: Sequence[str]) -> list[str | Block]:
    """Return the reply as a text, a block, a text, a block, and so on. Blocks of other languages are part of the texts.

    The texts begin and end at line ends, and at least one text is returned.
    """
    pieces: list[str | Block] = []
    outside: list[str] = []
    code: list[str] = []
    fence: _Fence | None = None
    for line in text.split("\n"):
        lines = outside if fence is None or not fence.is_code else code
        if fence is None:
            fence = _opening_fence(line, languages)
            if fence is None or not fence.is_code:
                lines.append(line)
            else:
                pieces.append("\n".join(outside))
                outside = []
        elif fence.is_closed_by(line):
            if fence.is_code:
                pieces.append(_block(fence, code))
                code = []
            else:
                lines.append(line)
            fence = None
        else:
            lines.append(line)
    if fence is not None and fence.is_code:
        pieces.append(_block(fence, code))
    elif outside or not pieces:
        pieces.append("\n".join(outside))
    return pieces


def cells_as_text(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return ``messages`` with tool calls and their results as text: a cell as a block and its output, another call as an action
    and its observation. Each result follows its call."""
    output: list[Message] = []
    calls: dict[str, tuple[str, ToolCall]] = {}  # the words before a call and the call, until its result comes
    for message in messages:
        if message.role is Role.TOOL:
            words, call = calls.pop(message.tool_call_id or "", ("", None))
            code = _code_of(call)
            if call is not None:
                written = write_cell(words, code) if code is not None else write_action(words, call)
                output.append(Message(Role.ASSISTANT, written))
            output.append(observation(message.content, REACT) if code is None else _describe_recorded(message.content))
        elif message.role is Role.ASSISTANT and message.tool_calls:
            texts = [message.content, *[""] * (len(message.tool_calls) - 1)]
            calls |= {call.id: (words, call) for call, words in zip(message.tool_calls, texts, strict=True)}
        else:
            output.append(message)
    return tuple(output)


def write_cell(text: str, code: str) -> str:
    """Return a cell as a block with the words before it. No line of the code can end the block."""
    longest = max((len(ticks) for ticks in _TICKS.findall(code)), default=2)
    fence = "`" * (longest + 1)
    return "\n".join((*([text, ""] if text else []), f"{fence}python", code.removesuffix("\n"), fence))


def write_action(text: str, call: ToolCall) -> str:
    """Return a tool call as an action with the words before it."""
    written = write_call("", call.name, call.arguments, REACT)
    return f"{text}\n{written}" if text else written


def _describe_recorded(content: str) -> Message:
    """Return the message that tells the model the recorded result of a cell, with the approvals that its calls asked for."""
    described = describe_result(_result(content))
    approvals = _read(content).get("approvals")
    return replace(described, content=f"{described.content}\nApprovals: {dump(approvals)}") if approvals else described


def describe_result(result: CellResult) -> Message:
    """Return the message that tells the model what a cell printed and whether it failed, as data."""
    parts = [result.output.removesuffix("\n")]
    if result.truncated:
        parts.append(f"[{result.truncated} more characters of output were not kept. Print less.]")
    if result.error is not None:
        parts.append(f"Error: {result.error}")
    elif not result.output:
        parts.append("[The code ran and printed nothing. Print what you need to see.]")
    return user(f"{_OUTPUT} " + "\n".join(filter(None, parts)), data=True)


@dataclass(frozen=True, slots=True)
class _Fence:
    sign: str
    length: int
    indent: int
    is_code: bool

    def is_closed_by(self, line: str) -> bool:
        word = line.strip(" \t\r")
        indent = len(line) - len(line.lstrip(" \t"))
        return len(word) >= self.length and word == self.sign * len(word) and indent <= self.indent + 3


def _opening_fence(line: str, languages: Sequence[str]) -> _Fence | None:
    found = _FENCE.match(line)
    if found is None or (found["sign"] == "`" and "`" in found["info"]):
        return None
    length = len(found["fence"])
    language = _LANGUAGE.match(found["info"])
    is_code = language is not None and language["language"].lower() in languages and length in _FENCE_LENGTHS
    return _Fence(found["sign"], length, len(found["indent"]), is_code)


def _block(fence: _Fence, lines: Sequence[str]) -> Block:
    """Return the code without the fence's indentation, as far as all lines have it."""
    lines = [line.removesuffix("\r") for line in lines]
    blanks = min((len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()), default=0)
    return Block("\n".join(line[min(fence.indent, blanks) :] for line in lines))


def _code_of(call: ToolCall | None) -> str | None:
    code = _read(call.arguments).get("code") if call is not None and call.name == CODE_TOOL else None
    return code if isinstance(code, str) else None


def _result(content: str) -> CellResult:
    """Return the result of a recorded cell. What cannot be read as one is its output."""
    match _read(content):
        case {"output": str(output), "error": str() | None as error, "truncated": int(truncated)}:
            return CellResult(output, error, truncated)
        case _:
            return CellResult(content)


def _read(text: str) -> dict[str, Json]:
    try:
        return read_object(text)
    except InvalidJson:
        return {}
