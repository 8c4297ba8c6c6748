"""Follow the JSON of tool calls that a model writes as its reply, character by character.

The grammar, with blanks between all tokens:

    reply = calls | fence [word] calls fence            a fence is ``` or ~~~
    calls = call | "[" call {"," call} "]" | {"tool_calls": [call, …]}
    call  = an object with ``name`` and ``arguments`` or ``parameters``, or with these in ``function``; also ``type`` and ``id``

The members of an object come in any order. Arguments are an object or a string.
"""

import json
import re
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")
_Steps: TypeAlias = Generator[None, None, T]
"""A part of the grammar. It yields whenever it needs more text, and returns once it has read its part."""
_Reader: TypeAlias = Callable[[], _Steps[object]]

_TEXT_IN_STRING: Final = re.compile(r'[^"\\]*')
_TEXT_IN_OBJECT: Final = re.compile(r'[^"\[\]{}]*')
_FENCE_LENGTH: Final = 3


class NotCalls(Exception):
    """The text is not the beginning of tool calls."""


class JsonCallScanner:
    """Tell after each piece of a reply whether it may still become tool calls.

    ``names`` are those of the offered tools, ``blanks`` the characters between the tokens of JSON. After the last piece,
    ``is_complete`` tells whether the reply has the form of calls. A JSON parser must still read the arguments.
    """

    def __init__(self, names: Collection[str], blanks: str) -> None:
        self.is_complete = False
        self._blanks = blanks
        self._text = ""
        self._at = 0  # the index of the next character in ``_text``
        self._function: dict[str, _Reader] = {
            "name": lambda: self._read_word(names),
            "arguments": self._skip_arguments,
            "parameters": self._skip_arguments,
        }
        self._call: dict[str, _Reader] = self._function | {
            "type": lambda: self._read_word(("function",)),
            "id": self._skip_id,
            "function": self._read_function,
        }
        self._top: dict[str, _Reader] = self._call | {"tool_calls": self._read_tool_calls}
        self._reply = self._read_reply()
        next(self._reply)

    def feed(self, piece: str) -> bool:
        """Return True if the text so far may be the beginning of tool calls, or of a block of think text before them."""
        self._text, self._at = piece, 0
        try:
            next(self._reply)
        except NotCalls:
            return False
        return True

    def _next(self) -> _Steps[str]:
        while self._at == len(self._text):
            yield
        self._at += 1
        return self._text[self._at - 1]

    def _next_visible(self) -> _Steps[str]:
        while (character := (yield from self._next())) in self._blanks:
            pass
        return character

    def _expect(self, characters: str) -> _Steps[None]:
        for character in characters:
            if (yield from self._next()) not in (character, character.upper()):
                raise NotCalls

    def _read_reply(self) -> _Steps[None]:
        yield
        first = yield from self._next_visible()
        if first == "<":
            yield from self._expect("think>")
            raise NotCalls
        fence = first * _FENCE_LENGTH if first in "`~" else ""
        if fence:
            yield from self._expect(fence[1:])
            first = yield from self._next()
            while first.isalnum() or first in "_+-":
                first = yield from self._next()
            if first in self._blanks:
                first = yield from self._next_visible()
        if first == "[":
            yield from self._read_list()
        elif first == "{":
            yield from self._read_members(self._top)
        else:
            raise NotCalls
        if fence:
            if (yield from self._next_visible()) != fence[0]:
                raise NotCalls
            yield from self._expect(fence[1:])
        self.is_complete = True
        yield from self._next_visible()
        self.is_complete = False
        raise NotCalls

    def _read_list(self) -> _Steps[None]:
        separator = ","
        while separator == ",":
            if (yield from self._next_visible()) != "{":
                raise NotCalls
            yield from self._read_members(self._call)
            separator = yield from self._next_visible()
        if separator != "]":
            raise NotCalls

    def _read_members(self, readers: Mapping[str, _Reader]) -> _Steps[None]:
        """Read the members of an object whose bracket has been read. ``readers`` read the values."""
        separator = ","
        while separator == ",":
            name = yield from self._read_word(readers)
            if (yield from self._next_visible()) != ":":
                raise NotCalls
            yield from readers[name]()
            separator = yield from self._next_visible()
        if separator != "}":
            raise NotCalls

    def _read_word(self, words: Collection[str]) -> _Steps[str]:
        """Read a string that must be one of ``words``."""
        if (yield from self._next_visible()) != '"':
            raise NotCalls
        written, has_escape = "", False
        while (character := (yield from self._next())) != '"':
            written += character
            if character == "\\":
                has_escape = True
                written += yield from self._next()
            if not has_escape and not any(word.startswith(written) for word in words):
                raise NotCalls
        try:
            word: str = json.loads(f'"{written}"')
        except ValueError:
            raise NotCalls from None
        if word not in words:
            raise NotCalls
        return word

    def _read_function(self) -> _Steps[None]:
        if (yield from self._next_visible()) != "{":
            raise NotCalls
        yield from self._read_members(self._function)

    def _read_tool_calls(self) -> _Steps[None]:
        if (yield from self._next_visible()) != "[":
            raise NotCalls
        yield from self._read_list()

    def _skip_id(self) -> _Steps[None]:
        if (yield from self._next_visible()) != '"':
            raise NotCalls
        yield from self._skip_string()

    def _skip_arguments(self) -> _Steps[None]:
        match (yield from self._next_visible()):
            case '"':
                yield from self._skip_string()
            case "{":
                yield from self._skip_object()
            case _:
                raise NotCalls

    def _skip_string(self) -> _Steps[None]:
        while True:
            yield from self._skip(_TEXT_IN_STRING)
            if (yield from self._next()) == '"':
                return
            yield from self._next()  # the character after a backslash

    def _skip_object(self) -> _Steps[None]:
        depth = 1
        while depth:
            yield from self._skip(_TEXT_IN_OBJECT)
            character = yield from self._next()
            if character == '"':
                yield from self._skip_string()
            else:
                depth += 1 if character in "[{" else -1

    def _skip(self, pattern: re.Pattern[str]) -> _Steps[None]:
        """Skip all that ``pattern`` matches, in this piece and the next ones."""
        while match := pattern.match(self._text, self._at):
            self._at = match.end()
            if self._at < len(self._text):
                return
            yield
