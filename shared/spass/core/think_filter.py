"""Remove think text (``<think>…</think>``) from the text of a model, which arrives in pieces.

- Tags are read in any case. A text that only resembles a tag (``<thinking>``, ``< think>``) stays.
- Blocks nest: a block ends at the closing tag that balances its opening tag. If the tags do not balance before the text ends,
  blocks end at the first closing tag, because a model may mention an opening tag in its thoughts.
- An unpaired tag is removed, and the text around it stays. A text that begins with thinking and has no closing tag is an answer.
- The blank lines after a block are removed if the block begins a line. So are those before a block at the start of the text.
"""

import re
from typing import Final

_TAG: Final = re.compile(r"<(/?)think>", re.IGNORECASE | re.ASCII)
_INCOMPLETE_TAG: Final = re.compile(r"</?(?:t(?:h(?:i(?:nk?)?)?)?)?\Z", re.IGNORECASE | re.ASCII)
_MAX_INCOMPLETE_TAG: Final = len("</think")
_BLANKS: Final = " \t\r\n"


class ThinkFilter:
    """Remove think text from one text. The result does not depend on where the text is cut, and contains no tag.

    The filter holds the text of an open block until the block or the text ends, because the text of an unclosed block is shown.
    With ``begins_thinking``, everything before the first closing tag is think text.
    """

    __slots__ = ("_depth", "_gap", "_held", "_incomplete_tag", "_joined_tags", "_nested", "_without_opening_tag")

    def __init__(self, *, begins_thinking: bool = False) -> None:
        self._depth = int(begins_thinking)  # opening tags of the open block that have no closing tag yet; 0 outside a block
        self._held: list[str] = []  # the text of the open block
        self._incomplete_tag = ""  # at the end of the text so far
        self._nested = True  # blocks nest
        self._without_opening_tag = begins_thinking  # the open block began with the text
        self._gap = _Gap()
        self._joined_tags = _JoinedTags()

    def feed(self, piece: str) -> str:
        """Return the text that can be shown after ``piece`` has arrived."""
        if "<" not in piece and not self._incomplete_tag and not self._depth:  # most pieces of most answers
            shown = self._gap.feed(piece)
            return self._joined_tags.feed(shown) if self._joined_tags.is_open else shown
        text = self._incomplete_tag + piece
        self._incomplete_tag = _incomplete_tag_of(text)
        return self._joined_tags.feed(self._scan(text.removesuffix(self._incomplete_tag)))

    def flush(self) -> str:
        """Return the rest of the text, which has ended."""
        shown = self._show(self._incomplete_tag)
        if self._depth:
            held, self._depth, self._nested = self._release(), 0, False
            shown += self._scan(held)
        unclosed = _TAG.sub("", self._release())
        return self._joined_tags.feed(shown + self._gap.feed(unclosed) + self._gap.flush()) + self._joined_tags.flush()

    def _scan(self, text: str) -> str:
        """Return the text outside blocks. ``text`` has no incomplete tag."""
        shown, start = "", 0
        for tag in _TAG.finditer(text):
            shown += self._show(text[start : tag.start()])
            start = tag.end()
            if tag[1]:
                self._close(tag[0])
            else:
                self._open(tag[0])
        return shown + self._show(text[start:])

    def _show(self, text: str) -> str:
        if not self._depth:
            return self._gap.feed(text)
        self._held.append(text)
        return ""

    def _open(self, tag: str) -> None:
        if not self._depth or (self._nested and not self._without_opening_tag):
            self._depth += 1
        self._held.append(tag)

    def _close(self, tag: str) -> None:
        if not self._depth:
            return
        self._depth -= 1
        self._held.append(tag)
        if not self._depth:
            self._held.clear()
            self._without_opening_tag = False
            self._gap.begin()

    def _release(self) -> str:
        held = "".join(self._held)
        self._held.clear()
        return held


class ThinkBlocks:
    """Find the end of the think text at the start of a text, which arrives in pieces. Blocks nest as in ``ThinkFilter``."""

    __slots__ = ("_depth", "_incomplete_tag", "_nested", "is_open")

    def __init__(self, *, begins_thinking: bool = False) -> None:
        self.is_open = True
        self._depth = int(begins_thinking)
        self._nested = not begins_thinking
        self._incomplete_tag = ""

    def split(self, piece: str) -> tuple[str, str]:
        """Return ``piece`` in two parts: to the end of the block, and after it. The second is empty while ``is_open``."""
        text = self._incomplete_tag + piece
        for tag in _TAG.finditer(text):
            if tag[1]:
                self._depth -= 1
            elif self._nested or not self._depth:
                self._depth += 1
            if self._depth <= 0:
                self.is_open = False
                end = tag.end() - len(self._incomplete_tag)
                return piece[:end], piece[end:]
        self._incomplete_tag = _incomplete_tag_of(text)
        return piece, ""


def begins_think_block(text: str) -> bool:
    tag = _TAG.match(text)
    return tag is not None and not tag[1]


def _incomplete_tag_of(text: str) -> str:
    """Return the incomplete tag at the end of ``text``, or nothing."""
    incomplete = _INCOMPLETE_TAG.search(text, max(0, len(text) - _MAX_INCOMPLETE_TAG))
    return incomplete[0] if incomplete else ""


class _Gap:
    """Remove the blank lines between a block and the text after it. The indentation of the first line with text stays."""

    __slots__ = ("_after_block", "_blanks", "_in_text", "_line_begins")

    def __init__(self) -> None:
        self._blanks: list[str] = []
        self._in_text = False  # False at the start and after a block: only blanks have arrived since
        self._after_block = False
        self._line_begins = True

    def begin(self) -> None:
        if not self._in_text or self._line_begins:
            self._blanks.clear()
            self._in_text, self._after_block = False, True

    def feed(self, text: str) -> str:
        if not text:
            return ""
        if not self._in_text:
            self._blanks.append(text)
            if not text.strip(_BLANKS):
                return ""
            text = "".join(self._blanks)
            self._blanks.clear()
            self._in_text = True
            if self._after_block:
                body = text.lstrip(_BLANKS)
                _, newline, indentation = text[: len(text) - len(body)].rpartition("\n")
                text = indentation + body if newline else body
        self._line_begins = text.endswith("\n")
        return text

    def flush(self) -> str:
        return "" if self._after_block else "".join(self._blanks)


class _JoinedTags:
    """Remove each tag that exists only because the text between its parts was removed, such as ``<thi</think>nk>``."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[str] = []  # incomplete tags, each directly after the other

    @property
    def is_open(self) -> bool:
        return bool(self._parts)

    def feed(self, text: str) -> str:
        if not self._parts and "<" not in text:
            return text
        shown = []
        for character in text:
            if character == "<":
                self._parts.append(character)
                continue
            tag = self._parts.pop() + character if self._parts else character
            if _INCOMPLETE_TAG.match(tag):
                self._parts.append(tag)
            elif not _TAG.match(tag):
                shown += [*self._parts, tag]
                self._parts.clear()
        return "".join(shown)

    def flush(self) -> str:
        return "".join(self._parts)
