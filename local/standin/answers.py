"""Choose the answer: the best sentence, a tool's result, a condensed text, a count, or the statement that nothing matches."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from local.standin.condense import asks_to_condense, condense
from local.standin.conversation import NOTICE, Candidate, Conversation, ToolResult, result_sentences, sentences
from local.standin.counting import requested_count
from local.standin.words import coverage
from local.standin.workspace import describe

_MIN_COVERAGE: Final = 0.3  # of a question, by a sentence that counts as an answer
_SURE_COVERAGE: Final = 0.9  # with this coverage, the stand-in does not search further
_PROSE_LENGTH: Final = 80  # characters; a longer text of a tool is prose to search, a shorter one is a value to repeat
_NOTHING: Final = f"{NOTICE} and find nothing about that in the conversation or the documents."
_ASKS_WHAT_CAME_OF_IT: Final = re.compile(r"\bwhat did you (?:do|change)\b", re.IGNORECASE)


def answer(conversation: Conversation) -> str:
    """Return the stand-in's answer to a conversation."""
    if conversation.results:
        # What an edit changed matters more than how its file was found.
        edits = [result for result in conversation.results if result.name == "aider_edit"]
        texts = [_from_result(conversation, result) for result in edits or conversation.results]
        return ("\n\n" if any("\n" in text for text in texts) else " ").join(dict.fromkeys(texts))
    if asks_to_condense(conversation):
        return condense(conversation)
    if count := requested_count(conversation.question):
        return count.text
    if _ASKS_WHAT_CAME_OF_IT.search(conversation.question) and conversation.earlier_results:
        return _from_result(conversation, conversation.earlier_results[-1])
    found = [_best(question, conversation.candidates()) for question in _questions(conversation.question)]
    answers = [candidate for candidate in found if candidate]
    is_question = "?" in conversation.question or not conversation.question
    if answers and (is_question or any(candidate.is_looked_up for candidate in answers)):
        return " ".join(dict.fromkeys(candidate.text for candidate in answers))
    return _NOTHING if is_question else "Noted."


def is_sure(conversation: Conversation) -> bool:
    """Return whether a sentence of the conversation covers everything in the question."""
    texts = [candidate.text for candidate in conversation.candidates()]
    return all(max(coverage(question, texts), default=0.0) >= _SURE_COVERAGE for question in _questions(conversation.question))


def _questions(text: str) -> list[str]:
    return [sentence for sentence in sentences(text) if sentence.endswith("?")] or [text]


def _best(question: str, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate that covers the question best, the shorter of two, or None if none covers enough."""
    covered = coverage(question, [candidate.text for candidate in candidates])
    scored = [
        (share * candidate.trust - len(candidate.text) / 5000, candidate)
        for share, candidate in zip(covered, candidates, strict=True)
        if share >= _MIN_COVERAGE and candidate.text.casefold() not in question.casefold()
    ]
    return max(scored, key=lambda one: one[0])[1] if scored else None


def _from_result(conversation: Conversation, outcome: ToolResult) -> str:
    result = outcome.result
    if not isinstance(result, Mapping):
        return _from_text(conversation, result)
    if "error" in result:
        error = result["error"]
        return f"The tool {outcome.name}: {error.get('message', '') if isinstance(error, Mapping) else error}"
    if outcome.name == "calculator":
        return f"{outcome.arguments.get('expression', '')} = {result.get('result')}"
    if outcome.name == "current_datetime":
        return f"{result.get('weekday')}, {result.get('date')}, {result.get('time')} ({result.get('timezone')})"
    if outcome.name == "memory_store":
        return "Noted."
    hits = result.get("results")
    if isinstance(hits, list):
        return _from_hits(conversation, outcome, hits)
    return describe(outcome) or _from_text(conversation, result)


def _from_hits(conversation: Conversation, outcome: ToolResult, hits: Sequence[object]) -> str:
    """Return the best sentence of a search's results and of the conversation. The scores of ``rag_query`` are similarities."""
    found: list[Candidate] = []
    for hit in hits:
        score = hit.get("score") if isinstance(hit, Mapping) and outcome.name == "rag_query" else None
        trust = 1.0 + (score if isinstance(score, int | float) else 0.0)
        found += [Candidate(sentence, trust, is_looked_up=True) for sentence in result_sentences(hit)]
    question = str(outcome.arguments.get("query", conversation.question))
    best = _best(question, [*found, *conversation.candidates()])
    return best.text if best else _NOTHING


def _from_text(conversation: Conversation, result: object) -> str:
    """Return the sentence of a long text that answers the question best, or the whole result."""
    found = [Candidate(sentence, 1.0) for sentence in result_sentences(result)]
    is_prose = any(len(candidate.text) > _PROSE_LENGTH for candidate in found)
    best = _best(conversation.question, found) if is_prose else None
    if best:
        return best.text
    if isinstance(result, Mapping):
        return ", ".join(f"{name}: {_plain_value(value)}" for name, value in result.items())
    return _plain_value(result)


def _plain_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
