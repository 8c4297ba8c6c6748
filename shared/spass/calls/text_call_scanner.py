"""Follow a reply, or a fenced block of it, that consists of tool calls.

The grammar, with blanks between all tokens:

    reply = unit {["," | ";"] unit}
    unit  = calls | fence [word] calls {["," | ";"] calls} fence | tag calls {["," | ";"] calls} end-tag
    calls = the calls of ``json_call_scanner`` or of ``python_call_scanner``

A fence is ``` or ~~~, a tag <tool_call> or <tools>. A block is one such fence whose marks have their lines for themselves.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from spass.calls.characters import Characters, NotCalls, Steps
from spass.calls.json_call_scanner import JsonCallScanner
from spass.calls.python_call_scanner import PythonCall, PythonCallScanner, Span

_FENCES: Final = "`~"
_FENCE_LENGTH: Final = 3
_TAGS: Final = ("tool_call>", "tools>")
_THINK: Final = "think>"


@dataclass(frozen=True, slots=True)
class TextCalls:
    """One place of a reply that has calls: JSON that must be parsed, or ``python`` calls, whose arguments must be parsed."""

    place: Span
    python: tuple[PythonCall, ...] = ()


class TextCallScanner:
    """Tell after each piece of a text whether it may still consist of tool calls.

    ``names`` are those of the offered tools, ``blanks`` the characters between tokens. After the last piece, ``is_complete``
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
