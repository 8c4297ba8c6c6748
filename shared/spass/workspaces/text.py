"""Tell text from other content, and text that people can see from text that they cannot."""

import hashlib
import re
import unicodedata
from typing import Final

_ASCII: Final = re.compile("[!-~]")
_INVISIBLE_ASCII: Final = bytes([*range(ord("!")), 0x7F])
_BLANK_LETTERS: Final = "\u115f\u1160\u2800\u3164\uffa0\ufffc\U0001d159"
"""Letters and symbols without a shape."""


def decode_text(body: bytes) -> str | None:
    """Return ``body`` as text, or None if it is not UTF-8 or holds NUL, as git and grep decide."""
    if b"\0" in body:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def has_visible(body: bytes) -> bool:
    """Return True if ``body`` has a character that people see. Blanks, line ends, control and format characters, unassigned ones
    and marks without a letter are none."""
    text = body.decode(errors="replace")
    return bool(_ASCII.search(text)) or any(map(_is_visible, set(text)))


def visible_sha256(body: bytes) -> str:
    """Return the SHA-256 (hex) of the characters of ``body`` that people see: those that ``has_visible`` finds."""
    shown = body.translate(None, _INVISIBLE_ASCII)
    if not shown.isascii():
        text = shown.decode(errors="replace")
        invisible = [character for character in set(text) if not _is_visible(character)]
        shown = text.translate(dict.fromkeys(map(ord, invisible))).encode()
    return hashlib.sha256(shown).hexdigest()


def _is_visible(character: str) -> bool:
    return unicodedata.category(character)[0] not in "CMZ" and character not in _BLANK_LETTERS
