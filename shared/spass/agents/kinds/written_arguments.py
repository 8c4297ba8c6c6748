"""Read the arguments of a tool call that a model wrote as text. Nothing is repaired or guessed."""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from spass.agents.kinds.markers import FENCES
from spass.core.json import InvalidJson, dump, read_object
from spass.core.messages import ToolSpec

MAX_CHARACTERS: Final = 64 * 1024
"""Longer inputs are not read. The toolbox refuses them with an error that names its limit in bytes."""
_MAX_DEPTH: Final = 32

_NOTHING: Final = ("", "null", "None")
_OPENING: Final = ("{", "[", "(")
_CLOSING: Final = ("}", "]", ")")
_CONTINUATIONS: Final = (*_OPENING, *_CLOSING, ",", ":", "+")
"""Text after an object that makes it a part of something else."""

_FENCED: Final = re.compile(
    r"(?P<fence>```|~~~)[ \t]*+[\w+-]*+[ \t]*+\r?\n(?P<inside>.*?)(?:^[ \t]*+(?P=fence)|\Z)", re.DOTALL | re.MULTILINE
)
# A string without an end goes on to the end of the text: a search from each of its quotes would take quadratic time.
_STRING_OR_BRACKET: Final = re.compile(r""" "(?:[^"\\]|\\.)*+"? | '(?:[^'\\]|\\.)*+'? | [\[\]{}()] """, re.DOTALL | re.VERBOSE)

# The tokens of Python literals that JSON can represent. Other texts never reach Python's parser, so it gives no warnings.
_ESCAPE: Final = r"""\\(?:[\\'"abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"""
_STRING: Final = rf"""(?:"(?:[^"\\\n]|{_ESCAPE})*+"|'(?:[^'\\\n]|{_ESCAPE})*+')"""
_NUMBER: Final = r"[+-]?(?:0|[1-9][0-9]{0,63})(?:\.[0-9]{1,63})?(?:[eE][+-]?[0-9]{1,3})?(?![\w.])"
_NO_STRING: Final = r"""(?!\s*+["'])"""  # Python joins adjacent strings, but more often a comma is missing
_WHOLE_STRING: Final = re.compile(_STRING)
_LITERAL: Final = re.compile(rf"(?:{_STRING}{_NO_STRING}|{_NUMBER}|(?:True|False|None)\b|[\[\]{{}}(),:]|\s)*+")


def arguments_text(text: str, spec: ToolSpec | None, *, is_marked: bool = True) -> str:
    """Return the JSON arguments in the input ``text`` of a call of the tool ``spec``, or ``text`` itself if it has none.

    The input is a JSON object or a Python literal, in a code fence or not, or the bare text of the tool's only required string.
    The toolbox refuses a text that is not a JSON object with an error that the model reads. Bare text must be marked as input.
    """
    body = _unfence(text)
    if body in _NOTHING:
        return "{}"
    if len(text) > MAX_CHARACTERS:
        return text
    if body.startswith("{"):
        return _object(body) or text
    name = _bare_parameter(spec) if spec and is_marked else None
    return dump({name: _unquote(body)}) if name else text


def _unfence(text: str) -> str:
    """Return ``text`` without the code fence around its start, or without the end of a fence that began before it."""
    text = text.strip()
    if fenced := _FENCED.match(text):
        return fenced["inside"].strip()
    lines = text.split("\n")
    if lines[-1].strip() in FENCES and sum(line.lstrip().startswith(FENCES) for line in lines) % 2:
        return "\n".join(lines[:-1]).strip()
    return text


def _object(text: str) -> str | None:
    """Return the object at the start of ``text`` as JSON, or None if it is not valid or goes on after its last bracket."""
    end = _end_of_object(text)
    if end is None or text[end:].lstrip().startswith(_CONTINUATIONS):
        return None
    try:
        read_object(text[:end], max_depth=_MAX_DEPTH)
    except InvalidJson as error:
        is_other_syntax = error.position is not None
        return _python_object(text[:end]) if is_other_syntax else None
    return text[:end]


def _end_of_object(text: str) -> int | None:
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        depth += (found[0] in _OPENING) - (found[0] in _CLOSING)
        if not depth or depth > _MAX_DEPTH:
            return None if depth else found.end()
    return None


def _python_object(text: str) -> str | None:
    """Return a Python literal as JSON, or None if JSON cannot represent it exactly."""
    if not _LITERAL.fullmatch(text):
        return None
    try:
        tree = ast.parse(text, mode="eval")
        if not all(map(_is_json, ast.walk(tree))):
            return None
        return dump(ast.literal_eval(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_json(node: ast.AST) -> bool:
    """Return False for a set and for an object whose keys are not different strings."""
    if not isinstance(node, ast.Dict):
        return not isinstance(node, ast.Set)
    keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
    return all(isinstance(key, str) for key in keys) and len(set(keys)) == len(keys)


def _bare_parameter(spec: ToolSpec) -> str | None:
    """Return the name of the tool's only required string, or of its only parameter if that is an optional string."""
    properties, required = spec.parameters.get("properties"), spec.parameters.get("required")
    if not isinstance(properties, Mapping):
        return None
    names = required if isinstance(required, Sequence) and required else list(properties)
    name = names[0] if len(names) == 1 else None
    schema = properties.get(name) if isinstance(name, str) else None
    return name if isinstance(name, str) and isinstance(schema, Mapping) and schema.get("type") == "string" else None


def _unquote(text: str) -> str:
    """Return the content of ``text`` if it is one string in quotes."""
    try:
        value: object = json.loads(text) if text.startswith('"') else text
        if text.startswith("'") and _WHOLE_STRING.fullmatch(text):
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, str) else text
