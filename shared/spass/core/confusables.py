"""Find tags that a model could read as one of our own tags, including tags written with confusables, accents or gaps.

The classes below contain the characters that compatibility decomposition (https://www.unicode.org/reports/tr15/) turns into the
ASCII character, and those that Unicode lists as confusable with it (https://www.unicode.org/reports/tr39/).
"""

import re
import unicodedata
from itertools import chain
from typing import Final

_TAG_BRACKETS: Final = "<＜﹤≮"
_OTHER_BRACKETS: Final = "‹«≪⋘⫷≺⋖⪡⪻⟨\u2329\u3008⟪《❮❬❰⦑⦓⧼︿︽˂˱ᐸᚲ𐎗𝈶"  # editors turn U+2329 into U+3008
"""Most of them are also quotation marks. So they count only in a closing tag, or in a tag with an attribute."""
_SLASH_LETTERS: Final = "ノ丿Ⳇ〳"  # the slashes that are letters; ``_IGNORED`` matches the others
_SLASHES: Final = re.compile(rf"[/\\／＼﹨∕⁄⧸⧵╱⟋⁁᜵㇓⼃𝈺{_SLASH_LETTERS}]")
_LETTER_SYMBOLS: Final = "\u2100-\u214f\u249c-\u24e9⊤∨⋁○\u3372\U0001f110-\U0001f189\U0001f1a5\U0001f1e6-\U0001f1ff"
# Characters to ignore within a tag: all that are not ASCII, letters, digits or white space (accents, characters without width,
# symbols), and accents that Unicode counts as letters.
_IGNORED: Final = (
    rf"[^\w\s!-~{_OTHER_BRACKETS}{_TAG_BRACKETS}{_LETTER_SYMBOLS}]|[\u02b0-\u02ff\u037a\ufc5e-\ufc63\ufe70-\ufe7f\uff9e\uff9f]"
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
_LETTER_OF: Final = {similar: letter for letter, characters in _CONFUSABLES.items() for similar in characters}
_LATIN: Final = ((0x41, 0x2B0), (0x1D2C, 0x1DC0), (0x1E00, 0x1F00), (0x2070, 0x20A0), (0x2100, 0x2190), (0x249C, 0x24EA))
_MORE_LATIN: Final = ((0x2C60, 0x2C80), (0xA722, 0xA800), (0xAB30, 0xAB6C), (0xFF21, 0xFF5B), (0x10780, 0x107BB))
_STYLED: Final = ((0x1D400, 0x1D6A8), (0x1DF00, 0x1DF2B), (0x1F110, 0x1F14A), (0x1F150, 0x1F16A), (0x1F170, 0x1F18A))
_SQUARED_AND_FLAGS: Final = ((0x1F1A5, 0x1F1A6), (0x1F1E6, 0x1F200))
_GREEK_AND_CYRILLIC: Final = ((0x370, 0x530), (0x1F00, 0x2000))
_BLOCKS: Final = (*_LATIN, *_MORE_LATIN, *_STYLED, *_SQUARED_AND_FLAGS, *_GREEK_AND_CYRILLIC)
_LATIN_LETTER_NAME: Final = re.compile(r"(?:.* )?(?:LATIN|MODIFIER|REGIONAL INDICATOR SYMBOL) (?:.* )?([A-Z])(?: WITH .*)?")
"""The Unicode name of a Latin letter in any style and with any accents."""


class TagSanitizer:
    """Replace the brackets of text that looks like a tag with one of ``names`` (ASCII letters)."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._pattern: re.Pattern[str] | None = None

    def sanitize(self, text: str, bracket: str) -> str:
        """Return ``text`` with the opening bracket of each such tag replaced by ``bracket``, or the same object if there is none.
        The time is proportional to the length of ``text``."""
        if "<" not in text and (text.isascii() or not _BRACKET.search(text)):
            return text
        self._pattern = self._pattern or self._compile()  # few texts need it
        return self._pattern.sub(lambda match: bracket if _is_tag(match) else match.group(), text)

    def _compile(self) -> re.Pattern[str]:
        letters = _letter_classes(set("".join(self._names)))
        between = f"(?:{_IGNORED})*+"
        names = "|".join(between.join(letters[letter] for letter in name) for name in self._names)
        if "data" in self._names:
            names += f"|㍲{between}{letters['t']}{between}{letters['a']}"
        gap = rf"(?P<gap>(?:[\s/\\{_SLASH_LETTERS}]|{_IGNORED})*+)"
        attribute = rf"(?P<attribute>{between}\s{{1,16}}\w{{1,16}}\s{{0,4}}[=＝﹦])?"
        return re.compile(rf"[{_TAG_BRACKETS}{_OTHER_BRACKETS}](?={gap}(?:{names})(?!\w){attribute})")


_BRACKET: Final = re.compile(f"[{_TAG_BRACKETS}{_OTHER_BRACKETS}]")


def _is_tag(match: re.Match[str]) -> bool:
    return match.group() in _TAG_BRACKETS or match["attribute"] is not None or bool(_SLASHES.search(match["gap"]))


def _letter_classes(letters: set[str]) -> dict[str, str]:
    """Return for each of ``letters`` a character class of the letter and its confusables."""
    similar = {letter: {*_CONFUSABLES.get(letter, ""), letter, letter.upper()} for letter in letters}
    for code in chain.from_iterable(range(*block) for block in _BLOCKS):
        letter = _similar_letter(code)
        if letter in similar:
            similar[letter].add(chr(code))
    return {letter: f"[{re.escape(''.join(sorted(characters)))}]" for letter, characters in similar.items()}


def _similar_letter(code: int) -> str:
    """Return the lower-case ASCII letter that the character ``code`` looks like without accents and style, or an empty string."""
    first = unicodedata.normalize("NFKD", chr(code)).lower()[:1]
    if first.isascii() and first.isalpha():
        return first
    latin_name = _LATIN_LETTER_NAME.fullmatch(unicodedata.name(chr(code), ""))
    return _LETTER_OF.get(first) or (latin_name[1].lower() if latin_name else "")
