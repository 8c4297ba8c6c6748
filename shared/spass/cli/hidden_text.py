"""Mark what hides a part of a text from the person who reads it, as the page does (``ui/visible.js``)."""

import re
from typing import Final

# Controls, the ends of lines other than a line feed, characters without a shape, and those that change the direction of text.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_BLANKS: Final = re.compile(r"[^\S\n]{100,}|\t{12,}")


def mark_hidden(text: str) -> str:
    """Return ``text`` with hidden characters written as e.g. ``⟨U+202E⟩``, and long runs of blanks as e.g. ``⟨400 blanks⟩``."""
    marked = _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)
    return _BLANKS.sub(lambda match: f"⟨{len(match[0])} blanks⟩", marked)
