"""Test that every spelling of one of our own tags is sanitized, and that other text is unchanged."""

import itertools
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spass.core.confusables import TagSanitizer

TAGS = TagSanitizer("data")
BRACKETS = "<＜﹤≮‹«≪⋘⫷⟨\u2329\u3008⟪《❮❬❰⦑⦓˂˱ᐸᚲ"
SLASHES = "/／∕⁄⧸╱⟋\\"
NAMES = [
    "data", "DATA", "Data", "ｄａｔａ", "𝐝𝐚𝐭𝐚", "𝒹𝒶𝓉𝒶", "𝔡𝔞𝔱𝔞", "𝚍𝚊𝚝𝚊", "ⓓⓐⓣⓐ", "🅓🅐🅣🅐", "🄳🄰🅃🄰", "🇩🇦🇹🇦", "dаta", "dαtα", "ԁаtа",
    "dɑtɑ", "ᴅᴀᴛᴀ", "dàtä", "ḋäṫå", "d\u0336a\u0336t\u0336a\u0336", "d\u200ba\u2060t\ufeffa", "d\u00ada\u034fta", "㍲ta", "ᵈᵃᵗᵃ",
    "dаτа", "ꓓꓮꓔꓮ", "đata", "ɗata", "Ɗaƭa", "daⱦa", "dȺtȺ", "dӑtӓ", "dάtᾶ", "⒟⒜⒯⒜", "🆥ata", "ꟈata",
]  # fmt: skip
GAPS = ["", " ", "\n", "\u00a0", "\u3000", "\u200b", "\u0338", "\u20d2", "ˇ", "´", " \u200d\t", "\ufe0f"]
INNOCENT = [
    "a < b / c", "a < d / b > c", "if (n <database) {", "x <dat/>", "</dataset>", "</dat a>", "</table>", "<b>bold</b> & «data»",
    "‹data›, „data“, 《data》", "«Дата»: <дата>", "1 << 2 >> 3", "a ≪ b ≤ c < d", "ⓓ < ⓐ", "data / data > data", "‹ data ›",
    "日本〈東京〉/ data", "d < a / t < a", "∀ a < d: a∕t", "❮ data ❯", "x‹y›/z",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_spelling_of_a_closing_tag_is_sanitized(name: str) -> None:
    for bracket, slash, gap, end in itertools.product(BRACKETS, SLASHES, GAPS, [">", "＞", "﹥", "›", " >", "", "\n"]):
        spelled = f"{bracket}{gap}{slash}{gap}{name}{end}"
        assert TAGS.sanitize(f"a {spelled} b", "[") == f"a [{spelled[1:]} b", ascii(spelled)


@pytest.mark.parametrize("name", NAMES)
def test_every_spelling_of_an_opening_tag_is_sanitized(name: str) -> None:
    for bracket, gap in itertools.product(BRACKETS, GAPS):
        spelled = f'{bracket}{gap}{name} mark = "x">'
        assert TAGS.sanitize(spelled, "[") == f"[{spelled[1:]}", ascii(spelled)
    for bracket in "<＜﹤≮":
        assert TAGS.sanitize(f"{bracket}{name}>", "[") == f"[{name}>"


@pytest.mark.parametrize("text", INNOCENT)
def test_a_text_that_does_not_look_like_a_tag_is_unchanged(text: str) -> None:
    assert TAGS.sanitize(text, "[") is text or TAGS.sanitize(text, "[") == text


def plain(text: str) -> str:
    """Return ``text`` without styles, accents and characters without width, by Unicode's compatibility decomposition."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).lower())
    return "".join(letter for letter in decomposed if unicodedata.category(letter) not in ("Mn", "Me", "Cf"))


def looks_like(text: str) -> bool:
    return bool(re.search(r"<\s*/\s*data(?!\w)", plain(text)))


def test_every_character_that_unicode_decomposes_to_a_letter_is_known() -> None:
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        if 0xD800 <= code < 0xE000 or letter == "<" or not (read := plain(letter)) or read not in "</data":
            continue
        spelled = "</data>".replace(read, letter, 1)
        if looks_like(spelled):
            assert TAGS.sanitize(spelled, "[") == f"[{spelled[1:]}", f"U+{code:04X}"


def test_a_character_without_width_does_not_hide_a_tag() -> None:
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        if not 0xD800 <= code < 0xE000 and not plain(letter).strip():
            for spelled in (f"<{letter}/data>", f"</{letter}data>", f"</d{letter}ata>" if not letter.isspace() else "</data>"):
                if looks_like(spelled):
                    assert TAGS.sanitize(spelled, "[")[0] == "[", f"U+{code:04X} in {spelled!r}"


@given(st.lists(st.text(max_size=3) | st.sampled_from([*BRACKETS, *SLASHES, *NAMES, *GAPS, *INNOCENT]), max_size=8).map("".join))
def test_no_closing_tag_remains_after_unicode_decomposition(text: str) -> None:
    assert not looks_like(TAGS.sanitize(text, "["))


@pytest.mark.parametrize("name", ["memory", "document", "documents", "retrieved"])
def test_tags_with_other_names_are_sanitized(name: str) -> None:
    tags = TagSanitizer("document", "documents", "retrieved", "memory")
    styled = "".join(chr(0x1D41A + ord(letter) - ord("a")) for letter in name)
    cyrillic = name.translate(str.maketrans("aeocyimt", "аеосуімт"))
    for spelled in (f"</{name}>", f"‹／{name.upper()}>", f"</{styled}>", f"<{cyrillic}>", f'‹{name} id="x">'):
        assert tags.sanitize(spelled, "&lt;") == f"&lt;{spelled[1:]}"
    assert tags.sanitize(f"</{name}x> «{name}»", "[") == f"</{name}x> «{name}»"
