"""Reading JSON that strangers write.

The standard parser accepts more than JSON (NaN, duplicate keys, halves of surrogate pairs) and can be made to work hard by small
texts (deep nesting, numbers of a million digits). What passes is one object that every floor can store and write back.
"""

import json
import re
from collections.abc import Iterable
from typing import Final

from spass.core.messages import Json

MAX_KEYS: Final = 1000
"""Keys of one object. Each unknown key is reported by validation, so their number must be bounded before it."""
MAX_ITEMS: Final = 10_000
"""Items of one list, for the same reason. No list of the contract may be nearly as long."""
MAX_DIGITS: Final = 64

_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SHOWN: Final = 64  # characters of a key


class InvalidJson(ValueError):
    """The text is not such an object. ``reason`` goes on after a colon; ``position`` is the character where JSON itself ends."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


def read_object(text: str, *, max_depth: int) -> dict[str, Json]:
    """The one JSON object that ``text`` is, nested ``max_depth`` levels at most.

    Raises:
        Unreadable: it is none, or not one that can be stored and written back.
    """
    _check_unicode(text)
    try:
        value: Json = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer
        )
    except json.JSONDecodeError as error:
        reason = f"it is not valid JSON ({error.msg} at line {error.lineno}, column {error.colno})"
        raise InvalidJson(reason, error.pos) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    if not isinstance(value, dict):
        raise InvalidJson("it must be one JSON object")
    # Without as many brackets nothing is nested too deep, without as many commas no list is too long: that decides most texts.
    if text.count("{") + text.count("[") > max_depth or text.count(",") >= MAX_ITEMS:
        _check_shape(value, max_depth)
    if _SURROGATE_ESCAPE.search(text):
        _check_unicode(json.dumps(value, ensure_ascii=False))
    return value


def canonical(value: Json) -> bytes:
    """Return ``value`` as JSON with the members of its objects in order, so that equal values are equal bytes. ``True`` is not
    ``1``, and ``1.0`` is not ``1``."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    if len(pairs) > MAX_KEYS:
        raise InvalidJson(f"an object may hold {MAX_KEYS} keys at most")
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise InvalidJson(f"the key {twice.encode('utf-8', 'replace').decode()[:_SHOWN]!r} stands twice in one object")
    return found


def _refuse_constant(name: str) -> Json:
    raise InvalidJson(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        raise InvalidJson("a number is too large")
    return number


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InvalidJson(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _check_shape(value: Json, max_depth: int) -> None:
    level: list[Json] = [value]
    for _ in range(max_depth):
        level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep(max_depth)


def _children(parent: Json) -> Iterable[Json]:
    if isinstance(parent, dict):
        return parent.values()
    if not isinstance(parent, list):
        return ()
    if len(parent) > MAX_ITEMS:
        raise InvalidJson(f"a list may hold {MAX_ITEMS} items at most")
    return parent


def _too_deep(max_depth: int) -> InvalidJson:
    return InvalidJson(f"it is nested deeper than {max_depth} levels")


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidJson("it holds half of a surrogate pair, which is no character") from None
