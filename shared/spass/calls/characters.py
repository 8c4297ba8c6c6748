"""Read a text that arrives in pieces, character by character. A reader is a generator that yields whenever it needs more text."""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A part of a grammar. It yields whenever it needs more text, and returns once it has read its part."""


class NotCalls(Exception):
    """The text is not the beginning of tool calls."""


class Characters:
    """The characters of one text. ``blanks`` are those between tokens. ``position`` is the index of the next character.

    A reader raises ``NotCalls`` if another text is there than the one that it expects.
    """

    def __init__(self, blanks: str) -> None:
        self._blanks = blanks
        self._piece = ""
        self._at = 0  # the index of the next character in ``_piece``
        self._begin = 0  # the index of the piece in the text

    @property
    def position(self) -> int:
        return self._begin + self._at

    def add(self, piece: str) -> None:
        """Add the next piece. Everything before it has been read."""
        self._begin += len(self._piece)
        self._piece, self._at = piece, 0

    def next(self) -> Steps[str]:
        while self._at == len(self._piece):
            yield
        self._at += 1
        return self._piece[self._at - 1]

    def next_visible(self) -> Steps[str]:
        while (character := (yield from self.next())) in self._blanks:
            pass
        return character

    def expect_visible(self, character: str) -> Steps[None]:
        """Read ``character`` and the blanks before it."""
        if (yield from self.next_visible()) != character:
            raise NotCalls

    def read_separated(self, read: Callable[[], Steps[T]], end: str) -> Steps[list[T]]:
        """Call ``read`` for each part of a list with commas, up to the character ``end``. Return the parts."""
        parts: list[T] = []
        separator = ","
        while separator == ",":
            parts.append((yield from read()))
            separator = yield from self.next_visible()
        if separator != end:
            raise NotCalls
        return parts

    def is_blank(self, character: str) -> bool:
        return character in self._blanks

    def unread(self) -> None:
        """Go back by the one character that was read last."""
        self._at -= 1

    def expect(self, text: str) -> Steps[None]:
        """Read ``text``, in any case."""
        yield from self.expect_one_of([text])

    def expect_one_of(self, texts: Sequence[str]) -> Steps[str]:
        """Read one of ``texts``, in any case, and return it. None of them is the beginning of another."""
        read = ""
        while read not in texts:
            character = yield from self.next()
            read += character.lower() if character.isascii() else character
            if not any(text.startswith(read) for text in texts):
                raise NotCalls
        return read

    def skip(self, pattern: re.Pattern[str]) -> Steps[None]:
        """Skip all that ``pattern`` matches, in this piece and the next ones."""
        while match := pattern.match(self._piece, self._at):
            self._at = match.end()
            if self._at < len(self._piece):
                return
            yield
