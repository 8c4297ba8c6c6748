"""Follow the tool calls that a model writes, in one of two forms, with blanks between all tokens.

As JSON. The members of an object come in any order. Arguments are an object or a string; a JSON parser must still read them.

    calls = call | "[" call {"," call} "]" | {"tool_calls": [call, …]}
    call  = an object with ``name`` and ``arguments`` or ``parameters``, or with these in ``function``; also ``type`` and ``id``

As a list of Python calls, such as ``[weather(city="Köln", days=[1, 2])]``. Nothing else is read: no prefixes of strings, no
operators, no names. So a value is small for Python's own parser, which reads it.

    list  = "[" call {"," call} "]"
    call  = name "(" [word "=" value {"," word "=" value}] ")"
    value = string {string} | number | True | False | None | list | tuple | dictionary

A scanner raises ``NotCalls`` if the text is not the beginning of calls of the tools ``names``.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from spass.calls.characters import Characters, NotCalls, Steps
from spass.core.json import MAX_DEPTH

_Reader: TypeAlias = Callable[[], Steps[object]]

_TEXT_IN_JSON_STRING: Final = re.compile(r'[^"\\]*')
_TEXT_IN_OBJECT: Final = re.compile(r'[^"\[\]{}]*')
_CONSTANTS: Final = ("True", "False", "None")
_MAX_KEYWORD: Final = 256
"""Characters of an argument's name."""
_QUOTES: Final = "\"'"
_BRACKETS: Final = {"[": "]", "(": ")", "{": "}"}
_TEXT_IN_STRING: Final = re.compile(r"[^\"'\\\n]*")
_DIGITS: Final = frozenset("0123456789.")
_IN_NUMBER: Final = _DIGITS | set("_eE")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PythonCall:
    """A call that was read: the places of the values of its arguments."""

    name: str
    arguments: tuple[tuple[str, Span], ...]


class JsonCallScanner:
    def __init__(self, characters: Characters, names: Collection[str]) -> None:
        self._text = characters
        self._function: dict[str, _Reader] = {
            "name": lambda: self._read_word(names),
            "arguments": self._skip_arguments,
            "parameters": self._skip_arguments,
        }
        self._call: dict[str, _Reader] = self._function | {
            "type": lambda: self._read_word(("function",)),
            "id": self._skip_id,
            "function": lambda: self._read_object(self._function),
        }
        self._top: dict[str, _Reader] = self._call | {"tool_calls": self._read_tool_calls}

    def read_object(self) -> Steps[None]:
        """Read a call, or the object of a list of calls. Its bracket has been read."""
        yield from self._read_members(self._top)

    def read_list(self) -> Steps[None]:
        """Read the calls of a list whose bracket has been read."""
        yield from self._text.read_separated(lambda: self._read_object(self._call), "]")

    def _read_object(self, readers: Mapping[str, _Reader]) -> Steps[None]:
        yield from self._text.expect_visible("{")
        yield from self._read_members(readers)

    def _read_members(self, readers: Mapping[str, _Reader]) -> Steps[None]:
        """Read the members of an object whose bracket has been read. ``readers`` read the values."""

        def read_member() -> Steps[None]:
            name = yield from self._read_word(readers)
            yield from self._text.expect_visible(":")
            yield from readers[name]()

        yield from self._text.read_separated(read_member, "}")

    def _read_word(self, words: Collection[str]) -> Steps[str]:
        """Read a string that must be one of ``words``."""
        yield from self._text.expect_visible('"')
        written, has_escape = "", False
        while (character := (yield from self._text.next())) != '"':
            written += character
            if character == "\\":
                has_escape = True
                written += yield from self._text.next()
            if not has_escape and not any(word.startswith(written) for word in words):
                raise NotCalls
        try:
            word: str = json.loads(f'"{written}"')
        except ValueError:
            raise NotCalls from None
        if word not in words:
            raise NotCalls
        return word

    def _read_tool_calls(self) -> Steps[None]:
        yield from self._text.expect_visible("[")
        yield from self.read_list()

    def _skip_id(self) -> Steps[None]:
        yield from self._text.expect_visible('"')
        yield from self._skip_string()

    def _skip_arguments(self) -> Steps[None]:
        match (yield from self._text.next_visible()):
            case '"':
                yield from self._skip_string()
            case "{":
                yield from self._skip_object()
            case _:
                raise NotCalls

    def _skip_string(self) -> Steps[None]:
        while True:
            yield from self._text.skip(_TEXT_IN_JSON_STRING)
            if (yield from self._text.next()) == '"':
                return
            yield from self._text.next()  # the character after a backslash

    def _skip_object(self) -> Steps[None]:
        depth = 1
        while depth:
            yield from self._text.skip(_TEXT_IN_OBJECT)
            character = yield from self._text.next()
            if character == '"':
                yield from self._skip_string()
            else:
                depth += 1 if character in "[{" else -1


class PythonCallScanner:
    def __init__(self, characters: Characters, names: Collection[str]) -> None:
        self._text = characters
        self._names = names

    def read_list(self) -> Steps[list[PythonCall]]:
        """Read the calls of a list whose bracket has been read."""
        return (yield from self._text.read_separated(self._read_call, "]"))

    def _read_call(self) -> Steps[PythonCall]:
        name = yield from self._text.next_visible()
        while True:
            if not any(offered.startswith(name) for offered in self._names):
                raise NotCalls
            if (character := (yield from self._text.next())) == "(" or self._text.is_blank(character):
                break
            name += character
        if name not in self._names:
            raise NotCalls
        if character != "(":
            yield from self._text.expect_visible("(")
        arguments: dict[str, Span] = {}
        first = yield from self._text.next_visible()
        while first != ")":
            word = yield from self._read_keyword(first)
            if word in arguments:
                raise NotCalls
            arguments[word] = yield from self._read_value((yield from self._text.next_visible()), MAX_DEPTH - 1)
            if (first := (yield from self._text.next_visible())) == ",":
                first = yield from self._text.next_visible()
            elif first != ")":
                raise NotCalls
        return PythonCall(name, tuple(arguments.items()))

    def _read_keyword(self, first: str) -> Steps[str]:
        """Read the name of an argument and the equals sign."""
        word = first
        is_word = first.isidentifier()
        while is_word and len(word) <= _MAX_KEYWORD:
            character = yield from self._text.next()
            if self._text.is_blank(character):
                character = yield from self._text.next_visible()
                if character != "=":
                    raise NotCalls
            if character == "=":
                return word
            word += character
            is_word = f"a{character}".isidentifier()
        raise NotCalls

    def _read_value(self, first: str, depth: int) -> Steps[Span]:
        start = self._text.position - 1
        if first in _QUOTES:
            return (yield from self._read_strings(first, start))
        if first in _BRACKETS:
            if not depth:
                raise NotCalls
            yield from self._read_items(first, depth - 1)
        elif first == "-" or first in _DIGITS:
            yield from self._read_number(first)
        else:
            self._text.unread()
            yield from self._read_constant()
        return Span(start, self._text.position)

    def _read_items(self, bracket: str, depth: int) -> Steps[None]:
        first = yield from self._text.next_visible()
        while first != _BRACKETS[bracket]:
            yield from self._read_value(first, depth)
            if bracket == "{":
                yield from self._text.expect_visible(":")
                yield from self._read_value((yield from self._text.next_visible()), depth)
            if (first := (yield from self._text.next_visible())) == ",":
                first = yield from self._text.next_visible()
            elif first != _BRACKETS[bracket]:
                raise NotCalls

    def _read_strings(self, quote: str, start: int) -> Steps[Span]:
        """Read strings that follow each other: Python joins them."""
        while True:
            yield from self._read_string(quote)
            end = self._text.position
            if (quote := (yield from self._text.next_visible())) not in _QUOTES:
                self._text.unread()
                return Span(start, end)

    def _read_string(self, quote: str) -> Steps[None]:
        """Read a string whose first quote has been read. One in three quotes may have line breaks."""
        quotes = 1
        if (yield from self._text.next()) != quote:
            self._text.unread()
        elif (yield from self._text.next()) != quote:
            self._text.unread()
            return  # an empty string
        else:
            quotes = 3
        found = 0  # quotes without other text between them
        while found < quotes:
            start = self._text.position
            yield from self._text.skip(_TEXT_IN_STRING)
            follows = self._text.position == start
            character = yield from self._text.next()
            found = 0 if character != quote else found + 1 if follows else 1
            if character == "\\":
                yield from self._text.next()
            elif character == "\n" and quotes == 1:
                raise NotCalls

    def _read_number(self, character: str) -> Steps[None]:
        if character == "-" and (yield from self._text.next()) not in _DIGITS:
            raise NotCalls
        last = ""
        while True:
            character = yield from self._text.next()
            if character not in _IN_NUMBER and not (character in "+-" and last in ("e", "E")):
                self._text.unread()
                return
            last = character

    def _read_constant(self) -> Steps[None]:
        word = ""
        while word not in _CONSTANTS:
            word += yield from self._text.next()
            if not any(constant.startswith(word) for constant in _CONSTANTS):
                raise NotCalls
