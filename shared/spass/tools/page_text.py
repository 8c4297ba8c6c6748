r"""Make plain text of a page.

One regular expression splits HTML into tags and text. Each of its branches ends at the latest at the end of the page, so the time
grows with the length alone, whatever the page is. The libraries for this were tried with two megabytes of repeated ``<div>``,
``<b></p>``, ``<!--`` or ``<a b="``: html2text, html.parser and selectolax take more than ten seconds for some of them. lxml is
fast, but its C code would read hostile pages in the process that has the providers' keys.
"""

import codecs
import html
import re
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      (?P<text> [^<]++ )
    | <!-- (?: -?> | .*? (?: --!?> | \Z ) )
    | <!\[CDATA\[ (?P<cdata> .*? ) (?: \]\]> | \Z )
    | < (?P<end> /? ) (?P<name> [a-zA-Z] [^\s/>]*+ )
        (?P<attributes> (?: [^>=]++ | = \s*+ (?: "[^"]*+ (?:"|\Z) | '[^']*+ (?:'|\Z) )? )*+ ) (?: > | \Z )
    | <[!?/] [^>]*+ (?: > | \Z )
    | <
    """,
    re.DOTALL | re.VERBOSE,
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]+")
_LINE_ENDS: Final = re.compile(r"\r\n?")
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{10,}+;?")  # no character has it, and Python refuses to read a very long one
_DECLARED: Final = re.compile(rb"""(?:charset|encoding)\s{0,9}=\s{0,9}["']?([\w.:-]{1,40})""", re.IGNORECASE)
_DECLARED_WITHIN: Final = 1024  # bytes, as in browsers
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_CODECS: Final = frozenset(
    {
        *(
            "utf-8",
            "utf-16",
            "utf-16-le",
            "utf-16-be",
            "koi8-r",
            "koi8-u",
            "mac-roman",
            "cp866",
            "cp874",
            "gb2312",
            "gbk",
            "gb18030",
        ),
        *("big5", "big5hkscs", "euc_jp", "iso2022_jp", "shift_jis", "cp932", "euc_kr", "cp949"),
        *(f"cp125{number}" for number in range(9)),
        *(f"iso8859-{number}" for number in range(2, 17)),
    }
)
"""The encodings that browsers read (https://encoding.spec.whatwg.org). Python has further codecs, such as base64."""

_RAW: Final = frozenset({"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"})
"""Elements whose content has no tags."""
_SHOWN_RAW: Final = frozenset({"textarea", "title", "xmp"})
_SKIPPED: Final = frozenset({"template", "svg", "math", "canvas", "audio", "video", "object", "datalist"})
_PARAGRAPHS: Final = frozenset(
    {"p", "pre", "blockquote", "table", "ul", "ol", "dl", "hr", "title", "h1", "h2", "h3", "h4", "h5", "h6"}
)
_LINES: Final = frozenset(
    {
        *("address", "article", "aside", "body", "br", "caption", "center", "dd", "details", "dialog", "div", "dt", "fieldset"),
        *("figcaption", "figure", "footer", "form", "header", "li", "main", "menu", "nav", "option", "section", "summary", "tr"),
    }
)
_GAPS: Final = ("", " ", " | ", "\n", "\n\n")
"""The separators of texts. Of two between the same texts, the later one in this list counts."""


def page_text(content: bytes, media_type: str, charset: str | None, max_characters: int) -> str:
    """Return the text of a page of ``media_type``, of which at most the first ``max_characters`` are read.

    ``charset`` comes from the header Content-Type, if it names one.
    """
    is_html = media_type in ("text/html", "application/xhtml+xml")
    is_xml = not is_html and media_type.endswith(("/xml", "+xml"))
    text = _CONTROLS.sub(" ", _decode(content, charset, is_markup=is_html or is_xml))
    text = _LINE_ENDS.sub("\n", text)
    if not is_html and not is_xml:
        return text.strip()[:max_characters]
    writer = _Writer(max_characters)
    _read_markup(text, writer, is_xml=is_xml)
    return writer.text


def _decode(content: bytes, charset: str | None, *, is_markup: bool) -> str:
    """Return the content as text by its byte order mark, the header, or what it declares itself, in this order."""
    for bom, codec in _BOMS:
        if content.startswith(bom):
            return content[len(bom) :].decode(codec, "replace")
    declared = _DECLARED.search(content[:_DECLARED_WITHIN]) if is_markup and charset is None else None
    known = _codec(declared[1].decode("ascii", "replace") if declared else charset or "")
    if declared and known in ("utf-16", "utf-16-le", "utf-16-be"):
        known = "utf-8"  # the declaration itself was readable
    if known is not None:
        return content.decode(known, "replace")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def _codec(label: str) -> str | None:
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return None
    return "cp1252" if name in ("iso8859-1", "ascii") else name if name in _CODECS else None


class _Writer:
    """The text of a page so far."""

    def __init__(self, max_characters: int) -> None:
        self._max_characters = max_characters
        self._pieces: list[str] = []
        self._size = 0
        self._gap = 0
        self._prefix = ""
        self.preformatted = 0
        """The number of open elements that keep their white space."""

    @property
    def is_full(self) -> bool:
        return self._size >= self._max_characters

    @property
    def text(self) -> str:
        return "".join(self._pieces).rstrip()[: self._max_characters]

    def separate(self, gap: str, prefix: str = "") -> None:
        """Put at least ``gap`` before the next text, and ``prefix`` directly before it."""
        self._gap = max(self._gap, _GAPS.index(gap))
        self._prefix = prefix or self._prefix

    def add(self, text: str) -> None:
        body = text.strip("\n") if self.preformatted else " ".join(text.split())
        if not body.strip():
            self.separate(" " if text else "")
            return
        if text[0].isspace() and not self.preformatted:
            self.separate(" ")
        piece = (_GAPS[self._gap] if self._pieces else "") + self._prefix + body
        self._pieces.append(piece)
        self._size += len(piece)
        self._gap = int(text[-1].isspace()) if not self.preformatted else 3 * text.endswith("\n")
        self._prefix = ""


def _read_markup(text: str, writer: _Writer, *, is_xml: bool) -> None:
    """Write the text of HTML, or of XML, in which nothing is known about the elements."""
    at, skipped, depth = 0, "", 0
    while at < len(text) and not writer.is_full:
        token = _TOKEN.match(text, at)
        if token is None:
            return
        at = token.end()
        name = (token["name"] or "").lower()
        if skipped:
            is_empty = (token["attributes"] or "").endswith("/")
            depth += (name == skipped and not is_empty) * (-1 if token["end"] else 1)
            skipped = skipped if depth else ""
        elif token.lastgroup == "text" or token[0] == "<":
            writer.add(_unescape(token[0]))
        elif is_xml:
            writer.separate("\n")
            writer.add(token["cdata"] or "")
        elif name in _SKIPPED and not token["end"] and not token["attributes"].endswith("/"):
            skipped, depth = name, 1
        elif name in _RAW and not token["end"]:
            at = _read_raw(text, at, name, writer)
        elif name:
            _separate(writer, name, is_end=bool(token["end"]))


def _read_raw(text: str, start: int, name: str, writer: _Writer) -> int:
    """Write the content of an element without tags, if it is shown. Return where the content ends."""
    end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(text, start)
    stop = end.start() if end else len(text)
    if name in _SHOWN_RAW:
        _separate(writer, name, is_end=False)
        writer.add(_unescape(text[start:stop]))
    return stop


def _unescape(text: str) -> str:
    return html.unescape(_LONG_NUMBER.sub("\ufffd", text)) if "&" in text else text


def _separate(writer: _Writer, name: str, *, is_end: bool) -> None:
    if name == "pre":
        writer.preformatted = max(0, writer.preformatted + (-1 if is_end else 1))
    if name in _PARAGRAPHS:
        writer.separate("\n\n")
    elif name in ("td", "th"):
        writer.separate(" | ")
    elif name in _LINES:
        writer.separate("\n", "- " if name == "li" and not is_end else "")
