"""Find the markers of a text protocol, such as ``Action:``, in a reply that arrives in pieces, and show the reply by them.

A marker begins a line, in any case, after at most 64 blanks. It may be emphasized (``**Action:** x``, ``**Action**: x``) or a
heading (``### Action: x``), and it may be inside a code fence. ``Final_Answer:`` equals ``Final Answer:``.

The parser of the text protocols takes its sections from the same ``Scanner`` and the final answer from the same ``ShowFilter``
that shows a reply while it arrives, so shown text and parsed text cannot differ. The borders of the pieces do not matter.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from spass.core.effects import NoText, TextVisibility, VisibleAfter

FENCES: Final = ("```", "~~~")

_MAX_FENCE_LINE: Final = 80
"""Characters of a line that may be a code fence."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker in a reply. ``number`` is its place among the scanner's markers, and ``text`` is what the model wrote.
    ``emphasis`` is set if an emphasis begins before the marker and goes on after it. ``fenced`` is True inside a code fence."""

    number: int
    text: str
    emphasis: str = ""
    fenced: bool = False


class Scanner:
    """Split a text at ``markers``. Hold back only what may still become a marker."""

    def __init__(self, markers: tuple[str, ...]) -> None:
        self._patterns = _compile(markers)
        self._buffer = ""
        self._at_line_start = True
        self._line = ""
        self._in_fence = False

    def feed(self, text: str) -> Iterator[str | Marker]:
        """Yield the text between markers, in pieces of at most one line, and the markers. Read the iterator to its end."""
        return self._scan(text, is_last=False)

    def flush(self) -> Iterator[str | Marker]:
        """Yield what ``feed`` held back. Call this at the end of the text."""
        return self._scan("", is_last=True)

    def _scan(self, text: str, *, is_last: bool) -> Iterator[str | Marker]:
        buffer, at = self._buffer + text, 0
        while at < len(buffer):
            if self._at_line_start:
                if not is_last and self._patterns.may_become_marker.match(buffer, at):
                    break
                self._at_line_start = False
                if found := self._patterns.marker.match(buffer, at):
                    marker, at = self._marker(found)
                    yield marker
                    continue
            end = buffer.find("\n", at) + 1 or len(buffer)
            yield self._text(buffer[at:end])
            at = end
        self._buffer = buffer[at:]

    def _marker(self, found: re.Match[str]) -> tuple[Marker, int]:
        emphasis, end = found["open"] or "", found.end()
        if emphasis and found["close"]:
            emphasis = ""
        elif emphasis and found.string.startswith(emphasis, end):
            emphasis, end = "", end + len(emphasis)
        number = next(number for number in range(len(self._patterns.markers)) if found[f"m{number}"] is not None)
        return Marker(number, found.string[found.start() : end], emphasis, fenced=self._in_fence), end

    def _text(self, piece: str) -> str:
        if len(self._line) < _MAX_FENCE_LINE:
            self._line += piece
        if piece.endswith("\n"):
            self._in_fence ^= self._line.lstrip(" \t").startswith(FENCES)
            self._line, self._at_line_start = "", True
        return piece


class ShowFilter:
    """Return the part of a reply that ``show`` allows, while it arrives. What was returned is never taken back.

    Except for a ``show`` of None, white space around the shown text is dropped, and so is the end of a code fence that began
    before the marker and ends with the text.
    """

    def __init__(self, show: TextVisibility) -> None:
        self._scanner = Scanner((*show.until, *show.markers)) if isinstance(show, VisibleAfter) else None
        self._until = len(show.until) if isinstance(show, VisibleAfter) else 0  # the first markers of the scanner
        self._is_over = isinstance(show, NoText)
        self._fence = _FenceEnd()
        self._trim = _Trim()
        self.found = isinstance(show, VisibleAfter) and not show.markers
        """True as soon as a marker was found after which text is shown."""

    def feed(self, text: str) -> str:
        """Return the text that may be shown after ``text`` has arrived."""
        if self._scanner is None:
            return "" if self._is_over else text
        return "" if self._is_over else self._shown(self._scanner.feed(text))

    def flush(self) -> str:
        """Return the text that ``feed`` held back and that belongs to the reply. Call this once, at the end of the reply."""
        if self._scanner is None or self._is_over:
            return ""
        return self._shown(self._scanner.flush()) + self._trim.feed(self._fence.flush())

    def _shown(self, pieces: Iterator[str | Marker]) -> str:
        return "".join(self._trim.feed(self._fence.feed(text)) for text in self._texts(pieces))

    def _texts(self, pieces: Iterator[str | Marker]) -> Iterator[str]:
        for piece in pieces:
            if isinstance(piece, str):
                if self.found:
                    yield piece
            elif piece.number < self._until:
                self._is_over = True
                if self.found:
                    yield self._fence.flush()
                return
            elif self.found:
                yield piece.text
            else:
                self.found = True
                self._fence.depth, self._trim.prefix = int(piece.fenced), piece.emphasis


def shown_text(text: str, show: TextVisibility) -> str | None:
    """Return the part of the whole reply ``text`` that ``show`` allows, or None if it has no marker to show text after."""
    show_filter = ShowFilter(show)
    shown = show_filter.feed(text) + show_filter.flush()
    return shown if show_filter.found or show is None else None


class _Trim:
    """Drop white space at the start and at the end of a text that arrives in pieces, and put ``prefix`` before the text."""

    def __init__(self) -> None:
        self.prefix = ""
        self._blanks: list[str] | None = None  # None before the first other character

    def feed(self, piece: str) -> str:
        kept = piece.rstrip()
        if not kept:
            if self._blanks is not None:
                self._blanks.append(piece)
            return ""
        start = self.prefix + kept.lstrip() if self._blanks is None else "".join((*self._blanks, kept))
        self._blanks = [piece[len(kept) :]]
        return start


class _FenceEnd:
    """Drop the line that closes a code fence, if it is the end of the text. ``depth`` is the number of fences that are open at
    the start. With an open fence, a line is held back while it may be a fence."""

    def __init__(self) -> None:
        self.depth = 0
        self._line = ""
        self._held = ""
        self._is_inside_line = False

    def feed(self, piece: str) -> str:
        """Return what belongs to the text for sure. ``piece`` is at most one line."""
        if self._is_inside_line or not (self.depth or self._held):
            self._is_inside_line = self._is_inside_line and not piece.endswith("\n")
            return piece
        self._line += piece
        is_complete = piece.endswith("\n") or len(self._line) > _MAX_FENCE_LINE
        if not is_complete and _may_be_fence(self._line.strip()):
            return ""
        line, self._line = self._line, ""
        self._is_inside_line = not piece.endswith("\n")
        return self._take(line)

    def flush(self) -> str:
        """Return what was held back and belongs to the text. Call this at the end of the text."""
        line, self._line = self._line, ""
        return self._take(line)

    def _take(self, line: str) -> str:
        word = line.strip()
        if self._held or (self.depth == 1 and word in FENCES):
            if self._held and word:
                line, self._held = self._held + line, ""
                return line
            self.depth = 0
            self._held += line
            return ""
        if word.startswith(FENCES):
            self.depth += -1 if word in FENCES else 1
        return line


def _may_be_fence(line: str) -> bool:
    """Return True if ``line`` without its indentation is the start of a code fence, or may become one."""
    return line.startswith(FENCES) or any(fence.startswith(line) for fence in FENCES)


class _Patterns(NamedTuple):
    markers: tuple[str, ...]
    marker: re.Pattern[str]
    may_become_marker: re.Pattern[str]
    """Match a whole buffer that begins a marker, or that ends within the emphasis after a marker."""


_OPEN: Final = r"(?P<open>\*{1,3}|_{1,3})?"


@cache
def _compile(markers: tuple[str, ...]) -> _Patterns:
    numbered = sorted(enumerate(markers), key=lambda item: -len(item[1]))  # the longest first, if one begins another
    words = [f"(?P<m{number}>{''.join(_tokens(marker[:-1]))})" for number, marker in numbered if marker.endswith(":")]
    literals = [f"(?P<m{number}>{''.join(_tokens(marker))})" for number, marker in numbered if not marker.endswith(":")]
    whole = "|".join((rf"(?:{'|'.join(words) or '(?!)'})(?P<close>[*_]{{1,3}})?[ \t]{{0,3}}[:：]", *literals))
    begun = "|".join(_prefixes(marker) for marker in markers)
    return _Patterns(
        markers,
        re.compile(rf"[ \t]{{0,64}}(?:#{{1,6}}[ \t]{{1,4}})?{_OPEN}(?:{whole})", re.IGNORECASE),
        re.compile(rf"[ \t]{{0,64}}(?:#{{1,6}}(?:[ \t]{{1,4}}|\Z))?{_OPEN}(?:{begun})\Z", re.IGNORECASE),
    )


def _tokens(words: str) -> list[str]:
    return [r"[ \t_]{1,3}" if character in " _" else re.escape(character) for character in words]


def _prefixes(marker: str) -> str:
    """Return a pattern of ``marker`` and of every start of it."""
    tokens = _tokens(marker)
    if marker.endswith(":"):
        tokens[-1:] = ["[*_]{0,3}", r"[ \t]{0,3}", "[:：]", "[*_]{0,2}"]
    pattern = ""
    for token in reversed(tokens):
        pattern = f"(?:{token}{pattern})?"
    return pattern
