"""Find and read the tool calls of a reply, or of a fenced block of it.

The grammar, with blanks between all tokens:

    reply = unit {["," | ";"] unit}
    unit  = calls | fence [word] calls {["," | ";"] calls} fence | tag calls {["," | ";"] calls} end-tag
    calls = the calls of ``call_scanners``

A fence is ``` or ~~~, a tag <tool_call> or <tools>. A block is one such fence whose marks have their lines for themselves.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spass.calls.call_scanners import JsonCallScanner, PythonCall, PythonCallScanner, Span
from spass.calls.characters import Characters, NotCalls, Steps
from spass.core.json import InvalidJson, dump, read_object
from spass.core.messages import Json

_FENCES: Final = "`~"
_FENCE_LENGTH: Final = 3
_TAGS: Final = ("tool_call>", "tools>")
_THINK: Final = "think>"
_CALL_KEYS: Final = frozenset({"type", "id"})
# A string without an end matches too. Otherwise each of its quotes would start another search to the end of the text.
_STRING_OR_MARK: Final = r'"(?:[^"\\]|\\.)*+"?|MARK'
_PYTHON_STRING_OR_MARK: Final = rf"'(?:[^'\\]|\\.)*+'?|{_STRING_OR_MARK}"
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_PYTHON_ESCAPES: Final = frozenset("\n\\'\"abfnrtv0123xNuU")


@dataclass(frozen=True, slots=True)
class TextCalls:
    """One place of a reply that has calls: JSON that must be parsed, or ``python`` calls, whose arguments must be parsed."""

    place: Span
    python: tuple[PythonCall, ...] = ()


class TextCallScanner:
    """Tell after each piece of a text whether it may still consist of tool calls.

    ``names`` are the names of the offered tools, ``blanks`` the characters between tokens. After the last piece, ``is_complete``
    tells whether the text has the form of calls, which are ``found``. Their arguments may still be unreadable.

    With ``reads_block`` the text is one fenced block. It is complete after the line of its end, and all text that follows is
    ignored: ``end`` is the index of the first such character.
    """

    def __init__(self, names: Collection[str], blanks: str, *, reads_block: bool = False) -> None:
        self.is_complete = False
        self.found: list[TextCalls] = []
        self.end: int | None = None
        self._text = Characters(blanks)
        self._json = JsonCallScanner(self._text, names)
        self._python = PythonCallScanner(self._text, names)
        self._steps = self._read_block() if reads_block else self._read_reply()
        next(self._steps)

    def feed(self, piece: str) -> bool:
        """Return True if the text so far may be the beginning of tool calls, or of a block of think text before them."""
        self._text.add(piece)
        try:
            next(self._steps)
        except NotCalls:
            return False
        except StopIteration:
            pass
        return True

    def _read_reply(self) -> Steps[None]:
        yield
        first = yield from self._text.next_visible()
        while True:
            if first in _FENCES:
                yield from self._read_fence(first)
            elif first == "<":
                yield from self._read_tag()
            else:
                yield from self._read_calls(first)
            self.is_complete = True
            first = yield from self._text.next_visible()
            self.is_complete = False
            if first in ",;":
                first = yield from self._text.next_visible()

    def _read_block(self) -> Steps[None]:
        yield
        yield from self._read_fence((yield from self._text.next()), has_lines=True)
        self.is_complete = True
        while (character := (yield from self._text.next())) != "\n":
            if not self._text.is_blank(character):
                raise NotCalls
        self.end = self._text.position - 1
        while True:
            yield

    def _read_fence(self, mark: str, *, has_lines: bool = False) -> Steps[None]:
        """Read a fenced block whose first mark has been read. With ``has_lines`` its calls begin on a line of their own."""
        yield from self._text.expect(mark * (_FENCE_LENGTH - 1))
        character = yield from self._text.next()
        while character.isalnum() or character in "_+-":
            character = yield from self._text.next()
        while has_lines and character != "\n":
            if not self._text.is_blank(character):
                raise NotCalls
            character = yield from self._text.next()
        if self._text.is_blank(character):
            character = yield from self._text.next_visible()
        yield from self._read_several(character, mark)
        yield from self._text.expect(mark * (_FENCE_LENGTH - 1))

    def _read_tag(self) -> Steps[None]:
        tag = yield from self._text.expect_one_of([*_TAGS, _THINK])
        if tag == _THINK:
            raise NotCalls
        yield from self._read_several((yield from self._text.next_visible()), "<")
        yield from self._text.expect(f"/{tag}")

    def _read_several(self, first: str, end: str) -> Steps[None]:
        """Read calls up to the character ``end``. ``first`` has been read."""
        while True:
            yield from self._read_calls(first)
            if (first := (yield from self._text.next_visible())) == end:
                return
            if first in ",;":
                first = yield from self._text.next_visible()

    def _read_calls(self, first: str) -> Steps[None]:
        start = self._text.position - 1
        python: tuple[PythonCall, ...] = ()
        if first == "{":
            yield from self._json.read_object()
        elif first == "[":
            following = yield from self._text.next_visible()
            self._text.unread()
            if following == "{":
                yield from self._json.read_list()
            else:
                python = tuple((yield from self._python.read_list()))
        else:
            raise NotCalls
        self.found.append(TextCalls(Span(start, self._text.position), python))


@dataclass(frozen=True, slots=True)
class TextCall:
    """A call that a model has written. ``arguments`` are JSON."""

    name: str
    arguments: str


def parse_calls(text: str, found: Sequence[TextCalls], mark: str) -> Sequence[TextCall]:
    """Return the calls that were found in ``text``, or raise ``InvalidJson`` if one of them cannot be read. ``mark`` is a
    character that stands for blanks, or nothing."""
    calls: list[TextCall] = []
    for part in found:
        if part.python:
            calls += [_parse_python(text, call, mark) for call in part.python]
        else:
            json_text = _without_marks(text[part.place.start : part.place.end], mark, _STRING_OR_MARK)
            calls += [_read_call(call, mark) for call in _objects(read_object(f'{{"reply":{json_text}}}')["reply"])]
    return calls


def _objects(reply: Json) -> Iterator[Mapping[str, Json]]:
    """Yield the objects that describe calls."""
    if isinstance(reply, Mapping) and "tool_calls" in reply:
        if len(reply) > 1:
            raise InvalidJson("a list of calls needs no other member")
        reply = reply["tool_calls"]
    for call in reply if isinstance(reply, list) else [reply]:
        if isinstance(call, Mapping):
            yield call


def _read_call(call: Mapping[str, Json], mark: str) -> TextCall:
    """Return the call that a model wrote as the object ``call``. It must have one name and one object of arguments."""
    function = call.get("function")
    if isinstance(function, Mapping):
        if call.keys() - _CALL_KEYS != {"function"}:
            raise InvalidJson("it describes its function twice")
        call = function
    match {key: value for key, value in call.items() if key not in _CALL_KEYS}:
        case {"name": str(name), "arguments": arguments, **other} if not other:
            pass
        case {"name": str(name), "parameters": arguments, **other} if not other:
            pass
        case _:
            raise InvalidJson("a call needs a name and its arguments")
    if isinstance(arguments, str):
        arguments = read_object(_without_marks(arguments, mark, _STRING_OR_MARK))
    return TextCall(name, dump(arguments))


def _parse_python(text: str, call: PythonCall, mark: str) -> TextCall:
    """Return a call with its arguments as JSON, which may not have such a value."""
    try:
        values = {
            word: ast.literal_eval(f"({_readable(_without_marks(text[at.start : at.end], mark, _PYTHON_STRING_OR_MARK))})")
            for word, at in call.arguments
        }
        arguments = dump(values)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise InvalidJson("an argument is not a value of Python") from error
    read_object(arguments)
    return TextCall(call.name, arguments)


def _readable(value: str) -> str:
    """Return ``value`` with its unknown escapes written as Python reads them: it would print a warning for each."""
    return _ESCAPE.sub(lambda found: found[0] if found[1] in _PYTHON_ESCAPES else f"\\{found[0]}", value)


def _without_marks(text: str, mark: str, pattern: str) -> str:
    """Return ``text`` with blanks for the marks between its tokens. The marks in its strings stay: they are removed from the
    arguments of every call."""
    if not mark or mark not in text:
        return text
    pattern = pattern.replace("MARK", re.escape(mark))
    return re.sub(pattern, lambda found: " " if found[0] == mark else found[0], text, flags=re.DOTALL)
