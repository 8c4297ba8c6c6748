"""Split TXT and Markdown files into passages, at sections, paragraphs and sentences.

A passage is a byte range of the file that neither begins nor ends with blanks. Together the passages contain the whole text.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from pydantic import JsonValue

from spass.rag.ingest.plan import Entry, FileKind, Position
from spass.rag.ingest.records import LineCount, build_document, metadata_name

_BLANKS: Final = re.compile(
    rb"(?:[\s\x1c-\x1f]++|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)*+"
)
"""The characters of ``str.isspace``, in UTF-8."""
_LEADING_BLANK_BYTES: Final = 64  # of the blanks before a passage; earlier ones do not affect where the passage ends
_START_OF_FILE: Final = b"\n\n"

PASSAGE_BYTES: Final = 1024
"""The largest passage that is not code. The built-in embedding model reads 256 tokens, which is about 1 KiB of
English. For a longer text it averages the vectors of several pieces, and such an average is not similar to any query."""
_MIN_PASSAGE_BYTES: Final = PASSAGE_BYTES // 4
"""The smallest passage, unless its section ends earlier. A shorter passage contains too little information."""
MAX_CODE_BYTES: Final = PASSAGE_BYTES * 4
"""The largest fenced code block that is not split. Half of a function is of little use to a reader."""
_OUTLINE_BYTES: Final = PASSAGE_BYTES + 512  # enough to find the outline, unless they end within a code block
_WINDOW_BYTES: Final = MAX_CODE_BYTES + 512
_SEARCH_END: Final = PASSAGE_BYTES + 64  # a match that ends here may show that the passage can end at PASSAGE_BYTES

_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\r(?!\n)|\n)[ \t]*[\r\n]")
_SENTENCE: Final = re.compile(
    rb"""(?: [.](?<=[^\s.][^\s.][^\s.][.])                      # after fewer than three characters it ends an abbreviation
           | [!?] | \xe2\x80\xa6 | \xe0\xa5\xa4 | \xd8\x9f )    # an ellipsis; Hindi, Arabic
         (?: ["')\]] | \xe2\x80[\x99\x9c\x9d] | \xc2\xbb )*     # closing quotes and brackets
         (?= \s+ [^\sa-z] )                                     # no sentence begins with a small letter
       | (?: \xe3\x80\x82 | \xef\xbc[\x81\x9f] )                # Chinese and Japanese: without a space after it
         (?: \xe3\x80[\x8d\x8f] | \xe2\x80\x9d )*""",
    re.VERBOSE,
)
_HEADING_OR_FENCE: Final = re.compile(
    rb"""[\r\n]
         (?: [ \t]* (?P<fence> `{3,}(?= [^`\r\n]{0,200} (?:[\r\n]|\Z) ) | ~{3,} ) [ \t]* (?P<info> [^\r\n]{0,200} )
           | [ ]{0,3} \#{1,6} (?= [ \t\r\n] | \Z ) [^\r\n]{0,200}
           | (?: (?<=\n\n) | (?<=\r\n\r\n) | (?<=\r\r) )
             [^\s=-] [^\r\n]{0,200} (?: \r\n? | \n ) [ ]{0,3} (?: ={1,200} | -{2,200} ) [ \t]{0,20} (?= [\r\n] | \Z ) )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _TextWindow:
    """The bytes that decide where a passage ends."""

    body: bytes
    """The first ``_WINDOW_BYTES`` bytes from the start of the passage. Only at the end of the file there are fewer."""
    leading_blanks: bytes
    """The blanks before ``body``. They show whether ``body`` begins at the start of a line."""
    fence: str
    """The opening fence of the code block in which ``body`` begins, or empty."""
    markdown: bool


@dataclass(frozen=True, slots=True)
class _PassageEnd:
    """The passage is the first ``size`` bytes. If it ends within a code block, ``fence`` is the opening fence of that block."""

    size: int
    fence: str = ""


@dataclass(frozen=True, slots=True)
class _CodeBlock:
    """The bytes ``[begin, end)`` of a fenced code block, from the opening fence to the closing one."""

    begin: int
    end: int
    fence: str


@dataclass(frozen=True, slots=True)
class _Outline:
    headings_end: int = 0
    """The end of the headings at the start of the window."""
    next_section: int | None = None
    """The start of the next section, if it is near enough to end the passage."""
    code_blocks: tuple[_CodeBlock, ...] = ()
    ends_in_code: bool = False
    """True if the last code block is not closed in the bytes that were read."""


def _find_passage_end(window: _TextWindow) -> _PassageEnd:
    """Return the end of the passage at the start of ``window``.

    A section of at most ``PASSAGE_BYTES`` is one passage. A longer section is split after the last paragraph or code block that
    fits. If there is none, it is split after the last sentence, line, word or character that fits, in this order of preference.

    Raises:
        UnicodeDecodeError: the text is not UTF-8.
    """
    body = window.body
    outline = _Outline()
    if window.markdown:
        outline = _find_outline(window, body[:_OUTLINE_BYTES])
        if outline.ends_in_code:
            outline = _find_outline(window, body)
    if not body[PASSAGE_BYTES : outline.next_section].strip():
        return _PassageEnd(_strip_end(body, outline.next_section))
    min_end = outline.headings_end + _MIN_PASSAGE_BYTES
    blank_lines = [blank.start() for blank in _BLANK_LINE.finditer(body, min_end, _SEARCH_END)]
    code_edges = [edge for code in outline.code_blocks for edge in (code.begin, code.end) if edge >= min_end]
    edges = (*blank_lines, *code_edges)
    end = _last_that_fits(edge for edge in edges if not any(code.begin < edge < code.end for code in outline.code_blocks))
    if end:
        return _PassageEnd(_strip_end(body, end))
    for code in outline.code_blocks:
        if code.begin < PASSAGE_BYTES < code.end:
            if code.end <= MAX_CODE_BYTES and not window.fence:
                return _PassageEnd(_strip_end(body, code.end))
            return _PassageEnd(_strip_end(body, _last_that_fits(blank_lines) or _find_end_of_word(body, min_end)), code.fence)
    sentences = (sentence.end() for sentence in _SENTENCE.finditer(body, min_end, _SEARCH_END))
    return _PassageEnd(_strip_end(body, _last_that_fits(sentences) or _find_end_of_word(body, min_end)))


def _align_to_character(data: bytes, end: int) -> int:
    """Return the largest offset up to ``end`` that does not split a UTF-8 character."""
    while 0 < end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _strip_end(body: bytes, end: int | None) -> int:
    """Return the offset after the last character before ``end`` that is not blank."""
    text = body[:end].rstrip()
    return len(text) if b" " < text[-1:] < b"\x80" else len(text.decode().rstrip().encode())


def _find_outline(window: _TextWindow, body: bytes) -> _Outline:
    """Return the outline of ``body``, which is the body of ``window`` or a prefix of it."""
    fence, fence_start, headings_end = window.fence, 0, 0
    code_blocks: list[_CodeBlock] = []
    next_section = None
    for line in _HEADING_OR_FENCE.finditer(window.leading_blanks + body):
        start = max(0, line.start() + 1 - len(window.leading_blanks))
        end = line.end() - len(window.leading_blanks)
        if fence:
            closes = bool(line["fence"]) and line["fence"].startswith(fence.encode()) and not line["info"].strip()
            if closes:
                code_blocks.append(_CodeBlock(fence_start, end, fence))
                fence = ""
        elif start > PASSAGE_BYTES and body[PASSAGE_BYTES:start].strip():
            break
        elif line["fence"]:
            fence, fence_start = line["fence"].decode(), start
        elif body[headings_end:start].strip() or start > 2 * _MIN_PASSAGE_BYTES:
            next_section = start
            break
        else:
            headings_end = end
    if fence:
        code_blocks.append(_CodeBlock(fence_start, len(body), fence))
    return _Outline(headings_end, next_section, tuple(code_blocks), ends_in_code=bool(fence))


def _last_that_fits(ends: Iterable[int]) -> int:
    """Return the last of ``ends`` that makes a passage of at most ``PASSAGE_BYTES``, or 0."""
    return max((end for end in ends if end <= PASSAGE_BYTES), default=0)


def _find_end_of_word(body: bytes, min_end: int) -> int:
    for blanks in (b"\n\r", b" \t"):
        end = max(body.rfind(bytes([blank]), min_end, PASSAGE_BYTES + 1) for blank in blanks)
        if end > 0:
            return end
    return _align_to_character(body, PASSAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Passage:
    data: bytes
    begin: int
    line: int
    next_position: Position
    """The position after ``data``. The blanks that follow it are before the next passage."""
    window: _TextWindow

    def is_same_if_file_ends(self, end: int) -> bool:
        """Return whether this passage would be the same if the file ended at offset ``end``."""
        body = self.window.body[: end - self.begin]
        return _find_passage_end(replace(self.window, body=body)) == _PassageEnd(len(self.data), self.next_position.fence)


class TextSplitter:
    """Split a text into passages."""

    def __init__(self, kind: FileKind, position: Position) -> None:
        self._markdown = kind is FileKind.MARKDOWN
        self._data = b""
        self._offset = position.offset  # in the file, of the first byte of ``_data``
        self._lines = LineCount(position.line)
        self._number = position.number
        self._fence = position.fence
        self._recent: deque[Passage] = deque()  # passages whose window reaches beyond the last passage

    @property
    def end(self) -> int:
        """Return the offset of the next byte to feed."""
        return self._offset + len(self._data)

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[Passage]:
        """Yield the passages that later bytes cannot change. If ``data`` is ``final``, yield all. Exhaust the iterator."""
        data = self._data + data
        at = 0
        while True:
            begin = _end_of_blanks(data, at)
            if begin == len(data) or (len(data) - begin < _WINDOW_BYTES and not final):
                break
            passage = self._passage(data, at, begin)
            at = begin + len(passage.data)
            self._recent.append(passage)
            while self._recent[0].begin + _WINDOW_BYTES <= passage.next_position.offset:
                self._recent.popleft()
            yield passage
        if begin - at > _LEADING_BLANK_BYTES:
            drop_end = _align_to_character(data, begin - _LEADING_BLANK_BYTES)
            self._lines.add(data[at:drop_end])
            at = drop_end
        self._data = data[at:]
        self._offset += at

    def may_end(self) -> bool:
        """Return whether a part may end after the last passage: the passages so far must not depend on later bytes."""
        end = self._recent[-1].next_position.offset
        return all(passage.is_same_if_file_ends(end) for passage in reversed(self._recent))

    def _passage(self, data: bytes, at: int, begin: int) -> Passage:
        leading_blanks = data[max(at, begin - _LEADING_BLANK_BYTES) : begin]
        if self._number == 1:
            leading_blanks = _START_OF_FILE + leading_blanks
        window = _TextWindow(data[begin : begin + _WINDOW_BYTES], leading_blanks, self._fence, self._markdown)
        passage_end = _find_passage_end(window)
        end = begin + passage_end.size
        self._lines.add(data[at:begin])
        line = self._lines.line
        self._lines.add(data[begin:end])
        self._number += 1
        self._fence = passage_end.fence
        next_position = Position(self._offset + end, self._lines.line, self._number, self._fence)
        return Passage(data[begin:end], self._offset + begin, line, next_position, window)


def _end_of_blanks(data: bytes, at: int) -> int:
    blanks = _BLANKS.match(data, at)
    return blanks.end() if blanks else at


def passage_entry(passage: Passage, filename: str) -> Entry:
    """Return the entry of ``passage``. A passage is always a valid document."""
    after = passage.next_position
    metadata: dict[str, JsonValue] = {"source": metadata_name(filename), "start": passage.begin, "end": after.offset}
    return Entry(passage.line, build_document(passage.data.decode(), metadata, filename, after.number - 1), None, after)
