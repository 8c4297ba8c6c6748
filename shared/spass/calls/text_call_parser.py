"""Read the tool calls in a text that ``text_call_scanner`` has followed."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spass.calls.python_call_scanner import PythonCall
from spass.calls.text_call_scanner import TextCalls
from spass.core.json import InvalidJson, dump, read_object
from spass.core.messages import Json

_CALL_KEYS: Final = frozenset({"type", "id"})
# A string without an end matches too. Otherwise each of its quotes would start another search to the end of the text.
_STRING_OR_MARK: Final = r'"(?:[^"\\]|\\.)*+"?|MARK'
_PYTHON_STRING_OR_MARK: Final = rf"'(?:[^'\\]|\\.)*+'?|{_STRING_OR_MARK}"
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_PYTHON_ESCAPES: Final = frozenset("\n\\'\"abfnrtv0123xNuU")


@dataclass(frozen=True, slots=True)
class TextCall:
    """A call that a model has written. ``arguments`` are JSON."""

    name: str
    arguments: str


def parse_calls(text: str, found: Sequence[TextCalls], mark: str) -> Sequence[TextCall]:
    """Return the calls that were found in ``text``. ``mark`` is a character that stands for blanks, or nothing.

    Raises:
        InvalidJson: one of them cannot be read.
    """
    calls: list[TextCall] = []
    for part in found:
        if part.python:
            calls += [_parse_python(text, call, mark) for call in part.python]
        else:
            json_text = _without_marks(text[part.place.start : part.place.end], mark, _STRING_OR_MARK)
            calls += [_read_call(call, mark) for call in _objects(read_object(f'{{"reply":{json_text}}}')["reply"])]
    return calls


def _objects(reply: Json) -> Iterator[Mapping[str, Json]]:
    """Yield the objects that describe calls.

    Raises:
        InvalidJson: ``tool_calls`` has other members beside it.
    """
    if isinstance(reply, Mapping) and "tool_calls" in reply:
        if len(reply) > 1:
            raise InvalidJson("a list of calls needs no other member")
        reply = reply["tool_calls"]
    for call in reply if isinstance(reply, list) else [reply]:
        if isinstance(call, Mapping):
            yield call


def _read_call(call: Mapping[str, Json], mark: str) -> TextCall:
    """Return the call that a model wrote as the object ``call``.

    Raises:
        InvalidJson: it does not have one name and one object of arguments.
    """
    function = call.get("function")
    if isinstance(function, Mapping):
        if call.keys() - _CALL_KEYS != {"function"}:
            raise InvalidJson("it describes its function twice")
        call = function
    match {key: value for key, value in call.items() if key not in _CALL_KEYS}:
        case {"name": str(name), "arguments": arguments, **other} if not other:
            pass
        case {"name": str(name), "parameters": arguments, **other} if not other:
            pass
        case _:
            raise InvalidJson("a call needs a name and its arguments")
    if isinstance(arguments, str):
        arguments = read_object(_without_marks(arguments, mark, _STRING_OR_MARK))
    return TextCall(name, dump(arguments))


def _parse_python(text: str, call: PythonCall, mark: str) -> TextCall:
    """Return a call with its arguments as JSON.

    Raises:
        InvalidJson: JSON has no such value, or Python cannot read it.
    """
    try:
        values = {
            word: ast.literal_eval(f"({_readable(_without_marks(text[at.start : at.end], mark, _PYTHON_STRING_OR_MARK))})")
            for word, at in call.arguments
        }
        arguments = dump(values)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise InvalidJson("an argument is not a value of Python") from error
    read_object(arguments)
    return TextCall(call.name, arguments)


def _readable(value: str) -> str:
    """Return ``value`` with its unknown escapes written as Python reads them: it would print a warning for each."""
    return _ESCAPE.sub(lambda found: found[0] if found[1] in _PYTHON_ESCAPES else f"\\{found[0]}", value)


def _without_marks(text: str, mark: str, pattern: str) -> str:
    """Return ``text`` with blanks for the marks between its tokens. The marks in its strings stay: they are removed from the
    arguments of every call."""
    if not mark or mark not in text:
        return text
    pattern = pattern.replace("MARK", re.escape(mark))
    return re.sub(pattern, lambda found: " " if found[0] == mark else found[0], text, flags=re.DOTALL)
