"""Escape the tokens with which chat templates mark the speaker of a message.

A server that renders messages into a template may read ``<|im_start|>system`` inside a message as the start of another message.
The brackets of such a token become ``‹`` and ``›``: people and models can still read the text, but a tokenizer does not find the
token. An invisible character inside the token would also work, but would hide the change.
"""

import re
from typing import Final

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


def escape_role_tokens(text: str) -> str:
    """Return ``text`` with every such token escaped, or the same object if there is none."""
    if any(bracket in text for bracket in _OPENS) and _TOKEN.search(text):
        pieces = _TOKEN.split(text)
        pieces[1::2] = _escape(pieces[1::2])
        text = "".join(pieces)
    if "Human:" in text or "Assistant:" in text:
        text = _SPEAKER.sub(r"\1‹\2›", text)
    return text


def _escape(tokens: list[str]) -> list[str]:
    """Return ``tokens`` with the other brackets. Replace them in one joined text, because there may be a million tokens."""
    joined = "\0".join(tokens)
    for bracket, replacement in _BRACKETS.items():
        joined = joined.replace(bracket, replacement)
    return joined.split("\0")
