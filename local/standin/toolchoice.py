"""Choose the tools that a question clearly asks for, and their arguments."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from local.standin import memory_calls
from local.standin.answers import is_sure
from local.standin.conversation import Conversation
from local.standin.words import content_stems, fold, match
from local.standin.workspace_calls import KNOWLEDGE, NAMES, Call, workspace_calls
from spass.core.messages import Json

_NUMBER: Final = r"\d+(?:[.,]\d+)*"
_CALL: Final = rf"(?:sqrt|cbrt|ln|log|log2|log10|sin|cos|tan|abs|factorial)\(\s*-?{_NUMBER}\s*\)"
_OPERAND: Final = rf"(?:{_CALL}|{_NUMBER})"
_OPERATOR: Final = rf"(?:\*\*|[+*/×·÷^%]|[-−x](?=\s*(?:[\d(]|{_CALL})))"
_EXPRESSION: Final = re.compile(
    rf"(?<![\w./:-])(?:[(\s]*-?{_OPERAND}[\s)]*(?:{_OPERATOR}[(\s]*-?{_OPERAND}[\s)]*)+|{_CALL})(?![\w/:-])"
)
_WORDS_TO_SIGNS: Final = (
    (r"\b(?:mal|times|multiplied by|multipliziert mit)\b", "*"),
    (r"\b(?:plus)\b", "+"),
    (r"\b(?:minus)\b", "-"),
    (r"\b(?:geteilt durch|divided by|durch)\b", "/"),
    (r"\b(?:hoch|to the power of)\b", "**"),
    (rf"({_NUMBER})\s*(?:%|prozent|percent)\s*(?:von|of)\s*({_NUMBER})", r"\1 / 100 * \2"),
    (rf"(?:quadratwurzel|wurzel|square root)\s*(?:aus|von|of)?\s*({_NUMBER})", r"\1 ** 0.5"),
)
_DATE_OR_RANGE: Final = re.compile(r"^\s*\d{1,4}(?:[-/.]\d{1,4}){1,2}\s*$")
_ASKS_TIME: Final = re.compile(
    r"\b(wie spat|uhrzeit|welche[rsn]? (wochen)?tag|welches datum|heutige[rsn]? datum|aktuelle[rsn]? (zeit|datum)|"
    r"what time|current (date|time)|today'?s date|what day|which day|what date|date today|time is it)\b"
)
_ZONES: Final = {
    "berlin": "Europe/Berlin", "london": "Europe/London", "paris": "Europe/Paris", "new york": "America/New_York",
    "tokyo": "Asia/Tokyo", "tokio": "Asia/Tokyo", "los angeles": "America/Los_Angeles", "sydney": "Australia/Sydney",
    "utc": "UTC",
}  # fmt: skip
_ZONE_NAME: Final = re.compile(r"\b[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+\b")
_FIRST_PERSON: Final = re.compile(r"\b(mein(e[rsnm]?)?|ich|my|i|mir|me)\b")
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"
_INDEX_NAMED: Final = re.compile(
    rf"\bindex(?:_id)?\b\s*(?:(?:namens|named|called|=|:)\s*)?"
    rf"(?:[`\"'„“]({_NAME})[`\"'”“]|((?=\S*[-_.\d]\S)(?!\S*\.\s){_NAME})|({_NAME})(?=[.:?!]?\s*$))",
    re.IGNORECASE | re.MULTILINE,
)
_LISTS_INDICES: Final = re.compile(r"\b(list|which|what|show|liste|welche|zeige?)\b.{0,20}\b(indices|indexes|indizes|indexe)\b")
_WHERE_TO_LOOK: Final = re.compile(r"(?<=[?.!])[^?.!]*\bindex\b[^?!]*$", re.IGNORECASE)
_QUOTED: Final = re.compile(r"[\"“„'»]([^\"”“'«]{2,80})[\"”“'«]")
_FALLBACK_INDEX: Final = "berlin-info"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the request: its name and the JSON Schema of its parameters. The caller's schema is not validated."""

    name: str
    parameters: object


def available_tools(request: Mapping[str, Any]) -> list[Tool]:
    """Return the tools that the request allows to call."""
    if request.get("tool_choice") == "none":
        return []
    tools = request.get("tools")
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    return [Tool(str(f.get("name")), f.get("parameters")) for f in functions if isinstance(f, Mapping)]


def choose(request: Mapping[str, Any], conversation: Conversation) -> list[dict[str, Any]]:
    """Return the tool calls, in OpenAI's format, that the question clearly asks for. Return none if tools have answered."""
    tools = available_tools(request)
    if not tools:
        return []
    forced = request.get("tool_choice")
    if isinstance(forced, Mapping):
        function = forced.get("function")
        named = function.get("name") if isinstance(function, Mapping) else None
        tools = [tool for tool in tools if tool.name == named] or tools
    calls: Sequence[Call] = workspace_calls([tool.name for tool in tools], conversation)
    if not calls and conversation.results:
        return []
    calls = calls or _best_calls(tools, conversation)
    if not calls and (forced == "required" or isinstance(forced, Mapping)):
        calls = [Call(tools[0].name, _arguments(tools[0], conversation))]
    if request.get("parallel_tool_calls") is False:
        calls = calls[:1]
    return [_call(at, name, arguments, conversation) for at, (name, arguments) in enumerate(calls)]


def _best_calls(tools: Sequence[Tool], conversation: Conversation) -> list[Call]:
    """Return the calls by the rules of their tools, and of the tools without a rule those whose names match the question best."""
    calls = [Call(tool.name, arguments) for tool in tools if (arguments := _arguments_by_rule(tool, conversation)) is not None]
    matches = {tool.name: _matching_words(tool, conversation) for tool in tools if tool.name not in _RULES}
    best = max(matches.values(), default=0)
    works_on_files = any(tool.name in NAMES for tool in tools)
    if best > works_on_files:  # a director has many tools, and one common word is too little to choose one
        calls += [Call(tool.name, _arguments(tool, conversation)) for tool in tools if matches.get(tool.name) == best]
    others = [call for call in calls if call.name != "rag_query"]
    return others if others or (works_on_files and not KNOWLEDGE.search(fold(conversation.question_text))) else calls


def fill(schema: object, question: str) -> Json:
    """Return a value for a JSON Schema, from the question where possible. Return a string for a schema without a type."""
    if not isinstance(schema, Mapping):
        return _subject(question)
    enum = schema.get("enum")
    if isinstance(enum, list) and enum:
        choices: list[Json] = enum
        return next((value for value in choices if fold(str(value)) in fold(question)), choices[0])
    if "default" in schema:
        default: Json = schema["default"]
        return default
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object" or "properties" in schema:
        properties, required = schema.get("properties"), schema.get("required")
        parts = properties.items() if isinstance(properties, Mapping) else ()
        return {str(name): fill(part, question) for name, part in parts if isinstance(required, list) and name in required}
    if kind == "array":
        return [fill(schema.get("items"), question)]
    if kind == "boolean":
        return True
    if kind in {"integer", "number"}:
        return _number_in(question, whole=kind == "integer")
    return _subject(question)


def _number_in(question: str, *, whole: bool) -> int | float:
    digits = re.search(r"-?\d{1,15}(?:\.\d+)?", question)
    number = float(digits.group()) if digits else 1.0
    return int(number) if whole else number


def expression_in(question: str, *, german: bool) -> str | None:
    """Return the arithmetic of a question in the calculator's syntax, or None."""
    text = question
    for words, sign in _WORDS_TO_SIGNS:
        text = re.sub(words, sign, text, flags=re.IGNORECASE)
    for expression in _EXPRESSION.finditer(text):
        raw = expression.group().strip()
        if not _DATE_OR_RANGE.match(raw):
            return _balance_parentheses(
                re.sub(_NUMBER, lambda n: _plain_number(n.group(), german=german), raw).translate(_SIGNS).replace("^", "**")
            )
    return None


_SIGNS: Final = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "x": "*"})


def _plain_number(number: str, *, german: bool) -> str:
    thousands, decimal = (".", ",") if german else (",", ".")
    if re.fullmatch(rf"\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+(?:{re.escape(decimal)}\d+)?", number):
        number = number.replace(thousands, "")
    return number.replace(",", ".")


def _balance_parentheses(expression: str) -> str:
    while expression.count(")") > expression.count("(") and expression.endswith(")"):
        expression = expression[:-1].rstrip()
    while expression.count("(") > expression.count(")") and expression.startswith("("):
        expression = expression[1:].lstrip()
    return expression


def _arguments_by_rule(tool: Tool, conversation: Conversation) -> dict[str, Any] | None:
    """Return the arguments if the tool has a rule by which the question asks for it, otherwise None."""
    rule = _RULES.get(tool.name)
    return rule(conversation) if rule else None


def _matching_words(tool: Tool, conversation: Conversation) -> int:
    """Return the number of words in the tool's name that the question has too."""
    name = content_stems(tool.name.replace("_", " ").replace("-", " "))
    return match(name, content_stems(conversation.question_text), {}).words


def _arguments(tool: Tool, conversation: Conversation) -> dict[str, Any]:
    known = _arguments_by_rule(tool, conversation)
    if known is not None:
        return known
    value = fill(tool.parameters, conversation.question_text)
    arguments = value if isinstance(value, dict) else {}
    index = _named_index(conversation.question_text)
    return arguments | {"index_id": index} if index and "index_id" in arguments else arguments


def _named_index(text: str) -> str | None:
    named = _INDEX_NAMED.search(text)
    return next(filter(None, named.groups())).rstrip(".:") if named else None


def _calculator(conversation: Conversation) -> dict[str, Any] | None:
    expression = expression_in(conversation.question_text, german=conversation.is_german)
    return None if expression is None else {"expression": expression}


def _current_datetime(conversation: Conversation) -> dict[str, Any] | None:
    question = fold(conversation.question_text)
    if not _ASKS_TIME.search(question):
        return None
    named = _ZONE_NAME.search(conversation.question_text)
    zone = named.group() if named else next((zone for city, zone in _ZONES.items() if re.search(rf"\b{city}\b", question)), None)
    return {"timezone": zone} if zone else {}


def _wikipedia(conversation: Conversation, *, summary: bool) -> dict[str, Any] | None:
    question = fold(conversation.question_text)
    if "wikipedia" not in question or summary != bool(re.search(r"summar|zusammenfass|fass|artikel|article", question)):
        return None
    language = "de" if conversation.is_german else "en"
    return {"title" if summary else "query": _subject(conversation.question_text), "language": language}


def _rag_query(conversation: Conversation) -> dict[str, Any] | None:
    folded = fold(conversation.question_text)
    if not conversation.is_question or _FIRST_PERSON.search(folded) or _LISTS_INDICES.search(folded):
        return None
    named = _named_index(conversation.question_text) or _named_index(conversation.instructions)
    query = _WHERE_TO_LOOK.sub("", conversation.question_text).strip() or conversation.question_text
    return {"index_id": named or _FALLBACK_INDEX, "query": query}


def _lineage_search(conversation: Conversation) -> dict[str, Any] | None:
    """Search the compacted messages for the question, unless the rest of the conversation answers it."""
    if not conversation.was_compacted or not conversation.is_question or is_sure(conversation):
        return None
    return {"query": " ".join(conversation.question_text.split())[:500]}


def _memory_search(conversation: Conversation) -> dict[str, Any] | None:
    """Search the notes of the operator, unless another tool answers the question."""
    other = _calculator(conversation) is not None or _current_datetime(conversation) is not None
    return None if other else memory_calls.search(conversation)


_RULES: Final[Mapping[str, Callable[[Conversation], dict[str, Any] | None]]] = {
    "calculator": _calculator,
    "current_datetime": _current_datetime,
    "wikipedia_search": lambda conversation: _wikipedia(conversation, summary=False),
    "wikipedia_summary": lambda conversation: _wikipedia(conversation, summary=True),
    "rag_query": _rag_query,
    "rag_index_list": lambda conversation: {} if _LISTS_INDICES.search(fold(conversation.question_text)) else None,
    "lineage_search": _lineage_search,
    "memory_search": _memory_search,
    "memory_store": memory_calls.store,
    **dict.fromkeys(NAMES, lambda _: None),
}


def _subject(question: str) -> str:
    """Return the topic of a question: what it quotes, otherwise the names in it, otherwise all of it."""
    quoted = _QUOTED.search(question)
    if quoted:
        return quoted.group(1)
    names: Sequence[str] = re.findall(r"(?<=[\w,;] )[A-ZÄÖÜ][\w-]+(?: [A-ZÄÖÜ][\w-]+)*", question)
    names = [name for name in names if "wikipedia" not in name.lower()]
    return " ".join(names) if names else question.strip(" ?!.")


def _call(at: int, name: str, arguments: Mapping[str, Any], conversation: Conversation) -> dict[str, Any]:
    text = json.dumps(arguments, ensure_ascii=False)
    seed = json.dumps([at, name, text, len(conversation.messages), conversation.question])
    return {
        "id": f"call_{hashlib.sha256(seed.encode()).hexdigest()[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }
