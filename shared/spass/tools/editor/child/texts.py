"""Texts in a form that Aider does not damage.

Aider splits texts with ``str.splitlines``, which also ends lines at form feeds, lone carriage returns and seven other characters,
and joins them with line feeds. It adds a missing final newline, and its prompts need one. So Aider receives every text with line
feeds only; each other line end is a private character that no text of the edit contains. The model sees the true characters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_LINE_ENDS: Final = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_PRIVATE: Final = range(0x100000, 0x10FF00)
"""Code points of the last plane for private use."""
_BYTE_ORDER_MARK: Final = "\ufeff"


class LineEnds:
    """Replace the line ends that are not line feeds by private characters, and back."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Choose characters that none of ``texts`` contains."""
        used = {ord(character) for text in texts for character in set(text) if ord(character) in _PRIVATE}
        free = (code for code in _PRIVATE if code not in used)
        pairs = [(ord(character), next(free)) for character in _LINE_ENDS]
        self._hidden: Final = dict(pairs)
        self._shown: Final = {private: code for code, private in pairs}

    def hide(self, text: str) -> str:
        """Return a text that ``str.splitlines`` splits at line feeds only."""
        return text.translate(self._hidden)

    def show(self, text: str) -> str:
        """Return the text with its true characters."""
        return text.translate(self._shown)


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a file that Aider's form of it lacks: a byte order mark, CRLF as the only line end, no final newline."""

    mark: str = ""
    newline: str = "\n"
    final: str = "\n"

    @classmethod
    def of(cls, text: str) -> "Shape":
        newlines = text.count("\n")
        newline = "\r\n" if newlines and text.count("\r\n") == newlines else "\n"
        mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
        return cls(mark, newline, "\n" if text.endswith("\n") or text == mark else "")

    def remove(self, text: str) -> str:
        """Return a text with line feeds and a final one, unless it is empty."""
        body = text.removeprefix(self.mark).replace(self.newline, "\n")
        return body if self.final else f"{body}\n"

    def restore(self, text: str) -> str:
        """Return the text of Aider's form in the file's own form."""
        body = text if self.final else text.removesuffix("\n")
        return self.mark + body.replace("\n", self.newline)
