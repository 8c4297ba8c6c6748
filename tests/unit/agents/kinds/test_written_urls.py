"""The URLs of an input are found where a person sees them, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.agents.kinds.written_urls import absolute_url, written_urls

PARTS = (
    *(
        "https://",
        "http://",
        "a.com",
        "b.example.org",
        "/x",
        "?q=1",
        "#f",
        ":80",
        "@",
        ".",
        ",",
        "(",
        ")",
        "[",
        "](",
        "]",
        "<",
        ">",
        '"',
        "'",
    ),
    *(" ", "\n", "me", "com", "www.", "/", "\\", "%", "-", "ü", "。", "[::1]", "ftp://", "*", "`"),
)
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("Summarize example.com", ["example.com"]),
        ("Summarize http://127.0.0.1:8000/x?y=z#w, please.", ["http://127.0.0.1:8000/x?y=z#w"]),
        ("HTTPS://Example.ORG/A and WWW.B.NET", ["HTTPS://Example.ORG/A", "WWW.B.NET"]),
        ("a.com b.org c.net d.edu e.gov", ["a.com", "b.org", "c.net"]),
        ("d.edu, e.gov; a.io b.de c.co.uk", ["d.edu", "e.gov"]),
        ("see a.com/x/y?z=1#w.", ["a.com/x/y?z=1#w"]),
        ("a.com:443/x b.com:8080", ["a.com:443/x", "b.com:8080"]),
        ("(https://a.com/x) [https://b.com/y] {https://c.com/z}", ["https://a.com/x", "https://b.com/y", "https://c.com/z"]),
        (
            "https://en.wikipedia.org/wiki/A_(b) (see https://a.com/c_(d)).",
            ["https://en.wikipedia.org/wiki/A_(b)", "https://a.com/c_(d)"],
        ),
        ('[a.com](https://b.com/x "title") <https://c.com>', ["a.com", "https://b.com/x", "https://c.com"]),
        ("[https://a.com](https://a.com/)", ["https://a.com"]),
        ("'https://a.com/x' \"https://b.com/y\" `c.com/z`", ["https://a.com/x", "https://b.com/y", "c.com/z"]),
        ("“https://a.com/x”, ‘b.com’ «c.com»", ["https://a.com/x", "b.com", "c.com"]),
        ("**https://a.com/x** *b.com*", ["https://a.com/x", "b.com"]),
        ("https://a.com,https://b.com;https://c.com", ["https://a.com", "https://b.com", "https://c.com"]),
        ("https://a.com! Really? https://b.com?? https://c.com...", ["https://a.com", "https://b.com", "https://c.com"]),
        ("https://a.com https://a.com/ a.com HTTP://a.com https://a.com/#x", ["https://a.com", "HTTP://a.com"]),
        ("https://a.com/?u=https://b.com", ["https://a.com/?u=https://b.com"]),
        ("https://u:p@a.com/ http://[::1]:80/x http://0x7f.1", ["https://u:p@a.com/", "http://[::1]:80/x", "http://0x7f.1"]),
        ("看https://a.com/x。再", ["https://a.com/x"]),
        ("https://münchen.com/straße münchen.org", ["https://münchen.com/straße", "münchen.org"]),
        ("line\nhttps://a.com/x\nline\r\nb.com\tc.com", ["https://a.com/x", "b.com", "c.com"]),
        ("me@a.com, me.com@b.org, mailto:x@c.com, a.com:80@d.org", []),
        ("ftp://a.com file:///a.com data:x //a.com /a.com \\a.com x@a.com/y", []),
        ("a.commerce a.com.au a.com-x xa.com_ .com com org.x node.js 3.14 e.g. U.S. a..com -.com", []),
        ("https:// http://. https://, http://)", []),
        ("I work at a.com.", ["a.com"]),
        ("", []),
    ],
)
def test_the_urls_of_a_text(text: str, urls: list[str]) -> None:
    assert written_urls(text) == tuple(urls)


@given(text=TEXTS)
def test_every_url_is_in_the_text_and_there_are_at_most_three_different_ones(text: str) -> None:
    urls = written_urls(text)
    assert len({*urls}) == len(urls) <= 3
    for url in urls:
        assert url in text
        assert not any(sign.isspace() or sign in '<>"`[]' for sign in url.replace("[::1]", ""))
        assert not url.endswith((".", ",", "("))
        assert absolute_url(url).lower().startswith(("http://", "https://"))


@given(text=TEXTS)
def test_a_url_is_found_again_when_it_stands_alone(text: str) -> None:
    for url in written_urls(text):
        assert written_urls(f"Read {url} now.") == (url,)


@pytest.mark.parametrize(
    "part", ["a.", "a-", "https://", "a.com:", "((((", "http://[", "http://a))))", "a@", "x" * 70 + ".", " 'https://a'", "com."]
)
def test_the_longest_input_of_repeated_parts_is_read(part: str) -> None:
    for start in ("", "https://a.com/", "a.com/"):
        assert len(written_urls(start + part * (262_144 // len(part)))) <= 3


def test_a_bare_host_is_fetched_by_https() -> None:
    assert [absolute_url(url) for url in ("a.com/x", "http://a.com", "HTTPS://a.com")] == [
        "https://a.com/x",
        "http://a.com",
        "HTTPS://a.com",
    ]
