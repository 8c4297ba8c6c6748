"""Condense a conversation: select its most informative sentences, in their order, up to the requested length.

The conversation is in the messages before the question, or in the question itself as JSON lines, as the gateway's compaction
sends it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from local.standin.conversation import Conversation, sentences, text_of, without_label
from local.standin.second_person import second_person
from local.standin.words import content_stems, fold, rarity
from spass.core.messages import Json

_SUMMARY_REQUEST: Final = re.compile(
    r"\b(summari[sz]e|summary|condense|zusammenfass\w*|fasse?\b.*\bzusammen|kurzfassung)\b", re.DOTALL
)
_SUMMARY_INSTRUCTION: Final = re.compile(r"\b(you|your task|du|aufgabe)\b.{0,80}\b(summari[sz]e|condense|fasst?)\b")
_WORD_LIMIT: Final = re.compile(r"\b(?:at most|no more than|hochstens|maximal)\s+(\d{1,6})\s+(?:words|worter)\b")
_OMIT_TOOL_OUTPUT: Final = re.compile(r"\bleave out\b.{0,80}\b(greetings|tool output)\b")

_SMALL_TALK: Final = re.compile(
    r"^(hi|hello|hallo|hey|good (morning|evening)|guten (tag|morgen|abend)|danke|thanks|thank you|ok|okay|verstanden|noted|"
    r"notiert|got it|sure|alles klar|gern|gut|super|great|perfect|you're welcome|bitte sehr|bye|tschuss)\b.{0,25}$"
)
_STACK_TRACE: Final = re.compile(r"^(traceback\b|\w*(error|exception)\b\s*[:(]|at \S+\(.*\)$|file \")")
_DECISION: Final = re.compile(
    r"\b(decide\w*|decision|agree\w*|chose|chosen|settle[ds]?|approved?|reject\w*|must|deadline|due|promise[ds]?|plan(ned|s)?|"
    r"entschied\w*|entscheid\w*|beschlo(ss|ssen)|vereinbar\w*|einig\w*|festgeleg\w*|muss|mussen|frist|zugesagt|geplant|abgelehnt)\b"
)
_OPEN_QUESTION: Final = re.compile(
    r"\b(open (question|point|issue)s?|still open|unclear|undecided|to be (decided|clarified|confirmed)|tbd|"
    r"not yet (clear|decided|known)|"
    r"offene? (frage|punkt)\w*|noch offen|ungeklart|unklar|noch nicht (klar|entschieden|bekannt)|zu klaren)\b"
)
_NAME_OR_NUMBER: Final = re.compile(r"(?<!^)(?<![.!?] )\b[A-ZÄÖÜ][\w-]+|\b\w*\d[\w.,:/-]*")
_STANDIN_NOTICE: Final = re.compile(
    r"^(ich bin das ersatzmodell|i am the offline stand-in|bisher wurde nichts gesagt|so far nothing was said)"
)

_SIMILARITY: Final = 0.8  # least Jaccard index of the words of two sentences, if one of them says nothing new
_LENGTH_OFFSET: Final = 6  # words, added to a sentence's length so that very short sentences do not win


@dataclass(frozen=True, slots=True)
class _Statement:
    """A sentence and its ``source``: ``user``, ``assistant``, ``tool`` or an earlier ``summary``. ``unanswered`` is True for a
    question without an answer."""

    text: str
    source: str
    unanswered: bool = False


def asks_to_condense(conversation: Conversation) -> bool:
    """Return whether the last message, or the instructions at its beginning, ask for a summary."""
    if _SUMMARY_INSTRUCTION.search(fold(conversation.instructions[:600])):
        return True
    return bool(_SUMMARY_REQUEST.search(fold(conversation.question_text[:300])))


def condense(conversation: Conversation) -> str:
    """Return the sentences with names, numbers, decisions and open questions, in their order; if none fits, the first words.

    The result has at most as many words as the instructions allow, or a quarter of the conversation if they name no number. It
    has no tool output if the instructions say to leave that out.
    """
    instructions = fold(conversation.instructions)
    statements = [*_statements(conversation)]
    omit_tool_output = bool(_OMIT_TOOL_OUTPUT.search(instructions))
    candidates = [
        one for one in statements if not _is_uninformative(one.text) and not (omit_tool_output and one.source == "tool")
    ]
    if omit_tool_output:
        candidates = [one for one in candidates if _is_salient(one)] or candidates
    word_limit = _WORD_LIMIT.search(instructions)
    room = int(word_limit.group(1)) if word_limit else max(40, sum(len(one.text.split()) for one in candidates) // 4)
    chosen = " ".join(one.text for one in _select_statements(candidates, room))
    return chosen or " ".join(" ".join(one.text for one in candidates).split()[:room])


def _is_salient(statement: _Statement) -> bool:
    """Return whether it has a name or a number, a decision or an open question."""
    return bool(_NAME_OR_NUMBER.search(statement.text)) or _decides(statement) or _is_open(statement)


def _decides(statement: _Statement) -> bool:
    return bool(_DECISION.search(fold(statement.text)))


def _is_open(statement: _Statement) -> bool:
    return statement.unanswered or bool(_OPEN_QUESTION.search(fold(statement.text)))


def _select_statements(statements: Sequence[_Statement], room: int) -> list[_Statement]:
    """Return the most informative ``statements`` that have at most ``room`` words together, in their order, without repeats."""
    stems = [content_stems(one.text) for one in statements]
    names_and_numbers = [frozenset(_NAME_OR_NUMBER.findall(one.text)) for one in statements]
    weights = rarity(stems)
    scores = [_salience(one, words, weights) for one, words in zip(statements, stems, strict=True)]
    chosen: list[int] = []
    for index in sorted(range(len(statements)), key=lambda index: (-scores[index], index)):
        length = len(statements[index].text.split())
        if length <= room and not any(
            names_and_numbers[index] == names_and_numbers[other] and _are_similar(stems[index], stems[other]) for other in chosen
        ):
            chosen.append(index)
            room -= length
    return [statements[index] for index in sorted(chosen)]


def _salience(statement: _Statement, stems: Sequence[str], weights: Mapping[str, float]) -> float:
    """Return the information of a sentence relative to its length: names and numbers, decisions, open questions, rare words."""
    score = 2.0 * len(_NAME_OR_NUMBER.findall(statement.text)) + 3.0 * _decides(statement) + 3.0 * _is_open(statement)
    score += sum(weights.get(word, 0.0) for word in stems) / 2
    if statement.text.endswith("?") and not _is_open(statement):
        score /= 4
    if statement.source == "tool":
        score /= 2
    return score / (_LENGTH_OFFSET + len(statement.text.split()))


def _are_similar(one: Sequence[str], other: Sequence[str]) -> bool:
    words, other_words = set(one), set(other)
    return len(words & other_words) >= _SIMILARITY * max(1, len(words | other_words))


def _is_uninformative(sentence: str) -> bool:
    folded = fold(sentence)
    return bool(_SMALL_TALK.match(folded) or _STACK_TRACE.match(folded) or _STANDIN_NOTICE.match(folded))


def _statements(conversation: Conversation) -> Iterator[_Statement]:
    lines = _json_lines(conversation.question)
    spoken = [_parse_line(line) for line in lines] if lines else [*_messages(conversation)]
    for at, (source, text) in enumerate(spoken):
        answer = next((said for who, said in spoken[at + 1 :] if who == "assistant"), "")
        unanswered = source == "user" and all(map(_is_uninformative, sentences(answer)))
        for sentence in sentences(text):
            said = second_person(sentence) if source == "user" else sentence
            yield _Statement(said, source, unanswered and said.endswith("?"))


def _messages(conversation: Conversation) -> Iterator[tuple[str, str]]:
    """Yield the role and the text of each message, without the sentences of the question that ask for the summary."""
    for message in conversation.earlier:
        role = str(message.get("role"))
        if role in {"user", "assistant"}:
            yield role, without_label(text_of(message))
    asked = [sentence for sentence in sentences(conversation.question) if not _SUMMARY_REQUEST.search(fold(sentence))]
    yield "user", "\n\n".join(asked)


def _parse_line(line: Mapping[str, Json]) -> tuple[str, str]:
    """Return the source and the text of a line. The arguments of a tool call are not text."""
    for field in ("user", "assistant"):
        if isinstance(text := line.get(field), str):
            return field, text
    for field in ("earlier_summary", "summary"):
        if isinstance(text := line.get(field), str):
            return "summary", text
    result = line.get("result")
    return "tool", result if isinstance(result, str) else ""


def _json_lines(text: str) -> list[Mapping[str, Json]]:
    """Return the JSON objects in the lines of ``text``. The pieces of an object that was split over several lines are joined."""
    lines: list[dict[str, Json]] = []
    for written in text.split("\n"):
        line = _parse_object(written) if written.startswith("{") else None
        if line is None:
            continue
        field = [*line][-1] if line else ""
        before = lines[-1].get(field) if lines else None
        more = line.get(field)
        if line.get("continued") and isinstance(before, str) and isinstance(more, str):
            lines[-1][field] = before + more
        else:
            lines.append(line)
    return [*lines]


def _parse_object(written: str) -> dict[str, Json] | None:
    try:
        value = json.loads(written)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
