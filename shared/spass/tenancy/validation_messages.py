"""Say in plain words why pydantic refused a value. The message follows the name of the value: ``rag_top_k: must be …``."""

import re
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
