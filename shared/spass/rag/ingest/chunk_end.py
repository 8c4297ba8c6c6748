"""Find the end of a chunk of text from the bytes at its start.

The result depends on at most ``WINDOW_BYTES`` bytes. So a worker that continues after any chunk finds the same chunks, and the
sizes of the blocks that it reads do not matter. The code recognises only two elements of Markdown (CommonMark,
https://spec.commonmark.org/0.31.2/): headings (ATX and Setext) and fenced code blocks.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CHUNK_BYTES: Final = 1024
"""The largest chunk that is not code. The built-in embedding model reads 256 tokens, which is about 1 KiB of
English. For a longer text it averages the vectors of several pieces, and such an average is not similar to any query."""
MIN_CHUNK_BYTES: Final = CHUNK_BYTES // 4
"""The smallest chunk, unless its section ends earlier. A shorter chunk contains too little information."""
MAX_CODE_BYTES: Final = CHUNK_BYTES * 4
"""The largest fenced code block that is not split. Half of a function is of little use to a reader."""
_OUTLINE_BYTES: Final = CHUNK_BYTES + 512  # enough to find the outline, unless they end within a code block
WINDOW_BYTES: Final = MAX_CODE_BYTES + 512
_SEARCH_END: Final = CHUNK_BYTES + 64  # a match that ends here may show that the chunk can end at CHUNK_BYTES

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
class TextWindow:
    """The bytes that decide where a chunk ends."""

    body: bytes
    """The first ``WINDOW_BYTES`` bytes from the start of the chunk. Only at the end of the file there are fewer."""
    leading_blanks: bytes
    """The blanks before ``body``. They show whether ``body`` begins at the start of a line."""
    fence: str
    """The opening fence of the code block in which ``body`` begins, or empty."""
    markdown: bool


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The chunk is the first ``size`` bytes. If it ends within a code block, ``fence`` is the opening fence of that block."""

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
    """The start of the next section, if it is near enough to end the chunk."""
    code_blocks: tuple[_CodeBlock, ...] = ()
    ends_in_code: bool = False
    """True if the last code block is not closed in the bytes that were read."""


def find_chunk_end(window: TextWindow) -> ChunkEnd:
    """Return the end of the chunk at the start of ``window``.

    A section of at most ``CHUNK_BYTES`` is one chunk. A longer section is split after the last paragraph or code block that fits.
    If there is none, it is split after the last sentence, line, word or character that fits, in this order of preference.

    Raises:
        UnicodeDecodeError: the text is not UTF-8.
    """
    body = window.body
    outline = _Outline()
    if window.markdown:
        outline = _find_outline(window, body[:_OUTLINE_BYTES])
        if outline.ends_in_code:
            outline = _find_outline(window, body)
    if not body[CHUNK_BYTES : outline.next_section].strip():
        return ChunkEnd(_strip_end(body, outline.next_section))
    min_end = outline.headings_end + MIN_CHUNK_BYTES
    blank_lines = [blank.start() for blank in _BLANK_LINE.finditer(body, min_end, _SEARCH_END)]
    code_edges = [edge for code in outline.code_blocks for edge in (code.begin, code.end) if edge >= min_end]
    edges = (*blank_lines, *code_edges)
    end = _last_that_fits(edge for edge in edges if not any(code.begin < edge < code.end for code in outline.code_blocks))
    if end:
        return ChunkEnd(_strip_end(body, end))
    for code in outline.code_blocks:
        if code.begin < CHUNK_BYTES < code.end:
            if code.end <= MAX_CODE_BYTES and not window.fence:
                return ChunkEnd(_strip_end(body, code.end))
            return ChunkEnd(_strip_end(body, _last_that_fits(blank_lines) or _find_end_of_word(body, min_end)), code.fence)
    sentences = (sentence.end() for sentence in _SENTENCE.finditer(body, min_end, _SEARCH_END))
    return ChunkEnd(_strip_end(body, _last_that_fits(sentences) or _find_end_of_word(body, min_end)))


def align_to_character(data: bytes, end: int) -> int:
    """Return the largest offset up to ``end`` that does not split a UTF-8 character."""
    while 0 < end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _strip_end(body: bytes, end: int | None) -> int:
    """Return the offset after the last character before ``end`` that is not blank."""
    text = body[:end].rstrip()
    return len(text) if b" " < text[-1:] < b"\x80" else len(text.decode().rstrip().encode())


def _find_outline(window: TextWindow, body: bytes) -> _Outline:
    """Return the outline of ``body``, which is the body of ``window`` or a prefix of it."""
    fence, fence_start, headings_end = window.fence, 0, 0
    code_blocks: list[_CodeBlock] = []
    next_section = None
    for line in _HEADING_OR_FENCE.finditer(window.leading_blanks + body):
        start = max(0, line.start() + 1 - len(window.leading_blanks))
        end = line.end() - len(window.leading_blanks)
        if fence:
            if _closes_fence(line, fence):
                code_blocks.append(_CodeBlock(fence_start, end, fence))
                fence = ""
        elif start > CHUNK_BYTES and body[CHUNK_BYTES:start].strip():
            break
        elif line["fence"]:
            fence, fence_start = line["fence"].decode(), start
        elif body[headings_end:start].strip() or start > 2 * MIN_CHUNK_BYTES:
            next_section = start
            break
        else:
            headings_end = end
    if fence:
        code_blocks.append(_CodeBlock(fence_start, len(body), fence))
    return _Outline(headings_end, next_section, tuple(code_blocks), ends_in_code=bool(fence))


def _closes_fence(line: "re.Match[bytes]", fence: str) -> bool:
    return bool(line["fence"]) and line["fence"].startswith(fence.encode()) and not line["info"].strip()


def _last_that_fits(ends: Iterable[int]) -> int:
    """Return the last of ``ends`` that makes a chunk of at most ``CHUNK_BYTES``, or 0."""
    return max((end for end in ends if end <= CHUNK_BYTES), default=0)


def _find_end_of_word(body: bytes, min_end: int) -> int:
    for blanks in (b"\n\r", b" \t"):
        end = max(body.rfind(bytes([blank]), min_end, CHUNK_BYTES + 1) for blank in blanks)
        if end > 0:
            return end
    return align_to_character(body, CHUNK_BYTES)
