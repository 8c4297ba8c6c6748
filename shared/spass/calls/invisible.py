"""What nobody sees in a text does not reach a model: control characters, characters without width, and tags.

A model reads them all the same, so an order hidden in them is an order that no person can find. What follows Unicode's
``Default_Ignorable_Code_Point`` (https://www.unicode.org/reports/tr44/) and the controls. What writing systems and emoji need of
it stays, once and where they need it: joiners in scripts that join, presentation selectors after an emoji, the tags of the three
flags that have them, a variation selector after a Han ideograph or a Mongolian letter.
"""

import re
from typing import Final

_UNSEEN: Final = (
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_ONE: Final = re.compile(_UNSEEN)
_MAY_STAY: Final = re.compile("[\x0b\x0c\x85\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U000e0000-\U000e0fff]")
_UNSEEN_BYTES: Final = bytes((*range(9), 11, 12, *range(14, 32), 0x7F, 0xAD))  # in ASCII and in Windows-1252
_BREAK: Final = re.compile("[\x0b\x0c\x85]")  # a page or a line ends there, and words must not grow together

# Patterns that few texts need are compiled when the first one does.
_JOINING_SCRIPT: Final = (
    "[\u0620-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u17ff\u1820-\u18aa\u1900-\u1cff\ua840-\ua87f\ua8e0-\ua8ff\ua980-\uaaff"
    "\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010fff\U00011000-\U00011fff\U0001e900-\U0001e95f]"
)
_EMOJI: Final = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf\u2934\u2935\u2b00-\u2bff\u3030\u303d"
    "\u3297\u3299\U0001f000-\U0001faff]"
)
_HAN: Final = "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_HAN_SELECTOR: Final = "[\ufe00-\ufe02\U000e0100-\U000e010f]"
_MONGOLIAN: Final = "[\u1820-\u18aa]"
# Every run of such characters, but for the single ones that such texts are full of: they stay, and are passed over quickly.
_RUN: Final = (
    rf"(?!(?<={_JOINING_SCRIPT})[\u200c\u200d](?!{_UNSEEN})|(?<={_EMOJI})\u200d(?={_EMOJI})"
    rf"|(?<={_EMOJI})[\ufe0e\ufe0f](?!{_UNSEEN})){_UNSEEN}+"
)
_BLACK_FLAG: Final = "\U0001f3f4"
_FLAG_TAGS: Final = tuple(
    "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f" for region in ("gbeng", "gbsct", "gbwls")
)


def visible(text: str) -> str:
    """``text`` without what cannot be seen in it; the very same object if there is nothing of the kind."""
    return re.sub(_RUN, _kept, text) if _has_unseen(text) else text


def _has_unseen(text: str) -> bool:
    try:  # most of what is written in the West: three times as fast as any pattern
        encoded = text.encode("ascii" if text.isascii() else "cp1252")
    except UnicodeEncodeError:
        return bool(_ONE.search(text))
    return len(encoded.translate(None, _UNSEEN_BYTES)) != len(encoded)


def _kept(run: re.Match[str]) -> str:
    """What stays of a run of such characters: a flag's tags, a selector, a joiner, or a line break where one ended a line."""
    text, characters = run.string, run.group()
    if not _MAY_STAY.search(characters):
        return ""
    before, after = text[run.start() - 1 : run.start()], text[run.end() : run.end() + 1]
    kept = next((tags for tags in _FLAG_TAGS if before == _BLACK_FLAG and characters.startswith(tags)), "")
    if not kept and _selects(before, characters[0], characters[1:2] or after):
        kept = characters[0]
    joiner = characters[len(kept) : len(kept) + 1]
    if joiner and _joins(before, joiner, after):
        kept += joiner
    return kept or ("\n" if _BREAK.search(characters) else "")


def _selects(before: str, selector: str, after: str) -> bool:
    """Whether ``selector`` says how to show the character before it, and there is such a choice."""
    match selector:
        case "\ufe0e" | "\ufe0f":
            return bool(re.match(_EMOJI, before)) or (before in tuple("0123456789#*") and after == "\u20e3")
        case "\u180b" | "\u180c" | "\u180d" | "\u180e" | "\u180f":
            return bool(re.match(_MONGOLIAN, before))
        case _:
            return bool(re.match(_HAN, before) and re.match(_HAN_SELECTOR, selector))


def _joins(before: str, joiner: str, after: str) -> bool:
    """Whether ``joiner`` says how letters of a joining script are written, or makes two emoji one."""
    if joiner not in ("\u200c", "\u200d"):
        return False
    if re.match(_JOINING_SCRIPT, before):
        return True
    return joiner == "\u200d" and bool(re.match(_EMOJI, before) and re.match(_EMOJI, after))
