"""Say in plain words which value pydantic refused, and why. The message follows the name of the value: ``top_k: must be …``."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

_MESSAGES: Final = {
    "missing": "is missing, but it is required",
    "extra_forbidden": "is unknown; remove it",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
    "decimal_type": "must be a number",
    "decimal_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "date_from_datetime_parsing": "must be a day such as 2026-04-30",
}


def explain_error(kind: str, message: str) -> str:
    """Return the message for an error of type ``kind``, for which pydantic has ``message``."""
    if kind in _MESSAGES:
        return _MESSAGES[kind]
    message = message.removeprefix("Value error, ").replace(" after validation,", ",")
    return re.sub("^(Input|Value|String|List|Tuple|Dictionary|Decimal input) should ", "must ", message)


def field_path(loc: Iterable[object]) -> str:
    """Return ``("documents", 3, "text")`` as ``documents.3.text``, with an empty name as ``""``, to show in a message."""
    return ".".join(str(part) or '""' for part in loc)


def path_within(value: object, loc: Iterable[int | str], *, missing: bool) -> Iterator[int | str]:
    """Yield the parts of ``loc`` that exist in ``value``. With ``missing``, also yield the last part, which does not exist.

    Skip all other parts: pydantic inserts the names of the members of a union.
    """
    parts = tuple(loc)
    for number, part in enumerate(parts, 1):
        members = dict(enumerate(value)) if isinstance(value, list) else value if isinstance(value, dict) else {}
        if part in members:
            value = members[part]
            yield part
        elif missing and number == len(parts):
            yield part
