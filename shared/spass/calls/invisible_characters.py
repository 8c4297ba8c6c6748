"""Remove invisible characters before a model reads a text: control characters, characters without width, and tags.

A model reads them although no person sees them, so they can hide an instruction. The set follows Unicode's
``Default_Ignorable_Code_Point`` (https://www.unicode.org/reports/tr44/) and the controls. What writing systems and emoji need of
it stays, once and where they need it: joiners in scripts that join, presentation selectors after an emoji, the tags of the three
flags that have them, a variation selector after a Han ideograph or a Mongolian letter.
"""

import re
from collections.abc import Iterator
from typing import Final

_BREAKS: Final = "\x0b\x0c\x85"  # a page or a line ends there; words must not be joined
_OTHER_INVISIBLE: Final = (
    "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
_INVISIBLE: Final = f"[{_BREAKS}{_OTHER_INVISIBLE}]"
_ONE: Final = re.compile(_INVISIBLE)
_INVISIBLE_BYTES: Final = bytes((*range(9), 11, 12, *range(14, 32), 0x7F, 0xAD))  # in ASCII and in Windows-1252
_BREAK: Final = re.compile(f"[{_BREAKS}]")

# Patterns that few texts need are compiled at their first use.
_JOINING_SCRIPT: Final = (
    "[\u0620-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u17ff\u1820-\u18aa\u1900-\u1cff\ua840-\ua87f\ua8e0-\ua8ff\ua980-\uaaff"
    "\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010fff\U00011000-\U00011fff\U0001e900-\U0001e95f]"
)
_EMOJI: Final = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d"
    "\u3297\u3299\U0001f000-\U0001faff]"
)
_HAN: Final = "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_MONGOLIAN: Final = "[\u1820-\u18aa]"
_BLACK_FLAG: Final = "\U0001f3f4"
_FLAG_TAGS: Final = tuple(
    "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f" for region in ("gbeng", "gbsct", "gbwls")
)
_KEPT_CONTEXTS: Final = {
    "[\u200c\u200d]": (
        rf"{_JOINING_SCRIPT}[\u200c\u200d]",
        rf"{_EMOJI}\u200d(?={_EMOJI})",
        rf"{_EMOJI}[\ufe0e\ufe0f]\u200d(?={_EMOJI})",
        rf"{_MONGOLIAN}[\u180b-\u180f][\u200c\u200d]",
    ),
    "[\ufe00-\ufe0f]": (
        rf"{_EMOJI}[\ufe0e\ufe0f]",
        r"[0-9#*][\ufe0e\ufe0f](?=\u20e3)",
        rf"{_HAN}[\ufe00-\ufe02]",
    ),
    "[\U000e0100-\U000e010f]": (rf"{_HAN}[\U000e0100-\U000e010f]",),
    "[\u180b-\u180f]": (rf"{_MONGOLIAN}[\u180b-\u180f]",),
    "[\U000e0020-\U000e007f]": tuple(
        f"{_BLACK_FLAG}{tags[:at]}(?={tags[at:]})" for tags in _FLAG_TAGS for at in range(1, len(tags) + 1)
    ),
}
"""Invisible characters that select the form of the letter or emoji before them or join it to the next, and where each stays."""
# The character comes first and is judged by what is behind it, so that a search runs from one such character to the next.
_REMOVED: Final = _INVISIBLE + "".join(
    f"(?:(?<!{kind})|{''.join(f'(?<!{place})' for place in places)})" for kind, places in _KEPT_CONTEXTS.items()
)


_VISIBLE: Final = re.compile(f"[^{_BREAKS}{_OTHER_INVISIBLE}]")
_PART: Final = 16_384
"""Characters, about, of one search: a search blocks all other threads."""


def strip_invisible(text: str) -> str:
    """Return ``text`` without what cannot be seen in it; the very same object if there is nothing of the kind."""
    if not _has_invisible(text):
        return text
    return _visible(text) if len(text) <= _PART else "".join(_visible_parts(text))


def _visible_parts(text: str) -> Iterator[str]:
    """Yield the same in parts, each of which begins with a character that can be seen: what is before it decides nothing."""
    start = 0
    while following := _VISIBLE.search(text, start + _PART):
        yield _visible(text[start : following.end()])[:-1]
        start = following.start()
    yield _visible(text[start:])


def _visible(text: str) -> str:
    if _BREAK.search(text):
        text = re.sub(
            rf"{_REMOVED}(?<!{_INVISIBLE}{_INVISIBLE})(?:(?<=[{_BREAKS}])|[{_OTHER_INVISIBLE}]*+[{_BREAKS}]){_INVISIBLE}*+",
            "\n",
            text,
        )
    return re.sub(rf"{_REMOVED}{_INVISIBLE}*+", "", text)


def _has_invisible(text: str) -> bool:
    try:  # most of what is written in the West: three times as fast as any pattern
        encoded = text.encode("ascii" if text.isascii() else "cp1252")
    except UnicodeEncodeError:
        return bool(_ONE.search(text))
    return len(encoded.translate(None, _INVISIBLE_BYTES)) != len(encoded)
