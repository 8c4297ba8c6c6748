"""Follow the JSON of tool calls that a model writes.

    calls = call | "[" call {"," call} "]" | {"tool_calls": [call, …]}
    call  = an object with ``name`` and ``arguments`` or ``parameters``, or with these in ``function``; also ``type`` and ``id``

The members of an object come in any order. Arguments are an object or a string. A JSON parser must still read them.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

from spass.calls.characters import Characters, NotCalls, Steps

_Reader: TypeAlias = Callable[[], Steps[object]]

_TEXT_IN_STRING: Final = re.compile(r'[^"\\]*')
_TEXT_IN_OBJECT: Final = re.compile(r'[^"\[\]{}]*')


class JsonCallScanner:
    """Read calls of the tools ``names``.

    Raises:
        NotCalls: the text is not the beginning of calls.
    """

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
            "function": self._read_function,
        }
        self._top: dict[str, _Reader] = self._call | {"tool_calls": self._read_tool_calls}

    def read_object(self) -> Steps[None]:
        """Read a call, or the object of a list of calls. Its bracket has been read."""
        yield from self._read_members(self._top)

    def read_list(self) -> Steps[None]:
        """Read the calls of a list whose bracket has been read."""
        separator = ","
        while separator == ",":
            yield from self._open("{")
            yield from self._read_members(self._call)
            separator = yield from self._text.next_visible()
        if separator != "]":
            raise NotCalls

    def _open(self, bracket: str) -> Steps[None]:
        if (yield from self._text.next_visible()) != bracket:
            raise NotCalls

    def _read_members(self, readers: Mapping[str, _Reader]) -> Steps[None]:
        """Read the members of an object whose bracket has been read. ``readers`` read the values."""
        separator = ","
        while separator == ",":
            name = yield from self._read_word(readers)
            yield from self._open(":")
            yield from readers[name]()
            separator = yield from self._text.next_visible()
        if separator != "}":
            raise NotCalls

    def _read_word(self, words: Collection[str]) -> Steps[str]:
        """Read a string that must be one of ``words``."""
        yield from self._open('"')
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

    def _read_function(self) -> Steps[None]:
        yield from self._open("{")
        yield from self._read_members(self._function)

    def _read_tool_calls(self) -> Steps[None]:
        yield from self._open("[")
        yield from self.read_list()

    def _skip_id(self) -> Steps[None]:
        yield from self._open('"')
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
            yield from self._text.skip(_TEXT_IN_STRING)
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
