"""Choose the tools that a question plainly asks for, and their arguments."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from local.standin.answers import is_sure
from local.standin.conversation import Conversation, order_to_remember
from local.standin.words import content_words
from local.standin.workspace import NAMES, Call, choose_calls
from spass.core.messages import Json

_NUMBER: Final = r"\d+(?:\.\d+)?"
_OPERAND: Final = rf"[(\s]*-?(?:[a-z]+\d*\(\s*{_NUMBER}\s*\)|{_NUMBER})[\s)]*"
# A minus needs blanks around it: without them it may be that of a date or of a range.
_EXPRESSION: Final = re.compile(
    rf"(?<![\w./:-])(?:{_OPERAND}(?:(?:\*\*|[+*/^]|(?<=\s)-(?=\s)){_OPERAND})+|[a-z]+\d*\({_NUMBER}\))(?![\w/:-])"
)
_ASKS_TIME: Final = re.compile(r"\b(?:what (?:time|day|date)|date today)\b", re.IGNORECASE)
_ZONE: Final = re.compile(r"\b[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+\b")
_ID: Final = r"[A-Za-z0-9][\w.:-]{0,127}"
_INDEX: Final = re.compile(rf"\bindex [`\"']?({_ID}?)[`\"']?(?=[.:?!,]*(?:\s|$))", re.IGNORECASE)
_QUOTED: Final = re.compile(r"[\"`']([^\"`'\n]+)[\"`']")
_NAME: Final = re.compile(r"(?<=\w )[A-Z]\w+(?: [A-Z]\w+)*")
_MAX_QUERY: Final = 500
_MAX_ARITHMETIC: Final = 1000  # characters of a question in which arithmetic is looked for: the time grows with their square


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the request: its name and the JSON Schema of its parameters. The caller's schema is not validated."""

    name: str
    parameters: object


def choose(request: Mapping[str, Any], conversation: Conversation) -> list[dict[str, Any]]:
    """Return the tool calls, in OpenAI's format, that the question plainly asks for. Return none if tools have answered."""
    tools = _available_tools(request)
    if not tools:
        return []
    forced = request.get("tool_choice")
    if isinstance(forced, Mapping):
        function = forced.get("function")
        named = function.get("name") if isinstance(function, Mapping) else None
        tools = [tool for tool in tools if tool.name == named] or tools
    calls: Sequence[Call] = choose_calls([tool.name for tool in tools], conversation)
    if not calls and conversation.results:
        return []
    calls = calls or _best_calls(tools, conversation)
    if not calls and (forced == "required" or isinstance(forced, Mapping)):
        calls = [Call(tools[0].name, _arguments(tools[0], conversation))]
    if request.get("parallel_tool_calls") is False:
        calls = calls[:1]
    return [_write(at, call, conversation) for at, call in enumerate(calls)]


def fill(schema: object, question: str) -> Json:
    """Return a value for a JSON Schema, from the question where possible. Return a string for a schema without a type."""
    if not isinstance(schema, Mapping):
        return _subject(question)
    if isinstance(enum := schema.get("enum"), list) and enum:
        choices: list[Json] = enum
        return next((value for value in choices if str(value).casefold() in question.casefold()), choices[0])
    if "default" in schema:
        default: Json = schema["default"]
        return default
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        properties, required = schema.get("properties"), schema.get("required")
        parts = properties.items() if isinstance(properties, Mapping) else ()
        return {str(name): fill(part, question) for name, part in parts if isinstance(required, list) and name in required}
    if kind == "array":
        return [fill(schema.get("items"), question)]
    if kind == "boolean":
        return True
    if kind in ("integer", "number"):
        digits = re.search(r"-?\d{1,15}(?:\.\d+)?", question)
        number = float(digits[0]) if digits else 1.0
        return int(number) if kind == "integer" else number
    return _subject(question)


def expression_in(question: str) -> str | None:
    """Return the arithmetic of a question in the calculator's syntax, or None."""
    found = _EXPRESSION.search(question[:_MAX_ARITHMETIC])
    expression = found[0].strip().replace("^", "**") if found else None
    return expression.strip("()") if expression and expression.count("(") != expression.count(")") else expression


def _available_tools(request: Mapping[str, Any]) -> list[Tool]:
    """Return the tools that the request allows to call."""
    tools = request.get("tools")
    if request.get("tool_choice") == "none" or not isinstance(tools, list):
        return []
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
    return [Tool(str(f.get("name")), f.get("parameters")) for f in functions if isinstance(f, Mapping)]


def _best_calls(tools: Sequence[Tool], conversation: Conversation) -> list[Call]:
    """Return the calls by the rules of their tools. Without any, return those of the tools whose names match the question best.
    Without those too, return the searches that may answer it."""
    by_rule = [Call(tool.name, arguments) for tool in tools if (arguments := _by_rule(_RULES, tool, conversation)) is not None]
    others = [tool for tool in tools if tool.name not in {*_RULES, *_SEARCHES, *NAMES}]
    matches = {tool.name: _matching_words(tool, conversation) for tool in others}
    best = max(1, *matches.values()) if matches else 1
    by_name = [Call(tool.name, _arguments(tool, conversation)) for tool in others if matches[tool.name] == best]
    searches = [
        Call(tool.name, arguments) for tool in tools if (arguments := _by_rule(_SEARCHES, tool, conversation)) is not None
    ]
    return by_rule or by_name or searches


_Rules = Mapping[str, Callable[[Conversation], dict[str, Any] | None]]


def _by_rule(rules: _Rules, tool: Tool, conversation: Conversation) -> dict[str, Any] | None:
    """Return the arguments if the question asks for the tool by its rule, otherwise None."""
    rule = rules.get(tool.name)
    return rule(conversation) if rule else None


def _matching_words(tool: Tool, conversation: Conversation) -> int:
    """Return the number of words in the tool's name that the question has too."""
    return len({*content_words(tool.name.replace("_", " "))} & {*content_words(conversation.question)})


def _arguments(tool: Tool, conversation: Conversation) -> dict[str, Any]:
    known = _by_rule(_RULES, tool, conversation) or _by_rule(_SEARCHES, tool, conversation)
    if known is not None:
        return known
    value = fill(tool.parameters, conversation.question)
    return value if isinstance(value, dict) else {}


def _calculator(conversation: Conversation) -> dict[str, Any] | None:
    expression = expression_in(conversation.question)
    return None if expression is None else {"expression": expression}


def _current_datetime(conversation: Conversation) -> dict[str, Any] | None:
    if not _ASKS_TIME.search(conversation.question):
        return None
    zone = _ZONE.search(conversation.question)
    return {"timezone": zone[0]} if zone else {}


def _rag_query(conversation: Conversation) -> dict[str, Any] | None:
    """Search the index that the question names, for the question without what follows its question mark."""
    named = _INDEX.search(conversation.question)
    if named is None or "?" not in conversation.question:
        return None
    return {"index_id": named[1], "query": conversation.question.rpartition("?")[0] + "?"}


def _search(conversation: Conversation) -> dict[str, Any] | None:
    """Search for a question that the conversation does not answer."""
    if "?" not in conversation.question or is_sure(conversation):
        return None
    return {"query": " ".join(conversation.question.split())[:_MAX_QUERY]}


_RULES: Final[_Rules] = {
    "calculator": _calculator,
    "current_datetime": _current_datetime,
    "memory_store": lambda conversation: order_to_remember(conversation.question),
    "rag_query": _rag_query,
}
_SEARCHES: Final[_Rules] = {
    "lineage_search": lambda conversation: _search(conversation) if conversation.was_compacted else None,
    "memory_search": _search,
}


def _subject(question: str) -> str:
    """Return the topic of a question: what it quotes, otherwise the first name in it, otherwise all of it."""
    if quoted := _QUOTED.search(question):
        return quoted[1]
    name = _NAME.search(question)
    return name[0] if name else question.strip(" ?!.")


def _write(at: int, call: Call, conversation: Conversation) -> dict[str, Any]:
    text = json.dumps(call.arguments, ensure_ascii=False)
    seed = json.dumps([at, call.name, text, len(conversation.earlier), conversation.question])
    return {
        "id": f"call_{hashlib.sha256(seed.encode()).hexdigest()[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": text},
    }
