"""Choose the answer: the best sentence, a tool's result, a condensed text, a count, or the statement that nothing matches."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from local.standin.condense import asks_to_condense, condense
from local.standin.conversation import Candidate, Conversation, ToolResult, result_sentences, sentences
from local.standin.counting import requested_count
from local.standin.second_person import second_person
from local.standin.words import content_stems, fold, match, rarity
from local.standin.workspace_answers import describe

_MIN_COVERAGE: Final = 0.3  # of a question, by a sentence that counts as an answer
_SURE_COVERAGE: Final = 0.9  # with this coverage, the stand-in does not search further
_MIN_BACKGROUND_COVERAGE: Final = 0.7  # higher, because instructions and the tenant's memory rarely concern the question
_PROSE_LENGTH: Final = 80  # characters; a longer text of a tool is prose to search, a shorter one is a value to repeat
_ASKS_WHEN: Final = re.compile(r"\b(wann|when|jahr|year|datum|date)\b")
_ASKS_HOW_MUCH: Final = re.compile(
    r"\b(wie (viel|gross|hoch|lang|weit|alt)|wieviel|how (many|much|large|big|high|long|old|far))\b"
)

_ASKS_WHAT_CAME_OF_IT: Final = re.compile(
    r"\b(what did you (do|change)|what (came|became) of|was (it|that|this) (approved|done|denied)|did (it|that) work|"
    r"was hast du (getan|geandert)|was wurde daraus|wurde (es|das) (genehmigt|erledigt|abgelehnt))\b"
)


def answer(conversation: Conversation) -> str:
    """Return the stand-in's answer to a conversation, in the language of the question."""
    if any(result.name == "read_file" for result in conversation.results) or not asks_to_condense(conversation):
        return _from_results(conversation) if conversation.results else _from_conversation(conversation)
    return condense(conversation) or _nothing_to_keep(conversation.is_german)


def _from_conversation(conversation: Conversation) -> str:
    if count := requested_count(conversation.question_text):
        return count.text
    if _ASKS_WHAT_CAME_OF_IT.search(fold(conversation.question_text)) and conversation.earlier_results:
        return _from_result(conversation, conversation.earlier_results[-1])
    answers = _answers(conversation)
    texts = list(dict.fromkeys(_phrase(candidate, conversation) for candidate in answers if candidate))
    if texts and (conversation.is_question or any(candidate and candidate.source == "document" for candidate in answers)):
        return " ".join(texts)
    if conversation.is_question or not conversation.question_text:
        return _nothing(conversation)
    return "Notiert." if conversation.is_german else "Noted."


def is_sure(conversation: Conversation) -> bool:
    """Return whether a sentence of the conversation covers everything in the question."""
    candidates = [content_stems(candidate.text) for candidate in conversation.candidates()]
    question = content_stems(conversation.question_text)
    weights = rarity(candidates)
    return any(match(question, stems, weights).coverage >= _SURE_COVERAGE for stems in candidates)


def _answers(conversation: Conversation) -> list[Candidate | None]:
    """Return, for each question, the sentence that answers it best, or None."""
    questions = [sentence for sentence in sentences(conversation.question_text) if sentence.endswith("?")] or [
        conversation.question_text
    ]
    candidates = conversation.candidates()
    return [_best(question, candidates) for question in questions]


def _best(question: str, candidates: Sequence[Candidate], prior: Mapping[str, float] | None = None) -> Candidate | None:
    """Return the candidate that covers the question best, or None if none covers enough. ``prior`` maps texts to a bonus from a
    search."""
    question_stems = content_stems(question)
    stems = {candidate.text: content_stems(candidate.text) for candidate in candidates}
    weights = rarity(list(stems.values()))
    best, best_score = None, 0.0
    for candidate in candidates:
        if fold(candidate.text) in fold(question):
            continue
        overlap = match(question_stems, stems[candidate.text], weights)
        bonus = (prior or {}).get(candidate.text, 0.0)
        background = candidate.source in ("memory", "system")
        if not overlap.words or overlap.coverage + bonus < (_MIN_BACKGROUND_COVERAGE if background else _MIN_COVERAGE):
            continue
        score = (overlap.coverage + bonus) * candidate.trust * _fits(question, candidate.text) - len(stems[candidate.text]) / 500
        if score > best_score:
            best, best_score = candidate, score
    return best


def _fits(question: str, sentence: str) -> float:
    """Return a factor above 1 for a sentence with a number if the question asks when or how much, otherwise 1."""
    folded = fold(question)
    if _ASKS_WHEN.search(folded):
        return 1.25 if re.search(r"\b\d{4}\b", sentence) else 1.0
    if _ASKS_HOW_MUCH.search(folded):
        return 1.25 if re.search(r"\d", sentence) else 1.0
    return 1.0


def _phrase(candidate: Candidate, conversation: Conversation) -> str:
    """Return the candidate as an answer: a user's sentence in the second person, a document's sentence with the document's id if
    the instructions ask for it."""
    if candidate.source == "user":
        return second_person(candidate.text)
    if candidate.document and conversation.wants_sources:
        return f"{candidate.text} [{candidate.document}]"
    return candidate.text


def _from_results(conversation: Conversation) -> str:
    # What an edit changed matters more than how its file was found.
    edits = [result for result in conversation.results if result.name == "aider_edit"]
    texts = [_from_result(conversation, result) for result in edits or conversation.results]
    separator = "\n\n" if any("\n" in text for text in texts) else " "
    return separator.join(dict.fromkeys(filter(None, texts))) or _nothing(conversation)


def _from_result(conversation: Conversation, outcome: ToolResult) -> str:
    result = outcome.result
    if isinstance(result, Mapping) and "error" in result:
        error = result["error"]
        reason = error.get("message", "") if isinstance(error, Mapping) else str(error)
        return f"{'Das Werkzeug' if conversation.is_german else 'The tool'} {outcome.name}: {reason}"
    if isinstance(result, Mapping) and outcome.name == "calculator":
        return f"{outcome.arguments.get('expression', '')} = {result.get('result', _as_text(result))}"
    if isinstance(result, Mapping) and outcome.name == "current_datetime":
        return f"{result.get('weekday')}, {result.get('date')}, {result.get('time')} ({result.get('timezone')})"
    if isinstance(result, Mapping) and outcome.name == "memory_store":
        return "Notiert." if conversation.is_german else "Noted."
    if described := describe(outcome, german=conversation.is_german):
        return described
    hits = result.get("results") if isinstance(result, Mapping) else None
    if isinstance(hits, list):
        return _from_hits(conversation, outcome, hits)
    candidates = [Candidate(sentence, "document", 1.0) for sentence in result_sentences(result)]
    if not any(len(candidate.text) > _PROSE_LENGTH for candidate in candidates):
        return _as_text(result)
    best = _best(conversation.question_text, candidates)
    return best.text if best else next(candidate.text for candidate in candidates if len(candidate.text) > _PROSE_LENGTH)


def _from_hits(conversation: Conversation, outcome: ToolResult, hits: Sequence[object]) -> str:
    """Return the best sentence of a search's results. Only the scores of ``rag_query`` count: they are similarities."""
    candidates: list[Candidate] = []
    prior: dict[str, float] = {}
    scored = False
    for hit in hits:
        if isinstance(hit, Mapping):
            score = hit.get("score")
            scored = scored or isinstance(score, int | float)
            similarity = score if isinstance(score, int | float) and outcome.name == "rag_query" else 0.0
            source = "user" if hit.get("role") == "user" else "document"
            for sentence in result_sentences(hit):
                candidates.append(Candidate(sentence, source, 1.0, str(hit.get("id", ""))))
                prior.setdefault(sentence, max(0.0, similarity) / 3)
    best = _best(str(outcome.arguments.get("query", conversation.question_text)), candidates, prior)
    if best is not None:
        return _phrase(best, conversation)
    if outcome.name == "lineage_search":
        return " ".join(_phrase(one, conversation) for one in _answers(conversation) if one) or _nothing(conversation)
    if candidates and not scored:
        return candidates[0].text if len(candidates) == 1 else f"{candidates[0].text}: {candidates[1].text}"
    return _nothing(conversation)


def _as_text(result: object) -> str:
    if isinstance(result, Mapping):
        return ", ".join(f"{name}: {_plain_value(value)}" for name, value in result.items())
    return _plain_value(result)


def _plain_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _nothing(conversation: Conversation) -> str:
    has_files = "aider_edit" in conversation.instructions
    if conversation.is_german:
        hint = " Bitten wie „Welche Dateien sind in src/?“ oder „Zeige README.md“ verstehe ich." if has_files else ""
        return f"Ich bin das Ersatzmodell ohne Netz und finde dazu nichts im Gespräch und in den Dokumenten.{hint}"
    hint = ' I understand plain requests, such as "What files are in src/?" or "Add a section about testing to README.md".'
    nothing = "I am the offline stand-in model and find nothing about that in the conversation or the documents."
    return nothing + (hint if has_files else "")


def _nothing_to_keep(german: bool) -> str:
    return "Bisher wurde nichts gesagt, das bleiben muss." if german else "So far nothing was said that has to be kept."
