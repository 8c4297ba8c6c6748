"""Find the URLs that a person wrote in a text.

A URL begins with ``http://`` or ``https://``, or with a host under one of five top-level domains. It ends before a blank, a
quote, an angle bracket, a closing bracket that it does not open, and the punctuation of the sentence. A mail address is not one.
"""

import re
from collections.abc import Iterator
from typing import Final

MAX_URLS: Final = 3
"""URLs of an input that are fetched."""

_CLOSERS: Final = "。，、；！？）」』】》〉“”‘’«»…"
_END: Final = rf"""\s\x00-\x20\x7f<>"`{{}}|\\^\[\]{_CLOSERS}"""
_REST: Final = rf"(?:(?![,;]https?://)[^{_END}])*+"
_LABEL: Final = r"\w(?:[\w-]{0,61}\w)?"
_URL: Final = re.compile(
    rf"""
      (?<![a-z0-9+.-]) https?:// (?: \[ [0-9a-f:.%]*+ \] )?+ {_REST}
    | (?<![\w@/\\.+%-]) (?: {_LABEL} \. ){{1,20}}? (?: com|org|net|edu|gov ) (?! [\w@-] | \.\w | :\S{{0,100}}@ )
      (?: : [0-9]{{1,5}}+ (?![\w-]) )?+ (?: [/?#] {_REST} )?+
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PUNCTUATION: Final = ".,;:!?*'~("


def written_urls(text: str) -> tuple[str, ...]:
    """Return the first three different URLs in ``text``, as they are written there."""
    urls: dict[str, str] = {}
    for url in _urls(text):
        urls.setdefault(absolute_url(url).partition("#")[0].rstrip("/"), url)
        if len(urls) == MAX_URLS:
            break
    return tuple(urls.values())


def absolute_url(url: str) -> str:
    """Return a written URL with its scheme: ``https`` for a bare host."""
    return url if re.match("https?://", url, re.IGNORECASE) else f"https://{url}"


def _urls(text: str) -> Iterator[str]:
    for found in _URL.finditer(text):
        url = found[0]
        if text[found.start() - 1 : found.start()] == "'":
            url = url.partition("'")[0]
        url = _without_open_end(url).rstrip(_PUNCTUATION)
        if len(absolute_url(url)) > len("https://"):
            yield url


def _without_open_end(url: str) -> str:
    """Return ``url`` up to the first bracket that closes one before it."""
    depth = 0
    for place, sign in enumerate(url):
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return url[:place]
    return url
