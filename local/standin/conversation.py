"""The parts of a request to the stand-in: its question, the sentences that may answer it, and the results of tools."""

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spass.calls.datamark import NOTE, remove_marks
from spass.core.messages import Json

Message = Mapping[str, Any]

NOTICE: Final = "I am the offline stand-in model"
"""The beginning of each answer that the stand-in gives about itself."""

_LABEL: Final = re.compile(r"^\[compaction summary from session [^\]\s]*\] ?")
# Looked-up text in a prompt, such as <document id="d1">text</document>, and the tenant's memory.
_ELEMENT: Final = re.compile(r"<(document|memory)\b[^>]*>(.*?)</\1>", re.DOTALL)
_TAG: Final = re.compile(r"</?[a-zA-Z_][^<>]*>")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?…])[\"'”»)]*\s+(?=[\"'“„«(]*[^\W_])|\n\s*\n|\n(?=\s*[-*|#\d])")
_ORDER: Final = re.compile(
    r"(?:please )?remember(?: under the key (?P<key>[\w.-]{1,128}))? that (?P<content>.+)", re.IGNORECASE | re.DOTALL
)
_NOT_TEXT: Final = frozenset({"id", "index_id", "session_id", "role", "created_at", "url", "error", "code", "metadata"})


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool result: the call's name and arguments, and its result, parsed if it is JSON."""

    name: str
    arguments: Mapping[str, Any]
    result: Json


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sentence that may answer the question, and a weight for the trust in its source."""

    text: str
    trust: float
    is_looked_up: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a request, split at the last question."""

    instructions: str
    question: str
    earlier: Sequence[Message]  # before the question
    results: Sequence[ToolResult]  # after the question

    @classmethod
    def read(cls, messages: Sequence[Message]) -> "Conversation":
        last = max((at for at, message in enumerate(messages) if message.get("role") == "user"), default=-1)
        instructions = "\n".join(text_of(m) for m in messages if m.get("role") in {"system", "developer"})
        question = _TAG.sub(" ", _ELEMENT.sub(" ", text_of(messages[last]))).strip() if last >= 0 else ""
        return cls(instructions, question, messages[: max(last, 0)], _results(messages[last + 1 :]))

    @property
    def earlier_results(self) -> Sequence[ToolResult]:
        return _results(self.earlier)

    @property
    def was_compacted(self) -> bool:
        """Return whether a summary replaces the beginning of the conversation."""
        return any(_LABEL.match(text_of(message)) for message in self.earlier if message.get("role") == "assistant")

    def candidates(self) -> list[Candidate]:
        """Return every sentence that may answer the question, the latest first."""
        candidates = [Candidate(sentence, 1.1) for sentence in sentences(self.question)]
        for message in reversed(self.earlier):
            role, text = message.get("role"), text_of(message)
            elements = [html.unescape(_TAG.sub(" ", body)) for _, body in _ELEMENT.findall(text)]
            if role == "tool":
                candidates += [Candidate(s, 1.0, is_looked_up=True) for s in result_sentences(parse(text))]
            elif elements:
                candidates += [Candidate(s, 1.1, is_looked_up=True) for element in elements for s in sentences(element)]
            elif role in {"user", "assistant"}:
                order = order_to_remember(text)
                trust = 1.1 if role == "user" else 0.9
                candidates += [Candidate(s, trust) for s in sentences(order["content"] if order else spoken(message))]
        return [candidate for candidate in candidates if not candidate.text.endswith("?")]


def order_to_remember(text: str) -> dict[str, str] | None:
    """Return the note, and its key if one is named, of "Remember under the key gate that it opens at nine.", otherwise None."""
    order = _ORDER.fullmatch(text.strip())
    if order is None:
        return None
    note = {"content": order["content"][:1].upper() + order["content"][1:]}
    return note | {"key": order["key"]} if order["key"] else note


def text_of(message: Message) -> str:
    """Return the text of a message, whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def spoken(message: Message) -> str:
    """Return the text of a message without the label that marks it as a compaction's summary."""
    return _LABEL.sub("", text_of(message))


def strip_markers(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the gateway's data marks and its note about them."""
    plain = [{**message, "content": remove_marks(text_of(message).removesuffix(NOTE).rstrip())} for message in messages]
    return [after for after, before in zip(plain, messages, strict=True) if after["content"] or before.get("content") != NOTE]


def sentences(text: str) -> list[str]:
    """Split a text into sentences, headings and list items, without those in which the stand-in speaks of itself."""
    pieces = (" ".join(piece.split()).strip("#*-•|> ") for piece in _SENTENCE_END.split(text))
    return [piece for piece in pieces if re.search(r"[^\W_]", piece) and not piece.startswith(NOTICE)]


def result_sentences(result: object) -> list[str]:
    """Return every sentence in a tool's result."""
    return [sentence for text in _texts(result) for sentence in sentences(_TAG.sub("", text))]


def parse(text: str) -> Json:
    try:
        parsed: Json = json.loads(text)
        return parsed
    except ValueError:
        return text


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for name, item in value.items() if name not in _NOT_TEXT for text in _texts(item))
    elif isinstance(value, list):
        yield from (text for item in value for text in _texts(item))


def _results(messages: Sequence[Message]) -> tuple[ToolResult, ...]:
    calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for message in messages:
        tool_calls = message.get("tool_calls")
        for call in tool_calls if isinstance(tool_calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                arguments = parse(str(function.get("arguments", "")))
                calls[str(call.get("id"))] = (str(function.get("name", "")), arguments if isinstance(arguments, Mapping) else {})
    return tuple(
        ToolResult(*calls.get(str(message.get("tool_call_id")), ("", {})), parse(text_of(message)))
        for message in messages
        if message.get("role") == "tool"
    )
