"""Condense a conversation: select its most informative sentences, in their order, up to the requested length.

The conversation is in the messages before the question, or in the question itself as JSON lines, as the gateway's compaction
sends it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from local.standin.conversation import Conversation, parse, sentences, spoken

_REQUEST: Final = re.compile(r"\b(?:summari[sz]e|summary|condense)\b", re.IGNORECASE)
_INSTRUCTION: Final = re.compile(r"\AYou summari[sz]e\b")
_WORD_LIMIT: Final = re.compile(r"\bat most (\d{1,6}) words\b")
_NAME_OR_NUMBER: Final = re.compile(r"(?<!^)\b[A-ZÄÖÜ][\w-]+|\b\w*\d[\w.,:/-]*")
_LENGTH_OFFSET: Final = 6  # words, added to a sentence's length so that very short sentences do not win
_NOTHING: Final = "So far nothing was said that has to be kept."


def asks_to_condense(conversation: Conversation) -> bool:
    """Return whether the question, or the beginning of the instructions, asks for a summary."""
    return bool(_INSTRUCTION.match(conversation.instructions) or _REQUEST.search(conversation.question[:300]))


def condense(conversation: Conversation) -> str:
    """Return the most informative sentences, with at most as many words as the instructions allow, otherwise a quarter of all."""
    said = [text for text in dict.fromkeys(_sentences(conversation)) if " " in text and not text.endswith("?")]
    limit = _WORD_LIMIT.search(conversation.instructions)
    room = int(limit[1]) if limit else max(40, sum(len(sentence.split()) for sentence in said) // 4)
    return select(said, room) or _NOTHING


def select(said: Sequence[str], room: int) -> str:
    """Return the sentences with the most names and numbers for their length, in their order, with at most ``room`` words."""
    chosen: list[int] = []
    for at in sorted(range(len(said)), key=lambda at: -_salience(said[at])):
        length = len(said[at].split())
        if length <= room:
            chosen.append(at)
            room -= length
    return " ".join(said[at] for at in sorted(chosen))


def _salience(sentence: str) -> float:
    return (0.5 + len(_NAME_OR_NUMBER.findall(sentence))) / (_LENGTH_OFFSET + len(sentence.split()))


def _sentences(conversation: Conversation) -> Iterator[str]:
    lines = [line for text in conversation.question.splitlines() if isinstance(line := parse(text), Mapping)]
    for line in lines:
        yield from (
            sentence
            for name in ("user", "assistant", "summary", "earlier_summary")
            for sentence in sentences(str(line.get(name, "")))
        )
    if not lines:
        for message in conversation.earlier:
            yield from sentences(spoken(message)) if message.get("role") in {"user", "assistant"} else ()
        yield from (sentence for sentence in sentences(conversation.question) if not _REQUEST.search(sentence))
