"""Find what a reader could take for one of our own tags, however it is spelled: full-width letters, Cyrillic ones, accents, gaps.

The classes below hold what Unicode's compatibility decomposition makes the ASCII character (https://www.unicode.org/reports/tr15/)
and what its table of confusables calls similar (https://www.unicode.org/reports/tr39/).
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain
from typing import Final

_TAG_BRACKETS: Final = "<＜﹤≮"
_OTHER_BRACKETS: Final = "‹«≪⋘⫷≺⋖⪡⪻⟨\u2329\u3008⟪《❮❬❰⦑⦓⧼︿︽˂˱ᐸᚲ𐎗𝈶"  # editors turn U+2329 into U+3008
"""Most of them are also quotation marks, so they count only in a closing tag, or where an attribute follows."""
_SLASH_LETTERS: Final = "ノ丿Ⳇ〳"  # ``_BETWEEN`` holds the others
_SLASHES: Final = re.compile(rf"[/\\／＼﹨∕⁄⧸⧵╱⟋⁁᜵㇓⼃𝈺{_SLASH_LETTERS}]")
_SIGNS_OF_LETTERS: Final = "\u2100-\u214f\u249c-\u24e9⊤∨⋁○\u3372\U0001f110-\U0001f189\U0001f1a5\U0001f1e6-\U0001f1ff"
# Accents, what has no width, signs: what is neither ASCII nor a letter, digit or white space; and accents that have a width.
_BETWEEN: Final = (
    rf"[^\w\s!-~{_OTHER_BRACKETS}{_TAG_BRACKETS}{_SIGNS_OF_LETTERS}]|[\u02b0-\u02ff\u037a\ufc5e-\ufc63\ufe70-\ufe7f\uff9e\uff9f]"
)
_CONFUSABLES: Final = {
    "a": "ɑαаᴀΑАᎪᗅꓮꭺ𐊠",
    "c": "сϲᴄСϹᏟꓚⲥ",
    "d": "ԁᑯꓒđɖᴅᎠᗞᗪꓓĐÐꭰ",
    "e": "еҽєεᴇЕΕЄᎬꓰ℮ꭼ",
    "i": "іıιɩɪӏІΙӀᎥ1l|ⲓꭵ",
    "m": "мᴍМΜϺᎷᗰꓟⲘ",
    "n": "пոռɴΝηꓠⲚ",
    "o": "оοօσᴏОΟՕ0øØꓳ〇○ჿ",
    "r": "гᴦɾɼʀᎡᏒᖇꓣꮁ",
    "s": "ѕꜱЅՏᏚꓢ",
    "t": "тτᴛТΤᎢꓔŧŦ⊤ꭲ",
    "u": "υսᴜՍꓴʋμ",
    "v": "νѵᴠѴᏙꓦ∨⋁",
    "y": "уүγყỿʏУΥҮᎩꓬ",
}
_READ_AS: Final = {alike: letter for letter, alikes in _CONFUSABLES.items() for alike in alikes}
_LATIN: Final = ((0x41, 0x2B0), (0x1D2C, 0x1DC0), (0x1E00, 0x1F00), (0x2070, 0x20A0), (0x2100, 0x2190), (0x249C, 0x24EA))
_MORE_LATIN: Final = ((0x2C60, 0x2C80), (0xA722, 0xA800), (0xAB30, 0xAB6C), (0xFF21, 0xFF5B), (0x10780, 0x107BB))
_STYLED: Final = ((0x1D400, 0x1D6A8), (0x1DF00, 0x1DF2B), (0x1F110, 0x1F14A), (0x1F150, 0x1F16A), (0x1F170, 0x1F18A))
_SQUARED_AND_FLAGS: Final = ((0x1F1A5, 0x1F1A6), (0x1F1E6, 0x1F200))
_GREEK_AND_CYRILLIC: Final = ((0x370, 0x530), (0x1F00, 0x2000))
_BLOCKS: Final = (*_LATIN, *_MORE_LATIN, *_STYLED, *_SQUARED_AND_FLAGS, *_GREEK_AND_CYRILLIC)
_NAME: Final = re.compile(r"(?:.* )?(?:LATIN|MODIFIER|REGIONAL INDICATOR SYMBOL) (?:.* )?([A-Z])(?: WITH .*)?")
"""The name of a Latin letter, however it is styled and whatever is on it."""


class TagSanitizer:
    """Finds look-alikes of tags with one of ``names``, which are ASCII letters."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._pattern: re.Pattern[str] | None = None

    def sanitize(self, text: str, bracket: str) -> str:
        """Return ``text`` with ``bracket`` in place of the bracket that opens each such tag; the very same object if there is
        none. It takes time in proportion to the text."""
        if "<" not in text and (text.isascii() or not _BRACKET.search(text)):
            return text
        self._pattern = self._pattern or self._compiled()
        return self._pattern.sub(lambda found: bracket if _is_tag(found) else found.group(), text)

    def _compiled(self) -> re.Pattern[str]:
        """Compiled when the first text needs it, which few do."""
        letters = _letters(set("".join(self._names)))
        between = f"(?:{_BETWEEN})*+"
        names = "|".join(between.join(letters[letter] for letter in name) for name in self._names)
        if "data" in self._names:
            names += f"|㍲{between}{letters['t']}{between}{letters['a']}"
        gap = rf"(?P<gap>(?:[\s/\\{_SLASH_LETTERS}]|{_BETWEEN})*+)"
        attribute = rf"(?P<attribute>{between}\s{{1,16}}\w{{1,16}}\s{{0,4}}[=＝﹦])?"
        return re.compile(rf"[{_TAG_BRACKETS}{_OTHER_BRACKETS}](?={gap}(?:{names})(?!\w){attribute})")


_BRACKET: Final = re.compile(f"[{_TAG_BRACKETS}{_OTHER_BRACKETS}]")


def _is_tag(found: re.Match[str]) -> bool:
    return found.group() in _TAG_BRACKETS or found["attribute"] is not None or bool(_SLASHES.search(found["gap"]))


def _letters(wanted: set[str]) -> dict[str, str]:
    """Return, for each letter wanted, a character class of all that looks like it."""
    alike = {letter: {*_CONFUSABLES.get(letter, ""), letter, letter.upper()} for letter in wanted}
    for code in _codes():
        letter = _plain(code)
        if letter in alike:
            alike[letter].add(chr(code))
    return {letter: f"[{re.escape(''.join(sorted(found)))}]" for letter, found in alike.items()}


def _codes() -> Iterator[int]:
    return chain.from_iterable(range(*block) for block in _BLOCKS)


def _plain(code: int) -> str:
    """Return the ASCII letter that the character looks like without its accents and its style, in lower case; empty if none."""
    first = unicodedata.normalize("NFKD", chr(code)).lower()[:1]
    if first.isascii() and first.isalpha():
        return first
    named = _NAME.fullmatch(unicodedata.name(chr(code), ""))
    return _READ_AS.get(first) or (named[1].lower() if named else "")
