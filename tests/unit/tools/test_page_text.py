"""The text of a page is what a person reads on it, in any encoding, and no page takes long."""

import codecs
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.tools.page_text import page_text

MIB = 1024 * 1024
HTML = "text/html"

PARTS = (
    *(
        "<p>",
        "</p>",
        "<div>",
        "</div>",
        "<b>",
        "</b>",
        "<br>",
        "<script>",
        "</script>",
        "<style>",
        "</style>",
        "<title>",
        "</title>",
        "<",
    ),
    *(
        "<!--",
        "-->",
        "<!",
        "<?",
        ">",
        "</",
        '<a b="',
        "'",
        '"',
        "<a b=c'd>",
        "<pre>",
        "</pre>",
        "<svg>",
        "</svg>",
        "<svg/>",
        "<td>",
        "<li>",
    ),
    *(
        "&amp;",
        "&",
        "&#",
        "&#x41;",
        "&#99999999999;",
        "<![CDATA[",
        "]]>",
        "word",
        "two words",
        "\n",
        " ",
        "\0",
        "\r\n",
        "é",
        "\ud7ff",
    ),
)
PAGES = st.lists(st.sampled_from(PARTS), max_size=30).map("".join)


def text_of(page: str, media_type: str = HTML, limit: int = 4000) -> str:
    return page_text(page.encode(), media_type, None, limit)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("Just text.", "Just text."),
        ("<p>One <b>bold</b> word,\n  two<i>!</i></p><p>Next.", "One bold word, two!\n\nNext."),
        ("<title>A &amp; B</title><h1>Head</h1>Text", "A & B\n\nHead\n\nText"),
        ("a<br>b<br/>c<div>d</div>e", "a\nb\nc\nd\ne"),
        ("<ul><li>a<li>b</ul>c", "- a\n- b\n\nc"),
        ("<ul><li><p>a</p></li></ul>", "- a"),
        ("<table><tr><th>a<th>b</tr><tr><td>1</td><td>2</td></tr></table>", "a | b\n1 | 2"),
        ("x<pre>\n  a\n    b\n</pre>y", "x\n\n  a\n    b\n\ny"),
        ("a<script>if (a < b) '</p>'</script>b<style>p {}</style>c<SCRIPT>x</ScRiPt >d", "abcd"),
        ("a<script>never closed", "a"),
        ("a<script></scripts></script>b", "ab"),
        ("a<!-- <p>no --><!--> b<!---> c<!-- x --!> d<!-- open <p>", "a b c d"),
        ("a<svg><text>no</text><svg>no</svg>no</svg>b<svg/>c<template><p>no</template>d", "abcd"),
        ("<p title='a>b' class=it's data-x=\"'>'\">c</p>d", "c\n\nd"),
        ("<textarea><b>raw</b> &lt;</textarea>", "<b>raw</b> <"),
        ("1 < 2 <3 </ x> <!doctype html> <?php x ?> 4", "1 < 2 <3 4"),
        ("&lt;p&gt; &eacute; &#233; &#xE9; &nbsp; &unknown; &#55555555555555; &#0;", "<p> é é é &unknown; \ufffd \ufffd"),
        ("<unknown-tag>kept</unknown-tag>", "kept"),
        ("a\0b\x1bc", "a b c"),
        ("", ""),
        ("<p> \n </p>", ""),
    ],
)
def test_the_text_of_html(page: str, text: str) -> None:
    assert text_of(page) == text
    assert text_of(page, "application/xhtml+xml") == text


@pytest.mark.parametrize(
    ("page", "media_type", "text"),
    [
        ("<p>raw</p>\r\nb\rc\0", "text/plain", "<p>raw</p>\nb\nc"),
        ('{"a": "<b>"}', "application/json", '{"a": "<b>"}'),
        ("# Head\n\n<b>x</b>", "text/markdown", "# Head\n\n<b>x</b>"),
        ("<rss><item><title><![CDATA[A & <b>]]></title><link>x</link></item></rss>", "application/rss+xml", "A & <b>\nx"),
        ('<?xml version="1.0"?><a><script>x &lt; y</script><svg>z</svg></a>', "application/xml", "x < y\nz"),
    ],
)
def test_the_text_of_other_types(page: str, media_type: str, text: str) -> None:
    assert text_of(page, media_type) == text


@pytest.mark.parametrize(
    ("content", "charset", "text"),
    [
        ("Größe".encode(), None, "Größe"),
        ("Größe".encode("latin-1"), None, "Größe"),
        ("Größe".encode("latin-1"), "ISO-8859-1", "Größe"),
        ("10 €".encode("cp1252"), "latin1", "10 €"),
        ("Größe".encode(), "latin-1", "GrÃ¶ÃŸe"),
        (codecs.BOM_UTF8 + "Größe".encode(), "latin-1", "Größe"),
        (codecs.BOM_UTF16_LE + "Größe".encode("utf-16-le"), None, "Größe"),
        (codecs.BOM_UTF16_BE + "Größe".encode("utf-16-be"), "utf-8", "Größe"),
        ("Größe".encode("utf-16-le"), "utf-16le", "Größe"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        ("日本".encode("euc_jp"), "x-unknown", page_text("日本".encode("euc_jp"), "text/plain", "cp1252", 99)),
        (b'<meta charset="koi8-r">' + "мир".encode("koi8-r"), None, "мир"),
        (b'<meta http-equiv=x content="text/html; charset=windows-1251">' + "мир".encode("cp1251"), None, "мир"),
        (b'<?xml version="1.0" encoding="gb18030"?>' + "中".encode("gb18030"), None, "中"),
        (b'<meta charset="utf-16">' + "Größe".encode(), None, "Größe"),
        (b'<meta charset="koi8-r">' + "Größe".encode(), "utf-8", "Größe"),
        (b"\xff\xfe", "utf-8", ""),
        (b"a\xffb", "utf-8", "a\ufffdb"),
        *(
            (b"YWJj +AGE- \\u0041", label, "YWJj +AGE- \\u0041")
            for label in ("base64", "utf-7", "unicode_escape", "zip", "idna", "hex")
        ),
        *((b"abc", label, "abc") for label in ("punycode", "undefined", "mbcs", "oem", "rot13", "x" * 40, "..", "\u00fc", "")),
    ],
)
def test_the_encoding_is_that_of_the_mark_the_header_or_the_page(content: bytes, charset: str | None, text: str) -> None:
    assert page_text(content, HTML, charset, 4000) == text


@given(page=PAGES, limit=st.integers(1, 40))
def test_any_page_has_a_text_of_at_most_the_characters_asked_for(page: str, limit: int) -> None:
    whole, cut = text_of(page), text_of(page, limit=limit)
    assert len(cut) <= limit
    assert cut in (whole[:limit], whole[:limit].rstrip())  # blanks of a preformatted text may be the last
    assert "\0" not in whole
    assert whole == whole.rstrip()


class Reference(HTMLParser):
    """The text outside of scripts and styles, without white space."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._hidden else "".join(data.split())


WELL_FORMED = st.recursive(
    st.sampled_from(["one", "two words", "&lt;3", "ü", "<!-- no -->", "<script>a < b</script>", "<br>", '<img alt="a>b">']),
    lambda inner: st.tuples(st.sampled_from(["p", "b", "div", "h1", "span", "section"]), st.lists(inner, max_size=4)).map(
        lambda pair: f"<{pair[0]} class='x'>{''.join(pair[1])}</{pair[0]}>"
    ),
    max_leaves=12,
)


@given(page=WELL_FORMED)
def test_the_words_of_a_well_formed_page_are_those_of_another_parser(page: str) -> None:
    reference = Reference()
    reference.feed(page)
    reference.close()
    assert "".join(text_of(page, limit=10**6).split()) == reference.text


HOSTILE = (
    *(
        "<div>",
        "<b>",
        "<a href=x>",
        "<!--",
        "<",
        "a=b ",
        "<a ",
        '<a b="',
        "<a b='\"",
        "&",
        "&amp",
        "&#",
        "&#x1",
        "</",
        "</a ",
        "<!",
        "<!a[",
    ),
    *(
        "<![CDATA[",
        "<script>",
        "</script",
        "<?",
        "<b></p>",
        "<table><tr>",
        "<ul><li>",
        "<svg>",
        "</svg>",
        "<title>",
        "<textarea></",
        "-->",
    ),
    *(" ", "=", "/", '"', "'", "\0", "<pre>", "<td>", "&lt;", "<br>", "<span></p>", "<a <", "--", "\r"),
)


@pytest.mark.parametrize("start", ["", "<a ", "<script>", "<svg>"])
def test_a_page_of_one_repeated_piece_is_read_in_linear_time(start: str) -> None:
    begun = time.process_time()
    for piece in HOSTILE:
        page = start + piece * (MIB // 8 // len(piece))
        assert len(text_of(page)) <= 4000
    assert time.process_time() - begun < 30  # about half a second; a search from each piece to the end would take minutes
