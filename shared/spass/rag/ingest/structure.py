"""The end of a chunk of text: a pure function of the bytes that it begins with.

It looks at ``REACH`` bytes and no further, so a text is cut the same from whatever cut the reading begins, and however its bytes
arrive. What is Markdown here is the part of CommonMark (https://spec.commonmark.org/0.31.2/) that shows how a text is built:
headings of both forms and fenced blocks of code.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

TARGET: Final = 1024
"""Bytes of a chunk at most, but for code. The built-in embedding model reads 256 tokens at once, which is about as much English;
of a longer text it averages several readings, and an average is near to no question."""
LEAST: Final = TARGET // 4
"""Bytes of a chunk at least, unless its section ends: a shorter one says too little."""
MOST: Final = TARGET * 4
"""A fenced block of code is kept whole up to here, as half of a function is of no use to a reader."""
_NEAR: Final = TARGET + 512
REACH: Final = MOST + 512

_BLANK_LINE: Final = re.compile(rb"(?:\r\n|\r(?!\n)|\n)[ \t]*[\r\n]")
_SENTENCE: Final = re.compile(
    rb"""(?: [.](?<=[^\s.][^\s.][^\s.][.])                      # after less than three letters it ends an abbreviation
           | [!?] | \xe2\x80\xa6 | \xe0\xa5\xa4 | \xd8\x9f )    # an ellipsis; Hindi, Arabic
         (?: ["')\]] | \xe2\x80[\x99\x9c\x9d] | \xc2\xbb )*     # closing quotes and brackets
         (?= \s+ [^\sa-z] )                                     # no sentence begins with a small letter
       | (?: \xe3\x80\x82 | \xef\xbc[\x81\x9f] )                # those of Chinese and Japanese need no space
         (?: \xe3\x80[\x8d\x8f] | \xe2\x80\x9d )*""",
    re.VERBOSE,
)
_MARK: Final = re.compile(
    rb"""[\r\n]
         (?: [ \t]* (?P<fence> `{3,}(?= [^`\r\n]{0,200} (?:[\r\n]|\Z) ) | ~{3,} ) [ \t]* (?P<info> [^\r\n]{0,200} )
           | [ ]{0,3} \#{1,6} (?= [ \t\r\n] | \Z ) [^\r\n]{0,200}
           | (?: (?<=\n\n) | (?<=\r\n\r\n) | (?<=\r\r) )
             [^\s=-] [^\r\n]{0,200} (?: \r\n? | \n ) [ ]{0,3} (?: ={1,200} | -{2,200} ) [ \t]{0,20} (?= [\r\n] | \Z ) )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class TextWindow:
    """``body`` is the text from the start of a chunk, without blanks before it: ``REACH`` bytes, fewer only at the end of the
    file."""

    body: bytes
    lead: bytes
    """The blanks before it, which say whether it begins a line."""
    fence: str
    """The marks that opened the block of code it goes on with."""
    markdown: bool


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The first ``size`` bytes are the chunk; behind them goes on a block of code that ``fence`` opened, if it is not empty."""

    size: int
    fence: str = ""


@dataclass(frozen=True, slots=True)
class _Code:
    """A fenced block: ``[begin, end)``."""

    begin: int
    end: int
    fence: str


@dataclass(frozen=True, slots=True)
class _Outline:
    text: int = 0
    """The end of the headings that the page begins with."""
    section: int | None = None
    """The start of the next section, if that may matter."""
    code: tuple[_Code, ...] = ()
    open: bool = False
    """True if the last block of code does not end in the bytes that were read."""


def cut(page: TextWindow) -> ChunkEnd:
    """The end of the chunk that ``page`` begins with.

    A section that fits in ``TARGET`` is one chunk. Of a longer one it is as much as fits, up to the last end of a paragraph or
    block of code, else of a sentence, else of a line, of a word, of a character.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    outline = _Outline()
    if page.markdown:
        outline = _outline(page, page.body[:_NEAR])
        if outline.open:
            outline = _outline(page, page.body)
    if not page.body[TARGET : outline.section].strip():
        return ChunkEnd(_stripped(page.body, outline.section))
    least = outline.text + LEAST
    end = max(_paragraph_ends(page.body, least, outline.code), default=0)
    if end:
        return ChunkEnd(_stripped(page.body, end))
    for code in outline.code:
        if code.begin < TARGET < code.end:
            if code.end <= MOST and not page.fence:
                return ChunkEnd(_stripped(page.body, code.end))
            return ChunkEnd(_stripped(page.body, _end_in_code(page.body, least)), code.fence)
    return ChunkEnd(_stripped(page.body, _end_in_paragraph(page.body, least)))


def whole_characters(data: bytes, end: int) -> int:
    """The last place up to ``end`` that is not within a character of UTF-8."""
    while 0 < end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _stripped(body: bytes, end: int | None) -> int:
    """``end`` without the blanks before it."""
    kept = body[:end].rstrip()
    return len(kept) if b" " < kept[-1:] < b"\x80" else len(kept.decode().rstrip().encode())


def _outline(page: TextWindow, body: bytes) -> _Outline:
    """Return the outline of ``body``, which is the page's or the beginning of it."""
    opened, begin, text = page.fence, 0, 0
    code: list[_Code] = []
    section = None
    for mark in _MARK.finditer(page.lead + body):
        at = max(0, mark.start() + 1 - len(page.lead))
        end = mark.end() - len(page.lead)
        if opened:
            if _closes(mark, opened):
                code.append(_Code(begin, end, opened))
                opened = ""
        elif at > TARGET and body[TARGET:at].strip():
            break
        elif mark["fence"]:
            opened, begin = mark["fence"].decode(), at
        elif body[text:at].strip() or at > 2 * LEAST:
            section = at
            break
        else:
            text = end
    if opened:
        code.append(_Code(begin, len(body), opened))
    return _Outline(text, section, tuple(code), open=bool(opened))


def _closes(mark: "re.Match[bytes]", opened: str) -> bool:
    return bool(mark["fence"]) and mark["fence"].startswith(opened.encode()) and not mark["info"].strip()


def _paragraph_ends(body: bytes, least: int, code: Iterable[_Code]) -> Iterable[int]:
    ends = [blank.start() for blank in _BLANK_LINE.finditer(body, least, TARGET + 64)]
    ends.extend(edge for block in code for edge in (block.begin, block.end))
    return [end for end in ends if least <= end <= TARGET and not any(block.begin < end < block.end for block in code)]


def _end_in_paragraph(body: bytes, least: int) -> int:
    ends = [sentence.end() for sentence in _SENTENCE.finditer(body, least, TARGET + 64)]
    return max((end for end in ends if end <= TARGET), default=0) or _end_of_words(body, least)


def _end_in_code(body: bytes, least: int) -> int:
    ends = [blank.start() for blank in _BLANK_LINE.finditer(body, least, TARGET + 64)]
    return max((end for end in ends if end <= TARGET), default=0) or _end_of_words(body, least)


def _end_of_words(body: bytes, least: int) -> int:
    for blanks in (b"\n\r", b" \t"):
        end = max(body.rfind(bytes([blank]), least, TARGET + 1) for blank in blanks)
        if end > 0:
            return end
    return whole_characters(body, TARGET)
