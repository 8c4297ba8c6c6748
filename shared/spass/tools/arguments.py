"""The arguments of a tool call: read from the text a model wrote, and said back to it where they are wrong."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from spass.core.messages import Json
from spass.tools.base import ToolError

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 32

_MAX_REPORTED: Final = 10
_MAX_LOC: Final = 64
_MAX_MESSAGE: Final = 300


class InvalidArguments(ToolError):
    """The arguments cannot be right. ``errors`` says where: one entry per field, its ``loc`` inside the arguments."""

    def __init__(self, message: str, errors: Sequence[Mapping[str, Json]] = ()) -> None:
        super().__init__(message, code="invalid_arguments")
        self.errors = tuple(errors)


def parse(text: str) -> Mapping[str, Json]:
    """The JSON object in ``text``. No text at all is an empty object: some models write that for a tool without arguments.

    Raises:
        InvalidArguments: it is no JSON object that JSON could write again.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidArguments(f"The arguments are longer than {MAX_BYTES} bytes. Send less at once.")
    if not text.strip():
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidArguments(
            f"The arguments are not valid JSON: {error.msg} at character {error.pos}. Write one JSON object."
        ) from None
    except ValueError:
        raise InvalidArguments("The arguments hold a number that is too long.") from None
    except RecursionError:
        raise InvalidArguments(f"The arguments are nested deeper than {MAX_DEPTH} levels.") from None
    if not isinstance(value, dict):
        raise InvalidArguments('The arguments must be one JSON object, such as {"name": "value"}.')
    check_plain(value)
    return value


def check_plain(value: Json) -> None:
    """Refuses what Python reads from JSON but what no JSON can carry on: deep nesting, numbers past the range of floats, half
    surrogate pairs.

    Raises:
        InvalidArguments: there is such a value.
    """
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Json] = []
        for item in level:
            if isinstance(item, str):
                _check_text(item)
            elif isinstance(item, Mapping):
                inner += [*item.keys(), *item.values()]
            elif isinstance(item, Sequence):
                inner += item
            elif isinstance(item, float) and not math.isfinite(item):
                raise InvalidArguments("The arguments hold a number that is too large.")
        level = inner
        if not level:
            return
    raise InvalidArguments(f"The arguments are nested deeper than {MAX_DEPTH} levels.")


def explained(error: ValidationError) -> InvalidArguments:
    """What pydantic found wrong, for the model: field by field."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_REPORTED]
    errors: list[Mapping[str, Json]] = []
    listed = []
    for detail in found:
        loc: list[Json] = [part if isinstance(part, int) else part[:_MAX_LOC] for part in detail["loc"]]
        message = detail["msg"].removeprefix("Value error, ")[:_MAX_MESSAGE]
        errors.append({"loc": loc, "message": message, "type": detail["type"]})
        listed.append(f"{'.'.join(map(str, loc)) or 'arguments'}: {message}")
    return InvalidArguments(f"The arguments do not fit this tool. {'; '.join(listed)}.", errors)


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArguments(f"The arguments name {_shown(twice)} twice. Name it once.")
    return found


def _no_constant(name: str) -> Json:
    raise InvalidArguments(f"{name} is not valid JSON. Write a number.")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArguments("The arguments hold text that is not valid Unicode: half a surrogate pair.") from None


def _shown(name: str) -> str:
    return repr(name.encode("utf-8", "replace").decode()[:80])
