"""The replies to the calls that an operator makes aside: summaries, causes and effects, facts, and grades of notes."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from local.standin.condense import select
from local.standin.conversation import Message, parse, result_sentences, text_of
from local.standin.words import coverage
from spass.agents.kinds.axes.compression import SUMMARY_PROMPT
from spass.agents.kinds.axes.extraction import EDGES_PROMPT, FACTS_PROMPT, MAX_EDGES
from spass.agents.kinds.axes.retrieval import GRADES_PROMPT

_SUMMARY_WORDS: Final = 120
_MAX_FACTS: Final = 5
_BECAUSE: Final = re.compile(r"(?P<effect>.+?),? because (?P<cause>.+?)[.!]?")


def answer_aside(messages: Sequence[Message]) -> str | None:
    """Return the reply to a call that an operator makes aside, or None if the request is another one."""
    if len(messages) != 3:  # the instruction, the task and the data
        return None
    instruction, task, data = map(text_of, messages)
    reply = _REPLIES.get(instruction.strip())
    return reply(task.partition("\n\n")[2], data) if reply else None


def _summarize(_task: str, data: str) -> str:
    return select(_sentences(data), _SUMMARY_WORDS)


def _find_edges(_task: str, data: str) -> str:
    found = [edge.groupdict() for sentence in _sentences(data) if (edge := _BECAUSE.fullmatch(sentence))]
    return json.dumps({"edges": found[:MAX_EDGES]}, ensure_ascii=False)


def _find_facts(_task: str, data: str) -> str:
    return json.dumps({"entities": [], "facts": _sentences(data)[:_MAX_FACTS]}, ensure_ascii=False)


def _grade(task: str, data: str) -> str:
    notes = [json.loads(line) for line in data.splitlines()]
    shares = coverage(task, [str(note["content"]) for note in notes])
    grades = {str(note["note"]): 3 if share else 0 for note, share in zip(notes, shares, strict=True)}
    return json.dumps({"grades": grades, "better_query": None})


def _sentences(data: str) -> list[str]:
    """Return the different sentences in the texts of a result."""
    return [*dict.fromkeys(result_sentences(parse(data)))]


_REPLIES: Final[Mapping[str, Callable[[str, str], str]]] = {
    SUMMARY_PROMPT: _summarize,
    EDGES_PROMPT: _find_edges,
    FACTS_PROMPT: _find_facts,
    GRADES_PROMPT: _grade,
}
