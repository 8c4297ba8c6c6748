"""Choosing the answer: the sentence that matches best, what the tools said, a condensed text, or an honest "nothing matches"."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from local.standin.conversation import Candidate, Conversation, ToolResult, result_sentences, sentences, text_of
from local.standin.words import content_stems, count_tokens, fold, match, rarity

_ENOUGH: Final = 0.3  # the least coverage of a question that counts as an answer
_ENOUGH_OF_INSTRUCTIONS: Final = 0.7  # they tell how to answer, and only now and then what (a tenant's memory)
_LONG: Final = 80  # characters from which a tool's text is prose to search, not a value to say
_ASKS_WHEN: Final = re.compile(r"\b(wann|when|jahr|year|datum|date)\b")
_ASKS_HOW_MUCH: Final = re.compile(
    r"\b(wie (viel|gross|hoch|lang|weit|alt)|wieviel|how (many|much|large|big|high|long|old|far))\b"
)
_ASKS_TO_CONDENSE: Final = re.compile(
    r"\b(summari[sz]e|summary|condense|zusammenfass\w*|fasse?\b.*\bzusammen|kurzfassung)\b", re.DOTALL
)
_SAYS_NOTHING: Final = re.compile(
    r"^(hi|hello|hallo|hey|danke|thanks|thank you|ok|okay|verstanden|noted|notiert|gut|super|bye)\b.{0,20}$"
)
_FIRST_TO_SECOND: Final = {
    "mein": "dein", "meine": "deine", "meinen": "deinen", "meinem": "deinem", "meiner": "deiner", "meines": "deines",
    "ich bin": "du bist", "ich heiße": "du heißt", "ich habe": "du hast", "ich wohne": "du wohnst", "ich mag": "du magst",
    "my": "your", "i am": "you are", "i'm": "you are", "i have": "you have", "i live": "you live", "i like": "you like",
    "i love": "you love",
}  # fmt: skip
_FIRST_PERSON: Final = re.compile(
    r"\b(" + "|".join(sorted(map(re.escape, _FIRST_TO_SECOND), key=len, reverse=True)) + r")\b", re.IGNORECASE
)


def answer(conversation: Conversation) -> str:
    """The stand-in's answer to a conversation, in the language of the question."""
    if asks_to_condense(conversation):
        return condense(conversation)
    if conversation.results:
        return _from_results(conversation)
    questions = [sentence for sentence in sentences(conversation.asked) if sentence.endswith("?")] or [conversation.asked]
    candidates = conversation.candidates()
    found = [_best(question, candidates) for question in questions]
    said = list(dict.fromkeys(_said(candidate, conversation) for candidate in found if candidate))
    if said and (conversation.is_question or any(candidate and candidate.source == "document" for candidate in found)):
        return " ".join(said)
    if conversation.is_question or not conversation.asked:
        return _nothing(conversation.is_german)
    return "Notiert." if conversation.is_german else "Noted."


def asks_to_condense(conversation: Conversation) -> bool:
    """Whether the last message, or the instructions at its head, ask for a summary of what was said."""
    return bool(_ASKS_TO_CONDENSE.search(fold(conversation.asked[:300]))) or bool(
        re.search(
            r"\b(you|your task|du|aufgabe)\b.{0,80}\b(summari[sz]e|condense|fasst?)\b", fold(conversation.instructions[:600])
        )
    )


def condense(conversation: Conversation) -> str:
    """The telling sentences of a conversation in their order: names and numbers first, up to a quarter of its length."""
    texts = [text_of(m) for m in conversation.earlier if m.get("role") in {"user", "assistant"}] + [conversation.question]
    found = [
        s for text in texts for s in sentences(text) if not _SAYS_NOTHING.match(fold(s)) and not _ASKS_TO_CONDENSE.search(fold(s))
    ]
    unique = list(dict.fromkeys(found))
    weights = rarity([content_stems(s) for s in unique])
    budget = max(60, sum(map(count_tokens, unique)) // 4)
    chosen: set[str] = set()
    for sentence in sorted(unique, key=lambda s: -_substance(s, weights)):
        if not chosen or count_tokens(sentence) <= budget:
            chosen.add(sentence)
            budget -= count_tokens(sentence)
    kept = [sentence for sentence in unique if sentence in chosen]
    return " ".join(kept) if kept else _nothing(conversation.is_german)


def _substance(sentence: str, weights: Mapping[str, float]) -> float:
    stems = content_stems(sentence)
    names = len(re.findall(r"(?<!^)(?<![.!?] )\b[A-ZÄÖÜ]\w+|\d+", sentence))
    return (sum(weights.get(word, 0.0) for word in stems) + 2 * names) / (5 + len(stems)) - (2 if sentence.endswith("?") else 0)


def _best(question: str, candidates: Sequence[Candidate], prior: Mapping[str, float] | None = None) -> Candidate | None:
    """The candidate that covers the question best, if any does well enough; ``prior`` adds what a search already found out."""
    wanted = content_stems(question)
    stems = {candidate.text: content_stems(candidate.text) for candidate in candidates}
    weights = rarity(list(stems.values()))
    best, best_score = None, 0.0
    for candidate in candidates:
        if fold(candidate.text) in fold(question):
            continue
        met = match(wanted, stems[candidate.text], weights)
        searched = (prior or {}).get(candidate.text, 0.0)
        if not met.words or met.coverage + searched < (_ENOUGH_OF_INSTRUCTIONS if candidate.source == "system" else _ENOUGH):
            continue
        score = (met.coverage + searched) * candidate.trust * _fits(question, candidate.text) - len(stems[candidate.text]) / 500
        if score > best_score:
            best, best_score = candidate, score
    return best


def _fits(question: str, sentence: str) -> float:
    """A sentence with a number is the likelier answer to when and how much."""
    folded = fold(question)
    if _ASKS_WHEN.search(folded):
        return 1.25 if re.search(r"\b\d{4}\b", sentence) else 1.0
    if _ASKS_HOW_MUCH.search(folded):
        return 1.25 if re.search(r"\d", sentence) else 1.0
    return 1.0


def _said(candidate: Candidate, conversation: Conversation) -> str:
    """The candidate as an answer: what users said of themselves in the second person, a document's sentence with its id."""
    if candidate.source == "user":
        return _FIRST_PERSON.sub(_turned, candidate.text)
    if candidate.document and conversation.wants_sources:
        return f"{candidate.text} [{candidate.document}]"
    return candidate.text


def _turned(found: re.Match[str]) -> str:
    second = _FIRST_TO_SECOND[found.group().lower()]
    return second[0].upper() + second[1:] if found.group()[0].isupper() and found.start() == 0 else second


def _from_results(conversation: Conversation) -> str:
    said = [_from_result(conversation, result) for result in conversation.results]
    return " ".join(dict.fromkeys(filter(None, said))) or _nothing(conversation.is_german)


def _from_result(conversation: Conversation, outcome: ToolResult) -> str:
    result = outcome.result
    if isinstance(result, Mapping) and "error" in result:
        error = result["error"]
        reason = error.get("message", "") if isinstance(error, Mapping) else str(error)
        return f"{'Das Werkzeug' if conversation.is_german else 'The tool'} {outcome.name}: {reason}"
    if isinstance(result, Mapping) and outcome.name == "calculator":
        return f"{outcome.arguments.get('expression', '')} = {result.get('result', _plainly(result))}"
    if isinstance(result, Mapping) and outcome.name == "current_datetime":
        return f"{result.get('weekday')}, {result.get('date')}, {result.get('time')} ({result.get('timezone')})"
    hits = result.get("results") if isinstance(result, Mapping) else None
    if isinstance(hits, list):
        return _from_hits(conversation, str(outcome.arguments.get("query", conversation.asked)), hits)
    found = [Candidate(sentence, "document", 1.0) for sentence in result_sentences(result)]
    if not any(len(candidate.text) > _LONG for candidate in found):
        return _plainly(result)
    best = _best(conversation.asked, found)
    return best.text if best else next(candidate.text for candidate in found if len(candidate.text) > _LONG)


def _from_hits(conversation: Conversation, query: str, hits: Sequence[object]) -> str:
    """The best sentence of what a search found; the search's own scores count, where it gives any."""
    found: list[Candidate] = []
    prior: dict[str, float] = {}
    scored = False
    for hit in hits:
        if isinstance(hit, Mapping):
            score = hit.get("score")
            scored = scored or isinstance(score, int | float)
            name = str(hit.get("id", ""))
            for sentence in result_sentences(hit):
                found.append(Candidate(sentence, "document", 1.0, name))
                prior.setdefault(sentence, max(0.0, score) / 3 if isinstance(score, int | float) else 0.0)
    best = _best(query, found, prior)
    if best is not None:
        return _said(best, conversation)
    if found and not scored:
        return found[0].text if len(found) == 1 else f"{found[0].text}: {found[1].text}"
    return _nothing(conversation.is_german)


def _plainly(result: object) -> str:
    if isinstance(result, Mapping):
        return ", ".join(f"{name}: {_plain_value(value)}" for name, value in result.items())
    return _plain_value(result)


def _plain_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _nothing(german: bool) -> str:
    if german:
        return "Ich bin das Ersatzmodell ohne Netz und finde dazu nichts im Gespräch und in den Dokumenten."
    return "I am the offline stand-in model and find nothing about that in the conversation or the documents."
