"""Make plain text of the short HTML that servers send as titles and snippets."""

import html
import re
from typing import Final

_TAG: Final = re.compile(r"<[^<>]*>")  # without "<" in a tag, the time does not grow with the square of the length
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{10,};?")  # no character has such a number, and Python refuses to read a very long one
_BLANKS: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_MAX_HTML_CHARACTERS: Final = 20_000


def plain_text(markup: str, max_characters: int) -> str:
    """Return the text of ``markup`` on one line of at most ``max_characters``."""
    text = html.unescape(_LONG_NUMBER.sub("\ufffd", _TAG.sub("", markup[:_MAX_HTML_CHARACTERS])))
    text = _BLANKS.sub(" ", text).strip()
    return text if len(text) <= max_characters else text[: max_characters - 1].rstrip() + "…"
