"""The parts of a request to the stand-in: its question, sentences that may answer it, and tool results."""

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from local.standin.earlier_runs import left_texts
from local.standin.words import fold
from spass.calls.datamark import NOTE, remove_marks
from spass.core.messages import Json

Message = Mapping[str, Any]

_LABEL: Final = re.compile(r"^\[compaction summary from session [^\]\s]*\] ?")
# A document in a prompt, however it is marked: <document id="d1" …>text</document>.
_DOCUMENT: Final = re.compile(r'<document\b(?:[^>]*?\bid="([^"]*)")?[^>]*>(.*?)</document>', re.DOTALL | re.IGNORECASE)
# The tenant's memory, one note per line.
_MEMORY: Final = re.compile(r"<memory>\n(.*?)\n</memory>", re.DOTALL)
_TAG: Final = re.compile(r"</?[a-zA-Z_][^<>]*>")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…])[\"'”»)]*\s+(?=[\"'“„«(]*[^\W_])|\n\s*\n|\n(?=\s*[-*|#\d])")
_ABBREVIATION: Final = re.compile(r"(?:\b(?:z\. ?B|d\. ?h|u\. ?a|bzw|ca|Nr|Dr|St|vs|etc|e\.g|i\.e|approx)\.|\b\d{1,2}\.)$")
_QUESTION_START: Final = re.compile(
    r"^\W*(wer|was|wann|wo|wohin|woher|wie|wieviel|warum|wieso|weshalb|welche[rsmn]?|nenne?|erklare?|erzahle?|beschreibe?|zeige?|suche?|finde?|"
    r"who|what|when|where|how|why|which|whose|is|are|does|do|did|can|could|name|explain|tell|describe|show|list|find|search|look)\b"
)
_TELLS_HOW: Final = re.compile(
    r"^(you|du|if|wenn|before|after|use|answer|ask|store|search|look|call|end|name|say|never|always|do|don't|passages|what tools|"
    r"antworte|nenne|merke|schlage|frage|vor der|steht|fundstellen|weißt)\b",
    re.IGNORECASE,
)
_GERMAN: Final = re.compile(
    r"\b(der|die|das|und|ist|nicht|ein|eine|wie|was|wer|wo|wann|welche[rsmn]?|ich|mein|meine|wurde|auf|deutsch|du|viel|sind|hat)\b|[äöüß]",
    re.IGNORECASE,
)
_ENGLISH: Final = re.compile(
    r"\b(the|and|is|are|not|an?|how|what|who|where|when|which|i|my|was|on|of|you|many|does|do|has|please)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool result of this turn: the call's name and arguments, and its result, parsed when it is JSON."""

    name: str
    arguments: Mapping[str, Any]
    result: Json


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sentence that may answer the question, its source, a weight for the trust in that source, and the id of its document."""

    text: str
    source: str  # "document", "user", "assistant", "memory" or "system"
    trust: float
    document: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a request, split at the last question."""

    messages: Sequence[Message]
    question: str
    earlier: Sequence[Message]  # before the question
    results: Sequence[ToolResult]  # after the question

    @classmethod
    def read(cls, messages: Sequence[Message]) -> "Conversation":
        last_user = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=-1)
        question = text_of(messages[last_user]) if last_user >= 0 else ""
        return cls(messages, question, messages[: max(last_user, 0)], _results(messages[last_user + 1 :]))

    @property
    def earlier_results(self) -> Sequence[ToolResult]:
        """Return the tool results before the question, in order."""
        return _results(self.earlier)

    @property
    def question_text(self) -> str:
        """Return the question without the documents and tags in its message."""
        return _TAG.sub(" ", _DOCUMENT.sub(" ", self.question)).strip()

    @property
    def is_german(self) -> bool:
        german, english = len(_GERMAN.findall(self.question_text)), len(_ENGLISH.findall(self.question_text))
        if german == english:
            return bool(re.search(r"\b(Deutsch|German|du|bist)\b", self.instructions))
        return german > english

    @property
    def instructions(self) -> str:
        """Return the text of the system messages, without documents."""
        return "\n".join(_DOCUMENT.sub(" ", text_of(m)) for m in self.messages if m.get("role") in {"system", "developer"})

    @property
    def wants_sources(self) -> bool:
        """Return whether the instructions ask for the ids of documents in brackets."""
        return bool(re.search(r"square brackets|eckigen Klammern", self.instructions))

    @property
    def was_compacted(self) -> bool:
        """Return whether a summary replaces the beginning of the conversation."""
        return any(message.get("role") == "assistant" and _LABEL.match(text_of(message)) for message in self.messages)

    @property
    def is_question(self) -> bool:
        return "?" in self.question_text or bool(_QUESTION_START.match(fold(self.question_text)))

    def candidates(self) -> list[Candidate]:
        """Return every sentence that may answer the question: first of documents, then of messages, latest first."""
        candidates = [
            Candidate(sentence, "document", 1.1, name)
            for message in self.messages
            for name, text in _documents(text_of(message))
            for sentence in sentences(text)
        ]
        candidates += [Candidate(s, "user", 1.1) for s in sentences(self.question_text) if not s.endswith("?")]
        for message in reversed(self.earlier):
            role, text = message.get("role"), without_label(text_of(message))
            if role == "user" and (notes := _MEMORY.search(text)):
                candidates += [Candidate(s, "memory", 0.7) for s in sentences(notes[1].replace("\n", "\n\n"))]
            elif role == "user" and (left := [*left_texts(text)]):
                candidates += [Candidate(s, "memory", 0.7) for one in left for s in sentences(one) if not s.endswith("?")]
            elif role == "user" and not _DOCUMENT.search(text):
                candidates += [Candidate(s, "user", 1.1) for s in sentences(text) if not s.endswith("?")]
            elif role == "assistant" and not text.startswith(("Ich bin ", "I am ")):
                candidates += [Candidate(s, "assistant", 0.9) for s in sentences(text) if not s.endswith("?")]
            elif role == "tool" and '"approval_required"' not in text:
                candidates += [Candidate(s, "document", 1.0) for s in result_sentences(_parse(text))]
        candidates += [
            Candidate(s, "system", 0.7) for s in sentences(_TAG.sub(" ", self.instructions)) if not _TELLS_HOW.search(s)
        ]
        return list({candidate.text: candidate for candidate in reversed(candidates)}.values())[::-1]


def text_of(message: Message) -> str:
    """Return the text of a message, whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def without_label(text: str) -> str:
    """Return a message's text without the label that marks it as a compaction's summary."""
    return _LABEL.sub("", text)


def strip_markers(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the gateway's data marks and its note about them."""
    plain = [{**message, "content": _strip_marker(text_of(message))} for message in messages]
    return [after for after, before in zip(plain, messages, strict=True) if after["content"] or before.get("content") != NOTE]


def _strip_marker(text: str) -> str:
    return remove_marks(text.replace(NOTE, "").rstrip() if text.endswith(NOTE) else text)


def sentences(text: str) -> list[str]:
    """Split a text into sentences. A heading or a list item is a separate sentence. An abbreviation does not end a sentence."""
    parts: list[str] = []
    for piece in _SENTENCE_END.split(text):
        sentence = " ".join(piece.split()).strip("#*-•|> ")
        if parts and _ABBREVIATION.search(parts[-1]):
            parts[-1] = f"{parts[-1]} {sentence}"
        elif re.search(r"[^\W_]", sentence):
            parts.append(sentence)
    return parts


def result_sentences(result: object) -> list[str]:
    """Return every sentence in a tool's result."""
    return [sentence for text in _texts(result) for sentence in sentences(_TAG.sub("", text))]


def _texts(value: object, key: str = "") -> Iterator[str]:
    if isinstance(value, str):
        if key not in {"id", "index_id", "session_id", "role", "created_at", "url", "error", "code"}:
            yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name not in {"metadata", "error"}:
                yield from _texts(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)


def _documents(text: str) -> list[tuple[str, str]]:
    return [(name, html.unescape(_TAG.sub(" ", body))) for name, body in _DOCUMENT.findall(text)]


def _parse(text: str) -> Json:
    try:
        parsed: Json = json.loads(text)
        return parsed
    except ValueError:
        return text


def _results(messages: Sequence[Message]) -> tuple[ToolResult, ...]:
    calls = _calls_by_id(messages)
    return tuple(
        ToolResult(*calls.get(str(message.get("tool_call_id")), ("", {})), _parse(text_of(message)))
        for message in messages
        if message.get("role") == "tool"
    )


def _calls_by_id(messages: Sequence[Message]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for message in messages:
        tool_calls = message.get("tool_calls")
        for call in tool_calls if isinstance(tool_calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if not isinstance(function, Mapping):
                continue
            arguments = _parse(str(function.get("arguments", "")))
            calls[str(call.get("id"))] = (str(function.get("name", "")), arguments if isinstance(arguments, Mapping) else {})
    return calls
