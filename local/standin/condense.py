"""Condensing a conversation: its telling sentences, in their order, up to the length that is asked for.

What is to be condensed stands in the messages before the question, or line by line as JSON in the question itself, as the
gateway's own compaction sends it.
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

_ASKS_TO_CONDENSE: Final = re.compile(
    r"\b(summari[sz]e|summary|condense|zusammenfass\w*|fasse?\b.*\bzusammen|kurzfassung)\b", re.DOTALL
)
_TOLD_TO_CONDENSE: Final = re.compile(r"\b(you|your task|du|aufgabe)\b.{0,80}\b(summari[sz]e|condense|fasst?)\b")
_BOUND: Final = re.compile(r"\b(?:at most|no more than|hochstens|maximal)\s+(\d{1,6})\s+(?:words|worter)\b")
_MASKS: Final = re.compile(r"\bleave out\b.{0,80}\b(greetings|tool output)\b")

_SAYS_NOTHING: Final = re.compile(
    r"^(hi|hello|hallo|hey|good (morning|evening)|guten (tag|morgen|abend)|danke|thanks|thank you|ok|okay|verstanden|noted|"
    r"notiert|got it|sure|alles klar|gern|gut|super|great|perfect|you're welcome|bitte sehr|bye|tschuss)\b.{0,25}$"
)
_IS_A_TRACE: Final = re.compile(r"^(traceback\b|\w*(error|exception)\b\s*[:(]|at \S+\(.*\)$|file \")")
_DECIDES: Final = re.compile(
    r"\b(decide\w*|decision|agree\w*|chose|chosen|settle[ds]?|approved?|reject\w*|must|deadline|due|promise[ds]?|plan(ned|s)?|"
    r"entschied\w*|entscheid\w*|beschlo(ss|ssen)|vereinbar\w*|einig\w*|festgeleg\w*|muss|mussen|frist|zugesagt|geplant|abgelehnt)\b"
)
_IS_OPEN: Final = re.compile(
    r"\b(open (question|point|issue)s?|still open|unclear|undecided|to be (decided|clarified|confirmed)|tbd|"
    r"not yet (clear|decided|known)|"
    r"offene? (frage|punkt)\w*|noch offen|ungeklart|unklar|noch nicht (klar|entschieden|bekannt)|zu klaren)\b"
)
_NAME_OR_NUMBER: Final = re.compile(r"(?<!^)(?<![.!?] )\b[A-ZÄÖÜ][\w-]+|\b\w*\d[\w.,:/-]*")
_NO_ANSWER: Final = re.compile(
    r"^(ich bin das ersatzmodell|i am the offline stand-in|bisher wurde nichts gesagt|so far nothing was said)"
)

_ALIKE: Final = 0.8  # of two sentences' words, from which on one of them says nothing new if names and numbers are the same
_DENSE: Final = 6  # words of context that a sentence is given before its length counts against it


@dataclass(frozen=True, slots=True)
class _Statement:
    """A sentence, who said it (``user``, ``assistant``, ``tool`` or an earlier ``summary``), and whether it asks what nobody
    answered."""

    text: str
    source: str
    unanswered: bool = False


def asks_to_condense(conversation: Conversation) -> bool:
    """Return whether the last message, or the instructions at its beginning, ask for a summary."""
    if _TOLD_TO_CONDENSE.search(fold(conversation.instructions[:600])):
        return True
    return bool(_ASKS_TO_CONDENSE.search(fold(conversation.asked[:300])))


def condense(conversation: Conversation) -> str:
    """The sentences with names, numbers, decisions and open questions, earlier ones first; empty if there is none.

    They take no more words than the instructions allow; where these name no number, a quarter of what was said. Told to leave
    out greetings and tool output, it does.
    """
    told = fold(conversation.instructions)
    statements = [*_statements(conversation)]
    masked = bool(_MASKS.search(told))
    telling = [one for one in statements if not _says_nothing(one.text) and not (masked and one.source == "tool")]
    if masked:
        telling = [one for one in telling if _is_salient(one)] or telling
    bound = _BOUND.search(told)
    room = int(bound.group(1)) if bound else max(40, sum(len(one.text.split()) for one in telling) // 4)
    chosen = " ".join(one.text for one in _select_statements(telling, room))
    return chosen or " ".join(" ".join(one.text for one in telling).split()[:room])


def _is_salient(statement: _Statement) -> bool:
    """Return whether it has a name or a number, a decision or an open question."""
    return bool(_NAME_OR_NUMBER.search(statement.text)) or _decides(statement) or _is_open(statement)


def _decides(statement: _Statement) -> bool:
    return bool(_DECIDES.search(fold(statement.text)))


def _is_open(statement: _Statement) -> bool:
    return statement.unanswered or bool(_IS_OPEN.search(fold(statement.text)))


def _select_statements(statements: Sequence[_Statement], room: int) -> list[_Statement]:
    """The best of ``statements`` that take no more than ``room`` words together, in their order, nothing twice."""
    stems = [content_stems(one.text) for one in statements]
    marks = [frozenset(_NAME_OR_NUMBER.findall(one.text)) for one in statements]
    weights = rarity(stems)
    worth = [_salience(one, words, weights) for one, words in zip(statements, stems, strict=True)]
    chosen: list[int] = []
    for at in sorted(range(len(statements)), key=lambda at: (-worth[at], at)):
        length = len(statements[at].text.split())
        if length <= room and not any(marks[at] == marks[other] and _are_similar(stems[at], stems[other]) for other in chosen):
            chosen.append(at)
            room -= length
    return [statements[at] for at in sorted(chosen)]


def _salience(statement: _Statement, stems: Sequence[str], weights: Mapping[str, float]) -> float:
    """Return the information of a sentence relative to its length: names and numbers, decisions, open questions, rare words."""
    told = 2.0 * len(_NAME_OR_NUMBER.findall(statement.text)) + 3.0 * _decides(statement) + 3.0 * _is_open(statement)
    told += sum(weights.get(word, 0.0) for word in stems) / 2
    if statement.text.endswith("?") and not _is_open(statement):
        told /= 4
    if statement.source == "tool":
        told /= 2
    return told / (_DENSE + len(statement.text.split()))


def _are_similar(one: Sequence[str], other: Sequence[str]) -> bool:
    ones, others = set(one), set(other)
    return len(ones & others) >= _ALIKE * max(1, len(ones | others))


def _says_nothing(sentence: str) -> bool:
    folded = fold(sentence)
    return bool(_SAYS_NOTHING.match(folded) or _IS_A_TRACE.match(folded) or _NO_ANSWER.match(folded))


def _statements(conversation: Conversation) -> Iterator[_Statement]:
    lines = _lines(conversation.question)
    spoken = [_parse_line(line) for line in lines] if lines else [*_messages(conversation)]
    for at, (source, text) in enumerate(spoken):
        answer = next((said for who, said in spoken[at + 1 :] if who == "assistant"), "")
        unanswered = source == "user" and all(map(_says_nothing, sentences(answer)))
        for sentence in sentences(text):
            said = second_person(sentence) if source == "user" else sentence
            yield _Statement(said, source, unanswered and said.endswith("?"))


def _messages(conversation: Conversation) -> Iterator[tuple[str, str]]:
    """Who said what in the conversation itself; that a summary is asked for is no part of it."""
    for message in conversation.earlier:
        role = str(message.get("role"))
        if role in {"user", "assistant"}:
            yield role, without_label(text_of(message))
    asked = [sentence for sentence in sentences(conversation.question) if not _ASKS_TO_CONDENSE.search(fold(sentence))]
    yield "user", "\n\n".join(asked)


def _parse_line(line: Mapping[str, Json]) -> tuple[str, str]:
    """Who speaks in a line, and what is said there. The arguments of a call are nobody's words."""
    for field in ("user", "assistant"):
        if isinstance(text := line.get(field), str):
            return field, text
    for field in ("earlier_summary", "summary"):
        if isinstance(text := line.get(field), str):
            return "summary", text
    result = line.get("result")
    return "tool", result if isinstance(result, str) else ""


def _lines(text: str) -> list[Mapping[str, Json]]:
    """The JSON objects that are a line of ``text`` each, the pieces of one that was cut put together again."""
    lines: list[dict[str, Json]] = []
    for written in text.split("\n"):
        line = _object(written) if written.startswith("{") else None
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


def _object(written: str) -> dict[str, Json] | None:
    try:
        value = json.loads(written)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
