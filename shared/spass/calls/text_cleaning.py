"""Clean a text before a model reads it: remove invisible characters, and escape the role tokens of chat templates.

A model reads invisible characters (control characters, characters without width, and tags) but a person does not see them, so
they can hide an instruction. The set consists of Unicode's ``Default_Ignorable_Code_Point``
(https://www.unicode.org/reports/tr44/) and the control characters. Characters that a writing system or an emoji needs stay, but
only one of them and only in the right context: joiners in scripts that join, presentation selectors after an emoji, the tags of
the three flags that have tags, and a variation selector after a Han or Mongolian letter.

Role tokens mark the speaker of a message. A server that renders messages into a template may read ``<|im_start|>system`` inside a
message as the start of another message. The brackets of such a token become ``‹`` and ``›``: people and models can still read the
text, but a tokenizer does not find the token. An invisible character inside the token would also work, but would hide the change.
"""

import re
from collections.abc import Iterator
from typing import Final

_BREAKS: Final = "\x0b\x0c\x85"  # the end of a page or a line: it becomes a line break, so that words are not joined
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
_ALLOWED_CONTEXTS: Final = {
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
"""Invisible characters that change or join the letter or emoji before them, and the contexts in which each may stay."""
# The pattern begins with the character and then looks behind it, so that a search skips from one such character to the next.
_REMOVED: Final = _INVISIBLE + "".join(
    f"(?:(?<!{kind})|{''.join(f'(?<!{place})' for place in places)})" for kind, places in _ALLOWED_CONTEXTS.items()
)

_VISIBLE: Final = re.compile(f"[^{_BREAKS}{_OTHER_INVISIBLE}]")
_PART: Final = 16_384  # characters of one search, approximately: a search blocks all other threads

# ChatML, Llama 3 and 4, Phi, Harmony, Qwen, GLM, Granite, Command R; with full-width bars DeepSeek; in square brackets EXAONE.
_BARRED: Final = r"[|｜](?:[\w▁.:/-]{1,64}| {0,2}(?:im_start|im_end|im_sep|system|user|assistant|eot_id|endoftext) {0,2})[|｜]"
_ANGLED: Final = (
    rf"(?:(?:{_BARRED}"
    r"|</?SYS>"  # Llama 2
    r'|[|｜](?:turn|channel|tool|tool_call|tool_response|think|"[|｜])'  # Gemma 4, which closes with <turn|>
    r"|(?:turn|channel|tool|tool_call|tool_response)[|｜]"
    # Seed, Nemotron, Baichuan
    r"|seed:[a-z]{1,8}|SPECIAL_\d{1,3}|extra_id_\d{1,3}|reserved_\d{1,4}"
    # Gemma, Llama 2 and Mistral, GLM, Qwen, Hermes
    r"|/?(?:start_of_turn|end_of_turn|start_of_image|end_of_image|bos|eos|sop|eop|s|tool_call|tool_response))[>＞])"
)
_SQUARED: Final = (
    rf"(?:(?:{_BARRED}"
    # Llama 2, Mistral, GLM
    r"|/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|CALL_ID|THINK|MODEL_SETTINGS|[gs]MASK))\]"
    r"|e~\[)"  # MiniMax
)
# Every branch starts with a different character, so that the search can skip to the next such character.
_TOKEN: Final = re.compile(rf"(<{_ANGLED}|＜{_ANGLED}|\[{_SQUARED}|\]~!?b[\[\]])")
_BRACKETS: Final = dict.fromkeys("<＜[", "‹") | dict.fromkeys(">＞]", "›")
_OPENS: Final = ("<", "[", "]", "＜")

# Anthropic's first format. In JSON the line break is escaped.
_SPEAKER: Final = re.compile(r"((?:\A|\n|\\n)[ \t]{0,8})(Human|Assistant)(?=:)")


def clean_text(text: str) -> str:
    """Return ``text`` without invisible characters and with role tokens escaped, or the same object if it has neither."""
    return _escape_role_tokens(strip_invisible(text))


def strip_invisible(text: str) -> str:
    """Return ``text`` without invisible characters, or the same object if it has none."""
    if not _has_invisible(text):
        return text
    return _strip(text) if len(text) <= _PART else "".join(_strip_parts(text))


def _strip_parts(text: str) -> Iterator[str]:
    """Yield the result in parts. Each part begins with a visible character, because the text before such a character has no
    influence on the result."""
    start = 0
    while following := _VISIBLE.search(text, start + _PART):
        yield _strip(text[start : following.end()])[:-1]
        start = following.start()
    yield _strip(text[start:])


def _strip(text: str) -> str:
    if _BREAK.search(text):
        text = re.sub(
            rf"{_REMOVED}(?<!{_INVISIBLE}{_INVISIBLE})(?:(?<=[{_BREAKS}])|[{_OTHER_INVISIBLE}]*+[{_BREAKS}]){_INVISIBLE}*+",
            "\n",
            text,
        )
    return re.sub(rf"{_REMOVED}{_INVISIBLE}*+", "", text)


def _has_invisible(text: str) -> bool:
    try:  # for most Western texts this is three times as fast as a pattern
        encoded = text.encode("ascii" if text.isascii() else "cp1252")
    except UnicodeEncodeError:
        return bool(_ONE.search(text))
    return len(encoded.translate(None, _INVISIBLE_BYTES)) != len(encoded)


def _escape_role_tokens(text: str) -> str:
    if any(bracket in text for bracket in _OPENS) and _TOKEN.search(text):
        pieces = _TOKEN.split(text)
        pieces[1::2] = _escape_brackets(pieces[1::2])
        text = "".join(pieces)
    if "Human:" in text or "Assistant:" in text:
        text = _SPEAKER.sub(r"\1‹\2›", text)
    return text


def _escape_brackets(tokens: list[str]) -> list[str]:
    """Return ``tokens`` with the other brackets. Replace them in one joined text, because there may be a million tokens."""
    joined = "\0".join(tokens)
    for bracket, replacement in _BRACKETS.items():
        joined = joined.replace(bracket, replacement)
    return joined.split("\0")
