"""The replies to the calls that an operator makes aside: summaries, causes and effects, facts, and grades of notes."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from local.standin.conversation import Message, result_sentences, text_of
from local.standin.words import content_stems, match, rarity
from spass.agents.kinds.axes.causality_graph import EDGES_PROMPT, MAX_EDGES
from spass.agents.kinds.axes.hybrid_retrieval import GRADES_PROMPT
from spass.agents.kinds.axes.structured_json import FACTS_PROMPT
from spass.agents.kinds.axes.summarize import SUMMARY_PROMPT

_SUMMARY_WORDS: Final = 120
_BEGINNING: Final = 400  # characters of a result without sentences
_MAX_FACTS: Final = 5
_CONFIDENCE: Final = 0.7
_BECAUSE: Final = re.compile(r"^(?P<effect>.+?),?\s+(?:because(?: of)?|weil|due to|since)\s+(?P<cause>.+?)[.!]?$", re.IGNORECASE)
_SO: Final = re.compile(
    r"^(?P<cause>.+?)(?:[,;]\s*(?:so|therefore|deshalb|darum|daher)\b|\s+(?:caused|causes|led to|leads to|verursachte?)\b)"
    r"\s*(?P<effect>.+?)[.!]?$",
    re.IGNORECASE,
)
_NAME: Final = re.compile(r"(?<!^)(?<![.!?] )\b[A-ZÄÖÜ][\w-]+(?: [A-ZÄÖÜ][\w-]+)*")
_GRADES: Final = ((0.6, 3), (0.3, 2))  # least share of the task's words in a note, and its grade


def answer_aside(messages: Sequence[Message]) -> str | None:
    """Return the reply to a call that an operator makes aside, or None if the request is another one."""
    if len(messages) != 3:  # the instruction, the task and the data
        return None
    instruction, task, data = map(text_of, messages)
    reply = _REPLIES.get(instruction.strip())
    return reply(task.partition("\n\n")[2], data) if reply is not None else None


def _summarize(task: str, data: str) -> str:
    """Return the sentences that concern the task most, in their order."""
    found = _sentences(data)
    stems = {sentence: content_stems(sentence) for sentence in found}
    weights = rarity(list(stems.values()))
    ranked = sorted(found, key=lambda sentence: -match(content_stems(task), stems[sentence], weights).coverage)
    room, chosen = _SUMMARY_WORDS, set[str]()
    for sentence in ranked:
        room -= len(sentence.split())
        if room < 0 and chosen:
            break
        chosen.add(sentence)
    return " ".join(sentence for sentence in found if sentence in chosen) or data[:_BEGINNING]


def _find_edges(_task: str, data: str) -> str:
    found = [(sentence, _BECAUSE.match(sentence) or _SO.match(sentence)) for sentence in _sentences(data)]
    edges = [
        {"cause": edge["cause"], "effect": edge["effect"], "confidence": _CONFIDENCE, "evidence": sentence}
        for sentence, edge in found
        if edge is not None
    ]
    return json.dumps({"edges": edges[:MAX_EDGES]}, ensure_ascii=False)


def _find_facts(_task: str, data: str) -> str:
    facts = _sentences(data)[:_MAX_FACTS]
    names = dict.fromkeys(name for fact in facts for name in _NAME.findall(fact))
    return json.dumps({"entities": [*names], "facts": facts}, ensure_ascii=False)


def _grade(task: str, data: str) -> str:
    lines = [json.loads(line) for line in data.splitlines()]
    stems = [content_stems(str(line["content"])) for line in lines]
    weights = rarity(stems)
    shares = [match(content_stems(task), words, weights).coverage for words in stems]
    grades = [next((grade for least, grade in _GRADES if share >= least), int(share > 0)) for share in shares]
    return json.dumps(
        {"grades": {str(line["note"]): grade for line, grade in zip(lines, grades, strict=True)}, "better_query": None}
    )


def _sentences(data: str) -> list[str]:
    """Return the different sentences in the texts of a result."""
    try:
        result = json.loads(data)
    except ValueError:
        result = data
    return [*dict.fromkeys(result_sentences(result))]


_REPLIES: Final[Mapping[str, Callable[[str, str], str]]] = {
    SUMMARY_PROMPT: _summarize,
    EDGES_PROMPT: _find_edges,
    FACTS_PROMPT: _find_facts,
    GRADES_PROMPT: _grade,
}
