"""Read JSON from untrusted sources, and write JSON.

The standard parser accepts more than JSON (NaN, duplicate keys, halves of surrogate pairs), and some texts make it slow (deep
nesting, numbers with a million digits). ``read_object`` accepts only objects that can be stored and written back.
"""

import json
import re
from typing import Any, Final

from spass.core.messages import Json

MAX_DEPTH: Final = 64
"""Levels of arrays and objects in a request, or in the arguments of a tool call."""
MAX_KEYS: Final = 1000
"""Keys of one object. Validation reports each unknown key, so their number is bounded before it."""
MAX_ITEMS: Final = 10_000
"""Items of one list, for the same reason."""
MAX_DIGITS: Final = 64
"""Digits of one integer."""

_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_MAX_KEY_CHARACTERS: Final = 64  # characters of a key
_CONTAINERS: Final = (dict, list, tuple)  # a check against the abstract types takes five times as long

# Only CR and LF end a line of a server-sent event or of a log, but some readers also split lines at these.
_LINE_ENDS: Final = tuple((chr(code), f"\\u{code:04x}") for code in (0x85, 0x2028, 0x2029))

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class InvalidJson(ValueError):
    """A text is not an object that ``read_object`` accepts. ``reason`` is a clause to put after a colon. ``position`` is the
    index of the first character that is not JSON."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


def read_object(text: str, *, max_depth: int = MAX_DEPTH) -> dict[str, Json]:
    """Return the JSON object in ``text``, nested at most ``max_depth`` levels, or raise ``InvalidJson``."""
    _check_unicode(text)
    try:
        value: Json = json.loads(
            text,
            object_pairs_hook=_unique_members,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except json.JSONDecodeError as error:
        reason = f"it is not valid JSON ({error.msg} at line {error.lineno}, column {error.colno})"
        raise InvalidJson(reason, error.pos) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    if not isinstance(value, dict):
        raise InvalidJson("it must be one JSON object")
    # Check the cheap counts first: a value that is too deep has more brackets, a list that is too long at least as many commas.
    if text.count("{") + text.count("[") > max_depth and nests_deeper(value, max_depth):
        raise _too_deep(max_depth)
    if text.count(",") >= MAX_ITEMS:
        _check_lists(value)
    if _SURROGATE_ESCAPE.search(text):
        _check_unicode(_encode(value))
    return value


def nests_deeper(value: object, levels: int) -> bool:
    """Return True if lists and objects in ``value`` are nested more than ``levels`` deep; ``value`` itself is the first level."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    while level and levels:
        level, levels = _containers_in(level), levels - 1
    return bool(level)


def dump(value: Json) -> str:
    """Return ``value`` as JSON without blanks, or raise ``ValueError`` if it holds NaN or an infinite number."""
    return _encode(value)


def dump_bytes(value: Json) -> bytes:
    """Return ``dump(value)`` in UTF-8, encoded as by ``encode_utf8``."""
    return _encode(value).encode("utf-8", "replace")


def dump_line(value: Json) -> str:
    """Return ``dump(value)`` as one line for every reader: the three characters at which some readers split lines are escaped.
    Half of a surrogate pair becomes a question mark."""
    text = _encode(value)
    if text.isascii():
        return text
    for character, escape in _LINE_ENDS:
        text = text.replace(character, escape)
    return replace_surrogates(text)


def dump_canonical(value: Json) -> bytes:
    """Return ``value`` as JSON with sorted keys, so that equal values have equal bytes. ``True``, ``1`` and ``1.0`` differ."""
    return _encode_canonical(value).encode()


def encode_utf8(text: str) -> bytes:
    """Return ``text`` in UTF-8. Half of a surrogate pair, which UTF-8 cannot write, becomes a question mark."""
    return text.encode("utf-8", "replace")


def replace_surrogates(text: str) -> str:
    """Return ``text`` with a question mark for each half of a surrogate pair."""
    return encode_utf8(text).decode()


def _unique_members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    if len(pairs) > MAX_KEYS:
        raise InvalidJson(f"an object may hold {MAX_KEYS} keys at most")
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for number, name in enumerate(names) if name in names[:number])
        raise InvalidJson(f"the key {replace_surrogates(duplicate)[:_MAX_KEY_CHARACTERS]!r} stands twice in one object")
    return members


def _refuse_constant(name: str) -> Json:
    raise InvalidJson(f"{name} is not a JSON number")


def _parse_float(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        raise InvalidJson("a number is too large")
    return number


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InvalidJson(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _check_lists(value: Json) -> None:
    level: list[Any] = [value]
    while level:
        if any(isinstance(container, list) and len(container) > MAX_ITEMS for container in level):
            raise InvalidJson(f"a list may hold {MAX_ITEMS} items at most")
        level = _containers_in(level)


def _containers_in(level: list[Any]) -> list[Any]:
    """Return the lists and objects that are direct members of those in ``level``."""
    children = (container.values() if isinstance(container, dict) else container for container in level)
    return [child for inside in children for child in inside if isinstance(child, _CONTAINERS)]


def _too_deep(max_depth: int) -> InvalidJson:
    return InvalidJson(f"it is nested deeper than {max_depth} levels")


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidJson("it holds half of a surrogate pair, which is not a character") from None
